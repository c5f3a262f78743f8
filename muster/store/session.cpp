// The Session part of hub.h: what a request does, dialect by dialect.
#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/hub.h"
#include "muster/wire/codec.h"
#include "muster/wire/store_extension.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::store {
namespace {

using wire::Operation;
using wire::put;
using wire::put_blob;
using wire::put_string;

constexpr std::size_t kSmallWaitBytes = std::size_t{64} << 10U;
// A larger output buffer is given back when it is empty.
constexpr std::size_t kOutputBytesKept = 4096;

void put_wait_reply(std::string& out, wire::WaitReply reply) {
  put(out, static_cast<std::uint8_t>(reply));
}

// What it costs to remember a waiter: each key stands in the table and, for the extension, in the
// Hub, with its place in line.
std::size_t bytes_of_wait(std::span<const std::string_view> keys) {
  constexpr std::size_t kPlaceBytes = 160;
  std::size_t sum = kPlaceBytes;
  for (const std::string_view key : keys) sum += 2 * key.size() + kPlaceBytes;
  return sum;
}

// What the request would add to the store, at most.
std::size_t bytes_added_by(const wire::Request& request) {
  switch (request.operation) {
    case Operation::Set:
    case Operation::Append:
    case Operation::QueuePush:
      return request.key.size() + request.value.size() + Table::kEntryOverheadBytes;
    case Operation::CompareSet:
      return request.key.size() + request.desired.size() + Table::kEntryOverheadBytes;
    case Operation::Add:
    case Operation::Barrier:
      return request.key.size() + 20 + Table::kEntryOverheadBytes;
    case Operation::Wait:
    case Operation::MultiGet: {
      // Small waits are let in even when the store is full: readers must go on, and most waits end
      // at once.
      const std::size_t bytes = bytes_of_wait(request.keys);
      return bytes > kSmallWaitBytes ? bytes : 0;
    }
    case Operation::MultiSet: {
      std::size_t sum = 0;
      for (std::size_t index = 0; index < request.keys.size(); ++index) {
        sum +=
            request.keys[index].size() + request.values[index].size() + Table::kEntryOverheadBytes;
      }
      return sum;
    }
    default:
      return 0;
  }
}

std::uint8_t legacy_message(Change::Kind kind) {
  switch (kind) {
    case Change::Kind::Created:
      return static_cast<std::uint8_t>(wire::WatchMessage::Created);
    case Change::Kind::Deleted:
      return static_cast<std::uint8_t>(wire::WatchMessage::Deleted);
    default:
      return static_cast<std::uint8_t>(wire::WatchMessage::Updated);
  }
}

void put_change(std::string& out, std::uint32_t id, Change::Kind kind, std::string_view key,
                std::string_view value) {
  const std::size_t start = wire::begin_reply(id, wire::kStatusChange, out);
  put(out, static_cast<std::uint8_t>(kind));
  put_string(out, key);
  put_string(out, value);
  wire::end_reply(start, out);
}

}  // namespace

Session::Session(Hub& hub, SessionOwner& owner, Space& space)
    : hub_(hub),
      owner_(owner),
      id_(hub.next_id()),
      space_(&space),
      parser_(hub.options_.limits),
      output_bytes_high_(hub.options_.output_bytes_high) {
  hub_.sessions_.emplace(id_, this);
}

Session::~Session() {
  conversations_.lose_all();
  hub_.sessions_.erase(id_);
  Table& table = space_->table;
  std::vector<WaiterId> waits;
  if (wait_ != 0) waits.push_back(wait_);
  for (const auto& [id, waiter] : waits_) waits.push_back(waiter);
  std::sort(waits.begin(), waits.end());  // not in the order of a hash table
  for (const WaiterId waiter : waits) {
    hub_.recall(waiter);
    table.forget(waiter, hub_.outcome_);
  }
  // One of them may have passed a queue's wake-up on to another of them, which has passed it on in
  // turn.
  std::erase_if(hub_.outcome_.released,
                [&](WaiterId waiter) { return !hub_.waiters_.contains(waiter); });
  for (const auto& [id, watcher] : watches_) {
    hub_.watchers_.erase(watcher);
    table.unwatch(watcher);
  }
  hub_.carry_out(*space_);
  hub_.leave(*space_);
}

