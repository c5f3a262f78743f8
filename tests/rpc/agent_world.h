// Many agents on a simulated network, driven by seeds, and the books on all their calls.
//
// What must hold, whatever happens: every call ends, and once; no request is served twice, nor by
// somebody else than it was for; an answer belongs to its call; a call that was not sent was not
// served; a timeout comes when it is due; in a static group nobody is taken for dead who lives.
// When all is well again, everybody reaches everybody.
#pragma once

#include "muster/base/random.h"
#include "muster/net/transport.h"
#include "muster/rpc/agent_core.h"
#include "muster/sim/network.h"
#include "tests/rpc/chaotic_store.h"
#include "tests/rpc/group_workers.h"
#include "tests/rpc/sim_stream.h"
#include "tests/server/log_capture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rpc::testing {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kWorkersMin = 3;
inline constexpr std::uint64_t kWorkersMax = 7;
inline constexpr Duration kTrouble = 30s;
// Of one call beside its message.
inline constexpr std::uint64_t kBufferBytesMax = 20'000;

// What is known of one call. Its index is in the request and in the answer.
struct CallRecord {
  std::size_t from = 0;
  std::size_t to = 0;
  TimePoint started;  // by the caller's clock
  std::optional<Duration> timeout;
  int served_count = 0;
  int ended_count = 0;
  bool succeeded = false;
  bool was_sent = true;
  bool caller_died = false;
  bool may_fail = true;
  std::optional<CallError> error = std::nullopt;
};

inline std::string name_of_worker(std::size_t index) { return fmt::format("worker{}", index); }

// Its bytes follow from the call, so that one of another is noticed.
inline std::vector<Buffer> buffers_of(std::size_t tag, std::uint64_t size) {
  if (size == 0) return {};
  const std::vector<std::byte> bytes(size, static_cast<std::byte>(tag * 31));
  return {copy_of(bytes)};
}

enum class GroupKind { Static, Dynamic };

// The books on all calls, and what is wrong in them.
class CallLedger {
 public:
  explicit CallLedger(GroupKind kind) : kind_(kind) {}

  std::size_t add(CallRecord call) {
    calls_.push_back(call);
    return calls_.size() - 1;
  }
  void served(std::size_t tag, std::size_t by, const Request& request) {
    ASSERT_LT(tag, calls_.size());
    CallRecord& call = calls_[tag];
    EXPECT_EQ(++call.served_count, 1) << "call " << tag << " was served again";
    EXPECT_EQ(call.to, by);
    EXPECT_EQ(request.from->name(), name_of_worker(call.from));
    EXPECT_TRUE(call.was_sent) << "call " << tag << " was said not to have been sent";
    for (const Buffer& buffer : request.message.buffers) expect_bytes(tag, buffer);
  }
  // `resumed`: when the caller went on last, after it was stopped.
  void ended(std::size_t tag, const CallResult<Message>& outcome, TimePoint now,
             TimePoint resumed) {
    CallRecord& call = calls_[tag];
    EXPECT_EQ(++call.ended_count, 1) << "call " << tag << " ended again";
    ++ended_count_;
    if (outcome) {
      call.succeeded = true;
      EXPECT_EQ(outcome->payload, fmt::format("{} {}", tag, name_of_worker(call.to)));
      EXPECT_EQ(call.served_count, 1);
      for (const Buffer& buffer : outcome->buffers) expect_bytes(tag, buffer);
      return;
    }
    const CallError& error = outcome.error();
    call.error = error;
    EXPECT_TRUE(call.may_fail) << "call " << tag << ": " << error.message;
    if (error.kind == CallErrorKind::Unreachable) {
      EXPECT_NE(error.message.find(name_of_worker(call.to)), std::string::npos) << error.message;
    }
    ++error_counts_[static_cast<std::size_t>(error.kind)];
    call.was_sent =
        error.sent || error.kind == CallErrorKind::Timeout || error.kind == CallErrorKind::Remote;
    EXPECT_TRUE(call.was_sent || call.served_count == 0) << "call " << tag << ": " << error.message;
    if (error.kind == CallErrorKind::Remote) {
      EXPECT_EQ(call.served_count, 1) << error.message;
    }
    if (error.kind == CallErrorKind::Rejected && !call.caller_died) {
      EXPECT_EQ(kind_, GroupKind::Dynamic) << error.message;
      EXPECT_NE(error.message.find("could not find destination"), std::string::npos)
          << error.message;
    }
    if (error.kind == CallErrorKind::Timeout) expect_due(tag, now, resumed);
  }
  void caller_died(std::size_t index) {
    for (CallRecord& call : calls_) {
      if (call.from == index && call.ended_count == 0) call.caller_died = call.may_fail = true;
    }
  }
  // What is under way to that worker may fail from now on.
  void callee_goes(std::size_t index) {
    for (CallRecord& call : calls_) {
      if (call.to == index && call.ended_count == 0) call.may_fail = true;
    }
  }

