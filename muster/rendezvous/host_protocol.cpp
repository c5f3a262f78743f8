#include "muster/rendezvous/host_protocol.h"

#include "muster/rendezvous/state_codec.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace muster::rendezvous {
namespace {

constexpr std::uint8_t kJoins = 1;
constexpr std::uint8_t kObserves = 2;
constexpr std::uint8_t kHasPlace = 4;
constexpr std::uint8_t kKnowsClosed = 8;
constexpr std::uint8_t kCloses = 16;
constexpr std::uint8_t kHelloFlags = kJoins | kObserves | kHasPlace | kKnowsClosed | kCloses;

constexpr std::uint8_t kClosed = 1;
constexpr std::uint8_t kLost = 2;
constexpr std::uint8_t kMember = 4;
constexpr std::uint8_t kSpare = 8;

constexpr std::uint8_t kExists = 1;
constexpr std::uint8_t kComplete = 2;
constexpr std::uint8_t kSnapshotClosed = 4;
constexpr std::uint8_t kSnapshotLost = 8;
constexpr std::uint8_t kInLastCall = 16;

constexpr std::uint8_t kHasRank = 1;
constexpr std::uint8_t kHasLastHeard = 2;
constexpr std::uint8_t kHasConnected = 4;
constexpr std::uint8_t kConnected = 8;

constexpr std::size_t kErrorTextBytesMax = 4096;

tl::unexpected<Error> malformed(std::string_view what) {
  return fail(ErrorKind::Invalid, fmt::format("malformed rendezvous message: {}", what));
}

std::uint8_t bit(bool condition, std::uint8_t flag) { return condition ? flag : std::uint8_t{0}; }

void put_duration(std::string& out, Duration length) {
  wire::put<std::int64_t>(out, length.count());
}
Duration get_duration(wire::Reader& reader) { return Duration(reader.integer<std::int64_t>()); }

void put_place(std::string& out, const Place& place) {
  wire::put(out, place.id.birth);
  wire::put(out, place.id.round);
  wire::put(out, place.rank);
  wire::put(out, place.world_size);
}
Place get_place(wire::Reader& reader) {
  Place place;
  place.id.birth = reader.integer<std::uint64_t>();
  place.id.round = reader.integer<std::uint64_t>();
  place.rank = reader.integer<std::int64_t>();
  place.world_size = reader.integer<std::int64_t>();
  return place;
}

void put_entries(std::string& out, const std::vector<Snapshot::Entry>& entries) {
  wire::put(out, static_cast<std::uint32_t>(entries.size()));
  for (const Snapshot::Entry& entry : entries) {
    put_node(out, entry.node);
    wire::put(out, static_cast<std::uint8_t>(bit(entry.rank.has_value(), kHasRank) |
                                             bit(entry.last_heard.has_value(), kHasLastHeard) |
                                             bit(entry.connected.has_value(), kHasConnected) |
                                             bit(entry.connected.value_or(false), kConnected)));
    if (entry.rank) wire::put(out, *entry.rank);
    if (entry.last_heard) put_duration(out, *entry.last_heard);
  }
}

bool get_entries(wire::Reader& reader, std::vector<Snapshot::Entry>& entries) {
  const auto count = reader.integer<std::uint32_t>();
  for (std::uint32_t index = 0; index < count && !reader.failed(); ++index) {
    Snapshot::Entry& entry = entries.emplace_back();
    entry.node = get_node(reader);
    const auto flags = reader.integer<std::uint8_t>();
    if ((flags & kHasRank) != 0) entry.rank = reader.integer<std::int64_t>();
    if ((flags & kHasLastHeard) != 0) entry.last_heard = get_duration(reader);
    if ((flags & kHasConnected) != 0) entry.connected = (flags & kConnected) != 0;
  }
  return !reader.failed();
}

bool get_snapshot(wire::Reader& reader, Snapshot& snapshot) {
  const auto flags = reader.integer<std::uint8_t>();
  snapshot.exists = (flags & kExists) != 0;
  snapshot.complete = (flags & kComplete) != 0;
  snapshot.closed = (flags & kSnapshotClosed) != 0;
  snapshot.lost = (flags & kSnapshotLost) != 0;
  snapshot.round = reader.integer<std::uint64_t>();
  snapshot.min_nodes = reader.integer<std::int64_t>();
  snapshot.max_nodes = reader.integer<std::int64_t>();
  snapshot.world_size = reader.integer<std::int64_t>();
  if ((flags & kInLastCall) != 0) snapshot.last_call_left = get_duration(reader);
  return get_entries(reader, snapshot.members) && get_entries(reader, snapshot.waiting) &&
         get_entries(reader, snapshot.spare);
}

// What a node may come with. The same rules as at the node itself, since anybody can connect.
Result<> check(const Hello& hello) {
  auto settings = Settings::create(hello.settings);
  if (!settings) return fail(std::move(settings.error()));
  if (!hello.place) return {};
  const Place& place = *hello.place;
  if (place.id.birth == 0) return malformed("a place in a run without a birth");
  if (place.world_size < settings->min_nodes || place.world_size > settings->max_nodes) {
    return malformed("a world outside of its limits");
  }
  if (place.rank < 0 || place.rank >= place.world_size) {
    return malformed("a rank outside of its world");
  }
  return {};
}

}  // namespace