void Session::sent(std::size_t bytes) {
  output_sent_bytes_ += bytes;
  if (output_sent_bytes_ == output_.size()) {
    output_sent_bytes_ = 0;
    output_.clear();
    if (output_.capacity() > kOutputBytesKept) std::string().swap(output_);
  } else if (output_sent_bytes_ > output_.size() / 2) {
    // Not at every send: a large reply would be moved as often as the network takes a piece of it.
    output_.erase(0, output_sent_bytes_);
    output_sent_bytes_ = 0;
  }
}

Result<> Session::receive(std::string_view input, std::size_t& consumed) {
  consumed = 0;
  wire::Request& request = hub_.request_;
  while (!output_is_high()) {
    std::size_t request_bytes = 0;
    const auto status = parser_.next(input.substr(consumed), request, request_bytes);
    consumed += request_bytes;
    if (status == wire::RequestParser::Status::Broken)
      return fail(ErrorKind::Invalid, parser_.reason());
    if (status == wire::RequestParser::Status::Incomplete) break;
    ++hub_.request_count_;
    auto served = serve(request);
    if (!served) return served;
  }
  return {};
}

Result<> Session::serve(const wire::Request& request) {
  const bool extension = parser_.dialect() == wire::Dialect::Extension;
  const std::size_t bytes_added = bytes_added_by(request);
  if (bytes_added > 0 && !hub_.has_room_for(bytes_added)) {
    const auto text = fmt::format(
        "the store is full: {} of at most {} bytes used; raise --max-memory or delete keys",
        hub_.memory_bytes(), hub_.options_.memory_bytes_max);
    if (!extension) return fail(ErrorKind::Unavailable, text);
    reply_error(request.id, ErrorKind::Unavailable, text);
    return {};
  }
  Result<> served;
  if (extension) {
    serve_extension(request);
  } else {
    settle_previous_wait(request);
    served = serve_pytorch(request);
  }
  hub_.carry_out(*space_);
  return served;
}

// A PyTorch client has one wait at a time and says nothing when it is over with it.
void Session::settle_previous_wait(const wire::Request& request) {
  if (wait_ == 0) return;
  // Legacy: a client that sends something has given up waiting, and a late answer would shift its
  // replies by a byte. Modern: it goes on waiting until it cancels or waits for something else.
  const bool replaced =
      request.operation == Operation::Wait || request.operation == Operation::Barrier ||
      request.operation == Operation::CancelWait || request.operation == Operation::Upgrade;
  if (wait_is_pending_ && parser_.dialect() == wire::Dialect::Modern && !replaced) return;
  // Released, and now it pops what it was woken for: that must not wake the next waiter.
  if (!wait_is_pending_ && request.operation == Operation::QueuePop) return;
  hub_.recall(wait_);
  space_->table.forget(wait_, hub_.outcome_);
  wait_ = 0;
  wait_is_pending_ = false;
}

