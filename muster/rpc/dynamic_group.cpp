#include "muster/rpc/dynamic_group.h"

#include "muster/base/log.h"
#include "muster/rpc/group_store.h"
#include "muster/rpc/member.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::rpc {

using muster::describe;  // of durations, beside that of devices

namespace {

// How long a worker whose join failed may take to clean up behind itself.
constexpr Duration kCleanUpMax = std::chrono::seconds(2);
// How often a newcomer asks whether the others know it: often at first, for they need no time.
constexpr Duration kAskFirst = std::chrono::milliseconds(2);
constexpr Duration kAskMax = std::chrono::milliseconds(100);
// In how many parts of a renewal a newcomer looks at somebody who has its name.
constexpr int kLooksPerRenewal = 4;
// How often a new watch is tried.
constexpr BackoffOptions kWatchAgain = {.first = std::chrono::milliseconds(20),
                                        .max = std::chrono::seconds(2)};
// A lease lasts for at least so many renewals: one may always come late.
constexpr int kRenewalsPerLeaseMin = 2;

constexpr std::string_view kPart = "rpc";

}  // namespace

// ---- Bell

struct Bell::Waiter {
  explicit Waiter(Bell& owner)
      : bell(owner), woken(owner.loop_), timer(owner.loop_, [this] { woken.set(false); }) {
    bell.waiter_ = this;
  }
  ~Waiter() { bell.waiter_ = nullptr; }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  Bell& bell;
  Oneshot<bool> woken;
  Timer timer;
};

void Bell::ring() {
  rung_ = true;
  if (waiter_ != nullptr) waiter_->woken.set(true);
}

Task<void> Bell::heard(TimePoint deadline) {
  if (!rung_) {
    Waiter waiter(*this);
    waiter.timer.set(deadline);
    co_await waiter.woken;
  }
  rung_ = false;
}

// ---- joining

DynamicGroup::DynamicGroup(Loop& loop, store::Store& store, Member self, GroupOptions options,
                           GroupEvents& events)
    : loop_(loop),
      store_(store),
      self_(std::move(self)),
      options_(options),
      events_(events),
      board_(loop, store, self_.incarnation),
      random_(~self_.incarnation),
      leases_(options.lease, options.renew_interval),
      renew_bell_(loop),
      observe_bell_(loop) {}

Task<Result<>> DynamicGroup::join(TimePoint deadline) {
  const TimePoint since = loop_.now();
  std::string what = "the store does not let this worker into its RPC group in time";
  auto entering = come_in();
  Result<> joined = co_await with_deadline(loop_, deadline, std::move(entering), std::move(what));
  if (joined) {
    tell(entered_);
    scope_.start(follow());
    scope_.start(renew());
    scope_.start(observe());
    std::string unknown;  // said below, when it is known of whom
    auto asking = become_known();
    joined = co_await with_deadline(loop_, deadline, std::move(asking), std::move(unknown));
    if (!joined && joined.error().kind == ErrorKind::Timeout) {
      joined = fail(ErrorKind::Timeout, unaware_text(loop_.now() - since));
    }
  } else if (joined.error().kind == ErrorKind::Timeout && refusal_) {
    joined = fail(*refusal_);
  }
  if (joined) co_return joined;

  state_ = State::Left;
  scope_.cancel_all();
  const TimePoint latest = after(loop_.now(), kCleanUpMax);
  std::string silent = "the store does not answer";
  auto leaving = withdraw();
  const auto left = co_await with_deadline(loop_, latest, std::move(leaving), std::move(silent));
  if (!left) {
    log::debug(kPart, "could not clean up after a join that failed; the lease will be over soon {}",
               left.error().message);
  }
  co_return joined;
}

Task<Result<>> DynamicGroup::come_in() {
  auto agreed = co_await agree_on_kind(loop_, store_, std::nullopt, self_.incarnation);
  if (!agreed) co_return agreed;
  co_return co_await enter();
}

