// Faults: what goes wrong on purpose with the messages of a worker, so that programs can be tested.
//
// A rule says what happens to which messages: of which types, to whom, how often. Rules are tried
// in their order; the first that applies decides. Everything random is drawn from one seed, so a
// run can be repeated as far as the program's own order of messages can. They are given to `init`,
// or, to a program that is not to be changed, in the environment:
//
//   MUSTER_FAULTS="seed=7 fail:RREF_*:first=3 delay:SCRIPT_CALL:p=0.1:for=50ms drop:*:to=worker1"
//
//   action      what happens                                            to
//   fail        the sender is told at once that it was not sent         requests
//   drop        it is never sent; the sender is not told                requests, responses
//   delay       it is sent `for` later; meanwhile its time runs         requests, responses
//   reorder     likewise, a random while up to `for` later              requests, responses
//   duplicate   it is sent twice                                        requests
//   corrupt     a byte of it is another one                             requests, responses
//   disconnect  the connection is cut first                             requests, responses
//
// Of a rule all parts after the types are optional:
//   p=0.25        one of four (all, if it is not given)
//   first=3       only the first three times that the same content is sent: a retry counts on
//   to=worker1    only to this worker
//   for=50ms      how long (10 ms)
//
// The fault-injecting backend of torch.distributed.rpc is a set of such rules: `preset`.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/random.h"
#include "muster/rpc/message.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace muster::rpc {

enum class FaultAction { Fail, Drop, Delay, Reorder, Duplicate, Corrupt, Disconnect };

struct FaultRule {
  FaultAction action = FaultAction::Drop;
  std::vector<MessageType> types;
  std::string to{};  // empty: whoever
  double probability = 1;
  std::optional<std::int64_t> first{};
  Duration length = std::chrono::milliseconds(10);
};

struct FaultOptions {
  std::uint64_t seed = 0;
  std::vector<FaultRule> rules;
};

// Invalid: says which part of which rule cannot be read, and what could be meant.
Result<FaultOptions> parse_faults(std::string_view text);

// What the fault-injecting backend of torch.distributed.rpc takes.
struct FaultPreset {
  std::vector<std::string> messages_to_fail{};
  std::map<std::string, double> messages_to_delay{};  // in seconds
  std::int64_t fail_count = 0;                        // of the sends of each content
};
// With the texts of that backend for what cannot be meant.
Result<FaultOptions> faults_of(const FaultPreset& preset);

// Decides. Any thread.
class Faults {
 public:
  explicit Faults(FaultOptions options);

  struct Verdict {
    FaultAction action = FaultAction::Fail;
    Duration length = Duration::zero();  // for Delay; also what was drawn for Reorder
    std::size_t position = 0;            // for Corrupt: which byte of the payload
  };
  // Nothing: the message goes its way.
  std::optional<Verdict> decide(const Message& message, std::string_view to);

 private:
  bool applies(const FaultRule& rule, const Message& message, std::string_view to);

  const FaultOptions options_;
  std::mutex mutex_;  // guards what follows
  Random random_;
  // How often each content met a rule with `first`, by its hash. Messages that carry the same bytes
  // share a count, whatever their types are.
  std::unordered_map<std::size_t, std::int64_t> sent_counts_;
};

}  // namespace muster::rpc
