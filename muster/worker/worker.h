// The life of a worker: it joins its group, calls and is called, and leaves.
//
//   rpc::init();                                                            // under `muster run`
//   …
//   rpc::shutdown();                                  // when all workers have nothing left to do
//
// One in a process at a time. Everything here may be used from any thread.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rpc/call_error.h"
#include "muster/rpc/device.h"
#include "muster/rpc/device_maps.h"
#include "muster/rpc/device_route.h"
#include "muster/rpc/faults.h"
#include "muster/rpc/worker_info.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::rpc {

// What is not given is taken from the environment that `muster run` (or torchrun) sets.
struct InitOptions {
  std::string name;                        // "worker<rank>"
  std::optional<std::int64_t> rank;        // RANK
  std::optional<std::int64_t> world_size;  // WORLD_SIZE
  // Workers come and go: there is no world size, and `rank` is only a number that nobody else has.
  bool dynamic = false;
  // "host:port", or "file:///path" of a file that all can write; MASTER_ADDR and MASTER_PORT.
  std::string store;
  // Tells this group from others that meet in the same store; empty: the round of the job.
  std::string group{};
  // Where others reach this worker; empty: the way to the store, or the name of this machine. One
  // that this machine does not have is translated on the way: it listens at all it has.
  std::string address;
  Duration timeout = std::chrono::seconds(60);  // of calls, at least 1 ms; 0: none
  std::size_t thread_count = 16;                // that run functions
  // How long to wait until all workers have come; nothing: `timeout`, or for ever if that is 0.
  std::optional<Duration> start_timeout;
  bool shared_memory = true;
  // Whether threads look for a moment for what they wait for before they sleep, while that pays.
  bool spins = true;
  // Where tensors of accelerators go, and who moves them; see device_maps.h.
  DeviceOptions devices{};
  std::shared_ptr<DeviceSupport> device_support{};
  // What goes wrong on purpose; MUSTER_FAULTS.
  std::optional<FaultOptions> faults{};
};

// Joins the group. Invalid: a name that is taken, and the like; Unavailable: the store cannot be
// reached, and the like; Corrupt: what is in it is of no group; Timeout: the error says who is
// missing.
Result<> init(InitOptions options = {});

struct ShutdownOptions {
  // Waits until all workers call it and nothing is left to do; otherwise this worker just goes: it
  // waits for functions that run now, and begins none of those that others have called.
  bool graceful = true;
  Duration timeout = Duration::zero();  // 0: as long as all are alive
  // Otherwise references that other workers still have to values of this one are an error, with a
  // line "Leaking RRef … with fork Id …" for each.
  bool ignores_leaks = true;
  // What ends the references of this worker once nothing is left to do; nothing: end_references.
  // Not asked in a dynamic group, which this worker leaves while others stay.
  std::function<void()> end_references{};
};
// Whatever it answers, RPC has ended on this worker; but for Rejected, when it cannot even begin:
// RPC does not run, another thread is at it already, or it was called by a function or a callback
// that RPC itself runs.
CallResult<> shutdown(ShutdownOptions options = {});

bool is_running();
// This worker, and all of the group. Throws CallException if RPC is not running.
WorkerInfo self();
std::vector<WorkerInfo> workers();
// The accelerators of this worker: the option, or else those that the device maps of all name, by
// index. Throws CallException if RPC is not running.
std::vector<Device> devices();

// The timeout of calls that give none, in whole milliseconds; 0: none. A new one is for calls that
// are made afterwards, and is never less than 1 ms. `timeout` throws CallException if RPC is not
// running; `set_timeout` fails (Rejected) then, and if it is negative.
Duration timeout();
CallResult<> set_timeout(Duration timeout);

// Waits until all workers have come here; of a dynamic group, all who are members when the last of
// them comes.
CallResult<> barrier();
// What each of `names` brought; this worker is one of them, and brings `value`. No names: all, as
// for a barrier. Several of them may be made at once by different sets of workers. No `timeout`: as
// long as all of them are alive.
CallResult<std::map<std::string, std::string>> gather(std::vector<std::string> names,
                                                      std::string value,
                                                      std::optional<Duration> timeout = {});
// Ends the references of this worker, and waits until the others have ended theirs to its values;
// each of the two for as long as `patience`. A graceful shutdown of a static group does it.
void end_references(Duration patience);
// The figures of docs/rpc.md, by name.
std::map<std::string, std::string> metrics();
// Those, and those of references: docs/remote-references.md.
std::map<std::string, std::string> debug_info();

}  // namespace muster::rpc
