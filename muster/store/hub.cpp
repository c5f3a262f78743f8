#include "muster/store/hub.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::store {
namespace {

constexpr std::size_t kNamespaceNameBytesMax = 255;

}  // namespace

Result<Space*> Hub::enter(std::string_view name) {
  auto found = spaces_.find(name);
  if (found == spaces_.end()) {
    if (name.size() > kNamespaceNameBytesMax) {
      return fail(ErrorKind::Invalid,
                  fmt::format("a namespace name of {} bytes, more than the limit of {}",
                              name.size(), kNamespaceNameBytesMax));
    }
    if (spaces_.size() >= options_.namespaces_max) {
      return fail(
          ErrorKind::Unavailable,
          fmt::format("the server has {} namespaces, its limit; drop some", spaces_.size()));
    }
    auto space = std::make_unique<Space>();
    space->name = name;
    found = spaces_.emplace(std::string(name), std::move(space)).first;
  }
  ++found->second->session_count;
  return found->second.get();
}

void Hub::add_service(ServiceId id, Service& service) {
  MUSTER_ASSERT(sessions_.empty());
  const bool is_new = services_.emplace(static_cast<std::uint8_t>(id), &service).second;
  MUSTER_ASSERT(is_new);
}

Result<std::unique_ptr<Session>> Hub::open(SessionOwner& owner, std::string_view namespace_name) {
  const auto space = enter(namespace_name);
  if (!space) return fail(space.error());
  return std::unique_ptr<Session>(new Session(*this, owner, **space));
}

void Hub::leave(Space& space) {
  if (--space.session_count > 0) return;
  // A namespace without users and content is nothing to remember. Data outlives its writers.
  if (space.dropped) {
    table_bytes_ -= space.counted_bytes;
    std::erase_if(dropped_spaces_, [&](const auto& dropped) { return dropped.get() == &space; });
  } else if (space.table.bytes() == 0) {
    spaces_.erase(spaces_.find(space.name));
  }
}

bool Hub::drop_namespace(std::string_view name) {
  const auto found = spaces_.find(name);
  if (found == spaces_.end()) return false;
  std::unique_ptr<Space> space = std::move(found->second);
  spaces_.erase(found);
  if (space->session_count == 0) {
    table_bytes_ -= space->counted_bytes;
    return true;
  }
  // Its sessions still point to it, so it goes with the last of them.
  space->dropped = true;
  for (const auto& [id, session] : sessions_) {
    if (session->space_ == space.get()) {
      session->owner_.must_close(fmt::format("namespace {} was dropped", log::quote(name)));
    }
  }
  dropped_spaces_.push_back(std::move(space));
  return true;
}

void Hub::end_conversations() {
  for (const auto& [id, session] : sessions_) session->conversations_.lose_all();
}

std::vector<std::string> Hub::namespaces() const {
  std::vector<std::string> names;
  for (const auto& [name, space] : spaces_) names.push_back(name);
  return names;
}

std::vector<std::pair<std::string, std::string>> Hub::describe() const {
  std::size_t key_count = 0;
  for (const auto& [name, space] : spaces_) key_count += space->table.key_count();
  auto lines = description_;
  lines.emplace_back("connections", fmt::to_string(sessions_.size()));
  lines.emplace_back("namespaces", fmt::to_string(spaces_.size()));
  lines.emplace_back("keys", fmt::to_string(key_count));
  lines.emplace_back("waiting", fmt::to_string(waiters_.size()));
  lines.emplace_back("watching", fmt::to_string(watchers_.size()));
  lines.emplace_back("conversations", fmt::to_string(conversation_count_));
  lines.emplace_back("requests", fmt::to_string(request_count_));
  lines.emplace_back("memory_bytes", fmt::to_string(memory_bytes()));
  lines.emplace_back("memory_bytes_max", fmt::to_string(options_.memory_bytes_max));
  return lines;
}

void Hub::remember(WaiterId waiter, Waiting waiting) {
  waiting_bytes_ += waiting.bytes;
  waiters_.emplace(waiter, std::move(waiting));
}

std::optional<Waiting> Hub::recall(WaiterId waiter) {
  const auto found = waiters_.find(waiter);
  if (found == waiters_.end()) return std::nullopt;
  std::optional<Waiting> waiting(std::move(found->second));
  waiters_.erase(found);
  waiting_bytes_ -= waiting->bytes;
  return waiting;
}

void Hub::carry_out(Space& space) {
  // Answering a waiter can release the next one (a queue's), so the list may grow under way.
  for (std::size_t index = 0; index < outcome_.released.size(); ++index) {
    const WaiterId waiter = outcome_.released[index];
    const auto remembered = recall(waiter);
    MUSTER_ASSERT(remembered.has_value());
    const Waiting& waiting = *remembered;
    waiting.session->released(waiter, waiting);
    waiting.session->owner_.output_added();
  }
  for (const Notice& notice : outcome_.notices) {
    const auto found = watchers_.find(notice.watcher);
    MUSTER_ASSERT(found != watchers_.end());
    found->second.session->notified(found->second.id, notice);
    found->second.session->owner_.output_added();
  }
  outcome_.clear();
  table_bytes_ += space.table.bytes() - space.counted_bytes;
  space.counted_bytes = space.table.bytes();
}

}  // namespace muster::store