  bool all_ended() const { return ended_count_ == calls_.size(); }
  const CallRecord& at(std::size_t tag) const { return calls_[tag]; }
  std::size_t count() const { return calls_.size(); }
  std::size_t error_count(CallErrorKind kind) const {
    return error_counts_[static_cast<std::size_t>(kind)];
  }
  std::size_t success_count() const {
    std::size_t count = 0;
    for (const CallRecord& call : calls_) count += call.succeeded ? 1U : 0U;
    return count;
  }
  std::string unfinished() const {
    std::string text;
    for (std::size_t tag = 0; tag < calls_.size(); ++tag) {
      const CallRecord& call = calls_[tag];
      if (call.ended_count > 0) continue;
      text += fmt::format("call {} from {} to {}, served {} times; ", tag, call.from, call.to,
                          call.served_count);
    }
    return text;
  }

 private:
  static void expect_bytes(std::size_t tag, const Buffer& buffer) {
    const auto expected = buffers_of(tag, buffer.size());
    EXPECT_EQ(std::memcmp(buffer.data(), expected[0].data(), buffer.size()), 0)
        << "call " << tag << " has bytes of another";
  }
  void expect_due(std::size_t tag, TimePoint now, TimePoint resumed) const {
    const CallRecord& call = calls_[tag];
    ASSERT_TRUE(call.timeout) << "call " << tag << " has no timeout";
    EXPECT_GE(now, call.started + *call.timeout);
    EXPECT_LE(now, std::max(call.started + *call.timeout, resumed) + 1ms) << "call " << tag;
  }

  const GroupKind kind_;
  std::vector<CallRecord> calls_;
  std::size_t ended_count_ = 0;
  std::array<std::size_t, 8> error_counts_{};
};

// One process on a host, from its start to its end.
class SimWorker final : public RequestHandler {
 public:
  SimWorker(sim::Host& host, store::Store& store, std::size_t index, CallLedger& ledger,
            std::uint64_t seed)
      : host_(host),
        ledger_(ledger),
        index_(index),
        random_(seed),
        store_(host.loop(), store, random_.next()),
        self_(member(name_of_worker(index), static_cast<std::int64_t>(index), random_.next() | 1U)),
        core_(core_options(), host.loop(), host.loop(), *this) {}
  // As when its process is killed: it says nothing more.
  ~SimWorker() override {
    ledger_.caller_died(index_);
    core_.stop_answering();
    scope_.cancel_all();
    listener_.reset();
    core_.close({CallErrorKind::Rejected, "its process is gone", "", true});
  }

  void start(std::optional<std::int64_t> world_size) {
    auto listener = host_.listen({"", 0}, [this](std::unique_ptr<net::Stream> stream) {
      core_.accept(std::make_unique<SimStream>(std::move(stream)), "the network");
    });
    ASSERT_TRUE(listener) << listener.error().message;
    listener_ = std::move(*listener);
    self_.address = net::describe({host_.name(), listener_->port()});
    core_.begin();
    scope_.start(join(world_size));
  }
  bool has_joined() const { return has_joined_; }
  AgentCore& core() { return core_; }
  void resumed() { resumed_at_ = host_.loop().now(); }
  // What it was told of the worker with that index.
  int lost_count(std::size_t index) const { return count_in(lost_, index); }
  int joined_count(std::size_t index) const { return count_in(joined_, index); }
  void calm() { store_.failures_per_thousand = 0; }
  // What it asks of the store from now on is not answered for hours.
  void lose_store() { store_.delay_min = 10h; }
  void stop_listening() { listener_.reset(); }
  // No function of it fails on purpose from now on, nor does its store.
  void be_reliable() {
    is_reliable_ = true;
    calm();
  }
  // It answers nothing from now on.
  void hold_requests() { is_holding_ = true; }
  std::size_t held_count() const { return held_.size(); }
  // As a program ends: what it asked for has been answered, then it leaves the group.
  void leave() {
    is_leaving_ = true;
    scope_.start(go());
  }
  bool is_member() const { return has_joined_ && !is_leaving_; }
  bool has_left() const { return has_left_; }
  std::vector<std::string> known_names() const {
    std::vector<std::string> names;
    for (const WorkerInfo& info : core_.workers()) names.push_back(info.name());
    return names;
  }