std::string encode(const Hello& hello) {
  std::string out;
  wire::put(out, kHostProtocolVersion);
  wire::put(out, static_cast<std::uint8_t>(
                     bit(hello.joins, kJoins) | bit(hello.observes, kObserves) |
                     bit(hello.place.has_value(), kHasPlace) |
                     bit(hello.knows_closed, kKnowsClosed) | bit(hello.closes, kCloses)));
  wire::put_string(out, hello.run_id);
  if (hello.observes) return out;
  put_node(out, hello.node);
  wire::put(out, hello.settings.min_nodes);
  wire::put(out, hello.settings.max_nodes);
  put_duration(out, hello.settings.timeouts.last_call);
  put_duration(out, hello.settings.timeouts.last_call_of(1));
  put_duration(out, hello.settings.window());
  put_duration(out, hello.settings.grace);
  if (hello.place) put_place(out, *hello.place);
  return out;
}

Result<Hello> decode_hello(std::string_view bytes) {
  wire::Reader reader(bytes);
  const auto version = reader.integer<std::uint8_t>();
  if (version != kHostProtocolVersion) {
    return fail(ErrorKind::Unimplemented,
                fmt::format("this server speaks version {} of the rendezvous protocol, not {}",
                            kHostProtocolVersion, version));
  }
  const auto flags = reader.integer<std::uint8_t>();
  if ((flags & ~kHelloFlags) != 0) return malformed("flags that nobody knows");
  Hello hello;
  hello.joins = (flags & kJoins) != 0;
  hello.observes = (flags & kObserves) != 0;
  hello.knows_closed = (flags & kKnowsClosed) != 0;
  hello.closes = (flags & kCloses) != 0;
  hello.run_id = reader.string(kRunIdBytesMax);
  if (reader.failed() || hello.run_id.empty()) return malformed("no run id");
  if (!hello.observes) {
    hello.node = get_node(reader);
    hello.settings.run_id = hello.run_id;
    hello.settings.min_nodes = reader.integer<std::int64_t>();
    hello.settings.max_nodes = reader.integer<std::int64_t>();
    hello.settings.timeouts.last_call = get_duration(reader);
    hello.settings.timeouts.regroup = get_duration(reader);
    hello.settings.keep_alive_interval = get_duration(reader);
    hello.settings.keep_alive_max_attempt = 1;
    hello.settings.grace = get_duration(reader);
    if ((flags & kHasPlace) != 0) hello.place = get_place(reader);
  }
  if (!reader.finished()) return malformed("a hello of the wrong length");
  if (hello.observes) return hello;
  if (auto checked = check(hello); !checked) return fail(std::move(checked.error()));
  return hello;
}

std::string encode(const Said& said) {
  std::string out;
  wire::put(out, static_cast<std::uint8_t>(said.kind));
  if (said.kind == Said::Kind::Join) {
    wire::put(out, said.after.birth);
    wire::put(out, said.after.round);
  }
  return out;
}

