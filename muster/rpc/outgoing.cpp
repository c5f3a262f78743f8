#include "muster/rpc/outgoing.h"

#include "muster/base/log.h"
#include "muster/rpc/crowd.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::rpc {
namespace {

// With so many requests under way, the next ones are sent together.
constexpr int kGatherAbove = 8;
// For so long after a thread was woken, another one that calls takes it that more will be.
constexpr Duration kCrowdedFor = std::chrono::milliseconds(1);
// So often it lets others run before it sleeps, and for so long if there are none.
constexpr int kGivesWay = 16;
constexpr Duration kGivesWayFor = std::chrono::microseconds(30);
// For a store to say where a worker is now. It may have gone with it.
constexpr Duration kLookUpMax = std::chrono::seconds(5);

bool is_lent(const Message& message) {
  return std::ranges::any_of(message.buffers, &Buffer::is_borrowed);
}

}  // namespace

// Guarded by the lock of the Outgoing.
struct Outgoing::Loan {
  CallId id = kNoMessageId;  // until the call has one
  bool is_over = false;
};

// Sees to it that nobody looks at memory that was lent for a call when its program learns that the
// call is over, and may do with it what it likes: the request may still be on its way then.
class Outgoing::LoanSink final : public CallSink {
 public:
  LoanSink(std::weak_ptr<Outgoing> by, std::shared_ptr<Loan> loan, std::unique_ptr<CallSink> sink)
      : by_(std::move(by)), loan_(std::move(loan)), sink_(std::move(sink)) {}
  void set_helper(std::weak_ptr<internal::Helper> helper) override {
    sink_->set_helper(std::move(helper));
  }
  void ended(CallResult<Message> outcome, Calls& calls) override {
    if (const auto by = by_.lock()) by->end_loan(*loan_);
    sink_->ended(std::move(outcome), calls);
  }
  bool wants_late_answer() const override { return sink_->wants_late_answer(); }
  void came_late(Message response) override { sink_->came_late(std::move(response)); }
  bool is_made() const override { return sink_->is_made(); }

 private:
  const std::weak_ptr<Outgoing> by_;
  const std::shared_ptr<Loan> loan_;
  const std::unique_ptr<CallSink> sink_;
};

Outgoing::Outgoing(const Surroundings& around, WorkerInfo self, std::uint64_t self_incarnation,
                   Member member)
    : around_(around),
      self_(std::move(self)),
      self_incarnation_(self_incarnation),
      crowd_(around.link.crowd),
      member_(std::move(member)),
      connection_(around.next_connection()) {}

Outgoing::~Outgoing() = default;

Member Outgoing::member() const {
  const std::lock_guard lock(mutex_);
  return member_;
}

std::string_view Outgoing::kind() const {
  const std::lock_guard lock(mutex_);
  return link_ ? link_->kind() : std::string_view();
}

std::uint64_t Outgoing::sent_bytes() const {
  const std::lock_guard lock(mutex_);
  return sent_before_bytes_ + (link_ ? link_->sent_bytes() : 0);
}

std::uint64_t Outgoing::received_bytes() const {
  const std::lock_guard lock(mutex_);
  return received_before_bytes_ + (link_ ? link_->received_bytes() : 0);
}

// ---- calling ------------------------------------------------------------------------------------

void Outgoing::submit(Message request, Duration timeout, TimePoint deadline,
                      std::unique_ptr<CallSink> sink) {
  ++call_count_;
  if (auto fits = check_frame(request, around_.link.limits); !fits) {
    return refuse(std::move(sink), {CallErrorKind::Rejected, fits.error().message, "", false});
  }
  std::shared_ptr<Loan> loan;
  if (is_lent(request)) {
    loan = std::make_shared<Loan>();
    sink = std::make_unique<LoanSink>(weak_from_this(), loan, std::move(sink));
  }
  sink->set_helper(weak_from_this());
  std::unique_lock lock(mutex_);
  // What is small and few, and what others count on, is never held up behind calls.
  while (is_call(request.type) && is_full()) {
    lock.unlock();
    if (auto refused = wait_for_room(timeout, deadline)) {
      return refuse(std::move(sink), std::move(*refused));
    }
    lock.lock();
  }
  if (closed_) {
    CallError error = *closed_;
    error.sent = false;
    lock.unlock();
    return refuse(std::move(sink), std::move(error));
  }
  // The loop has not heard of it yet. What is called now need not fail with it.
  if (link_ && link_->is_lost()) let_go_of_link();
  auto id = around_.calls->start({connection_, deadline, timeout, weak_from_this()}, sink);
  if (!id) {
    lock.unlock();
    return refuse(std::move(sink), std::move(id.error()));
  }
  request.id = *id;
  if (loan) loan->id = *id;
  if (!link_) {
    waiting_bytes_ += request.payload.size() + sizeof request;
    for (const Buffer& buffer : request.buffers) waiting_bytes_ += buffer.size();
    waiting_.push_back(std::move(request));
    if (!std::exchange(is_wanted_, true)) {
      around_.loop->post([self = shared_from_this()] { self->want_connection(); });
    }
    return;
  }
  const std::shared_ptr<Link> link = link_;
  lock.unlock();
  // Whoever has many calls under way waits for them together.
  const bool is_one_of_many = ++under_way_count_ > kGatherAbove && request.buffers.empty();
  const auto when = is_one_of_many ? Link::When::Soon : Link::When::AtOnce;
  if (auto sent = link->send(std::move(request), when); !sent) {
    around_.calls->withdraw(*id, {CallErrorKind::Unreachable, sent.error().message, "", false});
  }
  if (!loan) return;
  // Its time may have been over before the link had it.
  lock.lock();
  const bool is_over = loan->is_over;
  lock.unlock();
  if (is_over) link->take_over(*id);
}

