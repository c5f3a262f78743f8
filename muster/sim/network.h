// sim::Network: many simulated hosts on one sim::Loop, driven by one seed. The same seed gives the
// same run.
//
// Each Host is a net::Transport. Its streams behave as TCP's do towards the program: reliable and
// in order, torn at arbitrary bytes, with a bounded window, half-close, and a reset when one side
// closes without having read everything. What a real network adds to that can be ordered (cut,
// reset, crash, pause) or drawn (Weather).
//
// The model, where it decides something:
//  - A connection to a port that nobody listens on, or to a host that is down, is refused. A host
//  that crashed silently
//    answers nothing; neither does a host behind a cut.
//  - What meets a cut waits and arrives after it is healed. If no byte is acknowledged for
//  `Weather::silence_max`, the
//    sender's end dies with ETIMEDOUT. An end that only waits never notices, as without keep-alive.
//  - An end that is reset or timed out loses what it has received and not yet read, and what it has
//  not yet sent.
//  - An end that may not send because the other does not read asks every second whether it is still
//  there.
//  - A side that has forgotten a connection (crashed, timed out, closed) answers bytes for it with
//  a reset.
//  - Events repeat while their condition holds and is wanted. If the handler moved no bytes, the
//  next call comes a
//    microsecond later, so that time passes even for a handler that does nothing.
#pragma once

#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/net/transport.h"
#include "muster/sim/loop.h"
#include "muster/sim/weather.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::sim {

class Network;

namespace internal {
class Connector;
class End;
class Port;
struct Connection;
}  // namespace internal

// How many connections wait to be accepted before further ones get no answer.
inline constexpr std::size_t kBacklogMax = 128;

// How a host goes down.
enum class Crash {
  Loud,    // as when a process is killed: peers see resets, new connections are refused
  Silent,  // as when the power fails: nobody is told, and nothing is answered until the host is
           // started again
};

// One simulated machine. Owned by its network. Everything that runs "on" it should use its loop, so
// that it stops when the host is paused and sees the host's clock; the network's loop works too,
// but knows neither.
//
// Requires: streams, listeners and connect tasks are gone before the network.
class Host final : public net::Transport {
 public:
  Host(Network& network, std::string name, std::size_t index);
  ~Host() override;

  const std::string& name() const { return name_; }
  LocalLoop& loop() { return loop_; }
  bool is_up() const { return state_ == State::Up; }

  // A host is reached by its name; "", "localhost", "127.0.0.1" and "::1" are the host itself.
  Task<Result<std::unique_ptr<net::Stream>>> connect(net::Endpoint endpoint) override;
  Result<std::unique_ptr<net::Listener>> listen(
      const net::Endpoint& endpoint,
      std::function<void(std::unique_ptr<net::Stream>)> accepted) override;

 private:
  friend class Network;
  friend class internal::Connector;
  friend class internal::End;
  friend class internal::Port;

  enum class State { Up, Down, Unplugged };

  bool is_own_address(std::string_view host) const;
  int free_port();

  Network& network_;
  std::string name_;
  std::size_t index_;
  LocalLoop loop_;
  State state_ = State::Up;
  std::map<int, internal::Port*> ports_;  // those that listen
  int next_port_;
};

// Owned by the test. Requires: `loop` outlives it.
class Network {
 public:
  // Takes one number from `random` as its own seed, so that what the program under test draws does
  // not change the network's course.
  Network(Loop& loop, Random& random, Weather weather = {});
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  Loop& loop() { return loop_; }
  // The host of this name, which is made when it is first asked for.
  Host& host(std::string_view name);

  // From now on; what is on the way keeps its time.
  void set_weather(const Weather& weather) { weather_ = weather; }
  const Weather& weather() const { return weather_; }

  // Nothing passes from `from` to `to`, or between `a` and `b`, until it is healed.
  void cut_one_way(const Host& from, const Host& to);
  void cut(const Host& a, const Host& b);
  void heal(const Host& a, const Host& b);
  void heal_all();

  // The stream's connection is reset: this end at once, the other when the news arrives. Works for
  // streams of this network only.
  void reset(net::Stream& stream);
  // The same for every connection of a host.
  void reset_all(Host& host);

  // The host's streams and listeners die, and its loop stops. The test destroys what ran on it,
  // then starts it again.
  void crash(Host& host, Crash how);
  void restart(Host& host);

  // Stops and continues what runs on the host's loop; its kernel keeps receiving and acknowledging.
  void pause(Host& host) { host.loop_.stop(); }
  void resume(Host& host);

  // A number that stands for everything that has happened so far, to compare two runs.
  std::uint64_t trace_hash() const { return trace_hash_; }
  // Gets one line for everything that happens, for people.
  void set_tracer(std::function<void(std::string_view line)> tracer) {
    tracer_ = std::move(tracer);
  }

  // How many connections some end still holds.
  std::size_t connection_count() const { return connections_.size(); }

 private:
  friend class Host;
  friend class internal::Connector;
  friend class internal::End;
  friend class internal::Port;

  struct StreamPair {
    std::unique_ptr<net::Stream> client;
    std::unique_ptr<net::Stream> server;
  };

  Host* find_host(std::string_view name);
  bool blocked(const Host& from, const Host& to) const;
  Duration draw_latency();
  // `bytes`, or fewer on a bad day; at least one. Requires: bytes > 0.
  std::size_t maybe_torn(std::size_t bytes);
  StreamPair make_connection(Host& client, Host& server, int server_port);
  void retry_stalled();
  void trace(std::string_view what, std::uint64_t subject, std::uint64_t value);

  // Connections and ports are freed from the loop, never inside one of their own calls.
  void sweep_soon();
  void sweep();

  Loop& loop_;
  Random random_;
  Weather weather_;
  std::uint64_t trace_hash_ = 0xcbf29ce484222325U;
  std::function<void(std::string_view)> tracer_;
  std::map<std::string, std::unique_ptr<Host>, std::less<>> hosts_;
  std::set<std::pair<std::size_t, std::size_t>> cuts_;  // from, to: indices of hosts
  std::map<std::uint64_t, std::unique_ptr<internal::Connection>> connections_;
  std::uint64_t next_connection_ = 1;
  std::vector<std::unique_ptr<internal::Port>> listening_;
  std::vector<internal::Connector*> connectors_;  // in the order they began
  Timer sweep_timer_;
};

}  // namespace muster::sim