Result<Said> decode_said(std::string_view bytes) {
  wire::Reader reader(bytes);
  const auto kind = reader.integer<std::uint8_t>();
  if (reader.failed() || kind < static_cast<std::uint8_t>(Said::Kind::Join) ||
      kind > static_cast<std::uint8_t>(Said::Kind::Beat)) {
    return malformed("an unknown kind");
  }
  Said said;
  said.kind = static_cast<Said::Kind>(kind);
  if (said.kind == Said::Kind::Join) {
    said.after.birth = reader.integer<std::uint64_t>();
    said.after.round = reader.integer<std::uint64_t>();
  }
  if (!reader.finished()) return malformed("a message of the wrong length");
  return said;
}

std::string encode_plain(Told::Kind kind) { return {static_cast<char>(kind)}; }

std::string encode_joined(const Place& place) {
  std::string out = encode_plain(Told::Kind::Joined);
  put_place(out, place);
  return out;
}

std::string encode_failed(ErrorKind kind, std::string_view message) {
  std::string out = encode_plain(Told::Kind::Failed);
  wire::put(out, static_cast<std::uint8_t>(kind));
  wire::put_string(out, message.substr(0, kErrorTextBytesMax));
  return out;
}

std::string encode_status(const Status& status, bool spare) {
  std::string out = encode_plain(Told::Kind::Status);
  wire::put(out, status.round);
  wire::put(out, static_cast<std::uint32_t>(std::clamp<std::int64_t>(
                     status.waiting, 0, std::numeric_limits<std::uint32_t>::max())));
  wire::put(out, static_cast<std::uint8_t>(bit(status.closed, kClosed) | bit(status.lost, kLost) |
                                           bit(status.member, kMember) | bit(spare, kSpare)));
  return out;
}

std::string encode_snapshot(const Snapshot& snapshot) {
  std::string out = encode_plain(Told::Kind::Snapshot);
  wire::put(out, static_cast<std::uint8_t>(
                     bit(snapshot.exists, kExists) | bit(snapshot.complete, kComplete) |
                     bit(snapshot.closed, kSnapshotClosed) | bit(snapshot.lost, kSnapshotLost) |
                     bit(snapshot.last_call_left.has_value(), kInLastCall)));
  wire::put(out, snapshot.round);
  wire::put(out, snapshot.min_nodes);
  wire::put(out, snapshot.max_nodes);
  wire::put(out, snapshot.world_size);
  if (snapshot.last_call_left) put_duration(out, *snapshot.last_call_left);
  put_entries(out, snapshot.members);
  put_entries(out, snapshot.waiting);
  put_entries(out, snapshot.spare);
  return out;
}

Result<Told> decode_told(std::string_view bytes) {
  wire::Reader reader(bytes);
  const auto kind = reader.integer<std::uint8_t>();
  if (reader.failed() || kind < static_cast<std::uint8_t>(Told::Kind::Joined) ||
      kind > static_cast<std::uint8_t>(Told::Kind::Snapshot)) {
    return malformed("an unknown kind");
  }
  Told told;
  told.kind = static_cast<Told::Kind>(kind);
  switch (told.kind) {
    case Told::Kind::Joined:
      told.place = get_place(reader);
      break;
    case Told::Kind::Failed: {
      const auto error = reader.integer<std::uint8_t>();
      told.error.kind =
          error < kErrorKindCount ? static_cast<ErrorKind>(error) : ErrorKind::Invalid;
      told.error.message = reader.string(kErrorTextBytesMax);
      break;
    }
    case Told::Kind::Status: {
      told.status.round = reader.integer<std::uint64_t>();
      told.status.waiting = reader.integer<std::uint32_t>();
      const auto flags = reader.integer<std::uint8_t>();
      told.status.closed = (flags & kClosed) != 0;
      told.status.lost = (flags & kLost) != 0;
      told.status.member = (flags & kMember) != 0;
      told.spare = (flags & kSpare) != 0;
      break;
    }
    case Told::Kind::Snapshot:
      if (!get_snapshot(reader, told.snapshot)) return malformed("a damaged snapshot");
      break;
    case Told::Kind::Left:
    case Told::Kind::Alive:
      break;
  }
  if (!reader.finished()) return malformed("a message of the wrong length");
  return told;
}

}  // namespace muster::rendezvous
