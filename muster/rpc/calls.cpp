#include "muster/rpc/calls.h"

#include "muster/rpc/texts.h"
#include "muster/rpc/value.h"

#include <chrono>
#include <span>
#include <vector>

namespace muster::rpc {

Calls::~Calls() { close({CallErrorKind::Rejected, "RPC has ended", "", false}); }

std::unique_ptr<Calls::Pending> Calls::owner_of(std::uint64_t token) {
  return std::unique_ptr<Pending>(reinterpret_cast<Pending*>(token));
}

void Calls::Pending::fail(CallError error, Calls& calls) {
  if (const auto by = carrier.lock()) by->failed();
  sink->ended(call_failed(std::move(error)), calls);
}

CallResult<CallId> Calls::start(const CallStart& call, std::unique_ptr<CallSink>& sink) {
  auto pending = std::make_unique<Pending>();
  const auto token = reinterpret_cast<std::uint64_t>(pending.get());
  pending->connection = call.connection;
  pending->timeout = call.timeout;
  pending->carrier = call.carrier;
  std::unique_lock lock(mutex_);
  if (closed_) return call_failed(*closed_);
  const Result<CallId> id = table_.add({call.connection, call.deadline, token});
  if (!id) return call_failed({CallErrorKind::Unreachable, id.error().message, "", false});
  if (sink->is_made()) ++started_count_;
  pending->sink = std::move(sink);
  (void)pending.release();  // comes back as the token
  ++active_count_;
  const bool is_earlier = call.deadline < armed_;
  if (is_earlier) armed_ = call.deadline;
  lock.unlock();
  if (is_earlier) earlier_deadline_();
  return *id;
}

void Calls::refuse(std::unique_ptr<CallSink> sink, CallError error) {
  ++active_count_;
  sink->ended(call_failed(std::move(error)), *this);
}

bool Calls::responded(PeerId connection, Message response) {
  std::unique_lock lock(mutex_);
  const CallTable::Response found = table_.responded(response.id, connection);
  if (found.answer == CallTable::Answer::Late) {
    const auto late = late_.extract(response.id);
    lock.unlock();
    if (!late.empty() && response.type != MessageType::Exception) {
      late.mapped()->sink->came_late(std::move(response));
    }
    return true;
  }
  lock.unlock();
  if (found.answer != CallTable::Answer::Live) return false;
  const auto pending = owner_of(found.token);
  if (response.type == MessageType::Exception) {
    pending->fail(decode_failure(response), *this);
  } else {
    pending->sink->ended(std::move(response), *this);
  }
  return true;
}

bool Calls::is_wanted(CallId id) {
  const std::lock_guard lock(mutex_);
  return table_.is_live(id);
}

void Calls::forget(CallId id) {
  decltype(late_)::node_type late;  // not to be destroyed with the lock
  const std::lock_guard lock(mutex_);
  table_.forget(id);
  late = late_.extract(id);
}

void Calls::withdraw(CallId id, CallError error) {
  std::unique_lock lock(mutex_);
  const auto token = table_.withdraw(id);
  lock.unlock();
  if (token) owner_of(*token)->fail(std::move(error), *this);
}

void Calls::lost(PeerId connection, const CallError& error) {
  // Not to be destroyed with the lock: what a program waits for may hold the last reference to a
  // value, whose end is told with another call.
  std::vector<std::shared_ptr<Pending>> forgotten;
  std::unique_lock lock(mutex_);
  const std::vector<EndedCall> ended = table_.lost(connection);
  std::erase_if(late_, [&](auto& one) {
    if (one.second->connection != connection) return false;
    forgotten.push_back(std::move(one.second));
    return true;
  });
  lock.unlock();
  for (const EndedCall& call : ended) owner_of(call.token)->fail(error, *this);
}

TimePoint Calls::expire(TimePoint now) {
  std::unique_lock lock(mutex_);
  const std::vector<EndedCall> ended = table_.due(now);
  armed_ = table_.next_deadline();
  const TimePoint next = armed_;
  std::vector<std::shared_ptr<Pending>> over;
  for (const EndedCall& call : ended) {
    over.push_back(owner_of(call.token));
    // Before the answer can come: another thread may read it now.
    if (over.back()->sink->wants_late_answer()) late_.emplace(call.id, over.back());
  }
  std::vector<std::shared_ptr<Pending>> forgotten;  // not to be destroyed with the lock
  for (const CallId id : table_.forget_late()) {
    if (auto late = late_.extract(id)) forgotten.push_back(std::move(late.mapped()));
  }
  lock.unlock();
  for (std::size_t index = 0; index < ended.size(); ++index) {
    Pending& pending = *over[index];
    if (const auto carrier = pending.carrier.lock()) carrier->timed_out(ended[index].id);
    pending.fail({CallErrorKind::Timeout, timeout_text(pending.timeout), "", true}, *this);
  }
  return next;
}

void Calls::close(const CallError& error) {
  std::unique_lock lock(mutex_);
  closed_ = error;
  const std::vector<EndedCall> ended = table_.clear();
  const auto late = std::move(late_);
  late_.clear();
  lock.unlock();
  for (const EndedCall& call : ended) owner_of(call.token)->fail(error, *this);
}

void Calls::finished() {
  if (--active_count_ > 0) return;
  const std::lock_guard lock(idle_mutex_);
  idle_.notify_all();
}

bool Calls::wait_until_idle(const std::function<bool()>& go_on) {
  constexpr auto kLook = std::chrono::milliseconds(100);
  std::unique_lock lock(idle_mutex_);
  while (active_count_ > 0) {
    idle_.wait_for(lock, kLook, [this] { return active_count_ == 0; });
    if (!go_on()) return active_count_ == 0;
  }
  return true;
}

std::string encode_failure(std::string_view type, std::string_view text) {
  Writer writer;
  // An EXCEPTION has no buffers: however long it is, all of it is in the control part.
  for (const std::string& part : {cut_text(std::string(type), kFailureTypeBytesMax),
                                  cut_text(std::string(text), kFailureTextBytesMax)}) {
    writer.put_count(part.size());
    writer.put_raw(std::as_bytes(std::span(part)));
  }
  return writer.take_control();
}

CallError decode_failure(const Message& message) {
  Reader reader(message.payload, message.buffers);
  CallError error{CallErrorKind::Remote, "", "", true};
  reader.read(error.type, error.message);
  if (!reader.finish()) error = {CallErrorKind::Remote, "it failed and cannot say why", "", true};
  return error;
}

}  // namespace muster::rpc