Result<> Session::serve_pytorch(const wire::Request& request) {
  Table& table = space_->table;
  Outcome& outcome = hub_.outcome_;
  switch (request.operation) {
    case Operation::Set:
      table.set(request.key, request.value, outcome);
      break;
    case Operation::CompareSet:
      put_blob(output_,
               table.compare_set(request.key, request.value, request.desired, outcome).value);
      break;
    case Operation::Get: {
      const std::string* value = table.find(request.key);
      put_blob(output_, value != nullptr ? std::string_view(*value) : std::string_view());
      break;
    }
    case Operation::Add: {
      const auto sum = table.add(request.key, request.number, outcome);
      if (!sum) return fail(sum.error());
      put(output_, *sum);
      break;
    }
    case Operation::Check: {
      bool ready = true;
      for (const std::string_view key : request.keys)
        ready = ready && (table.present(key) || key == wire::kExtensionKey);
      put(output_,
          static_cast<std::uint8_t>(ready ? wire::CheckReply::Ready : wire::CheckReply::NotReady));
      break;
    }
    case Operation::Wait:
    case Operation::Barrier: {
      const WaiterId waiter = hub_.next_id();
      Result<bool> over = true;
      if (request.operation == Operation::Wait) {
        over = table.wait(waiter, request.keys, Table::Need::Any);
      } else {
        over = table.barrier(waiter, request.key, request.number, outcome);
      }
      if (!over) return fail(over.error());
      if (*over) {
        put_wait_reply(output_, wire::WaitReply::StopWaiting);
      } else {
        hub_.remember(waiter, Waiting{this, 0, request.operation, {}, bytes_of_wait(request.keys)});
        wait_ = waiter;
        wait_is_pending_ = true;
      }
      break;
    }
    case Operation::CancelWait:
      put_wait_reply(output_, wire::WaitReply::WaitCanceled);
      break;
    case Operation::NumKeys:
      put(output_, static_cast<std::int64_t>(table.key_count()));
      break;
    case Operation::DeleteKey:
      put<std::int64_t>(output_, table.erase(request.key, outcome) ? 1 : 0);
      break;
    case Operation::WatchKey:
      watch(request);
      break;
    case Operation::Append:
      table.append(request.key, request.value, outcome);
      break;
    case Operation::MultiGet: {
      std::size_t reply_bytes = 0;
      for (const std::string_view key : request.keys) {
        const std::string* value = table.find(key);
        reply_bytes += sizeof(std::uint64_t) + (value != nullptr ? value->size() : 0);
      }
      if (reply_bytes > hub_.options_.reply_bytes_max) {
        return fail(ErrorKind::Invalid,
                    fmt::format("MULTI_GET of {} bytes, more than the limit of {} for a reply",
                                reply_bytes, hub_.options_.reply_bytes_max));
      }
      for (const std::string_view key : request.keys) {
        const std::string* value = table.find(key);
        put_blob(output_, value != nullptr ? std::string_view(*value) : std::string_view());
      }
      break;
    }
    case Operation::MultiSet:
      for (std::size_t index = 0; index < request.keys.size(); ++index) {
        table.set(request.keys[index], request.values[index], outcome);
      }
      break;
    case Operation::Ping:
      put(output_, static_cast<std::uint32_t>(request.number));
      break;
    case Operation::QueuePush:
      table.push(request.key, request.value, outcome);
      break;
    case Operation::QueuePop: {
      put(output_, static_cast<std::int64_t>(table.queue_length(request.key)));
      const auto item = table.pop(request.key, wait_is_pending_ ? 0 : wait_);
      if (item) put_blob(output_, *item);
      break;
    }
    case Operation::QueueLength:
      put(output_, static_cast<std::int64_t>(table.queue_length(request.key)));
      break;
    case Operation::ListKeys: {
      const auto keys = table.keys("");
      put(output_, static_cast<std::int64_t>(keys.size()));
      for (const std::string& key : keys) put_blob(output_, key);
      break;
    }
    case Operation::Upgrade:
      return upgrade(request);
    case Operation::WatchPrefix:
    case Operation::DropNamespace:
    case Operation::Info:
    case Operation::Open:
    case Operation::Say:
      MUSTER_ASSERT(false);  // have no number in these dialects
  }
  return {};
}

Result<> Session::upgrade(const wire::Request& request) {
  if (request.number < 1) return fail(ErrorKind::Invalid, "UPGRADE to version 0 of the extension");
  if (!request.key.empty()) {
    const auto space = hub_.enter(request.key);
    if (!space) return fail(space.error());
    hub_.carry_out(*space_);  // of the wait that ends with the upgrade
    hub_.leave(*space_);
    space_ = *space;
  }
  parser_.upgrade();
  put(output_, std::min(static_cast<std::uint32_t>(request.number), wire::kExtensionVersion));
  return {};
}

