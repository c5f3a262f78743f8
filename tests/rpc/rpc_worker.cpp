// A worker that does what its standard input says, one line at a time, and answers each with one
// line: `ok …` or `error KIND: TEXT`. For tests of RPC with real processes.
//
//   init NAME RANK [WORLD_SIZE [MILLISECONDS]]
//                                 without a world size: a dynamic group; how long to wait for all
//   add TO A B                    calls add(A, B)
//   hold TO                       calls a function that never answers, and goes on
//   held                          how the first of those ended that was not asked for yet
//   count TO                      calls a function that counts its calls
//   counted                       how often that was called here
//   unanswered                    how many calls of others wait here for their answers
//   make TO VALUE                 makes a value there, and reads it by its reference
//   read                          likewise, the last one that was made
//   give TO                       hands that reference to another worker, which keeps it
//   drop                          lets go of all references, those it was given included
//   counts                        how many values others have references to, and how many those are
//   open COUNT                    opens so many files, and closes them
//   workers                       the names of all, by id
//   barrier [THREADS]             by one thread, or by several at once
//   gather VALUE NAME...          what each of those has brought
//   shutdown [graceful | strict]  or without: just goes; strict: also fails if references are left
//
// Environment: MASTER_ADDR and MASTER_PORT, the store; RPC_WORKER_ADDRESS, where others reach it:
// 127.0.0.1 if that is not set, and what `init` finds out if it is empty; RPC_WORKER_TCP, if it is
// set: no shared memory.

#include "muster/rpc.h"
#include "muster/worker/testing.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace rpc = muster::rpc;

const rpc::Procedure<std::int64_t(std::int64_t, std::int64_t)> kAdd("add");
const rpc::Procedure<void()> kHold("hold");
const rpc::Procedure<void()> kCount("count");
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
  const char* const address = std::getenv("RPC_WORKER_ADDRESS");
  options.address = address == nullptr ? "127.0.0.1" : address;
  options.shared_memory = std::getenv("RPC_WORKER_TCP") == nullptr;
  const auto started = rpc::init(options);
  if (started) return "ok";
  return fmt::format("error {}: {}", muster::name_of(started.error().kind),
                     started.error().message);
}

std::string open_files(std::int64_t count) {
  std::vector<std::ifstream> files;
  for (std::int64_t index = 0; index < count; ++index) {
    if (!files.emplace_back("/dev/null").is_open()) return fmt::format("error: opened {}", index);
  }
  return "ok";
}

std::string barrier(std::int64_t thread_count) {
  std::vector<std::future<rpc::CallResult<>>> others;
  for (std::int64_t count = 1; count < thread_count; ++count) {
    others.push_back(std::async(std::launch::async, [] { return rpc::barrier(); }));
  }
  auto outcome = rpc::barrier();
  for (auto& other : others) {
    auto another = other.get();
    if (!another) outcome = std::move(another);
  }
  return describe(outcome);
}

std::string gather(std::istream& words) {
  std::string value;
  words >> value;
  std::vector<std::string> names;
  for (std::string name; words >> name;) names.push_back(name);
  const auto gathered = rpc::gather(names, value);
  if (!gathered) return describe(gathered.error());
  std::string answer = "ok";
  for (const auto& [name, brought] : *gathered) answer += fmt::format(" {}={}", name, brought);
  return answer;
}

std::atomic<std::int64_t> count_of_calls = 0;

// The references that others gave to this worker.
class Kept {
 public:
  void add(rpc::RRef<std::int64_t> reference) {
    const std::lock_guard lock(mutex_);
    references_.push_back(std::move(reference));
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    references_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<rpc::RRef<std::int64_t>> references_;
};
// Never destroyed: they may be left when the process ends.
Kept& kept() {
  static auto* const kKept = new Kept;
  return *kKept;
}

class Worker {
 public:
  std::string obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "init") return init(words);
    if (verb == "gather") return gather(words);
    std::string word;
    words >> word;
    if (verb == "open") return open_files(std::stoll(word));
    if (verb == "barrier") return barrier(word.empty() ? 1 : std::stoll(word));
    if (verb == "shutdown") {
      return describe(
          rpc::shutdown({.graceful = !word.empty(), .ignores_leaks = word != "strict"}));
    }
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
      held_.push_back(rpc::async(rpc::to(word).within(muster::Duration::zero()), kHold));
      return "ok";
    }
    if (verb == "held" && !held_.empty()) {
      const rpc::Future<> first = held_.front();
      held_.pop_front();
      return describe(first.wait());
    }
    if (verb == "count") return describe(rpc::call(word, kCount));
    if (verb == "unanswered") return "ok " + rpc::metrics()["agent.server_active_calls"];
    if (verb == "counted") return fmt::format("ok {}", count_of_calls.load());
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
      kept().clear();
      return "ok";
    }
    if (verb == "counts") {
      const auto counts = rpc::testing::owners_and_forks();
      return fmt::format("ok {} {}", counts.owners, counts.forks);
    }
    return "error: what is " + line;
  }

 private:
  std::deque<rpc::Future<>> held_;
  std::vector<rpc::RRef<std::int64_t>> references_;
};

}  // namespace

int main() {
  // Never destroyed: a call that waits for it ends with the process.
  static const auto* const kNever = new rpc::Promise<>;
  const auto add = rpc::define(kAdd, [](std::int64_t a, std::int64_t b) { return a + b; });
  const auto hold = rpc::define(kHold, [] { return kNever->future(); });
  const auto count = rpc::define(kCount, [] { ++count_of_calls; });
  const auto keep = rpc::define(kKeep, [](const rpc::RRef<std::int64_t>& given) {
    kept().add(given);
    return given.to_here().value();
  });
  if (!add || !hold || !count || !keep) return 1;
  Worker worker;
  std::string line;
  while (std::getline(std::cin, line)) {
    fmt::print("{}\n", worker.obey(line));
    std::fflush(stdout);
  }
  return 0;
}
