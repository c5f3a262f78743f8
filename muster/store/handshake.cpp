#include "muster/store/handshake.h"

#include <fmt/format.h>

#include "muster/base/log.h"
#include "muster/wire/codec.h"

namespace muster::store {
namespace {

// A server that accepts the connection and then says nothing is given up after this, and tried again.
constexpr Duration kHandshakeTimeout = std::chrono::seconds(20);

Task<Result<std::unique_ptr<Channel>>> open_channel(ClientContext& context, TimePoint deadline) {
  auto connecting = context.transport.connect(context.options.endpoint);
  std::string what = fmt::format("cannot connect to {}: no answer in time", net::describe(context.options.endpoint));
  auto stream = co_await with_deadline(context.loop, deadline, std::move(connecting), std::move(what));
  if (!stream) co_return fail(stream.error());
  co_return std::make_unique<Channel>(context.loop, std::move(*stream));
}

// A server that ended the probe like one of PyTorch 1.13 must also answer like one; a Modern server that went away in
// that moment must not be spoken to in the wrong numbering.
Task<Result<Opened>> open_legacy(ClientContext& context, TimePoint deadline) {
  auto channel = co_await open_channel(context, deadline);
  if (!channel) co_return fail(channel.error());
  wire::Request request;
  request.operation = wire::Operation::NumKeys;
  std::string bytes;
  wire::encode(request, wire::Dialect::Legacy, bytes);
  (*channel)->send(bytes);
  const auto reply = co_await (*channel)->receive(sizeof(std::int64_t), deadline);
  if (!reply) {
    co_return fail(ErrorKind::Unavailable, fmt::format("{} does not answer like a store: {}",
                                                       net::describe(context.options.endpoint), reply.error().message));
  }
  Opened opened;
  opened.channel = std::move(*channel);
  opened.dialect = wire::Dialect::Legacy;
  co_return opened;
}

// Whether the Modern server behind `channel` has the extension; if so it is switched on.
Task<Result<bool>> upgrade(ClientContext& context, Channel& channel, TimePoint deadline) {
  wire::Request check;
  check.operation = wire::Operation::Check;
  check.keys.push_back(wire::kExtensionKey);
  std::string bytes;
  wire::encode(check, wire::Dialect::Modern, bytes);
  channel.send(bytes);
  const auto answer = co_await channel.receive(1, deadline);
  if (!answer) co_return fail(answer.error());
  if (static_cast<std::uint8_t>((*answer)[0]) != static_cast<std::uint8_t>(wire::CheckReply::Ready)) co_return false;
  wire::Request request;
  request.operation = wire::Operation::Upgrade;
  request.number = wire::kExtensionVersion;
  request.key = context.options.namespace_name;
  bytes.clear();
  wire::encode(request, wire::Dialect::Modern, bytes);
  channel.send(bytes);
  const auto version = co_await channel.receive(sizeof(std::uint32_t), deadline);
  if (!version) co_return fail(version.error());
  co_return true;
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
    co_return fail(ErrorKind::Unavailable, fmt::format("{} accepts connections but does not answer like a store",
                                                       net::describe(context.options.endpoint)));
  }
  const auto upgraded = co_await upgrade(context, **channel, deadline);
  if (!upgraded) {
    co_return fail(ErrorKind::Unavailable, fmt::format("{} ended the handshake: {}",
                                                       net::describe(context.options.endpoint), upgraded.error().message));
  }
  Opened opened;
  opened.channel = std::move(*channel);
  opened.dialect = *upgraded ? wire::Dialect::Extension : wire::Dialect::Modern;
  co_return opened;
}

Task<Result<Opened>> open_connection(ClientContext& context, TimePoint deadline) {
  for (int attempt = 0;; ++attempt) {
    auto opened = co_await open_once(context, deadline);
    if (opened) {
      if (opened->dialect != wire::Dialect::Extension && !context.options.namespace_name.empty()) {
        co_return fail(ErrorKind::Invalid, fmt::format("the store at {} is hosted by PyTorch and has no namespaces",
                                                       net::describe(context.options.endpoint)));
      }
      co_return opened;
    }
    if (opened.error().kind == ErrorKind::Invalid) co_return opened;
    const TimePoint next = context.loop.now() + backoff(context.options.backoff, attempt, context.random);
    if (next >= deadline) {
      co_return fail(ErrorKind::Unavailable, fmt::format("cannot reach the store: {}", opened.error().message));
    }
    log::debug("store", "{}, trying again", opened.error().message);
    co_await sleep_until(context.loop, next);
  }
}

}  // namespace muster::store
