// World: a store server and the nodes of one run, on a simulated network, from one seed.
//
// The nodes run one of the real drivers: the hosted one, or the shared one over a store that is
// spoken to in one of three dialects. After every turn of the simulation the Ledger looks at what
// the nodes were told and at what is stored.
#pragma once

#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/rendezvous/backend.h"
#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/host.h"
#include "muster/rendezvous/settings.h"
#include "muster/rendezvous/state.h"
#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "muster/store/server.h"
#include "muster/store/tcp_store.h"
#include "tests/fuzz/peer.h"
#include "tests/rendezvous_sim/ledger.h"
#include "tests/server/dialect_transport.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rendezvous::testing {

// How nodes take part: through the server's Host, or over its keys in one of the dialects.
enum class Kind { Hosted, Extension, Modern, Legacy };
inline constexpr Kind kKinds[] = {Kind::Hosted, Kind::Extension, Kind::Modern, Kind::Legacy};
std::string_view name_of(Kind kind);
// The name in one word, for tests that run with every kind.
std::string word_for(Kind kind);

inline constexpr int kPort = 4400;

// What a test may put between a driver and what it talks to, to see that it is noticed.
struct Sabotage {
  std::function<std::unique_ptr<Backend>(Backend& backend)> backend;
  std::function<std::unique_ptr<store::ServiceClient>(store::ServiceClient& services)> services;
};

struct WorldOptions {
  std::uint64_t seed = 1;
  Kind kind = Kind::Hosted;
  Settings settings;
  sim::Weather weather = {};
  Sabotage sabotage = {};
};

// The machine that hosts the store. It forgets everything when it is stopped.
class ServerMachine {
 public:
  ServerMachine(sim::Host& host, std::string run_id, std::uint64_t seed);
  ~ServerMachine();

  void start();
  void stop();
  bool is_running() const { return server_ != nullptr; }
  sim::Host& host() { return host_; }

  // What the Host has, or what is stored under the keys of a shared run; nothing if there is none.
  // Until the next turn.
  const State* hosted_state() const;
  // Requires: it can be read.
  const State* shared_state();
  // How often the state of a shared run was written.
  std::uint64_t shared_write_count();

 private:
  std::optional<std::string> read(std::string_view key);

  sim::Host& host_;
  const std::string run_id_;
  Random random_;
  std::unique_ptr<rendezvous::Host> service_;
  std::unique_ptr<store::Server> server_;
  std::unique_ptr<tests::Peer> spy_;  // reads without a network
  std::string seen_pointer_;
  State seen_;
};

// One life of a node: from start to end or crash.
class Process {
 public:
  struct Parts {
    Kind kind = Kind::Hosted;
    Settings settings;
    Node node;
    std::uint64_t seed = 0;
    const Sabotage* sabotage = nullptr;
    Ledger* ledger = nullptr;
  };
  Process(sim::Host& host, Parts parts);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const Node& node() const { return parts_.node; }
  sim::Host& host() { return host_; }
  Random& random() { return random_; }
  // Requires: `open` has succeeded.
  Driver& driver() { return *driver_; }
  bool is_open() const { return store_ != nullptr; }
  // For a handler, which then owns it and must be gone before the process.
  std::unique_ptr<Driver> take_driver() { return std::move(driver_); }
  store::TcpStore& store() { return *store_; }

  // Connects to the server, with a few seconds' patience, and makes the driver.
  Task<Result<>> open();
  // The driver's, with a note in the ledger.
  Task<Result<Place>> join(TimePoint deadline);

  // For tests that tell a node what to do: begins it, and forgets the outcome of the last one.
  // `join` opens the process if need be.
  void begin_join(Duration timeout);
  void begin_join() { begin_join(parts_.settings.timeouts.join); }
  void begin_leave();
  void begin_close();
  const std::optional<Result<Place>>& joined() const { return joined_; }
  const std::optional<Result<>>& done() const { return done_; }  // leave or close
  bool is_in() const { return joined_ && joined_->has_value(); }
  const Place& place() const { return **joined_; }
  Status status() const { return driver_ ? driver_->status() : Status(); }
  // Gives up the call that is running.
  void cancel() { calls_.cancel_all(); }

  TaskScope& calls() { return calls_; }

 private:
  Task<void> run_join(Duration timeout);
  Task<void> run_leave();
  Task<void> run_close();

  sim::Host& host_;
  const Parts parts_;
  Random random_;
  tests::DialectTransport transport_;
  std::unique_ptr<store::TcpStore> store_;
  std::unique_ptr<store::ServiceClient> services_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> sabotaged_;
  std::unique_ptr<Driver> driver_;
  std::optional<Result<Place>> joined_;
  std::optional<Result<>> done_;
  TaskScope calls_;  // last: its tasks use the rest
};

class World {
 public:
  explicit World(WorldOptions options);
  ~World();

  sim::Loop& loop() { return loop_; }
  sim::Network& network() { return network_; }
  ServerMachine& server() { return server_; }
  Ledger& ledger() { return ledger_; }
  const WorldOptions& options() const { return options_; }
  TimePoint now() const { return loop_.now(); }

  // The clock of this host goes `ahead` of the others from now on. Takes a second. Requires:
  // nothing runs on it yet.
  void set_clock_ahead(sim::Host& host, Duration ahead);

  // A new process on the host of this name, which is up.
  Process& add(std::string_view host_name);
  Process& add(std::string_view host_name, const Settings& settings, const Node& node);
  // As when it is killed, or its machine loses power; what it was is gone. The host can be started
  // again.
  void kill(Process& process, sim::Crash how);
  void kill_server(sim::Crash how);
  void restart_server();
  const std::vector<std::unique_ptr<Process>>& processes() const { return processes_; }

  // What is stored, until the next turn; an empty one if there is nothing.
  const State& state();

  // Runs until `reached`; false at the limit. The ledger looks after every turn.
  bool run_until(const std::function<bool()>& reached, Duration limit);
  void run_for(Duration length);
  // Every process is in a round.
  bool run_until_all_are_in(Duration limit);
  // Called after every turn, for people who want to see what happens.
  void set_spectator(std::function<void()> spectator) { spectator_ = std::move(spectator); }

 private:
  void look();

  const WorldOptions options_;
  Random random_;
  sim::Loop loop_;
  sim::Network network_;
  Ledger ledger_;
  ServerMachine server_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::int64_t last_pid_ = 0;
  std::function<void()> spectator_;
};

}  // namespace muster::rendezvous::testing