void Outgoing::end_loan(Loan& loan) {
  std::vector<std::shared_ptr<Link>> links;
  {
    const std::lock_guard lock(mutex_);
    loan.is_over = true;
    if (loan.id == kNoMessageId) return;
    std::erase_if(waiting_, [&loan](Message& request) {
      return request.id == loan.id && !take_over(request.buffers);
    });
    links = going_;
    if (link_) links.push_back(link_);
  }
  for (const auto& link : links) link->take_over(loan.id);
}

void Outgoing::refuse(std::unique_ptr<CallSink> sink, CallError error) {
  failed();
  around_.calls->refuse(std::move(sink), std::move(error));
}

bool Outgoing::is_full() const {
  if (closed_) return false;
  if (link_ && !link_->is_lost()) return link_->is_full();
  return waiting_bytes_ > around_.link.queue_bytes_max;
}

std::optional<CallError> Outgoing::wait_for_room(Duration timeout, TimePoint deadline) {
  const auto has_room = [this] {
    const std::lock_guard lock(mutex_);
    return !is_full();
  };
  const bool may_wait = around_.may_wait && around_.may_wait();
  if (may_wait && throttle_->wait(deadline, has_room)) return std::nullopt;
  const std::string text =
      fmt::format("more than {} bytes wait for {} already, which does not read them as fast",
                  around_.link.queue_bytes_max, member().info.describe());
  if (!may_wait) return CallError{CallErrorKind::Unreachable, text, "", false};
  return CallError{CallErrorKind::Timeout, timeout_text(timeout) + ": " + text, "", false};
}

void Outgoing::help(internal::Waiter& waiter) {
  const SystemClock clock;
  const TimePoint started = clock.now();
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Link> link = link_;
  if (!link) return;
  if (is_crowded(started)) {
    lock.unlock();
    return help_in_turns(waiter, *link);
  }
  SpinBudget spin = spin_;
  // Before the agent can be gone.
  const bool may_look = around_.link.hot != nullptr;
  lock.unlock();
  if (spin.wants_to_know(started))
    spin.preempted(started, lost_to_others(started, spin.rested_until()));
  // Of a large answer, each piece is waited for like a small one.
  std::uint64_t received = link->received_bytes();
  TimePoint since = started;
  TimePoint last = started;
  bool is_looking = may_look;
  const Alarm* alarm = nullptr;  // once it has slept
  link->read_while([&]() -> std::optional<Link::Pause> {
    const TimePoint before = std::exchange(last, clock.now());
    const bool has_looked = is_looking && spin.at(before) > Duration::zero();
    if (has_looked && last - before > SpinBudget::kSuspicious) {
      spin.preempted(last, lost_to_others(last, spin.rested_until()));
    }
    if (const std::uint64_t bytes = link->received_bytes(); bytes != received) {
      spin.came(last - since, is_looking);
      received = bytes;
      since = last;
      is_looking = may_look;
    }
    if (waiter.is_done() || last >= waiter.deadline()) return std::nullopt;
    if (is_looking && last - since < spin.at(last)) return Link::Pause();
    is_looking = false;
    // Here, and not in the future: the answer then wakes this thread, and no other before it.
    if (alarm == nullptr) alarm = waiter.set_alarm();
    if (alarm == nullptr) return std::nullopt;
    return Link::Pause{alarm, waiter.deadline()};
  });
  lock.lock();
  spin_ = spin;
}