void Session::serve_extension(const wire::Request& request) {
  Table& table = space_->table;
  Outcome& outcome = hub_.outcome_;
  const auto reply = [&](auto put_body) {
    const std::size_t start = wire::begin_reply(request.id, wire::kStatusOk, output_);
    put_body(output_);
    wire::end_reply(start, output_);
  };
  const auto reply_number = [&](std::int64_t number) {
    reply([&](std::string& out) { put(out, number); });
  };
  const auto reply_flag = [&](bool flag) {
    reply([&](std::string& out) { put<std::uint8_t>(out, flag ? 1 : 0); });
  };

  switch (request.operation) {
    case Operation::Set:
      table.set(request.key, request.value, outcome);
      return reply_ok(request.id);
    case Operation::Append:
      table.append(request.key, request.value, outcome);
      return reply_ok(request.id);
    case Operation::MultiSet:
      for (std::size_t index = 0; index < request.keys.size(); ++index) {
        table.set(request.keys[index], request.values[index], outcome);
      }
      return reply_ok(request.id);
    case Operation::QueuePush:
      table.push(request.key, request.value, outcome);
      return reply_ok(request.id);
    case Operation::CompareSet: {
      const CompareSet result =
          table.compare_set(request.key, request.value, request.desired, outcome);
      return reply([&](std::string& out) {
        put<std::uint8_t>(out, result.stored ? 1 : 0);
        put_string(out, result.value);
      });
    }
    case Operation::Add: {
      const auto sum = table.add(request.key, request.number, outcome);
      if (!sum) return reply_error(request.id, sum.error().kind, sum.error().message);
      return reply_number(*sum);
    }
    case Operation::Check: {
      bool ready = true;
      for (const std::string_view key : request.keys) ready = ready && table.present(key);
      return reply_flag(ready);
    }
    case Operation::NumKeys:
      return reply_number(static_cast<std::int64_t>(table.key_count()));
    case Operation::DeleteKey:
      return reply_flag(table.erase(request.key, outcome));
    case Operation::QueueLength:
      return reply_number(static_cast<std::int64_t>(table.queue_length(request.key)));
    case Operation::ListKeys: {
      const auto keys = table.keys(request.key);
      return reply([&](std::string& out) {
        put(out, static_cast<std::uint32_t>(keys.size()));
        for (const std::string& key : keys) put_string(out, key);
      });
    }
    case Operation::Get:
    case Operation::MultiGet:
    case Operation::QueuePop:
    case Operation::Wait:
    case Operation::Barrier:
      return serve_waiting(request);
    case Operation::WatchKey:
    case Operation::WatchPrefix:
      return watch(request);
    case Operation::CancelWait:
      return cancel(static_cast<std::uint32_t>(request.number));
    case Operation::Ping:
      return reply_ok(request.id);
    case Operation::Info: {
      const auto lines = hub_.describe();
      return reply([&](std::string& out) {
        put(out, static_cast<std::uint32_t>(lines.size()));
        for (const auto& [name, value] : lines) {
          put_string(out, name);
          put_string(out, value);
        }
      });
    }
    case Operation::DropNamespace: {
      if (request.key == space_->name) {
        return reply_error(request.id, ErrorKind::Invalid,
                           "a namespace cannot be dropped from inside");
      }
      return reply_flag(hub_.drop_namespace(request.key));
    }
    case Operation::Open:
      return open_conversation(request);
    case Operation::Say:
      return conversations_.hear(request.id, request.value);
    case Operation::Upgrade:
      return reply_error(request.id, ErrorKind::Unimplemented,
                         fmt::format("the server does not know opcode 0x{:02x}", request.number));
  }
}

