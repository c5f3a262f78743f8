#include "muster/store/handshake.h"

#include "muster/base/log.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::store {
namespace {

// A server that accepts the connection and then says nothing is given up after this, and tried
// again.
constexpr Duration kHandshakeTimeout = std::chrono::seconds(20);

Task<Result<std::unique_ptr<Channel>>> open_channel(ClientContext& context, TimePoint deadline) {
  auto connecting = context.transport.connect(context.options.endpoint);
  std::string what = fmt::format("cannot connect to {}: no answer in time",
                                 net::describe(context.options.endpoint));
  auto stream =
      co_await with_deadline(context.loop, deadline, std::move(connecting), std::move(what));
  if (!stream) co_return fail(stream.error());
  co_return std::make_unique<Channel>(context.loop, std::move(*stream));
}

Error not_a_store(const ClientContext& context, std::string_view reason) {
  return {ErrorKind::Unavailable, fmt::format("{} does not answer like a store: {}",
                                              net::describe(context.options.endpoint), reason)};
}

// Asks with CHECK, in the numbering of `dialect`, whether the server has the extension. Every
// version answers that.
Task<Result<bool>> has_extension(Channel& channel, wire::Dialect dialect, TimePoint deadline) {
  wire::Request request;
  request.operation = wire::Operation::Check;
  request.keys.push_back(wire::kExtensionKey);
  std::string bytes;
  wire::encode(request, dialect, bytes);
  channel.send(bytes);
  const auto reply = co_await channel.receive(1, deadline);
  if (!reply) co_return fail(reply.error());
  const auto status = static_cast<std::uint8_t>((*reply)[0]);
  if (status == static_cast<std::uint8_t>(wire::CheckReply::Ready)) co_return true;
  if (status == static_cast<std::uint8_t>(wire::CheckReply::NotReady)) co_return false;
  co_return fail(ErrorKind::Invalid, fmt::format("it answers CHECK with 0x{:02x}", status));
}

// A server that ended the probe like one of PyTorch 1.13 must also answer like one. One with the
// extension does not: it lost the probe, as when the network broke the connection, and is to be
// probed again.
Task<Result<Opened>> open_legacy(ClientContext& context, TimePoint deadline) {
  auto channel = co_await open_channel(context, deadline);
  if (!channel) co_return fail(channel.error());
  const auto extended = co_await has_extension(**channel, wire::Dialect::Legacy, deadline);
  if (!extended) co_return fail(not_a_store(context, extended.error().message));
  if (*extended) {
    co_return fail(ErrorKind::Unavailable,
                   fmt::format("{} ended the handshake", net::describe(context.options.endpoint)));
  }
  Opened opened;
  opened.channel = std::move(*channel);
  opened.dialect = wire::Dialect::Legacy;
  co_return opened;
}

// Switches the extension on.
Task<Result<>> upgrade(ClientContext& context, Channel& channel, TimePoint deadline) {
  wire::Request request;
  request.operation = wire::Operation::Upgrade;
  request.number = wire::kExtensionVersion;
  request.key = context.options.namespace_name;
  std::string bytes;
  wire::encode(request, wire::Dialect::Modern, bytes);
  channel.send(bytes);
  const auto reply = co_await channel.receive(sizeof(std::uint32_t), deadline);
  if (!reply) co_return fail(reply.error());
  const auto version = wire::load<std::uint32_t>(reply->data());
  if (version == 0 || version > wire::kExtensionVersion) {
    co_return fail(ErrorKind::Invalid,
                   fmt::format("it chose version {} of the extension", version));
  }
  if (channel.has_input()) co_return fail(ErrorKind::Invalid, "it sent more than it was asked for");
  if (channel.has_output()) co_return fail(ErrorKind::Invalid, "it answered before it was asked");
  co_return Result<>();
}

}  // namespace

Task<Result<Opened>> open_once(ClientContext& context, TimePoint deadline) {
  deadline = std::min(deadline, after(context.loop.now(), kHandshakeTimeout));
  auto channel = co_await open_channel(context, deadline);
  if (!channel) co_return fail(channel.error());
  (*channel)->send(wire::kProbe);
  const auto probed = co_await (*channel)->receive(wire::kProbeReplyBytes, deadline);
  if (!probed && probed.error().kind == ErrorKind::Closed) {
    channel->reset();
    co_return co_await open_legacy(context, deadline);
  }
  if (!probed) {
    co_return fail(ErrorKind::Unavailable,
                   fmt::format("{} accepts connections but does not answer like a store",
                               net::describe(context.options.endpoint)));
  }
  const auto extended = co_await has_extension(**channel, wire::Dialect::Modern, deadline);
  if (!extended) co_return fail(not_a_store(context, extended.error().message));
  if (*extended) {
    const auto upgraded = co_await upgrade(context, **channel, deadline);
    if (!upgraded) {
      co_return fail(ErrorKind::Unavailable, fmt::format("{} ended the handshake: {}",
                                                         net::describe(context.options.endpoint),
                                                         upgraded.error().message));
    }
  }
  Opened opened;
  opened.channel = std::move(*channel);
  opened.dialect = *extended ? wire::Dialect::Extension : wire::Dialect::Modern;
  co_return opened;
}

Task<Result<Opened>> open_connection(ClientContext& context, TimePoint deadline) {
  for (int attempt = 0;; ++attempt) {
    auto opened = co_await open_once(context, deadline);
    if (opened) {
      if (opened->dialect != wire::Dialect::Extension && !context.options.namespace_name.empty()) {
        co_return fail(ErrorKind::Invalid,
                       fmt::format("the store at {} is hosted by PyTorch and has no namespaces",
                                   net::describe(context.options.endpoint)));
      }
      co_return opened;
    }
    if (opened.error().kind == ErrorKind::Invalid) co_return opened;
    const TimePoint now = context.loop.now();
    if (deadline <= after(now, context.options.backoff.first)) {
      co_return fail(ErrorKind::Unavailable,
                     fmt::format("cannot reach the store: {}", opened.error().message));
    }
    // No pause is longer than half the time that is left, or a server that comes in time would not
    // be found.
    const Duration pause =
        std::min(backoff(context.options.backoff, attempt, context.random), (deadline - now) / 2);
    log::debug("store", "{}, trying again", opened.error().message);
    const TimePoint next = now + pause;
    co_await sleep_until(context.loop, next);
  }
}

}  // namespace muster::store
