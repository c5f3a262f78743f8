// A worker that does what its standard input says, one line at a time, and answers each with one
// line: `ok …` or `error KIND: TEXT`. For tests of RPC with real processes.
//
//   init NAME RANK [WORLD_SIZE [MILLISECONDS]]
//                                 without a world size: a dynamic group; how long to wait for all
//   add TO A B                    calls add(A, B)
//   hold TO                       calls a function that never answers, and goes on
//   held                          how the last of those ended
//   workers                       the names of all, by id
//   barrier
//   shutdown [graceful]           or without: just goes
//
// Environment: MASTER_ADDR and MASTER_PORT, the store.

#include "muster/rpc.h"
#include "muster/worker/testing.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>

namespace {

namespace rpc = muster::rpc;

const rpc::Procedure<std::int64_t(std::int64_t, std::int64_t)> kAdd("add");
const rpc::Procedure<void()> kHold("hold");
const rpc::Procedure<std::int64_t(rpc::RRef<std::int64_t>)> kKeep("keep");

std::string describe(const rpc::CallError& error) {
  return fmt::format("error {}: {}", rpc::name_of(error.kind), error.message);
}

template <typename T>
std::string describe(const rpc::CallResult<T>& outcome) {
  if (!outcome) return describe(outcome.error());
  if constexpr (std::is_void_v<T>) {
    return "ok";
  } else {
    return fmt::format("ok {}", *outcome);
  }
}

std::string init(std::istream& words) {
  rpc::InitOptions options;
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
  words >> options.name >> rank;
  options.rank = rank;
  if (words >> world_size) {
    options.world_size = world_size;
    std::int64_t milliseconds = 0;
    if (words >> milliseconds) options.start_timeout = std::chrono::milliseconds(milliseconds);
  } else {
    options.dynamic = true;
  }
  options.address = "127.0.0.1";
  const auto started = rpc::init(options);
  if (started) return "ok";
  return fmt::format("error {}: {}", muster::name_of(started.error().kind),
                     started.error().message);
}

class Worker {
 public:
  std::string obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "init") return init(words);
    if (verb == "barrier") return describe(rpc::barrier());
    std::string word;
    words >> word;
    if (verb == "shutdown") return describe(rpc::shutdown({.graceful = word == "graceful"}));
    if (verb == "workers") {
      std::string answer = "ok";
      for (const rpc::WorkerInfo& info : rpc::workers()) answer += " " + info.name();
      return answer;
    }
    if (verb == "add") {
      std::int64_t a = 0;
      std::int64_t b = 0;
      words >> a >> b;
      return describe(rpc::call(word, kAdd, a, b));
    }
    if (verb == "hold") {
      held_ = rpc::async(rpc::to(word).within(muster::Duration::zero()), kHold);
      return "ok";
    }
    if (verb == "held" && held_) return describe(held_->wait());
    if (verb == "make") {
      std::int64_t value = 0;
      words >> value;
      const auto made = rpc::remote(word, kAdd, value, 0);
      if (!made) return describe(made.error());
      references_.push_back(*made);
      if (const auto created = made->creation()->wait(); !created) return describe(created);
      return describe(made->to_here());
    }
    if (verb == "read" && !references_.empty()) return describe(references_.back().to_here());
    if (verb == "give" && !references_.empty()) {
      return describe(rpc::call(word, kKeep, references_.back()));
    }
    if (verb == "drop") {
      references_.clear();
      return "ok";
    }
    if (verb == "counts") {
      const auto counts = rpc::testing::owners_and_forks();
      return fmt::format("ok {} {}", counts.owners, counts.forks);
    }
    return "error: what is " + line;
  }

 private:
  std::optional<rpc::Future<>> held_;
  std::vector<rpc::RRef<std::int64_t>> references_;
};

}  // namespace

int main() {
  // Never destroyed: a call that waits for it ends with the process.
  static const auto* const kNever = new rpc::Promise<>;
  const auto add = rpc::define(kAdd, [](std::int64_t a, std::int64_t b) { return a + b; });
  const auto hold = rpc::define(kHold, [] { return kNever->future(); });
  // Keeps the reference, as long as the process lives.
  const auto keep = rpc::define(kKeep, [](const rpc::RRef<std::int64_t>& given) {
    static auto* const kKept = new std::vector<rpc::RRef<std::int64_t>>;
    kKept->push_back(given);
    return given.to_here().value();
  });
  if (!add || !hold || !keep) return 1;
  Worker worker;
  std::string line;
  while (std::getline(std::cin, line)) {
    fmt::print("{}\n", worker.obey(line));
    std::fflush(stdout);
  }
  return 0;
}
