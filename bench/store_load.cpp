// The load generator of `bench/run store`: reads one command a line, answers one line of JSON.
//
//   measure driver=redis port=6379 operation=get clients=16 depth=1 value_bytes=16 milliseconds=300
//   wire_bytes port=4400 operation=get value_bytes=16        what Muster's client and server
//   exchange for it crowd_open driver=tcpstore port=29500 clients=10000      connections that say
//   hello and then nothing crowd_wait                                               all of them
//   wait crowd_wake value_bytes=16                                one write releases them
//   crowd_close
//
// Drivers: muster, echo (needs request_bytes= and reply_bytes=), redis, tcpstore; crowds cannot be
// Muster's. It ends at the end of its input. One process for all of them, so that no peer's client
// has caches, memory or a core that another's has not.
#include "bench/crowd.h"
#include "bench/load.h"
#include "bench/muster_driver.h"
#include "bench/protocol.h"
#include "bench/socket_driver.h"

#include <fmt/format.h>

#include <charconv>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace muster::bench {
namespace {

// One command, taken apart.
class Command {
 public:
  static Result<Command> parse(const std::string& line) {
    std::istringstream words(line);
    Command command;
    words >> command.name;
    for (std::string word; words >> word;) {
      const std::size_t at = word.find('=');
      if (at == std::string::npos)
        return fail(ErrorKind::Invalid, fmt::format("'{}' is not NAME=VALUE", word));
      command.arguments_[word.substr(0, at)] = word.substr(at + 1);
    }
    return command;
  }

  std::string text(const std::string& argument) const {
    const auto found = arguments_.find(argument);
    return found == arguments_.end() ? std::string() : found->second;
  }
  // `otherwise` if it was not given; an error is remembered in `bad`.
  int number(const std::string& argument, int otherwise) {
    const std::string given = text(argument);
    if (given.empty()) return otherwise;
    int value = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
    if (error != std::errc() || end != given.data() + given.size() || value < 0) bad = argument;
    return value;
  }

  std::string name;
  std::string bad;

 private:
  std::map<std::string, std::string> arguments_;
};

std::unique_ptr<Protocol> make_protocol(const std::string& driver, const Workload& workload) {
  if (driver == "echo") return make_echo_protocol(workload.request_bytes, workload.reply_bytes);
  if (driver == "redis") return make_redis_protocol();
  if (driver == "tcpstore") return make_tcpstore_protocol();
  return nullptr;
}

class LoadGenerator {
 public:
  Result<std::string> obey(Command command) {
    if (command.name == "crowd_wait") return crowd_wait();
    if (command.name == "crowd_close") {
      crowd_.reset();
      return std::string("{}");
    }
    auto workload = workload_of(command);
    if (!workload) return fail(std::move(workload.error()));
    if (command.name == "crowd_wake") return crowd_wake(*workload);
    const std::string driver = command.text("driver");
    if (command.name == "crowd_open") return crowd_open(driver, *workload);
    if (command.name == "wire_bytes") return wire_bytes(*workload);
    if (command.name == "measure") return measure(driver, *workload);
    return fail(ErrorKind::Invalid, fmt::format("there is no command '{}'", command.name));
  }

 private:
  static Result<Workload> workload_of(Command& command) {
    Workload workload;
    if (const std::string name = command.text("operation"); !name.empty()) {
      auto operation = parse_operation(name);
      if (!operation) return fail(std::move(operation.error()));
      workload.operation = *operation;
    }
    workload.port = command.number("port", 0);
    workload.client_count = command.number("clients", 1);
    workload.depth = command.number("depth", 1);
    workload.value_bytes = static_cast<std::size_t>(command.number("value_bytes", 16));
    workload.length = std::chrono::milliseconds(command.number("milliseconds", 300));
    workload.request_bytes = static_cast<std::size_t>(command.number("request_bytes", 1));
    workload.reply_bytes = static_cast<std::size_t>(command.number("reply_bytes", 1));
    if (!command.bad.empty())
      return fail(ErrorKind::Invalid, fmt::format("{}= needs a number", command.bad));
    return workload;
  }

  static Result<std::string> measure(const std::string& name, const Workload& workload) {
    const auto driver = make_driver(name);
    if (!driver) return fail(ErrorKind::Invalid, fmt::format("there is no driver '{}'", name));
    if (name == "redis" && workload.operation == Operation::CompareSet) {
      return fail(ErrorKind::Unimplemented, "redis has no compare_set without a script");
    }
    auto measurement = driver->measure(workload);
    if (!measurement) return fail(std::move(measurement.error()));
    if (measurement->latencies.count() == 0)
      return fail(ErrorKind::Timeout, "nothing was done in the time given");
    return measurement->json();
  }

  static std::unique_ptr<Driver> make_driver(const std::string& name) {
    if (name == "muster") return std::make_unique<MusterDriver>();
    if (!make_protocol(name, Workload())) return nullptr;
    return std::make_unique<SocketDriver>(
        [name](const Workload& workload) { return make_protocol(name, workload); });
  }

  static Result<std::string> wire_bytes(const Workload& workload) {
    auto bytes = count_wire_bytes(workload);
    if (!bytes) return fail(std::move(bytes.error()));
    return fmt::format(R"({{"request_bytes": {}, "reply_bytes": {}}})", bytes->request_bytes,
                       bytes->reply_bytes);
  }

  Result<std::string> crowd_open(const std::string& driver, const Workload& workload) {
    auto protocol = make_protocol(driver, workload);
    if (!protocol) return fail(ErrorKind::Invalid, fmt::format("there is no driver '{}'", driver));
    auto crowd = Crowd::open(workload.port, workload.client_count, std::move(protocol));
    if (!crowd) return fail(std::move(crowd.error()));
    crowd_ = std::move(*crowd);
    return fmt::format(R"({{"connections": {}}})", crowd_->size());
  }

  Result<std::string> crowd_wait() {
    if (!crowd_) return fail(ErrorKind::Invalid, "there is no crowd");
    if (auto waited = crowd_->wait(); !waited) return fail(std::move(waited.error()));
    return std::string("{}");
  }

  Result<std::string> crowd_wake(const Workload& workload) {
    if (!crowd_) return fail(ErrorKind::Invalid, "there is no crowd");
    Measurement measurement;
    const TimePoint begun = steady_now();
    if (auto woken = crowd_->wake(workload.value_bytes, measurement.latencies); !woken) {
      return fail(std::move(woken.error()));
    }
    measurement.elapsed = steady_now() - begun;
    return measurement.json();
  }

  std::unique_ptr<Crowd> crowd_;
};

// Messages are ours or a server's; quotes and control characters would break the line.
std::string quoted(const std::string& message) {
  std::string safe;
  for (const char c : message)
    safe.push_back(c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? '\'' : c);
  return fmt::format(R"({{"error": "{}"}})", safe);
}

}  // namespace
}  // namespace muster::bench

int main() {
  muster::bench::LoadGenerator generator;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.empty()) continue;
    auto command = muster::bench::Command::parse(line);
    auto answer =
        command ? generator.obey(std::move(*command)) : muster::fail(std::move(command.error()));
    std::cout << (answer ? *answer : muster::bench::quoted(answer.error().message)) << std::endl;
  }
  return 0;
}
