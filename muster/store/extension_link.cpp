#include "muster/store/extension_link.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <utility>

namespace muster::store {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10U;
constexpr std::size_t kReplyBytesMax = (std::size_t{1} << 30U) + (std::size_t{1} << 20U);
// The read buffer is shared by the links of a thread: its content is used up before the next read.
thread_local std::string scratch;  // NOLINT

}  // namespace

ExtensionLink::ExtensionLink(Loop& loop, std::unique_ptr<net::Stream> stream,
                             std::function<void()> lost)
    : loop_(loop), stream_(std::move(stream)), lost_(std::move(lost)) {
  stream_->set_events(this);
  stream_->want(true, false);
}

ExtensionLink::~ExtensionLink() = default;

void ExtensionLink::queue(const wire::Request& request, std::string_view key_prefix) {
  const std::size_t before = output_.size();
  wire::encode_request(request, key_prefix, output_);
  queued_bytes_ += output_.size() - before;
  schedule_flush();
}

std::uint32_t ExtensionLink::send(wire::Request& request, std::string_view key_prefix,
                                  ReplySink& sink) {
  request.id = calls_.add(sink, queued_bytes_);
  queue(request, key_prefix);
  return request.id;
}

void ExtensionLink::tell(wire::Request& request) {
  request.id = calls_.skip();
  queue(request, "");
}

void ExtensionLink::say(std::uint32_t id, std::string_view message) {
  if (broken_) return;
  wire::Request request;
  request.operation = wire::Operation::Say;
  request.id = id;
  request.value = message;
  queue(request, "");
}

void ExtensionLink::cancel(std::uint32_t id) {
  if (broken_) return;
  wire::Request request;
  request.operation = wire::Operation::CancelWait;
  request.number = id;
  queue(request, "");
}

bool ExtensionLink::hand_over(std::uint32_t id, ReplySink& sink) {
  CallTable::Call* const call = calls_.find(id);
  if (call == nullptr || broken_) return false;
  call->sink = &sink;
  return true;
}

void ExtensionLink::forget(std::uint32_t id, bool cancel_too) {
  if (calls_.remove(id) && cancel_too) cancel(id);
}

void ExtensionLink::schedule_flush() {
  if (flush_.queued() || broken_) return;
  loop_.soon(
      flush_, [](void* link) { static_cast<ExtensionLink*>(link)->flush(); }, this);
}

void ExtensionLink::flush() {
  while (output_sent_bytes_ < output_.size()) {
    const std::string_view piece = std::string_view(output_).substr(output_sent_bytes_);
    const net::Transfer transfer = stream_->write({&piece, 1});
    if (transfer.kind == net::Transfer::Kind::WouldBlock) break;
    if (transfer.kind != net::Transfer::Kind::Moved) {
      break_off(describe_errno(transfer.error_number));
      return;
    }
    output_sent_bytes_ += transfer.bytes;
  }
  if (output_sent_bytes_ == output_.size() || output_sent_bytes_ > output_.size() / 2) {
    output_.erase(0, output_sent_bytes_);
    output_sent_bytes_ = 0;
  }
  stream_->want(true, !output_.empty());
}

void ExtensionLink::on_writable() { flush(); }

// One read a turn: whoever watches gets to see what came before more comes, and falls behind only
// by its own slowness.
void ExtensionLink::on_readable() {
  scratch.resize(kReadBytes);
  const net::Transfer transfer = stream_->read(scratch);
  if (transfer.kind == net::Transfer::Kind::WouldBlock) return;
  if (transfer.kind == net::Transfer::Kind::End)
    return break_off("the server closed the connection");
  if (transfer.kind == net::Transfer::Kind::Failed)
    return break_off(describe_errno(transfer.error_number));
  take(std::string_view(scratch.data(), transfer.bytes));
}

void ExtensionLink::take(std::string_view bytes) {
  const bool from_input = !input_.empty();
  if (from_input) input_.append(bytes);
  const std::string_view all = from_input ? std::string_view(input_) : bytes;
  std::size_t consumed = 0;
  while (!broken_) {
    wire::Reply reply;
    const auto size = wire::decode_reply(all.substr(consumed), kReplyBytesMax, reply);
    if (!size) return break_off("the server sent something that is not a reply");
    if (*size == 0) break;
    consumed += *size;
    dispatch(reply);
  }
  if (from_input) {
    input_.erase(0, consumed);
  } else {
    input_.assign(all.substr(consumed));
  }
}

void ExtensionLink::dispatch(const wire::Reply& reply) {
  // None if it was forgotten: this is what the server had sent before it knew.
  const CallTable::Call* const call = calls_.find(reply.id);
  if (call != nullptr) call->sink->on_reply(reply);
}

void ExtensionLink::break_off(std::string reason) {
  if (broken_) return;
  broken_ = true;
  break_reason_ = std::move(reason);
  stream_->want(false, false);
  // Not inline: we may be deep inside a call of the store that will be told.
  loop_.soon(
      report_loss_,
      [](void* context) {
        auto* link = static_cast<ExtensionLink*>(context);
        const std::uint64_t sent_bytes =
            link->queued_bytes_ - (link->output_.size() - link->output_sent_bytes_);
        for (const CallTable::Call& call : link->calls_.take_all())
          call.sink->on_lost(link->break_reason_, call.first_byte < sent_bytes);
        link->lost_();  // destroys the link
      },
      this);
}

}  // namespace muster::store
