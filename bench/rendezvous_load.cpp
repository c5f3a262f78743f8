// Many nodes of one rendezvous in one process, each with a connection and a driver of its own, as
// bench/rendezvous.py tells it. Reads one command a line, answers one line of JSON.
//
//   connect  backend=hosted|file|plain|etcd endpoint=E run=R nodes=N min=N max=N [last_call_ms=M]
//            [grace_ms=M]   makes the nodes and connects them. A plain store is one that PyTorch
//            hosts, or a server of ours that is spoken to as if it were one
//   join     all nodes join at once; answers when every one knows its rank
//   storm    the same as connect and join together, without a pause between them
//   lose     the last node's connection breaks; answers when the others have met again
//   arrive   one more node joins; answers when all have met again
//   idle     seconds=S: only heartbeats
//   end      forgets the nodes
#include "bench/counting_transport.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/etcd/backend.h"
#include "muster/etcd/client.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/endpoint.h"
#include "muster/rendezvous/hosted_driver.h"
#include "muster/rendezvous/shared_driver.h"
#include "muster/rendezvous/store_backend.h"
#include "muster/store/file_store.h"
#include "muster/store/tcp_store.h"
#include "tests/server/dialect_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace muster::bench {
namespace {

using namespace rendezvous;
using namespace std::chrono_literals;

// As long as the fully qualified names of large clusters are.
std::string host_name(std::size_t index) {
  return fmt::format("node-{:06}.rack-{:03}.cluster.datacenter.example", index, index / 40);
}

double seconds(Duration length) { return std::chrono::duration<double>(length).count(); }

using Arguments = std::map<std::string, std::string>;

struct Plan {
  std::string backend;
  std::string endpoint;
  std::string run;
  std::size_t node_count = 0;
  Settings settings;
};

struct Member {
  std::unique_ptr<store::TcpStore> tcp;
  std::unique_ptr<store::Store> file;
  std::unique_ptr<etcd::Client> etcd;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Driver> driver;
  std::string error;
  TimePoint asked;   // when its join began
  TimePoint joined;  // when it knew its rank
  std::optional<Place> place;
  TaskScope scope;
};

class Load {
 public:
  Load()
      : tcp_(loop_),
        transport_(tcp_),
        pytorch_(transport_, wire::Dialect::Modern),
        random_(Random::from_system()) {}

  std::string obey(const std::string& command, const Arguments& arguments) {
    if (command == "connect" || command == "storm") {
      read_plan(arguments);
      members_.clear();
      for (std::size_t index = 0; index < plan_.node_count; ++index) add_member();
    }
    if (command == "connect") {
      const TimePoint began = clock_.now();
      each([this](Member& member) { return connect(member); });
      return answer({{"seconds", seconds(clock_.now() - began)}});
    }
    if (command == "storm") {
      return meet([this](Member& member) { return connect_and_join(member); });
    }
    if (command == "join") {
      return meet([this](Member& member) { return join(member); });
    }
    if (command == "lose") return lose();
    if (command == "arrive") return arrive();
    if (command == "idle") return idle(std::stod(arguments.at("seconds")));
    if (command == "end") {
      members_.clear();
      loop_.block_on(pause(50ms));  // for the connections to close
      return "{}";
    }
    return R"({"error": "unknown command"})";
  }