Task<Result<>> DynamicGroup::enter() {
  Leases leases(options_.lease, options_.renew_interval);
  Incarnations gone;
  for (;;) {
    Admission admission;
    Result<> fit;
    MemberBoard::Decide decide = [&](const MemberList& list) {
      admission = admit(list, self_, gone);
      // Nothing that does not fit ever gets into the list, so it is the newcomer who is refused.
      fit = {};
      if (admission.next)
        fit = check_devices(device_rows(admission.next->members), Attendance::Open);
      return fit ? admission.next : std::nullopt;
    };
    auto list = co_await board_.change(std::move(decide));
    if (!list) co_return fail(list.error());
    if (!fit) co_return fit;
    if (admission.holders.empty()) {
      entered_ = std::move(*list);
      aware_.clear();
      refusal_.reset();
      // Aside, for whoever is in must show its lease soon.
      for (const std::uint64_t one : gone) scope_.start(drop(one));
      co_return Result<>();
    }
    refusal_ = Error{ErrorKind::Invalid, refusal_text(self_, admission.holders.front())};
    const auto judged = co_await judge(std::move(admission.holders), leases, gone);
    if (!judged) co_return judged;
    const TimePoint next = after(loop_.now(), options_.renew_interval / kLooksPerRenewal);
    co_await sleep_until(loop_, next);
  }
}

Task<Result<>> DynamicGroup::judge(std::vector<Member> holders, Leases& leases,
                                   Incarnations& gone) {
  std::vector<std::uint64_t> whom;
  for (const Member& holder : holders) whom.push_back(holder.incarnation);
  const TimePoint when = loop_.now();
  const auto values = co_await board_.look(std::move(whom));
  // A look that failed shows nothing; the next change of the list will tell if the store is gone.
  if (!values) co_return Result<>();
  for (std::size_t index = 0; index < holders.size(); ++index) {
    const std::uint64_t holder = holders[index].incarnation;
    leases.note(holder, (*values)[index], when);
    if (leases.was_renewed(holder)) {
      co_return fail(ErrorKind::Invalid, refusal_text(self_, holders[index]));
    }
    if (leases.is_over(holder)) gone.insert(holder);
  }
  co_return Result<>();
}

std::vector<std::uint64_t> DynamicGroup::unaware() const {
  std::vector<std::uint64_t> whom;
  for (const Member& member : entered_.members) {
    const std::uint64_t one = member.incarnation;
    if (one != self_.incarnation && !aware_.contains(one) && list_.find(one) != nullptr) {
      whom.push_back(one);
    }
  }
  return whom;
}

std::string DynamicGroup::unaware_text(Duration waited) const {
  std::vector<std::string> names;
  for (const std::uint64_t one : unaware()) names.push_back(entered_.find(one)->info.describe());
  if (names.empty()) names.push_back(self_.info.describe());
  return fmt::format(
      "not every member of the RPC group has taken note of {} within {}; those that have not: {}",
      self_.info.describe(), describe(waited), fmt::join(names, ", "));
}

Task<Result<>> DynamicGroup::become_known() {
  Duration pause = kAskFirst;
  for (;;) {
    if (state_ == State::Out) co_return fail(*refusal_);
    std::vector<std::uint64_t> whom = unaware();
    if (whom.empty() && list_.find(self_.incarnation) != nullptr) break;
    co_await look_at(std::move(whom));
    const TimePoint next = after(loop_.now(), pause);
    pause = std::min(kAskMax, pause * 2);
    co_await sleep_until(loop_, next);
  }
  is_known_ = true;
  aware_.clear();
  co_return Result<>();
}

// ---- what it does while it is in

Task<void> DynamicGroup::follow() {
  for (int failure_count = 0;; ++failure_count) {
    auto watch = co_await board_.watch();
    while (watch) {
      const auto change = co_await (*watch)->next(kNever);
      if (!change) break;
      failure_count = 0;
      auto list = board_.parse(*change);
      if (!list) {
        log::error(kPart, "{}; going on with the members known before", list.error().message);
        continue;
      }
      const bool taken = co_await take(std::move(*list));
      if (!taken) break;  // a new watch begins with what is there
    }
    const TimePoint next = after(loop_.now(), backoff(kWatchAgain, failure_count, random_));
    co_await sleep_until(loop_, next);
  }
}

