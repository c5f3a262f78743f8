// Machine: what the backends need of the machine they run on: its network, its names, its free
// ports, its environment. `SystemMachine` is the real one.
//
// Owned by whoever builds the object graph; outlives the handlers that were made with it. Lives on
// one loop.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/net/transport.h"

#include <optional>
#include <string>

namespace muster::backends {

class Machine {
 public:
  Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  virtual ~Machine() = default;

  virtual net::Transport& transport() = 0;
  // Whether `host`, a name or an address, is this machine.
  virtual Task<bool> is_called(std::string host) = 0;
  // The fully qualified name.
  virtual Task<std::string> name() = 0;
  virtual Result<int> free_port() = 0;
  // Of the environment.
  virtual std::optional<std::string> variable(const std::string& name) const = 0;
};

class SystemMachine final : public Machine {
 public:
  // Requires: both outlive the machine, and the transport is of that loop.
  SystemMachine(net::EpollLoop& loop, net::Transport& transport)
      : loop_(loop), transport_(transport) {}

  net::Transport& transport() override { return transport_; }
  Task<bool> is_called(std::string host) override;
  Task<std::string> name() override;
  Result<int> free_port() override;
  std::optional<std::string> variable(const std::string& name) const override;

 private:
  net::EpollLoop& loop_;
  net::Transport& transport_;
};

}  // namespace muster::backends
