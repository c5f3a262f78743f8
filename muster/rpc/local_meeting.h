// How two processes of one machine come to share memory.
//
// One listens on a socket of the kernel's own namespace and publishes its address: the boot id of
// the machine and the socket's name, which is random. The other one compares the boot id, connects,
// and hands over the memory for the rings, with a greeting. Such names belong to a network
// namespace: a process in another container cannot reach it even on the same machine, finds that
// out at once, and its caller uses TCP.
//
// Only processes of the same user, or of root, are let in. What they send is checked.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/rpc/stream.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc {

// Connected but not greeted yet; no more are let in meanwhile.
inline constexpr std::size_t kLocalStrangersMax = 64;

struct LocalMeetingOptions {
  // How long one may take to greet, and to answer.
  Duration greeting_max = std::chrono::seconds(5);
};

// Owned by an agent, lives on its loop.
class LocalListener {
 public:
  // Told on the loop of every stream that is ready. May destroy the listener.
  using Met = std::function<void(std::unique_ptr<Stream>)>;

  // Unavailable if the system does not allow it; then there is only TCP. Requires: `loop` outlives
  // it.
  static Result<std::unique_ptr<LocalListener>> create(net::EpollLoop& loop, Random& random,
                                                       Met met, LocalMeetingOptions options = {});
  ~LocalListener();
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  // What others pass to `meet`: "<boot id>/<name>".
  const std::string& address() const { return address_; }

 private:
  struct Stranger;

  LocalListener(net::EpollLoop& loop, Fd socket, std::string address, Met met,
                LocalMeetingOptions options);
  // Accepts while there is room for strangers and the system has descriptors.
  void update();
  void accept_some();
  void hear(Stranger& stranger);
  void forget(Stranger& stranger);

  net::EpollLoop& loop_;
  const Fd socket_;
  const std::string address_;
  const LocalMeetingOptions options_;
  // Shared with the call that runs, which may destroy the listener.
  std::shared_ptr<const Met> met_;
  net::FdWatch watch_;
  Timer rest_;  // pending while the system has no descriptors for us
  std::vector<std::unique_ptr<Stranger>> strangers_;
};

// A stream to the process that listens at `address`. Unavailable if there is no such process on
// this machine that we can reach, or if it does not let us in: the caller uses TCP. Requires:
// `loop` outlives the task.
Task<Result<std::unique_ptr<Stream>>> meet(net::EpollLoop& loop, std::string address,
                                           LocalMeetingOptions options);
inline Task<Result<std::unique_ptr<Stream>>> meet(net::EpollLoop& loop, std::string address) {
  return meet(loop, std::move(address), LocalMeetingOptions());
}

}  // namespace muster::rpc
