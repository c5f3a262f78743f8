// ExtensionLink: one connection to a Muster server. Sends requests, gives every reply to the call
// it belongs to.
//
// Owned by an ExtensionStore, replaced by a new one after a loss; lives on its loop.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/net/transport.h"
#include "muster/store/call_table.h"
#include "muster/wire/store_extension.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace muster::store {

// Whoever waits for replies with one id. Must leave the link (`forget`) before it is destroyed.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void on_reply(const wire::Reply& reply) = 0;
  // The connection broke. `sent`: the request may have reached the server. The sink has been
  // forgotten.
  virtual void on_lost(const std::string& reason, bool sent) = 0;
};

class ExtensionLink final : public net::StreamEvents {
 public:
  // `lost` is called once, from the loop, after every sink was told. Requires: `loop` outlives the
  // link.
  ExtensionLink(Loop& loop, std::unique_ptr<net::Stream> stream, std::function<void()> lost);
  ~ExtensionLink() override;

  // Queues the request with a new id, which it returns, and with `key_prefix` in front of its keys;
  // requests of one turn of the loop go out together.
  std::uint32_t send(wire::Request& request, std::string_view key_prefix, ReplySink& sink);
  // Queues a request whose reply nobody wants.
  void tell(wire::Request& request);
  // Queues a message for the conversation `id`.
  void say(std::uint32_t id, std::string_view message);
  // Asks the server to end a request that waits there. Its final reply still comes, and may be what
  // it waited for.
  void cancel(std::uint32_t id);
  // The replies to `id` go to `sink` from now on. False if there are none to come.
  bool hand_over(std::uint32_t id, ReplySink& sink);
  // The sink wants no more replies. `cancel_too` tells the server so, for requests that wait there.
  void forget(std::uint32_t id, bool cancel_too);
  void set_patience(Duration patience) { stream_->set_patience(patience); }
  bool broken() const { return broken_; }
  // How many wait for replies.
  std::size_t call_count() const { return calls_.size(); }

 private:
  void on_readable() override;
  void on_writable() override;
  void queue(const wire::Request& request, std::string_view key_prefix);
  void schedule_flush();
  void flush();
  void take(std::string_view bytes);
  void dispatch(const wire::Reply& reply);
  void break_off(std::string reason);

  Loop& loop_;
  std::unique_ptr<net::Stream> stream_;
  std::function<void()> lost_;
  CallTable calls_;
  std::string input_;
  std::string output_;
  std::size_t output_sent_bytes_ = 0;
  std::uint64_t queued_bytes_ = 0;  // ever
  bool broken_ = false;
  std::string break_reason_;
  Ready flush_;
  Ready report_loss_;
};

}  // namespace muster::store
