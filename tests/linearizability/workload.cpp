#include "tests/linearizability/workload.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace muster::linearizability {
namespace {

Kind draw_kind(Random& random, const WorkloadOptions::Weights& weights) {
  const std::array<std::pair<Kind, std::uint64_t>, 7> table{{
      {Kind::Set, weights.set},
      {Kind::Get, weights.get},
      {Kind::TryGet, weights.try_get},
      {Kind::Add, weights.add},
      {Kind::CompareSet, weights.compare_set},
      {Kind::Erase, weights.erase},
      {Kind::Append, weights.append},
  }};
  std::uint64_t total = 0;
  for (const auto& [kind, weight] : table) total += weight;
  std::uint64_t at = random.below(total);
  for (const auto& [kind, weight] : table) {
    if (at < weight) return kind;
    at -= weight;
  }
  MUSTER_ASSERT(false);
}

// Unlike anything else written, so that a read says whose write it saw.
std::string draw_value(Random& random, const WorkloadOptions& options, const Memory& memory) {
  if (random.chance(options.text_per_thousand)) {
    return fmt::format("v{}.{}", memory.client, memory.operation_index);
  }
  // Far apart, so that sums do not meet other values soon.
  return fmt::format("{}{:03}000", memory.operation_index + 1, memory.client);
}

std::string draw_expected(Random& random, const Memory& memory, const std::string& key) {
  const auto seen = memory.seen.find(key);
  // Now and then the client hopes that the key is absent.
  if (seen == memory.seen.end() || !seen->second || random.chance(100)) return "";
  return *seen->second;
}

// What the client knows about the key after an operation that was answered.
void remember(Memory& memory, const Call& call, const Answer& answer) {
  Value& seen = memory.seen[call.key];
  switch (call.kind) {
    case Kind::Set:
      seen = call.value;
      break;
    case Kind::Get:
      seen = answer.value;
      break;
    case Kind::TryGet:
      seen = answer.status == Answer::Status::Yes ? Value(answer.value) : std::nullopt;
      break;
    case Kind::Add:
      if (answer.status == Answer::Status::Done) seen = answer.value;
      break;
    case Kind::CompareSet: {
      // The answer for an absent key is the caller's own expectation.
      const bool absent = answer.status == Answer::Status::No && answer.value == call.expected;
      seen = absent ? std::nullopt : Value(answer.value);
      break;
    }
    case Kind::Erase:
      seen.reset();
      break;
    case Kind::Append:
      if (seen) *seen += call.value;
      break;
  }
}

// Performs `call`; the outer result is the store's error, if any.
Task<Result<Answer>> send(store::Store& store, Call call, TimePoint get_deadline) {
  using Status = Answer::Status;
  Answer answer;
  switch (call.kind) {
    case Kind::Set: {
      const Result<> done = co_await store.set(std::move(call.key), std::move(call.value));
      if (!done) co_return fail(done.error());
      break;
    }
    case Kind::Get: {
      const Result<std::string> value = co_await store.get(std::move(call.key), get_deadline);
      if (!value) co_return fail(value.error());
      answer.value = *value;
      break;
    }
    case Kind::TryGet: {
      const Result<Value> value = co_await store.try_get(std::move(call.key));
      if (!value) co_return fail(value.error());
      answer.status = *value ? Status::Yes : Status::No;
      answer.value = value->value_or("");
      break;
    }
    case Kind::Add: {
      const Result<std::int64_t> sum = co_await store.add(std::move(call.key), call.delta);
      if (!sum) co_return fail(sum.error());
      answer.value = std::to_string(*sum);
      break;
    }
    case Kind::CompareSet: {
      const Result<store::CompareSet> result = co_await store.compare_set(
          std::move(call.key), std::move(call.expected), std::move(call.value));
      if (!result) co_return fail(result.error());
      answer.status = result->stored ? Status::Yes : Status::No;
      answer.value = result->value;
      break;
    }
    case Kind::Erase: {
      const Result<bool> existed = co_await store.delete_key(std::move(call.key));
      if (!existed) co_return fail(existed.error());
      answer.status = *existed ? Status::Yes : Status::No;
      break;
    }
    case Kind::Append: {
      const Result<> done = co_await store.append(std::move(call.key), std::move(call.value));
      if (!done) co_return fail(done.error());
      break;
    }
  }
  co_return answer;
}

}  // namespace

