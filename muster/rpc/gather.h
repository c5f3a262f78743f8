// Gather: workers wait for each other and learn what each of them brought.
//
// The worker with the smallest name leads. The others call it with their value; it answers all of
// them when the last has come. Each set of workers counts its gathers, so they must be made in the
// same order everywhere; different sets, and different threads, may do so at once.
//
// A worker that dies meanwhile is noticed by the leader, which looks after those who are missing,
// and a leader that dies by everybody whose call it held. A connection that is cut while both live
// costs nothing: whoever had come by it comes again, and the leader remembers how its last gather
// ended.
#pragma once

#include "muster/rpc/agent.h"
#include "muster/rpc/functions.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace muster::rpc {

class Gather {
 public:
  using Values = std::map<std::string, std::string>;

  // Adds the functions that the workers call of each other.
  explicit Gather(Functions& functions);
  ~Gather();

  // A new group, whose gathers have nothing to do with those of others; `group` is the same on all
  // its workers. What still waits fails.
  void begin(std::string group);

  // Brings `value`, and waits until all of `names` have; this worker is one of them. No
  // `timeout_seconds`: as long as all of them are alive.
  CallResult<Values> all(Agent& agent, std::vector<std::string> names, std::string value,
                         std::optional<double> timeout_seconds);

  // Returns once no call is under way between any of the workers, those that calls make in turn
  // included. All of `names` must call it. Timeout if calls are under way for longer than that.
  CallResult<> quiesce(Agent& agent, const std::vector<std::string>& names,
                       std::optional<double> timeout_seconds);

 private:
  class Hall;  // where the leader holds those who have come

  CallResult<Values> lead(Agent& agent, const std::string& key,
                          const std::vector<std::string>& names, std::string value,
                          std::optional<double> timeout_seconds);
  CallResult<Values> follow(Agent& agent, const std::string& leader, const std::string& key,
                            std::string value, std::optional<double> timeout_seconds);

  std::shared_ptr<Hall> hall_;
  std::mutex mutex_;  // guards what follows
  std::string group_;
  std::map<std::string, std::uint64_t> counts_;  // of gathers, by set
  std::atomic<std::int64_t> own_call_count_ = 0;
};

}  // namespace muster::rpc
