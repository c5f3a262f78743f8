#include "muster/store/conversations.h"

#include "muster/store/hub.h"
#include "muster/wire/store_extension.h"

namespace muster::store {

void Conversations::Open::say(std::string_view message) {
  if (!over_ && !all_.lost_) all_.session_.push(id_, wire::kStatusChange, message);
}

void Conversations::Open::finish(std::string_view message) {
  if (over_) return;
  if (!all_.lost_) all_.session_.push(id_, wire::kStatusOk, message);
  all_.drop(id_);  // destroys us
}

void Conversations::Open::refuse(ErrorKind kind, std::string_view reason) {
  if (over_) return;
  if (!all_.lost_) all_.session_.push(id_, wire::status_of(kind), reason);
  all_.drop(id_);  // destroys us
}

void Conversations::open(std::uint32_t id, Service& service, std::string_view namespace_name,
                         std::string_view message) {
  const auto place = open_.try_emplace(id, *this, id, service).first;
  ++session_.hub_.conversation_count_;
  service.opened(place->second, namespace_name, message);
}

void Conversations::hear(std::uint32_t id, std::string_view message) {
  const auto found = open_.find(id);
  if (found != open_.end()) found->second.service_.heard(found->second, message);
}

bool Conversations::leave(std::uint32_t id) {
  const auto found = open_.find(id);
  if (found == open_.end()) return false;
  end(found, Service::End::Left);
  return true;
}

void Conversations::lose_all() {
  lost_ = true;
  // One by one: a service that is told of one may end others.
  while (!open_.empty()) end(open_.begin(), Service::End::Lost);
}

void Conversations::end(Map::iterator place, Service::End how) {
  const auto node = open_.extract(place);
  --session_.hub_.conversation_count_;
  Open& conversation = node.mapped();
  conversation.over_ = true;
  conversation.service_.ended(conversation, how);
}

void Conversations::drop(std::uint32_t id) {
  open_.erase(id);
  --session_.hub_.conversation_count_;
}

}  // namespace muster::store