 private:
  void read_plan(const Arguments& arguments) {
    const auto number = [&](const char* name, std::int64_t otherwise) {
      const auto found = arguments.find(name);
      return found == arguments.end() ? otherwise : std::stoll(found->second);
    };
    plan_.backend = arguments.at("backend");
    plan_.endpoint = arguments.at("endpoint");
    plan_.run = arguments.at("run");
    plan_.node_count = static_cast<std::size_t>(number("nodes", 1));
    plan_.settings = Settings();
    plan_.settings.run_id = plan_.run;
    plan_.settings.min_nodes = number("min", number("nodes", 1));
    plan_.settings.max_nodes = number("max", number("nodes", 1));
    plan_.settings.timeouts.last_call = std::chrono::milliseconds(number("last_call_ms", 30'000));
    plan_.settings.grace = std::chrono::milliseconds(number("grace_ms", 500));
    plan_.settings.timeouts.join = 120s;
  }

  void add_member() {
    members_.push_back(std::make_unique<Member>());
    indices_[members_.back().get()] = next_index_++;
  }

  // -- what nodes do ---------------------------------------------------------------------------

  Task<void> connect(Member& member) {
    Node node{host_name(indices_.at(&member)), 4711, 0, random_.next()};
    if (plan_.backend == "hosted") {
      auto endpoint = net::parse_endpoint(plan_.endpoint, 0);
      store::TcpStoreOptions options;
      options.endpoint = *endpoint;
      auto store = co_await store::connect_tcp_store(loop_, transport_, random_, options);
      if (!store) {
        member.error = store.error().message;
        co_return;
      }
      member.tcp = std::move(*store);
      member.driver = make_hosted_driver(loop_, random_, *member.tcp->services(), plan_.settings,
                                         std::move(node), {});
      co_return;
    }
    if (plan_.backend == "plain") {
      auto endpoint = net::parse_endpoint(plan_.endpoint, 0);
      store::TcpStoreOptions options;
      options.endpoint = *endpoint;
      auto store = co_await store::connect_tcp_store(loop_, pytorch_, random_, options);
      if (!store) {
        member.error = store.error().message;
        co_return;
      }
      member.tcp = std::move(*store);
      member.backend = make_store_backend(loop_, *member.tcp, random_, plan_.run);
    } else if (plan_.backend == "file") {
      store::FileStoreOptions options;
      options.path = plan_.endpoint;
      auto store = store::make_file_store(loop_, random_, options);
      if (!store) {
        member.error = store.error().message;
        co_return;
      }
      member.file = std::move(*store);
      member.backend = make_store_backend(loop_, *member.file, random_, plan_.run);
    } else {
      auto endpoints = parse_endpoint_list(plan_.endpoint, 2379);
      etcd::Options options;
      for (const auto& endpoint : *endpoints) {
        options.endpoints.push_back({endpoint.host, endpoint.port});
      }
      auto client = co_await etcd::connect(loop_, random_, std::move(options));
      if (!client) {
        member.error = client.error().message;
        co_return;
      }
      member.etcd = std::move(*client);
      member.backend = etcd::make_backend(*member.etcd, plan_.run);
    }
    SharedDriverOptions options;
    member.driver = make_shared_driver(loop_, random_, *member.backend, plan_.settings,
                                       std::move(node), std::move(options));
  }

  Task<void> join(Member& member) {
    member.asked = clock_.now();
    const TimePoint deadline = loop_.now() + plan_.settings.timeouts.join;
    auto place = co_await member.driver->join(deadline);
    member.joined = clock_.now();
    if (place) {
      member.place = *place;
    } else {
      member.error = place.error().message;
    }
  }

  Task<void> connect_and_join(Member& member) {
    co_await connect(member);
    if (member.error.empty()) co_await join(member);
  }

  // As an agent does: joins again when there is a reason to.
  Task<void> follow(Member& member, std::size_t& done) {
    Status status = member.driver->status();
    while (status.waiting == 0 && !status.lost && status.member) {
      auto changed = co_await member.driver->wait_status(status, kNever);
      if (!changed) break;
      status = *changed;
    }
    co_await join(member);
    ++done;
  }

  Task<void> join_and_count(Member& member, std::size_t& done) {
    co_await connect_and_join(member);
    ++done;
  }

  // -- all of them -----------------------------------------------------------------------------

  static Task<void> counted(Task<void> task, std::size_t& done) {
    co_await task;
    ++done;
  }

  Task<void> until(const std::size_t& done, std::size_t wanted) {
    // Looked at once a turn: every change of `done` is one.
    while (done < wanted) {
      const TimePoint next = loop_.now() + 200us;
      co_await sleep_until(loop_, next);
    }
  }

  Task<void> pause(Duration length) {
    const TimePoint until = loop_.now() + length;
    co_await sleep_until(loop_, until);
  }

  void each(const std::function<Task<void>(Member&)>& work) {
    std::size_t done = 0;
    for (const auto& member : members_) member->scope.start(counted(work(*member), done));
    loop_.block_on(until(done, members_.size()));
  }

  std::string meet(const std::function<Task<void>(Member&)>& work) {
    const std::uint64_t version = state_version();
    const TrafficCount before = transport_.count();
    const TimePoint began = clock_.now();
    each(work);
    std::string text = report(began, before);
    if (plan_.backend == "file" || plan_.backend == "plain") {
      text.back() = ',';
      text += fmt::format(" \"state_writes\": {}}}", state_version() - version);
    }
    return text;
  }

  // How often the state has been written, which a token of the StoreBackend says.
  std::uint64_t state_version() {
    Backend* const backend = members_.front()->backend.get();
    if (backend == nullptr) return 0;
    const auto stored = loop_.block_on(backend->get_state());
    if (!stored || !*stored) return 0;
    const std::string& token = (*stored)->token;
    const std::size_t space = token.find(' ');
    return space == std::string::npos ? 0 : std::stoull(token.substr(space));
  }

  std::string report(TimePoint began, const TrafficCount& before) {
    TimePoint last_asked;
    TimePoint last_joined;
    std::set<std::int64_t> ranks;
    for (const auto& member : members_) {
      if (!member->error.empty()) return fmt::format(R"({{"error": "{}"}})", member->error);
      last_asked = std::max(last_asked, member->asked);
      last_joined = std::max(last_joined, member->joined);
      ranks.insert(member->place->rank);
      if (member->place->id != members_.front()->place->id ||
          member->place->world_size != static_cast<std::int64_t>(members_.size())) {
        return R"({"error": "the nodes do not agree"})";
      }
    }
    if (ranks.size() != members_.size() || *ranks.begin() != 0) {
      return R"({"error": "the ranks have gaps"})";
    }
    const TrafficCount after = transport_.count();
    const auto nodes = static_cast<double>(members_.size());
    return answer({{"seconds", seconds(last_joined - began)},
                   {"after_last_join", seconds(last_joined - last_asked)},
                   {"bytes", static_cast<double>(after.bytes - before.bytes) / nodes},
                   {"writes", static_cast<double>(after.writes - before.writes) / nodes},
                   {"reads", static_cast<double>(after.reads - before.reads) / nodes}});
  }

  std::string lose() {
    const TrafficCount before = transport_.count();
    std::size_t done = 0;
    for (std::size_t index = 0; index + 1 < members_.size(); ++index) {
      members_[index]->scope.start(follow(*members_[index], done));
    }
    const TimePoint began = clock_.now();
    members_.pop_back();
    loop_.block_on(until(done, members_.size()));
    return report(began, before);
  }

  std::string arrive() {
    const TrafficCount before = transport_.count();
    std::size_t done = 0;
    for (const auto& member : members_) member->scope.start(follow(*member, done));
    add_member();
    const TimePoint began = clock_.now();
    members_.back()->scope.start(join_and_count(*members_.back(), done));
    loop_.block_on(until(done, members_.size()));
    return report(began, before);
  }

  std::string idle(double length) {
    const TrafficCount before = transport_.count();
    loop_.block_on(
        pause(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(length))));
    const TrafficCount after = transport_.count();
    const double beats = length / seconds(plan_.settings.keep_alive_interval);
    const auto nodes = static_cast<double>(members_.size());
    return answer(
        {{"bytes_a_heartbeat", static_cast<double>(after.bytes - before.bytes) / nodes / beats}});
  }

  static std::string answer(const std::vector<std::pair<std::string, double>>& numbers) {
    std::string text = "{";
    for (const auto& [name, number] : numbers) {
      text += fmt::format("{}\"{}\": {}", text.size() > 1 ? ", " : "", name, number);
    }
    return text + "}";
  }

  SystemClock clock_;  // the loop's stands still during a turn
  net::EpollLoop loop_;
  net::TcpTransport tcp_;
  CountingTransport transport_;
  tests::DialectTransport pytorch_;
  Random random_;
  Plan plan_;
  std::map<const Member*, std::size_t> indices_;
  std::size_t next_index_ = 0;
  std::vector<std::unique_ptr<Member>> members_;  // last: its tasks use the rest
};

int serve() {
  log::set_level(log::Level::Warn);
  net::raise_descriptor_limit();
  Load load;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    Arguments arguments;
    std::string word;
    while (words >> word) {
      const std::size_t equals = word.find('=');
      if (equals != std::string::npos) arguments[word.substr(0, equals)] = word.substr(equals + 1);
    }
    fmt::print("{}\n", load.obey(command, arguments));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main() { return muster::bench::serve(); }
