// How simulated connections begin: ports that listen, and connectors that ask them. Inside sim
// only.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/net/transport.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace muster::sim {
class Host;
class Network;
}  // namespace muster::sim

namespace muster::sim::internal {

using AcceptFunction = std::function<void(std::unique_ptr<net::Stream>)>;

// A listening port. Owned by the network until its listener is gone and no call of it is under way.
class Port {
 public:
  Port(Network& network, Host& host, int number, AcceptFunction accepted);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  int number() const { return number_; }
  Host& host() { return host_; }
  bool full() const;
  void push(std::unique_ptr<net::Stream> stream);
  void set_accepting(bool accepting);
  // Stops listening; connections that were not accepted are reset.
  void close();
  // The listener is gone.
  void release();
  bool released() const { return released_; }

 private:
  void notify();
  void dispatch();

  Network& network_;
  Host& host_;
  int number_;
  AcceptFunction accepted_;
  std::deque<std::unique_ptr<net::Stream>> backlog_;
  bool accepting_ = true;
  bool open_ = true;
  bool released_ = false;
  Timer dispatch_;  // on the host's loop
};

class SimListener final : public net::Listener {
 public:
  explicit SimListener(Port& port) : port_(port) {}
  ~SimListener() override { port_.release(); }
  int port() const override { return port_.number(); }
  void set_accepting(bool accepting) override { port_.set_accepting(accepting); }

 private:
  Port& port_;
};

using ConnectOutcome = Oneshot<Result<std::unique_ptr<net::Stream>>>;

// One attempt to connect. Owned by the frame of Host::connect; destroying it gives up.
class Connector {
 public:
  // Requires: `outcome` outlives it.
  Connector(Network& network, Host& from, net::Endpoint endpoint, ConnectOutcome& outcome);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  Host& from() { return from_; }
  void fail(int error_number);

 private:
  enum class Stage { Asking, Refused, Answered };

  void step();
  void ask();
  // No answer: asks again later, until it has been silent for too long.
  void wait_and_retry();

  Network& network_;
  Host& from_;
  Host* to_ = nullptr;
  net::Endpoint endpoint_;
  ConnectOutcome& outcome_;
  Stage stage_ = Stage::Asking;
  TimePoint give_up_;
  std::unique_ptr<net::Stream> stream_;
  Timer timer_;
};

}  // namespace muster::sim::internal