  std::size_t call(std::size_t to, std::optional<Duration> timeout, std::uint64_t bytes,
                   bool may_fail = true) {
    const std::size_t tag = ledger_.add({.from = index_,
                                         .to = to,
                                         .started = host_.loop().now(),
                                         .timeout = timeout,
                                         .may_fail = may_fail});
    Message request{MessageType::ScriptCall, kNoMessageId, fmt::to_string(tag),
                    buffers_of(tag, bytes)};
    core_.submit(name_of_worker(to), std::move(request), timeout,
                 std::make_unique<Sink>(*this, tag));
    return tag;
  }

 private:
  class Sink final : public CallSink {
   public:
    Sink(SimWorker& worker, std::size_t tag) : worker_(worker), tag_(tag) {}
    void ended(CallResult<Message> outcome, Calls& calls) override {
      worker_.ledger_.ended(tag_, outcome, worker_.host_.loop().now(), worker_.resumed_at_);
      calls.finished();
    }

   private:
    SimWorker& worker_;
    const std::size_t tag_;
  };

  CoreOptions core_options() {
    CoreOptions options(self_.info);
    options.incarnation = self_.incarnation;
    options.link.watch = SimStream::watch;
    options.open_stream = [this](Member to) { return open_stream(std::move(to)); };
    options.devices = std::make_shared<DeviceDirectory>(self_.info.name(), nullptr);
    return options;
  }
  Task<Result<std::unique_ptr<Stream>>> open_stream(Member to) {
    auto endpoint = net::parse_endpoint(to.address, 0);
    if (!endpoint) co_return fail(endpoint.error());
    auto stream = co_await host_.connect(*endpoint);
    if (!stream) {
      const bool is_refused = stream.error().message.ends_with(describe_errno(ECONNREFUSED));
      co_return fail(is_refused ? ErrorKind::Closed : stream.error().kind, stream.error().message);
    }
    std::unique_ptr<Stream> simulated = std::make_unique<SimStream>(std::move(*stream));
    co_return simulated;
  }
  Task<void> join(std::optional<std::int64_t> world_size) {
    GroupEntry entry(self_);
    entry.world_size = world_size;
    entry.deadline = host_.loop().now() + 60s;
    const auto joined = co_await core_.join(store_, std::move(entry));
    EXPECT_TRUE(joined) << joined.error().message;
    has_joined_ = joined.has_value();
    if (!is_reliable_) store_.failures_per_thousand = 20;  // a fresh look for a worker may fail
  }
  Task<void> go() {
    while (core_.calls().active_count() > 0) {
      const TimePoint soon = host_.loop().now() + 10ms;
      co_await sleep_until(host_.loop(), soon);
    }
    const TimePoint deadline = host_.loop().now() + 60s;
    const auto left = co_await core_.group()->leave(deadline);
    EXPECT_TRUE(left) << left.error().message;
    has_left_ = true;
  }

  using Counts = std::map<std::string, int, std::less<>>;
  static int count_in(const Counts& counts, std::size_t index) {
    const auto found = counts.find(name_of_worker(index));
    return found == counts.end() ? 0 : found->second;
  }
  void on_worker_lost(const WorkerInfo& worker, const std::string& reason) override {
    if (core_.group() != nullptr && core_.group()->is_static()) {
      EXPECT_NE(reason.find(worker.name()), std::string::npos) << reason;
    }
    ++lost_[worker.name()];
  }
  void on_worker_joined(const WorkerInfo& worker, std::uint64_t) override {
    ++joined_[worker.name()];
  }

