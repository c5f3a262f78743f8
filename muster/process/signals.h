// Signals: the signals of this process as events of a loop.
//
// The signals are blocked and read through a descriptor, so none interrupts anything and none is
// lost between two looks. Block them with `block_signals` as the first act of the program: what
// arrives before a Signals exists waits for it.
//
// Owned by the agent, on its loop.
#pragma once

#include "muster/base/fd.h"
#include "muster/net/epoll_loop.h"

#include <csignal>
#include <functional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace muster::process {

class Signals {
 public:
  // `received` gets the signal and who sent it (0: the kernel, for example for a key at the
  // terminal). It may destroy the Signals. Blocks `signals` in this thread and in those it starts
  // later. Requires: `loop` outlives it.
  Signals(net::EpollLoop& loop, const std::vector<int>& signals,
          std::function<void(int signal, pid_t sender)> received);
  // What has arrived but was not told is dropped, then the signals act again as they did
  // before.
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  void read_all();

  std::function<void(int, pid_t)> received_;
  sigset_t ours_;  // blocked by us
  Fd fd_;
  net::FdWatch watch_;
  bool* destroyed_ = nullptr;  // set when `received_` destroys us
};

// Holds the signals back from now on, in this thread and those it starts. They wait for a Signals.
void block_signals(const std::vector<int>& signals);

// Whether the signal is ignored, as nohup(1) does with SIGHUP for the program it starts.
bool is_ignored(int signal);

}  // namespace muster::process
