#include "muster/rpc/retries.h"

#include "muster/base/log.h"
#include "muster/rpc/texts.h"

#include <utility>
#include <vector>

namespace muster::rpc {

// One transmission.
class Retries::Attempt final : public CallSink {
 public:
  Attempt(Retries& retries, RetryEntry number) : retries_(retries), number_(number) {}
  void ended(CallResult<Message> outcome, Calls& calls) override {
    retries_.ended(number_, std::move(outcome));
    calls.finished();
  }

 private:
  Retries& retries_;
  RetryEntry number_;
};

Retries::Retries(Agent& agent, Loop& loop, const Clock& clock)
    : agent_(agent), loop_(loop), clock_(clock), timer_(loop, [this] { due(); }) {}

Retries::~Retries() = default;

Future<Message> Retries::send(std::string to, Message request, RetryOptions options) {
  auto entry = std::make_shared<Entry>(Entry{std::move(to), std::move(request), {}, false});
  Future<Message> future = entry->promise.future();
  std::unique_lock lock(mutex_);
  const auto number = schedule_.add(options, clock_.now());
  if (!number) {
    lock.unlock();
    const bool invalid = number.error().kind == ErrorKind::Invalid;
    entry->promise.set(call_failed({invalid ? CallErrorKind::Rejected : CallErrorKind::Unreachable,
                                    number.error().message, "", false}));
    return future;
  }
  entries_.emplace(*number, std::move(entry));
  lock.unlock();
  transmit(*number);
  return future;
}

void Retries::transmit(RetryEntry number) {
  std::unique_lock lock(mutex_);
  const auto entry = entries_.at(number);
  lock.unlock();
  // A copy: what is retried must have all its bytes.
  Message request = entry->request;
  agent_.submit(entry->to, std::move(request), std::nullopt,
                std::make_unique<Attempt>(*this, number));
}

void Retries::ended(RetryEntry number, CallResult<Message> outcome) {
  std::unique_lock lock(mutex_);
  if (outcome) {
    schedule_.succeeded(number);
    lock.unlock();
    return finish(number, std::move(outcome));
  }
  auto failure = schedule_.failed(number, outcome.error(), clock_.now());
  const auto entry = entries_.at(number);
  if (outcome.error().sent) entry->was_sent = true;
  lock.unlock();
  log::debug("rpc", "attempt {} to reach {} failed, {}: {}", failure.attempt_number, entry->to,
             failure.error ? "giving up" : "repeating it", render(outcome.error()));
  if (failure.error) return finish(number, call_failed(std::move(*failure.error)));
  rearm();
}

void Retries::finish(RetryEntry number, CallResult<Message> outcome) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end()) return;
  const auto entry = std::move(found->second);
  entries_.erase(found);
  lock.unlock();
  entry->promise.set_on(agent_.callbacks(), std::move(outcome), [] {});
}

void Retries::rearm() {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return;
  loop_.post([this] {
    const std::lock_guard inner(mutex_);
    if (!is_stopped_) timer_.set(schedule_.next_deadline());
  });
}

void Retries::due() {
  std::unique_lock lock(mutex_);
  const std::vector<RetryEntry> numbers = schedule_.due(clock_.now());
  timer_.set(schedule_.next_deadline());
  lock.unlock();
  for (const RetryEntry number : numbers) transmit(number);
}

void Retries::stop() {
  std::unique_lock lock(mutex_);
  is_stopped_ = true;
  timer_.cancel();
  std::vector<std::pair<RetryEntry, bool>> waiting;
  for (const RetryEntry number : schedule_.stop()) {
    waiting.emplace_back(number, entries_.at(number)->was_sent);
  }
  lock.unlock();
  for (const auto& [number, was_sent] : waiting) {
    finish(number,
           call_failed({CallErrorKind::Rejected, agent_stopped_text(agent_.self()), "", was_sent}));
  }
}

}  // namespace muster::rpc