Call next_operation(Random& random, const WorkloadOptions& options, const Memory& memory) {
  Call call;
  call.kind = draw_kind(random, options.weights);
  call.key = fmt::format("{}{}", options.key_prefix, random.below(options.key_count));
  switch (call.kind) {
    case Kind::Set:
      call.value = draw_value(random, options, memory);
      break;
    case Kind::Add:
      call.delta = static_cast<std::int64_t>(random.below(options.delta_max) + 1);
      break;
    case Kind::CompareSet:
      call.expected = draw_expected(random, memory, call.key);
      call.value = draw_value(random, options, memory);
      break;
    case Kind::Append:
      // Begins with a byte that is no part of a number, so that counters stay small.
      call.value = fmt::format(";{}.{}", memory.client, memory.operation_index);
      break;
    case Kind::Get:
    case Kind::TryGet:
    case Kind::Erase:
      break;
  }
  return call;
}

Recorder::Recorder(int client_count) : operations_(static_cast<std::size_t>(client_count)) {}

std::vector<Operation>& Recorder::of(int client) {
  return operations_.at(static_cast<std::size_t>(client));
}

Recorder::Ticket Recorder::invoke(int client, Call call) {
  std::vector<Operation>& operations = of(client);
  Operation& operation = operations.emplace_back();
  operation.client = client;
  operation.call = std::move(call);
  operation.invoked = tick();
  return operations.size() - 1;
}

void Recorder::answer(int client, Ticket ticket, Answer answer) {
  const std::uint64_t now = tick();
  Operation& operation = of(client).at(ticket);
  MUSTER_ASSERT(operation.outcome == Outcome::Unknown);
  operation.outcome = Outcome::Ok;
  operation.answer = std::move(answer);
  operation.returned = now;
}

void Recorder::refuse(int client, Ticket ticket) {
  Operation& operation = of(client).at(ticket);
  MUSTER_ASSERT(operation.outcome == Outcome::Unknown);
  operation.outcome = Outcome::FailedNotApplied;
}

std::size_t Recorder::begun_count(int client) const {
  return operations_.at(static_cast<std::size_t>(client)).size();
}

History Recorder::history() const {
  History result;
  for (const std::vector<Operation>& operations : operations_) {
    for (const Operation& operation : operations) {
      const bool says_something = operation.outcome == Outcome::Ok || !is_read(operation.call.kind);
      if (says_something) result.push_back(operation);
    }
  }
  std::sort(result.begin(), result.end(), [](const Operation& left, const Operation& right) {
    return left.invoked < right.invoked;
  });
  return result;
}

Reply reply_for(Kind kind, const Error& error) {
  Reply reply;
  if (error.kind != ErrorKind::Invalid) return reply;
  if (kind != Kind::Add) {
    reply.outcome = Outcome::FailedNotApplied;
    return reply;
  }
  reply.outcome = Outcome::Ok;
  reply.answer.status = Answer::Status::Invalid;
  return reply;
}

Task<void> run_client(store::Store& store, const Clock& clock, Recorder& recorder, Random random,
                      ClientOptions options) {
  const int client = options.client;
  Memory memory;
  memory.client = client;
  int errors_in_a_row = 0;
  for (std::size_t count = 0; count < options.operation_count; ++count) {
    memory.operation_index = recorder.begun_count(client);
    Call call = next_operation(random, options.workload, memory);
    const Call asked = call;
    const TimePoint get_deadline = after(clock.now(), options.get_timeout);
    const Recorder::Ticket ticket = recorder.invoke(client, asked);
    Result<Answer> answer = co_await send(store, std::move(call), get_deadline);
    if (answer) {
      recorder.answer(client, ticket, *answer);
      remember(memory, asked, *answer);
      errors_in_a_row = 0;
      continue;
    }
    const Reply reply = reply_for(asked.kind, answer.error());
    if (reply.outcome == Outcome::Ok) recorder.answer(client, ticket, reply.answer);
    if (reply.outcome == Outcome::FailedNotApplied) recorder.refuse(client, ticket);
    const bool is_key_missing =
        asked.kind == Kind::Get && answer.error().kind == ErrorKind::Timeout;
    if (reply.outcome != Outcome::Unknown || is_key_missing) continue;
    if (++errors_in_a_row >= options.errors_max) co_return;
  }
}

}  // namespace muster::linearizability