// Where many threads call, one of them would have to hand the reading on with each of its own
// answers, and the next one to be woken for it. So nobody sleeps, and whoever runs reads for all,
// and writes for all: what they call while one of them is not on a processor goes out together.
void Outgoing::help_in_turns(const internal::Waiter& waiter, Link& link) {
  if (!crowd_) return;
  const SystemClock clock;
  TimePoint now = clock.now();
  crowd_->notice(now);
  // Before others are told that somebody takes turns.
  if (!crowd_->is_there(now)) return;
  const TimePoint ends = now + kGivesWayFor;
  int times = 0;
  link.take_turns([&] {
    if (waiter.is_done() || now >= waiter.deadline()) return false;
    if (++times > kGivesWay && now >= ends) return false;
    if (!crowd_->give_way() || waiter.is_done()) return false;
    now = clock.now();
    return true;
  });
}

bool Outgoing::is_crowded(TimePoint now) const {
  if (link_ && link_->has_turns()) return true;
  // Others sleep, and not only for what takes long.
  const Woken& other = woken_.thread == std::this_thread::get_id() ? woken_before_ : woken_;
  return sleeper_count_ > 0 && now - other.when < kCrowdedFor;
}

void Outgoing::sleeps() {
  const std::lock_guard lock(mutex_);
  ++sleeper_count_;
}

void Outgoing::slept(std::optional<Duration> total) {
  const std::lock_guard lock(mutex_);
  --sleeper_count_;
  if (!total) return;
  spin_.came(*total, false);
  const Woken woken{std::this_thread::get_id(), SystemClock().now()};
  if (woken_.thread != woken.thread) woken_before_ = woken_;
  woken_ = woken;
}

void Outgoing::timed_out(CallId id) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Link> link = link_;
  lock.unlock();
  // Best effort: the function may look whether anybody waits for it.
  if (link && !link->is_full()) [[maybe_unused]]
    const auto sent = link->send({kCancel, id, "", {}});
}

// ---- connecting ---------------------------------------------------------------------------------

void Outgoing::want_connection() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
  }
  tasks_.start(connect());
}

Task<void> Outgoing::connect() {
  const auto self = shared_from_this();
  const TimePoint start = not_before_;
  if (start > around_.loop->now()) co_await sleep_until(*around_.loop, start);
  const Member known = member();
  Result<> outcome = fail(ErrorKind::Closed, "");
  if (!is_dead()) {
    outcome = co_await try_to_connect(known);
    // Before the store is asked, which may take long, or have gone as well.
    if (!outcome) {
      const bool is_refused = outcome.error().kind == ErrorKind::Closed;
      saw(is_refused ? Suspicion::Sign::Refused : Suspicion::Sign::Silent);
    }
  }
  if (!outcome) {
    const TimePoint patience = around_.loop->now() + kLookUpMax;
    Task<Result<Member>> asking = around_.look_up(known.info.name());
    std::string text = "the store does not say where it is";
    const Result<Member> fresh =
        co_await with_deadline<Member>(*around_.loop, patience, std::move(asking), std::move(text));
    if (fresh && *fresh != known) {
      update(*fresh);
      outcome = co_await try_to_connect(*fresh);
    }
  }
  if (outcome) {
    pause_ = Duration::zero();
    connected();
    saw(Suspicion::Sign::Answered);
    if (around_.reached) around_.reached(member());
    co_return;
  }
  pause_ = std::clamp(pause_ * 2, around_.pause_min, around_.pause_max);
  not_before_ = around_.loop->now() + pause_;
  const WorkerInfo& peer = known.info;
  fail_waiting(is_dead() ? peer_died_text(peer, known.address)
                         : peer_lost_text(peer, outcome.error().message, last_heard()));
  around_.suspect(known);
  // The time for the next look may have passed meanwhile, when there was an attempt already.
  if (look_) look_->set(suspicion_.next_look());
}

