// Spawner brings a program to life. Only Host uses it; the rules are in host.h and child.h.
//
// The child shares our memory until it executes its program (as with vfork), so starting one costs
// the same however large this process is. In a cgroup it is a fork instead: the kernel call that
// starts a process inside a cgroup cannot be made on a second stack without assembly, and this is
// still much cheaper than moving it there later. If the cgroup cannot be entered, the child starts
// outside.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/process/child.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace muster::process::internal {

// How far the child came. In the order of what it does.
enum class Stage {
  Clone,  // there is no child
  Cpus,
  Memory,
  Descriptors,
  Folder,
  Execute,
};

struct Spawned {
  pid_t pid = -1;
  Fd pidfd;
};

class Spawner {
 public:
  Spawner();
  ~Spawner();
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;

  // `environment` is used instead of the command's. Returns when the program is loaded.
  Result<Spawned> spawn(const Command& command, const std::vector<std::string>& environment);

 private:
  struct Report;

  void* stack_ = nullptr;     // for the child, while it shares our memory
  Report* report_ = nullptr;  // what the child says; shared memory
};

// Pure: the files to try for `executable`, in order. A name without a slash is searched in the PATH
// of `environment`.
std::vector<std::string> candidates(std::string_view executable,
                                    const std::vector<std::string>& environment);

// The line for whoever wanted to start `command`, and looks at the file to say why. `number` is an
// errno value.
Error explain(const Command& command, Stage stage, int number);

}  // namespace muster::process::internal
