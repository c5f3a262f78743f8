// For tests of programs that use RPC: waiting until references have come to rest, or a worker has
// gone. All of them fail with a text that says what they saw instead.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rpc/call.h"
#include "muster/rpc/faults.h"

#include <chrono>
#include <cstdint>
#include <string>

namespace muster::rpc::testing {

// "worker<rank>"
std::string worker_name(std::int64_t rank);

// What the tests of torch.distributed.rpc inject unless they say otherwise: four types of message
// fail three times, two are late by 1.5 s.
FaultPreset default_faults();

struct OwnersAndForks {
  std::int64_t owners = 0;
  std::int64_t forks = 0;

  friend bool operator==(const OwnersAndForks&, const OwnersAndForks&) = default;
};
template <typename Archive>
void describe_fields(Archive& archive, OwnersAndForks& counts) {
  archive(counts.owners, counts.forks);
}
// Of this worker.
OwnersAndForks owners_and_forks();

// Until no control message of this worker is under way and no reference waits to be confirmed.
Result<> wait_until_flushed(Duration timeout = std::chrono::seconds(20));

// Until that worker has exactly so many.
Result<> wait_until_owners_and_forks_on(const Destination& worker, const OwnersAndForks& wanted,
                                        Duration timeout = std::chrono::seconds(20));

// Until calls to that worker fail with a text that has `part` in it; the text.
Result<std::string> wait_until_failure(const Destination& worker, const std::string& part = "",
                                       Duration timeout = std::chrono::seconds(60));

// How long the end of a program that has not called `shutdown` waits for functions that still run;
// 10 s if nobody says otherwise.
void set_exit_patience(Duration patience);

// Adds the functions that these call on other workers; `init` does.
void add_functions();

}  // namespace muster::rpc::testing
