// The real PyTorch client, and PyTorch's own server, for `bench/run store`.
//
// Compiled by bench/run against the libtorch inside a PyTorch 2.x virtual environment, not by
// CMake; so it knows nothing of Muster.
//
//   torch_load serve PORT_FILE    hosts a TCPStore (libuv) until its input ends
//   torch_load                    reads one command a line, answers one line of JSON:
//     measure port=29500 operation=get clients=64 value_bytes=16 milliseconds=300
//
// A PyTorch client handles one request at a time and blocks in it, so N clients are N threads, each
// with a store (and so a connection) of its own.
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <netdb.h>
#include <netinet/in.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

// PyTorch looks up the name of the other end of each connection, its server on the thread that
// serves all others. What that costs depends on the machine's resolver (seconds, if it drops a
// packet), which is not what we compare: here it gets the number at once. This favours PyTorch.
extern "C" int getnameinfo(const sockaddr* address, socklen_t, char* host, socklen_t host_size,
                           char* service, socklen_t service_size, int) {
  in_port_t port = 0;
  const void* number = nullptr;
  if (address->sa_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
    number = &six->sin6_addr;
    port = six->sin6_port;
  } else if (address->sa_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(address);
    number = &four->sin_addr;
    port = four->sin_port;
  } else {
    return EAI_FAMILY;
  }
  if (host != nullptr && host_size > 0 &&
      inet_ntop(address->sa_family, number, host, host_size) == nullptr) {
    return EAI_OVERFLOW;
  }
  if (service != nullptr && service_size > 0)
    std::snprintf(service, service_size, "%u", unsigned{ntohs(port)});
  return 0;
}

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::uint8_t>;
using Stores = std::vector<c10::intrusive_ptr<c10d::TCPStore>>;

struct Workload {
  std::string operation;
  int port = 0;
  int client_count = 1;
  std::size_t value_bytes = 16;
  std::chrono::milliseconds length{300};
};

struct Outcome {
  std::vector<std::uint32_t> nanoseconds;
  Clock::duration elapsed{};
  std::size_t all_count = 0;  // with those of the warm-up
};

std::string key_of(std::size_t client) {
  char text[32];
  std::snprintf(text, sizeof text, "bench/%06zu", client);
  return text;
}