Task<bool> DynamicGroup::take(MemberList list) {
  if (list.version < list_.version) {
    // From before a list that we have read meanwhile, or the store has lost it: what is there now?
    auto now = co_await board_.read();
    if (!now) co_return false;
    list = std::move(*now);
  }
  const bool are_in = list.find(self_.incarnation) != nullptr;
  if (!are_in && state_ == State::In) {
    const bool back = co_await come_back();
    // The list that keeps us out is newer than this one.
    co_return back;
  }
  tell(std::move(list));
  co_return true;
}

Task<bool> DynamicGroup::come_back() {
  log::warn(kPart,
            "{} was taken out of its RPC group, having not renewed its lease for {}; joining again",
            self_.info.describe(), describe(options_.lease));
  // Not 0, which is nobody's.
  self_.incarnation = std::max<std::uint64_t>(1, random_.next());
  for (;;) {
    Result<> entered = co_await events_.before_return();
    if (entered) entered = co_await come_in();
    if (entered) break;
    if (entered.error().kind == ErrorKind::Invalid) {
      log::error(kPart, "{} stays out of its RPC group: {}", self_.info.describe(),
                 entered.error().message);
      state_ = State::Out;
      refusal_ = entered.error();
      co_return false;
    }
    log::warn(kPart, "{} cannot join its RPC group again: {}; trying again in {}",
              self_.info.describe(), entered.error().message, describe(options_.lease));
    const TimePoint next = after(loop_.now(), options_.lease);
    co_await sleep_until(loop_, next);
  }
  tell(entered_);
  co_return true;
}

void DynamicGroup::tell(MemberList list) {
  const bool is_new = list.members != list_.members;
  list_ = std::move(list);
  leases_.forget_absent(list_);
  if (is_new) {
    // A copy, for the owner may do something that brings the next list.
    const std::vector<Member> members = list_.members;
    events_.on_members(members);
  }
  renew_bell_.ring();
}

Task<void> DynamicGroup::renew() {
  std::uint64_t before = self_.incarnation;
  bool failing = false;
  for (Lease lease; state_ == State::In;) {
    const TimePoint started = loop_.now();
    const std::uint64_t incarnation = self_.incarnation;
    ++lease.beat;
    lease.acknowledged = list_.version;
    const auto written = co_await board_.write_lease(incarnation, lease);
    if (!written && !failing) {
      log::warn(kPart, "{} cannot renew its lease in its RPC group: {}; trying again every {}",
                self_.info.describe(), written.error().message, describe(options_.renew_interval));
    }
    failing = !written;
    if (incarnation != before) {
      // By this task alone, so that no renewal under way brings it back.
      co_await drop(before);
      before = incarnation;
    }
    const TimePoint next = after(started, options_.renew_interval);
    co_await renew_bell_.heard(next);
  }
  // Somebody else has our place, and we need no lease any more.
  co_await drop(before);
  co_await drop(self_.incarnation);
}

Task<void> DynamicGroup::observe() {
  while (state_ == State::In) {
    const TimePoint started = loop_.now();
    std::vector<std::uint64_t> whom = leases_.whom_to_watch(list_, self_.incarnation);
    co_await look_at(std::move(whom));
    const TimePoint next = after(started, options_.renew_interval);
    co_await observe_bell_.heard(next);
  }
}

Task<void> DynamicGroup::look_at(std::vector<std::uint64_t> incarnations) {
  if (incarnations.empty()) co_return;
  // What we shall see is from after this moment, whenever the answer comes.
  const TimePoint when = loop_.now();
  std::vector<std::uint64_t> whom = incarnations;
  const auto values = co_await board_.look(std::move(whom));
  if (!values) co_return;
  Incarnations silent;
  for (std::size_t index = 0; index < incarnations.size(); ++index) {
    const std::uint64_t one = incarnations[index];
    leases_.note(one, (*values)[index], when);
    const auto lease = decode_lease((*values)[index]);
    if (!is_known_ && lease && lease->acknowledged >= entered_.version) aware_.insert(one);
    if (leases_.is_over(one)) silent.insert(one);
  }
  if (!silent.empty()) co_await take_out(std::move(silent));
}