  void on_request(Request request) override {
    const std::size_t tag = std::stoull(request.message.payload);
    ledger_.served(tag, index_, request);
    if (is_holding_) return held_.push_back(std::move(request));
    const std::uint64_t what = is_reliable_ ? 2 + random_.below(8) : random_.below(10);
    if (what == 0) return;  // dropped, which is an answer, too
    if (what == 1) return request.responder.fail("", "on purpose");
    if (what < 5) {
      const Duration pause = std::chrono::milliseconds(random_.below(3000));
      return scope_.start(answer_later(std::move(request), tag, pause));
    }
    answer(request, tag);
  }
  Task<void> answer_later(Request request, std::size_t tag, Duration pause) {
    const TimePoint when = host_.loop().now() + pause;
    co_await sleep_until(host_.loop(), when);
    answer(request, tag);
  }
  void answer(Request& request, std::size_t tag) {
    const std::uint64_t bytes = random_.chance(200) ? random_.below(kBufferBytesMax) : 0;
    Message response{MessageType::ScriptRet, kNoMessageId,
                     fmt::format("{} {}", tag, name_of_worker(index_)), buffers_of(tag, bytes)};
    request.responder.respond(std::move(response));
  }

  sim::Host& host_;
  CallLedger& ledger_;
  const std::size_t index_;
  Random random_;
  ChaoticStore store_;
  Member self_;
  TimePoint resumed_at_;
  AgentCore core_;
  std::unique_ptr<net::Listener> listener_;
  bool has_joined_ = false;
  bool is_reliable_ = false;
  bool is_holding_ = false;
  bool is_leaving_ = false;
  bool has_left_ = false;
  std::vector<Request> held_;
  Counts lost_;
  Counts joined_;
  TaskScope scope_;
};

class World {
 public:
  // As many workers as the seed says, unless it is said here.
  World(std::uint64_t seed, GroupKind kind, std::optional<std::size_t> size = std::nullopt)
      : kind_(kind),
        random_(seed),
        network_(loop_, random_, sim::draw_weather(random_)),
        store_(store::make_memory_store(loop_)),
        ledger_(kind),
        places_(size ? *size : kWorkersMin + random_.below(kWorkersMax - kWorkersMin + 1)) {
    for (std::size_t index = 0; index < places_.size(); ++index) {
      places_[index].host = &network_.host(fmt::format("host{}", index));
      start(index);
    }
    EXPECT_TRUE(loop_.run_until([&] { return all_have_joined(); }, loop_.now() + 60s));
  }
  ~World() {
    for (Place& place : places_) place.worker.reset();
  }

  void make_trouble() {
    const TimePoint end = loop_.now() + kTrouble;
    while (loop_.now() < end) {
      loop_.advance(std::chrono::milliseconds(random_.below(200)));
      for (std::size_t index = 0; index < places_.size(); ++index) come_back(index);
      const std::uint64_t call_count = random_.below(6);
      for (std::uint64_t i = 0; i < call_count; ++i) call_somebody();
      if (random_.chance(150)) do_harm();
      expect_the_living_to_be_trusted();
    }
  }

  // All but the first ones come and go as they like, and some are killed, while everybody calls.
  void come_and_go(Duration length, std::size_t steady_count) {
    // Nothing that would excuse a call.
    network_.set_weather({.latency_max = 20ms, .torn_per_thousand = 100});
    for (Place& place : places_) place.worker->be_reliable();
    const TimePoint end = loop_.now() + length;
    while (loop_.now() < end) {
      loop_.advance(std::chrono::milliseconds(random_.below(50)));
      for (std::size_t index = 0; index < places_.size(); ++index) let_go_or_in(index);
      for (std::uint64_t i = random_.below(20); i > 0; --i) call_a_member();
      if (!random_.chance(300)) continue;
      const std::size_t index =
          steady_count + static_cast<std::size_t>(random_.below(places_.size() - steady_count));
      if (!places_[index].worker || !places_[index].worker->is_member()) continue;
      ledger_.callee_goes(index);
      if (random_.chance(800)) {
        places_[index].worker->leave();
      } else {
        remove(index);
      }
    }
  }
  // Who is there when nobody comes or goes any more; empty if they do not agree.
  std::vector<std::string> final_members() {
    std::vector<std::string> present;
    const auto agree = [&] {
      present.clear();
      for (std::size_t index = 0; index < places_.size(); ++index) {
        const Place& place = places_[index];
        if (place.worker && place.worker->has_left()) remove(index);
        if (place.worker) present.push_back(name_of_worker(index));
      }
      for (const Place& place : places_) {
        if (place.worker && place.worker->known_names() != present) return false;
      }
      return ledger_.all_ended();
    };
    if (!loop_.run_until(agree, loop_.now() + 60s)) present.clear();
    return present;
  }
  std::size_t join_count() const { return join_count_; }