Task<Result<>> Outgoing::try_to_connect(Member member) {
  const TimePoint deadline = around_.loop->now() + around_.connect_timeout;
  Task<Result<std::unique_ptr<Stream>>> opening = around_.open_stream(member);
  std::string text = fmt::format("{} did not answer within {} ms", member.address,
                                 around_.connect_timeout / std::chrono::milliseconds(1));
  auto stream = co_await with_deadline<std::unique_ptr<Stream>>(*around_.loop, deadline,
                                                                std::move(opening), text);
  if (!stream) co_return fail(stream.error());
  LinkOptions options = around_.link;
  options.peer = member.info.describe();
  {
    const std::lock_guard lock(mutex_);
    options.tag = connection_;
  }
  options.throttle = throttle_;
  greeting_ = Link::open(*around_.loop, std::move(*stream), std::move(options), *this);
  greeting_->set_limits(kHelloLimits);
  greeting_failure_.clear();
  is_welcome_ = false;
  welcome_.emplace(*around_.loop);
  Hello hello;
  hello.job = around_.job;
  hello.from_name = self_.name();
  hello.from_id = self_.id();
  hello.from_incarnation = self_incarnation_;
  hello.to_incarnation = member.incarnation;
  Result<> outcome = greeting_->send(encode(hello));
  if (outcome) {
    Timer timer(*around_.loop, [&] { welcome_->set(fail(ErrorKind::Timeout, text)); });
    timer.set(deadline);
    outcome = co_await *welcome_;
  }
  welcome_.reset();
  if (outcome && !greeting_failure_.empty()) {
    outcome = fail(ErrorKind::Unavailable, greeting_failure_);
  }
  if (!outcome) {
    greeting_->close();
    greeting_.reset();
  }
  co_return outcome;
}

void Outgoing::connected() {
  std::vector<std::pair<CallId, std::string>> refused;
  // What they refer to is the program's, and not to be destroyed with the lock; nor are calls that
  // nobody waits for.
  std::vector<Message> requests;
  std::vector<CallId> unwanted;
  std::shared_ptr<Link> link;
  {
    const std::lock_guard lock(mutex_);
    link = link_ = std::move(greeting_);
    greeting_ = nullptr;
    under_way_count_ = static_cast<int>(waiting_.size());
    is_wanted_ = false;
    waiting_bytes_ = 0;
    requests.swap(waiting_);
    for (Message& request : requests) {
      const CallId id = request.id;
      // Nobody waits for a call whose time is over; but programs count on a value that they have a
      // reference to being made all the same.
      if (!keeps_result(request.type) && !around_.calls->is_wanted(id)) {
        unwanted.push_back(id);
        continue;
      }
      // Before what is called from now on.
      if (auto sent = link->send(std::move(request), Link::When::Later); !sent) {
        refused.emplace_back(id, sent.error().message);
      }
    }
  }
  link->write();
  throttle_->changed();
  heard_at_ = around_.loop->now();
  heard_bytes_ = said_bytes_ = 0;
  for (const CallId id : unwanted) around_.calls->forget(id);
  for (auto& [id, text] : refused) {
    around_.calls->withdraw(id, {CallErrorKind::Unreachable, std::move(text), "", false});
  }
}

void Outgoing::on_message(Link& link, Message message) {
  if (message.type == kSignOfLife) return;
  if (message.type == kWelcome || message.type == kRefused) {
    if (message.type == kWelcome) {
      link.set_limits(around_.link.limits);
      is_welcome_ = true;
    }
    around_.loop->post(
        [self = shared_from_this(), from = link.shared_from_this(), message = std::move(message)] {
          if (!self->welcome_ || self->greeting_ != from) return;
          Result<> outcome;
          // Whoever is at its address now, it is not the one that is looked for.
          if (message.type == kRefused) outcome = fail(ErrorKind::Closed, message.payload);
          self->welcome_->set(std::move(outcome));
        });
    return;
  }
  if (!is_response(message.type)) return link.give_up("it sent a request where answers belong");
  --under_way_count_;
  // What waits for the connection has its number already, but nobody was asked yet.
  if (!is_welcome_ || !around_.calls->responded(link.tag(), std::move(message))) {
    link.give_up("it answered a call that nobody made");
  }
}

void Outgoing::on_lost(Link& link, std::string reason) {
  if (greeting_.get() == &link) {
    // Perhaps just after it was welcome.
    greeting_failure_ = reason;
    if (welcome_) welcome_->set(fail(ErrorKind::Unavailable, reason));
    return;
  }
  const Member lost_member = member();
  // Workers go, at the latest when the job is over. Who has no call under way need not know.
  const log::Level level = around_.calls->active_count() > 0 ? log::Level::Info : log::Level::Debug;
  if (log::enabled(level)) {
    log::write(level, "rpc",
               fmt::format("{} lost its connection to {}: {}", self_.describe(),
                           lost_member.info.describe(), reason));
  }
  // Nothing more comes from it, so that no answer is taken for one to a call that has failed.
  link.close();
  const PeerId ended = link.tag();
  auto heard = last_heard();
  if (heard) heard->was_since = link.received_bytes() != heard_bytes_;
  {
    // A call may have found out before.
    const std::lock_guard lock(mutex_);
    if (link_.get() == &link) let_go_of_link();
    std::erase_if(going_, [&](const auto& one) { return one.get() == &link; });
  }
  throttle_->changed();
  const std::string text = peer_lost_text(lost_member.info, reason, heard);
  around_.calls->lost(ended, {CallErrorKind::Unreachable, text, "", true});
  around_.suspect(lost_member);
  if (around_.cut_off) around_.cut_off(lost_member);
}

