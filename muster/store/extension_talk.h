// ExtensionTalk: the client's side of a conversation with a service of a Muster server.
//
// It belongs to one connection and ends with it. Owned by whoever opened it; lives on the loop of
// its store, which outlives it.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/store/extension_client.h"
#include "muster/store/extension_link.h"
#include "muster/store/service.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {

class ExtensionTalk final : public Talk, public ReplySink {
 public:
  // Begins the conversation. Requires: there is a connection, and `message` is within
  // wire::Limits::message_bytes.
  ExtensionTalk(ExtensionClient& client, ServiceId service, std::string_view message);
  ~ExtensionTalk() override;

  void say(std::string message) override;
  void set_patience(Duration patience) override;
  Task<Result<std::string>> next(TimePoint deadline) override;

  void on_reply(const wire::Reply& reply) override;
  void on_lost(const std::string& reason, bool sent) override;

 private:
  bool has_message() const { return taken_count_ < messages_.size(); }
  std::string take_message();
  // False if there are too many, or too much, already.
  bool has_room_for(std::size_t bytes) const;
  void add_message(std::string_view message);
  void leave_link(bool cancel_too);
  void end(Error error);
  void wake();

  ExtensionClient& client_;
  // Owned by the client, which drops it when it breaks.
  std::weak_ptr<ExtensionLink> link_;
  std::uint32_t id_ = 0;  // none once there is nothing to come
  // Unread, behind those that are taken. Not a deque, which needs half a kilobyte for nothing.
  std::vector<std::string> messages_;
  std::size_t taken_count_ = 0;
  std::size_t unread_bytes_ = 0;
  std::optional<Error> ended_;
  Oneshot<bool>* waiter_ = nullptr;  // told true when something came
};

}  // namespace muster::store