  // ---- for tests of one thing
  void be_calm() {
    network_.set_weather({});
    for (Place& place : places_) place.worker->calm();
  }
  sim::Loop& loop() { return loop_; }
  sim::Network& network() { return network_; }
  sim::Host& host(std::size_t index) { return *places_[index].host; }
  SimWorker& worker(std::size_t index) { return *places_[index].worker; }
  std::size_t size() const { return places_.size(); }
  void crash(std::size_t index, sim::Crash how) {
    Place& place = places_[index];
    network_.crash(*place.host, how);
    place.worker.reset();
    ++place.death_count;
  }
  void start_again(std::size_t index) {
    places_[index].back_at = loop_.now();
    come_back(index);
  }
  // As when the server of the store is started again.
  void empty_store() {
    const auto keys = loop_.block_on(store_->list_keys(""));
    for (const std::string& key : *keys) {
      EXPECT_TRUE(loop_.block_on(store_->delete_key(key)));
    }
  }
  // Makes a call and runs until it has ended. Whether it was served.
  bool call(std::size_t from, std::size_t to) {
    const std::size_t tag = worker(from).call(to, std::nullopt, 0);
    EXPECT_TRUE(
        loop_.run_until([&] { return ledger_.at(tag).ended_count > 0; }, loop_.now() + 60s));
    return ledger_.at(tag).served_count == 1;
  }
  bool is_told_of_loss(std::size_t observer, std::size_t of, Duration within) {
    return loop_.run_until([&] { return worker(observer).lost_count(of) > 0; },
                           loop_.now() + within);
  }

  void stop(std::size_t index, Duration length) {
    network_.pause(*places_[index].host);
    loop_.advance(length);
  }

  // Everything is well again: whatever is under way ends, and everybody can be reached.
  void settle() {
    network_.set_weather({});
    network_.heal_all();
    for (std::size_t index = 0; index < places_.size(); ++index) {
      places_[index].back_at = loop_.now();
      come_back(index);
    }
    for (Place& place : places_) place.worker->calm();
    ASSERT_TRUE(loop_.run_until([&] { return all_have_joined(); }, loop_.now() + 60s));
    ASSERT_TRUE(loop_.run_until([&] { return ledger_.all_ended(); }, loop_.now() + 60s))
        << ledger_.unfinished();
    // Calls may fail that find a connection whose other side died without a word.
    std::size_t failure_count = 1;
    for (int round = 0; round < 3 && failure_count > 0; ++round) failure_count = call_everybody();
    EXPECT_EQ(failure_count, 0U) << "somebody cannot be reached";
    for (Place& place : places_) EXPECT_EQ(place.worker->core().calls().active_count(), 0);
    expect_the_living_to_be_trusted();
  }

  const CallLedger& ledger() const { return ledger_; }
  std::size_t harm_count() const { return harm_count_; }
  std::uint64_t trace_hash() const { return network_.trace_hash(); }

 private:
  struct Place {
    sim::Host* host = nullptr;
    std::unique_ptr<SimWorker> worker;  // nothing while the host is down
    int death_count = 0;
    TimePoint back_at;  // when it is started again, or goes on
  };