c10::intrusive_ptr<c10d::TCPStore> connect(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(30);
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// Runs `client(index)` in as many threads and passes on the first exception.
void run_threads(std::size_t count, const std::function<void(std::size_t)>& client) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        client(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// One operation of one client. `turn` counts its operations.
void operate(c10d::TCPStore& store, const Workload& workload, const std::string& key,
             const Bytes (&values)[2], std::size_t turn) {
  if (workload.operation == "get") {
    if (store.get(key).size() != workload.value_bytes)
      throw std::runtime_error("a value came back with another size");
  } else if (workload.operation == "set") {
    store.set(key, values[0]);
  } else if (workload.operation == "add") {
    store.add(key, 1);
  } else if (workload.operation == "compare_set") {
    if (store.compareSet(key, values[turn % 2], values[1 - turn % 2]) != values[1 - turn % 2]) {
      throw std::runtime_error("a compare_set was not carried out");
    }
  } else {
    throw std::runtime_error("there is no operation " + workload.operation);
  }
}

Outcome closed_loop(const Workload& workload, Stores& stores) {
  const auto count = static_cast<std::size_t>(workload.client_count);
  const Bytes values[2] = {Bytes(workload.value_bytes, 'a'), Bytes(workload.value_bytes, 'b')};
  const bool counts = workload.operation == "add";
  std::vector<std::vector<std::uint32_t>> lengths(count);
  std::barrier together(static_cast<std::ptrdiff_t>(count));
  std::atomic<Clock::rep> first{Clock::time_point::max().time_since_epoch().count()};
  std::atomic<Clock::rep> last{0};
  std::atomic<std::size_t> all_count{0};
  run_threads(count, [&](std::size_t i) {
    c10d::TCPStore& store = *stores[i];
    const std::string key = key_of(i);
    store.set(key, counts ? Bytes{'0'} : values[0]);
    store.check({key});
    together.arrive_and_wait();
    const auto begun = Clock::now();
    const auto begins = begun + workload.length / 5;
    const auto ends = begins + workload.length;
    auto before = begun;
    std::size_t turn = 0;
    for (; before < ends; ++turn) {
      operate(store, workload, key, values, turn);
      const auto now = Clock::now();
      if (before >= begins)
        lengths[i].push_back(static_cast<std::uint32_t>((now - before).count()));
      before = now;
    }
    // A set has no reply: it is done when the server has answered something that was sent after it.
    if (workload.operation == "set") store.check({key});
    const auto done = Clock::now();
    all_count += turn;
    for (auto seen = last.load(); seen < done.time_since_epoch().count();) {
      if (last.compare_exchange_weak(seen, done.time_since_epoch().count())) break;
    }
    for (auto seen = first.load(); seen > begins.time_since_epoch().count();) {
      if (first.compare_exchange_weak(seen, begins.time_since_epoch().count())) break;
    }
  });
  Outcome outcome;
  for (const auto& each : lengths)
    outcome.nanoseconds.insert(outcome.nanoseconds.end(), each.begin(), each.end());
  outcome.elapsed = Clock::duration(last.load() - first.load());
  outcome.all_count = all_count.load();
  return outcome;
}

// One set releases every client. Nobody can tell from outside when the server has seen a wait, so
// the setter gives the others time; that pause is in neither figure.
Outcome wake(const Workload& workload, Stores& stores) {
  const auto count = static_cast<std::size_t>(workload.client_count);
  const Bytes value(workload.value_bytes, 'a');
  const auto setter = connect(workload.port);
  const auto run = std::to_string(Clock::now().time_since_epoch().count());
  const auto pause = std::chrono::microseconds(500 + 50 * workload.client_count);
  std::vector<std::vector<std::uint32_t>> lengths(count);
  std::atomic<std::size_t> waiting{0};
  std::atomic<Clock::rep> sent{0};
  std::atomic<bool> over{false};
  std::barrier round(static_cast<std::ptrdiff_t>(count + 1));
  Outcome outcome;
  run_threads(count + 1, [&](std::size_t i) {
    const auto stop = Clock::now() + workload.length;
    for (std::size_t turn = 0; !over.load(); ++turn) {
      const std::string key = "bench/wake/" + run + "/" + std::to_string(turn);
      if (i < count) {
        ++waiting;
        stores[i]->wait({key});
        const auto length = Clock::now().time_since_epoch().count() - sent.load();
        lengths[i].push_back(static_cast<std::uint32_t>(length));
        round.arrive_and_wait();
      } else {
        while (waiting.load() < count * (turn + 1)) std::this_thread::yield();
        std::this_thread::sleep_for(pause);
        setter->check({key});
        const auto begun = Clock::now();
        sent.store(begun.time_since_epoch().count());
        if (begun >= stop) over.store(true);
        setter->set(key, value);
        round.arrive_and_wait();
        outcome.elapsed += Clock::now() - begun;
      }
    }
  });
  for (const auto& each : lengths)
    outcome.nanoseconds.insert(outcome.nanoseconds.end(), each.begin(), each.end());
  outcome.all_count = outcome.nanoseconds.size();
  return outcome;
}

std::string json_of(Outcome outcome) {
  auto& all = outcome.nanoseconds;
  if (all.empty()) throw std::runtime_error("nothing was done in the time given");
  std::sort(all.begin(), all.end());
  const auto at = [&](double fraction) {
    return all[std::min(all.size() - 1,
                        static_cast<std::size_t>(fraction * static_cast<double>(all.size())))] /
           1e3;
  };
  const double seconds = std::chrono::duration<double>(outcome.elapsed).count();
  char text[256];
  std::snprintf(text, sizeof text,
                R"({"operations": %zu, "all_operations": %zu, "seconds": %.6f, "rate": %.1f, )"
                R"("p50": %.3f, "p99": %.3f, "longest": %.3f})",
                all.size(), outcome.all_count, seconds, static_cast<double>(all.size()) / seconds,
                at(0.5), at(0.99), all.back() / 1e3);
  return text;
}

class LoadGenerator {
 public:
  std::string obey(const std::string& line) {
    const Workload workload = parse(line);
    Stores& stores = stores_[workload.port];
    while (stores.size() < static_cast<std::size_t>(workload.client_count))
      stores.push_back(connect(workload.port));
    return json_of(workload.operation == "wake" ? wake(workload, stores)
                                                : closed_loop(workload, stores));
  }

 private:
  static Workload parse(const std::string& line) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word != "measure") throw std::runtime_error("there is no command " + word);
    std::map<std::string, std::string> given;
    while (words >> word) {
      const auto at = word.find('=');
      if (at == std::string::npos) throw std::runtime_error(word + " is not NAME=VALUE");
      given[word.substr(0, at)] = word.substr(at + 1);
    }
    Workload workload;
    workload.operation = given["operation"];
    workload.port = std::stoi(given["port"]);
    workload.client_count = std::stoi(given["clients"]);
    workload.value_bytes = std::stoul(given["value_bytes"]);
    workload.length = std::chrono::milliseconds(std::stol(given["milliseconds"]));
    return workload;
  }

  std::map<int, Stores> stores_;  // by port; kept, since connecting is not what is measured
};

int serve(const std::string& file) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  if (!store->isLibUvBackend()) {
    std::fputs("torch_load: this PyTorch has no libuv server\n", stderr);
    return 1;
  }
  const std::string draft = file + ".new";
  std::ofstream(draft) << store->getPort() << "\n";
  if (std::rename(draft.c_str(), file.c_str()) != 0) return 1;
  for (std::string line; std::getline(std::cin, line);) {
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "serve") return serve(argv[2]);
  LoadGenerator generator;
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer;
    try {
      answer = generator.obey(line);
    } catch (const std::exception& error) {
      std::string message(error.what());
      message = message.substr(0, message.find('\n'));
      for (char& c : message)
        c = c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? '\'' : c;
      answer = R"({"error": ")" + message + "\"}";
    }
    std::cout << answer << std::endl;
  }
  return 0;
}