void Session::serve_waiting(const wire::Request& request) {
  Table& table = space_->table;
  const bool has_list =
      request.operation == Operation::Wait || request.operation == Operation::MultiGet;
  const std::span<const std::string_view> keys =
      has_list ? std::span<const std::string_view>(request.keys)
               : std::span<const std::string_view>(&request.key, 1);
  const WaiterId waiter = hub_.next_id();
  const bool may_wait = request.blocking || request.operation == Operation::Wait ||
                        request.operation == Operation::Barrier;
  if (may_wait) {
    if (is_in_use(request.id)) {
      return reply_error(request.id, ErrorKind::Invalid,
                         fmt::format("request id {} is in use", request.id));
    }
    if (waits_.size() >= hub_.options_.waits_per_session_max) {
      return reply_error(request.id, ErrorKind::Unavailable,
                         fmt::format("{} requests of this connection wait already", waits_.size()));
    }
    Result<bool> over = true;
    if (request.operation == Operation::Barrier) {
      over = table.barrier(waiter, request.key, request.number, hub_.outcome_);
    } else {
      const auto need = request.operation == Operation::Wait       ? Table::Need::Any
                        : request.operation == Operation::QueuePop ? Table::Need::Queue
                                                                   : Table::Need::Key;
      over = table.wait(waiter, keys, need);
    }
    if (!over) return reply_error(request.id, over.error().kind, over.error().message);
    if (!*over) {
      waits_.emplace(request.id, waiter);
      Waiting waiting{
          this, request.id, request.operation, {keys.begin(), keys.end()}, bytes_of_wait(keys)};
      hub_.remember(waiter, std::move(waiting));
      return;
    }
  }
  finish_waiting(request.id, request.operation, waiter, keys);
}

void Session::released(WaiterId waiter, const Waiting& waiting) {
  if (waiter == wait_) {
    put_wait_reply(output_, wire::WaitReply::StopWaiting);
    wait_is_pending_ =
        false;  // but its claim on a queue stays until the client pops or does something else
    return;
  }
  waits_.erase(waiting.id);
  const std::vector<std::string_view> keys(waiting.keys.begin(), waiting.keys.end());
  finish_waiting(waiting.id, waiting.operation, waiter, keys);
}

// A key may have been deleted while others were waited for; such values are marked absent, and the
// client decides.
void Session::finish_waiting(std::uint32_t id, Operation operation, WaiterId waiter,
                             std::span<const std::string_view> keys) {
  if (operation == Operation::Wait || operation == Operation::Barrier) {
    // Whoever only waits takes nothing: an item that woke it is there for the next in line.
    space_->table.forget(waiter, hub_.outcome_);
    return reply_ok(id);
  }
  const auto put_item = [&](const std::string* value) {
    put<std::uint8_t>(output_, value != nullptr ? 1 : 0);
    if (value != nullptr) put_string(output_, *value);
  };
  if (operation == Operation::QueuePop) {
    const auto item = space_->table.pop(keys[0], waiter);
    const std::size_t start = wire::begin_reply(id, wire::kStatusOk, output_);
    put_item(item ? &*item : nullptr);
    return wire::end_reply(start, output_);
  }
  std::size_t reply_bytes = 0;
  for (const std::string_view key : keys) {
    const std::string* value = space_->table.find(key);
    reply_bytes += 1 + sizeof(std::uint32_t) + (value != nullptr ? value->size() : 0);
  }
  if (reply_bytes > hub_.options_.reply_bytes_max) {
    return reply_error(
        id, ErrorKind::Invalid,
        fmt::format("the values have {} bytes, more than the limit of {} for a reply", reply_bytes,
                    hub_.options_.reply_bytes_max));
  }
  const std::size_t start = wire::begin_reply(id, wire::kStatusOk, output_);
  for (const std::string_view key : keys) put_item(space_->table.find(key));
  wire::end_reply(start, output_);
}