  bool all_have_joined() const {
    for (const Place& place : places_) {
      if (!place.worker || !place.worker->has_joined()) return false;
      if (place.worker->core().workers().size() != places_.size()) return false;
    }
    return true;
  }
  void start(std::size_t index) {
    ++join_count_;
    Place& place = places_[index];
    place.worker =
        std::make_unique<SimWorker>(*place.host, *store_, index, ledger_, random_.next());
    std::optional<std::int64_t> world_size;
    if (kind_ == GroupKind::Static) world_size = static_cast<std::int64_t>(places_.size());
    place.worker->start(world_size);
  }
  void come_back(std::size_t index) {
    Place& place = places_[index];
    if (place.back_at > loop_.now()) return;
    if (!place.worker) {
      network_.restart(*place.host);
      start(index);
    } else if (place.host->loop().stopped()) {
      place.worker->resumed();
      network_.resume(*place.host);
    }
  }
  // Its process is gone, whether it had left or not.
  void remove(std::size_t index) {
    Place& place = places_[index];
    network_.crash(*place.host, sim::Crash::Loud);
    place.worker.reset();
    place.back_at = loop_.now() + std::chrono::milliseconds(random_.below(5000));
  }
  void let_go_or_in(std::size_t index) {
    Place& place = places_[index];
    if (place.worker && place.worker->has_left()) return remove(index);
    if (place.worker || place.back_at > loop_.now()) return;
    come_back(index);
    place.worker->be_reliable();
  }
  // One that has come and is not about to go serves every call.
  void call_a_member() {
    Place& place = places_[random_.below(places_.size())];
    const std::size_t to = random_.below(places_.size());
    const std::uint64_t bytes = random_.chance(200) ? random_.below(kBufferBytesMax) : 0;
    if (!place.worker || !place.worker->is_member()) return;
    if (!places_[to].worker || !places_[to].worker->is_member()) return;
    place.worker->call(to, std::nullopt, bytes, false);
  }
  void expect_the_living_to_be_trusted() const {
    if (kind_ == GroupKind::Dynamic) return;
    for (const Place& observer : places_) {
      if (!observer.worker) continue;
      for (std::size_t index = 0; index < places_.size(); ++index) {
        EXPECT_LE(observer.worker->lost_count(index), places_[index].death_count)
            << "worker " << index << " was taken for dead";
      }
    }
  }
  void call_somebody() {
    Place& place = places_[random_.below(places_.size())];
    const std::size_t to = random_.below(places_.size());
    std::optional<Duration> timeout;
    if (random_.chance(700)) timeout = std::chrono::milliseconds(1 + random_.below(4000));
    const std::uint64_t bytes = random_.chance(200) ? random_.below(kBufferBytesMax) : 0;
    if (!place.worker || !place.worker->has_joined() || place.host->loop().stopped()) return;
    place.worker->call(to, timeout, bytes);
  }
  void do_harm() {
    ++harm_count_;
    Place& place = places_[random_.below(places_.size())];
    Place& other = places_[random_.below(places_.size())];
    const Duration length = std::chrono::milliseconds(random_.below(15'000));
    const std::uint64_t what = random_.below(8);
    if (what == 0) return network_.cut(*place.host, *other.host);
    if (what == 1) return network_.cut_one_way(*place.host, *other.host);
    if (what <= 3) return network_.heal_all();
    if (!place.worker || place.host->loop().stopped()) return;
    if (what == 4) return network_.reset_all(*place.host);
    place.back_at = loop_.now() + length;
    if (what == 5) return network_.pause(*place.host);
    network_.crash(*place.host, what == 6 ? sim::Crash::Loud : sim::Crash::Silent);
    place.worker.reset();
    ++place.death_count;
  }
  // How many of the calls from everybody to everybody failed for want of a connection.
  std::size_t call_everybody() {
    const std::size_t first = ledger_.count();
    for (Place& place : places_) {
      for (std::size_t to = 0; to < places_.size(); ++to) place.worker->call(to, std::nullopt, 10);
    }
    EXPECT_TRUE(loop_.run_until([&] { return ledger_.all_ended(); }, loop_.now() + 60s))
        << ledger_.unfinished();
    std::size_t count = 0;
    // Served is enough: a function may fail on purpose.
    for (std::size_t tag = first; tag < ledger_.count(); ++tag) {
      count += ledger_.at(tag).served_count == 0 ? 1U : 0U;
    }
    return count;
  }

  tests::LogCapture log_;
  const GroupKind kind_;
  Random random_;
  sim::Loop loop_;
  sim::Network network_;
  std::unique_ptr<store::Store> store_;
  CallLedger ledger_;
  std::vector<Place> places_;
  std::size_t harm_count_ = 0;
  std::size_t join_count_ = 0;
};

}  // namespace muster::rpc::testing
