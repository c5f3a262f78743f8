// Gather: workers wait for each other and learn what each of them brought.
//
// The worker with the smallest name leads. The others call it with their value; it answers all of
// them when the last has come. Each set of workers counts its gathers, so they must be made in the
// same order everywhere; different sets, and different threads, may do so at once. When a worker of
// the set was started again, or one comes to or leaves a group whose members all gather, the others
// begin to count anew with it; those who wait already go on to wait, now for the set as it is then.
// How they agree on that is in GatherHall.
//
// A worker that dies meanwhile is noticed by the leader, which looks after those who are missing;
// while the leader itself has not come, the first of those who wait does so for it. A leader that
// dies is noticed by everybody whose call it held: it may have told some of them already
// that all have come, so the others fail, even if it is started again at once. A connection that is
// cut while both live costs nothing: whoever had come by it comes again, and the leader remembers
// how gathers ended until all have heard of it.
#pragma once

#include "muster/rpc/agent.h"
#include "muster/rpc/functions.h"
#include "muster/rpc/gather_hall.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc {

struct GatherOptions {
  // How long a worker may be sent away, again and again, by others who see the group otherwise.
  Duration disagreement_max = std::chrono::seconds(10);
};

class Gather {
 public:
  using Values = GatherValues;

  // Adds the functions that the workers call of each other. Requires: nobody calls them any more
  // when it is destroyed.
  explicit Gather(Functions& functions, GatherOptions options = {});
  ~Gather();

  // A new group, whose gathers have nothing to do with those of others; `group` is the same on all
  // its workers. What still waits fails.
  void begin(std::string group);

  // Brings `value`, and waits until all of `names` have; this worker is one of them. No
  // `timeout_seconds`: as long as all of them are alive.
  CallResult<Values> all(Agent& agent, std::vector<std::string> names, std::string value,
                         std::optional<double> timeout_seconds);
  // Likewise, of a dynamic group: all who are members in the moment in which the last has come.
  CallResult<Values> everyone(Agent& agent, std::string value,
                              std::optional<double> timeout_seconds);

  // Returns once no call is under way between any of the workers, those that calls make in turn
  // included. All of `names` must call it. Timeout if calls are under way for longer than that.
  CallResult<> quiesce(Agent& agent, const std::vector<std::string>& names,
                       std::optional<double> timeout_seconds);

  // This worker is about to leave a dynamic group. Those who wait here wait for the next leader
  // then; and all have heard how their gathers ended when it returns, unless that takes long.
  void part(Agent& agent);

 private:
  class Hall;  // where the leader holds those who have come
  struct Circle;
  struct Errand;
  class Watch;
  struct Deputy;

  std::string key_of(std::string_view kind);
  CallResult<Values> gather(Agent& agent, const Circle& circle, std::string value,
                            std::optional<double> timeout_seconds);
  CallResult<GatherAnswer> lead(Agent& agent, const Circle& circle, const Errand& errand);
  CallResult<GatherAnswer> follow(Agent& agent, const Circle& circle, const std::string& leader,
                                  const Errand& errand);
  // Looks after those who are missing while the leader has not come itself, if that is for this
  // worker to do.
  void stand_in(Agent& agent, const Circle& circle, const std::string& leader, Deputy& deputy);
  // Done once nobody here waits at that place any more.
  Future<void> settled(const std::string& set, const GatherEra& era, std::uint64_t count);
  void leave(const std::string& set, const GatherPlace& place);
  void tell_settled(std::unique_lock<std::mutex> lock);

  const GatherOptions options_;
  std::shared_ptr<Hall> hall_;
  std::mutex mutex_;  // guards what follows
  std::string group_;
  GatherLines lines_;
  struct Asking {
    std::string set;
    GatherEra era;
    std::uint64_t count = 0;
    Promise<void> promise;
  };
  std::vector<Asking> asking_;  // whether somebody has heard of an end
  std::atomic<std::int64_t> own_call_count_ = 0;
  std::atomic<std::uint64_t> last_attempt_ = 0;
};

}  // namespace muster::rpc