void Outgoing::let_go_of_link() {
  sent_before_bytes_ += link_->sent_bytes();
  received_before_bytes_ += link_->received_bytes();
  going_.push_back(std::exchange(link_, nullptr));
  connection_ = around_.next_connection();
}

std::optional<LastHeard> Outgoing::last_heard() const {
  if (!heard_at_) return std::nullopt;
  return LastHeard{around_.loop->now() - *heard_at_, false};
}

void Outgoing::fail_waiting(const std::string& text) {
  PeerId ended = 0;
  std::vector<Message> waiting;  // not to be destroyed with the lock
  {
    const std::lock_guard lock(mutex_);
    ended = std::exchange(connection_, around_.next_connection());
    waiting.swap(waiting_);
    waiting_bytes_ = 0;
    is_wanted_ = false;
  }
  throttle_->changed();
  around_.calls->lost(ended, {CallErrorKind::Unreachable, text, "", false});
}

// ---- whether it is alive ------------------------------------------------------------------------

void Outgoing::look_for() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || (link_ && !link_->is_lost())) return;
  }
  suspicion_.lost(around_.loop->now());
  if (!look_) look_.emplace(*around_.loop, [this] { open(); });
  look_->set(suspicion_.next_look());
  // If it lives, it need not suspect this worker, either.
  open();
}

void Outgoing::came() { saw(Suspicion::Sign::Answered); }

void Outgoing::open() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || link_ || std::exchange(is_wanted_, true)) return;
  }
  tasks_.start(connect());
}

void Outgoing::saw(Suspicion::Sign sign) {
  if (!look_) return;
  const bool was_dead = is_dead();
  suspicion_.saw(sign, around_.loop->now());
  look_->set(suspicion_.next_look());
  if (was_dead || !is_dead()) return;
  const Member dead = member();
  around_.died(dead, peer_died_text(dead.info, dead.address));
}

// ---- the rest -----------------------------------------------------------------------------------

void Outgoing::update(const Member& member) {
  std::shared_ptr<Link> old;
  {
    const std::lock_guard lock(mutex_);
    if (member_.incarnation != member.incarnation) {
      old = link_;
      suspicion_ = Suspicion();
      if (look_) look_->cancel();
    }
    member_ = member;
  }
  pause_ = Duration::zero();
  not_before_ = TimePoint();
  if (old) old->give_up("it was started again");
}

void Outgoing::cut(std::string reason) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Link> link = link_;
  lock.unlock();
  if (link) link->give_up(std::move(reason));
}

void Outgoing::look_after(TimePoint now, Duration silence_max) {
  std::shared_ptr<Link> link;
  {
    const std::lock_guard lock(mutex_);
    link = link_;
  }
  if (!link) return;
  const std::uint64_t heard_bytes = link->received_bytes();
  if (std::exchange(heard_bytes_, heard_bytes) != heard_bytes) {
    heard_at_ = now;
  } else if (now - *heard_at_ > silence_max) {
    return link->give_up(fmt::format("nothing was heard from it for {} s",
                                     (now - *heard_at_) / std::chrono::seconds(1)));
  }
  if (link->sent_bytes() == said_bytes_ && !link->is_full()) {
    [[maybe_unused]] const auto sent = link->send({kSignOfLife, 0, "", {}});
  }
  said_bytes_ = link->sent_bytes();
}

void Outgoing::close(const CallError& error) {
  tasks_.cancel_all();
  look_.reset();
  std::vector<std::shared_ptr<Link>> links;
  std::vector<PeerId> ended;
  std::vector<Message> waiting;  // not to be destroyed with the lock
  {
    const std::lock_guard lock(mutex_);
    closed_ = error;
    links.swap(going_);
    if (link_) links.push_back(std::exchange(link_, nullptr));
    waiting.swap(waiting_);
    waiting_bytes_ = 0;
    ended.push_back(connection_);
  }
  throttle_->changed();
  if (greeting_) links.push_back(std::exchange(greeting_, nullptr));
  for (const auto& link : links) {
    link->close();
    ended.push_back(link->tag());
  }
  for (const PeerId connection : ended) around_.calls->lost(connection, error);
}

}  // namespace muster::rpc