void Session::watch(const wire::Request& request) {
  Table& table = space_->table;
  const bool extension = parser_.dialect() == wire::Dialect::Extension;
  if (watches_.size() >= hub_.options_.watches_per_session_max) {
    if (extension) {
      reply_error(request.id, ErrorKind::Unavailable,
                  fmt::format("{} watches on this connection already", watches_.size()));
    } else {
      owner_.must_close(fmt::format("{} watches on one connection", watches_.size()));
    }
    return;
  }
  const auto id = extension ? request.id : static_cast<std::uint32_t>(watches_.size());
  if (is_in_use(id)) {
    return reply_error(id, ErrorKind::Invalid, fmt::format("request id {} is in use", id));
  }
  const WatcherId watcher = hub_.next_id();
  hub_.watchers_.emplace(watcher, Hub::Watching{this, id});
  watches_.emplace(id, watcher);
  if (!extension) {
    table.watch_key(watcher, request.key);
    put(output_, static_cast<std::uint8_t>(wire::WatchMessage::Registered));
    return;
  }
  reply_ok(request.id);
  if (request.operation == Operation::WatchKey) {
    table.watch_key(watcher, request.key);
    const std::string* value = table.find(request.key);
    put_change(output_, request.id, value != nullptr ? Change::Kind::Present : Change::Kind::Absent,
               request.key, value != nullptr ? std::string_view(*value) : std::string_view());
    return;
  }
  table.watch_prefix(watcher, request.key);
  for (const std::string& key : table.keys(request.key)) {
    put_change(output_, request.id, Change::Kind::Present, key, *table.find(key));
  }
}

void Session::notified(std::uint32_t id, const Notice& notice) {
  if (output().size() > hub_.options_.output_bytes_max) {
    owner_.must_close(
        fmt::format("it does not read the changes it watches ({} bytes pending)", output().size()));
    return;
  }
  if (parser_.dialect() == wire::Dialect::Extension) {
    put_change(output_, id, notice.kind, notice.key, notice.new_value);
    return;
  }
  put(output_, legacy_message(notice.kind));
  put_blob(output_, notice.key);
  put_blob(output_, notice.old_value);
  put_blob(output_, notice.new_value);
}

void Session::open_conversation(const wire::Request& request) {
  const auto found = hub_.services_.find(static_cast<std::uint8_t>(request.number));
  if (found == hub_.services_.end()) {
    return reply_error(request.id, ErrorKind::Unimplemented,
                       fmt::format("the server has no service {}", request.number));
  }
  if (is_in_use(request.id)) {
    return reply_error(request.id, ErrorKind::Invalid,
                       fmt::format("request id {} is in use", request.id));
  }
  if (conversations_.size() >= hub_.options_.conversations_per_session_max) {
    return reply_error(
        request.id, ErrorKind::Unavailable,
        fmt::format("{} conversations on this connection already", conversations_.size()));
  }
  conversations_.open(request.id, *found->second, space_->name, request.value);
}

void Session::push(std::uint32_t id, std::uint8_t status, std::string_view body) {
  MUSTER_ASSERT(body.size() <= hub_.options_.reply_bytes_max);
  if (output().size() > hub_.options_.output_bytes_max) {
    owner_.must_close(
        fmt::format("it does not read what services say ({} bytes pending)", output().size()));
    return;
  }
  const std::size_t start = wire::begin_reply(id, status, output_);
  output_.append(body);
  wire::end_reply(start, output_);
  owner_.output_added();
}

bool Session::is_in_use(std::uint32_t id) const {
  return waits_.contains(id) || watches_.contains(id) || conversations_.contains(id);
}

// Ends a wait, a watch or a conversation; its final reply says so. Whatever ended by itself has had
// its reply already.
void Session::cancel(std::uint32_t id) {
  if (const auto waiting = waits_.find(id); waiting != waits_.end()) {
    hub_.recall(waiting->second);
    space_->table.forget(waiting->second, hub_.outcome_);
    waits_.erase(waiting);
  } else if (const auto watching = watches_.find(id); watching != watches_.end()) {
    hub_.watchers_.erase(watching->second);
    space_->table.unwatch(watching->second);
    watches_.erase(watching);
  } else if (!conversations_.leave(id)) {
    return;
  }
  reply_error(id, ErrorKind::Cancelled, "cancelled by the client");
}

void Session::reply_error(std::uint32_t id, ErrorKind kind, std::string_view message) {
  wire::encode_error(id, kind, message, output_);
}

void Session::reply_ok(std::uint32_t id) {
  wire::end_reply(wire::begin_reply(id, wire::kStatusOk, output_), output_);
}

}  // namespace muster::store