Task<void> DynamicGroup::take_out(Incarnations silent) {
  std::vector<WorkerInfo> taken;
  MemberBoard::Decide decide = [&](const MemberList& list) {
    taken.clear();
    for (const Member& member : list.members) {
      if (silent.contains(member.incarnation)) taken.push_back(member.info);
    }
    return without(list, silent);
  };
  const auto list = co_await board_.change(std::move(decide));
  if (!list) co_return;  // the next look finds them again
  for (const WorkerInfo& info : taken) {
    log::info(kPart, "{} was taken out of its RPC group: it has not renewed its lease for {}",
              info.describe(), describe(options_.lease));
  }
  for (const std::uint64_t one : silent) co_await drop(one);
}

Task<void> DynamicGroup::drop(std::uint64_t incarnation) {
  const auto dropped = co_await board_.drop_lease(incarnation);
  if (!dropped) log::debug(kPart, "a lease stays behind: {}", dropped.error().message);
}

// ---- what its owner asks for

Task<Result<Member>> DynamicGroup::look_up(std::string name) {
  const auto list = co_await board_.read();
  if (!list) co_return fail(list.error());
  const Member* const found = list->find_name(name);
  if (found == nullptr) {
    co_return fail(ErrorKind::Invalid, unknown_destination_name_text(self_.info, name));
  }
  co_return *found;
}

void DynamicGroup::suspect(const Member& member) {
  if (state_ != State::In || member.incarnation == self_.incarnation) return;
  if (list_.find(member.incarnation) == nullptr) return;
  leases_.suspect(member.incarnation);
  observe_bell_.ring();
}

Task<Result<>> DynamicGroup::withdraw() {
  const Incarnations leaving = {self_.incarnation};
  MemberBoard::Decide decide = [&](const MemberList& list) { return without(list, leaving); };
  const auto list = co_await board_.change(std::move(decide));
  co_await drop(self_.incarnation);
  if (!list) co_return fail(list.error());
  co_return Result<>();
}

Task<Result<>> DynamicGroup::leave(TimePoint deadline) {
  // Not from inside `on_members`: what called that is about to be cancelled.
  const TimePoint now = loop_.now();
  co_await sleep_until(loop_, now);
  if (state_ == State::Left) co_return Result<>();
  state_ = State::Left;
  scope_.cancel_all();
  std::string what = fmt::format(
      "{} could not leave its RPC group in time; the others will notice when its lease is over",
      self_.info.describe());
  auto leaving = withdraw();
  co_return co_await with_deadline(loop_, deadline, std::move(leaving), std::move(what));
}

Task<Result<std::unique_ptr<Group>>> join_dynamic_group(Loop& loop, store::Store& store,
                                                        Member self, GroupOptions options,
                                                        GroupEvents& events, TimePoint deadline) {
  if (const auto fit = check_member(self); !fit) co_return fail(fit.error());
  if (options.renew_interval <= Duration::zero() ||
      options.lease / kRenewalsPerLeaseMin < options.renew_interval) {
    co_return fail(
        ErrorKind::Invalid,
        fmt::format("a lease of {} is too short for a renewal every {}: make it at least "
                    "{} times as long",
                    describe(options.lease), describe(options.renew_interval),
                    kRenewalsPerLeaseMin));
  }
  auto group = std::make_unique<DynamicGroup>(loop, store, std::move(self), options, events);
  const auto joined = co_await group->join(deadline);
  if (!joined) co_return fail(joined.error());
  std::unique_ptr<Group> result = std::move(group);
  co_return result;
}

}  // namespace muster::rpc
