#include "tests/fuzz/server_run.h"

#include "muster/base/assert.h"
#include "muster/base/random.h"
#include "muster/store/hub.h"
#include "muster/wire/codec.h"
#include "muster/wire/store_extension.h"
#include "tests/fuzz/chat_service.h"
#include "tests/fuzz/conversation.h"
#include "tests/fuzz/peer.h"
#include "tests/fuzz/requests.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::tests {
namespace {

using store::Hub;
using store::HubOptions;

// What one request can add to the output of a connection, under the limits below.
constexpr std::size_t kOutputBytesOfOneRequestMax = std::size_t{256} << 10U;

HubOptions small_limits() {
  HubOptions options;
  options.limits.key_bytes = 64;
  options.limits.value_bytes = 256;
  options.limits.key_count = 16;
  options.limits.legacy_key_bytes = 96;
  options.limits.legacy_value_bytes = 512;
  options.limits.frame_bytes = 1024;
  options.limits.message_bytes = 256;
  options.memory_bytes_max = std::size_t{16} << 10U;
  options.reply_bytes_max = 4096;
  options.output_bytes_high = 2048;
  options.output_bytes_max = std::size_t{32} << 10U;
  options.waits_per_session_max = 8;
  options.watches_per_session_max = 8;
  options.conversations_per_session_max = 8;
  options.namespaces_max = 4;
  return options;
}

// A Muster client that does everything right.
class Observer {
 public:
  explicit Observer(Hub& hub) : hub_(hub) { connect(); }

  // Writes what the other may wait for or watch.
  void write() {
    ask(multi_set({{"/k", "observed"}, {"/a", "1"}, {"/b", ""}, {"init/", "1"}, {"/never", ""}}));
    ask(delete_key("/k"));
    ask(add("/n", 1));
    ask(queue_push("/q", "item"));
    ask(barrier("/bar", std::numeric_limits<std::int64_t>::min()));
  }

  // What it writes it reads, as long as there is memory.
  void check() {
    const std::string_view key = "\xff the observer's";
    const std::string_view value = "what was written";
    ask(delete_key(key));
    const bool room =
        hub_.has_room_for(key.size() + value.size() + store::Table::kEntryOverheadBytes);
    MUSTER_ASSERT(ask(set(key, value)).has_value() == room);
    std::string expected(1, room ? '\1' : '\0');
    if (room) wire::put_string(expected, value);
    MUSTER_ASSERT(ask(get(key)) == expected);
    MUSTER_ASSERT(ask(delete_key(key)) == expected.substr(0, 1));
  }

  void delete_everything() {
    const auto listed = ask(list_keys(""));
    MUSTER_ASSERT(listed.has_value());
    wire::Reader reader(*listed);
    const auto count = reader.integer<std::uint32_t>();
    std::vector<std::string> keys;
    for (std::uint32_t index = 0; index < count; ++index) {
      keys.emplace_back(reader.string(listed->size()));
    }
    MUSTER_ASSERT(reader.finished());
    MUSTER_ASSERT(std::is_sorted(keys.begin(), keys.end()));
    // Legacy clients may use longer keys than others can name.
    const auto is_too_long = [&](const std::string& key) {
      return key.size() > hub_.options().limits.key_bytes;
    };
    std::string left;
    wire::put(left, static_cast<std::int64_t>(std::erase_if(keys, is_too_long)));
    for (const std::string& key : keys) {
      MUSTER_ASSERT(ask(delete_key(key)) == std::string(1, '\1'));
    }
    MUSTER_ASSERT(ask(num_keys()) == left);
  }

 private:
  void connect() {
    peer_.emplace(hub_);
    peer_->send(std::string(kValidate) + bytes_of(upgrade(1, ""), Dialect::Modern));
    MUSTER_ASSERT(peer_->read() == std::string("\1\0\0\0", 4));
  }

  // The body of the answer; nothing if it was refused for a reason that the other can bring about.
  std::optional<std::string> ask(Request made) {
    // A client that went to another namespace may drop this one.
    if (peer_->closed()) connect();
    made.id = ++last_id_;
    peer_->send(bytes_of(made, Dialect::Extension));
    MUSTER_ASSERT(!peer_->closed());
    const std::string bytes = peer_->read();
    wire::Reply reply;
    MUSTER_ASSERT(wire::decode_reply(bytes, bytes.size(), reply) == bytes.size());
    MUSTER_ASSERT(reply.id == made.id);
    const auto error = wire::error_of(reply);
    if (!error) return std::string(reply.body);
    // The memory is used up; or a counter is no number, or a value too large for a reply.
    MUSTER_ASSERT(error->kind == ErrorKind::Unavailable || error->kind == ErrorKind::Invalid);
    return std::nullopt;
  }

  Hub& hub_;
  std::optional<Peer> peer_;
  std::uint32_t last_id_ = 0;
};

// Talks to the service, too, and hears what it says to all. Reads when all is over, so that nothing
// depends on when it does; comes again when it was sent away.
class Listener {
 public:
  explicit Listener(Hub& hub) : hub_(hub) { connect(); }

  void listen() {
    const std::string bytes = peer_->read();
    std::string_view rest = bytes;
    while (!rest.empty()) {
      wire::Reply reply;
      const auto size = wire::decode_reply(rest, rest.size(), reply);
      MUSTER_ASSERT(size && *size > 0 && reply.id == kId && talks_);
      talks_ = reply.status == wire::kStatusChange;
      rest.remove_prefix(*size);
    }
    if (peer_->closed()) connect();
    if (!talks_) talk();
  }

 private:
  static constexpr std::uint32_t kId = 3;

  void connect() {
    peer_.emplace(hub_);
    peer_->send(std::string(kValidate) + bytes_of(upgrade(1, ""), Dialect::Modern));
    MUSTER_ASSERT(peer_->read() == std::string("\1\0\0\0", 4));
    talk();
  }
  void talk() {
    peer_->send(bytes_of(with_id(kId, open_service(1, "here")), Dialect::Extension));
    talks_ = true;
  }

  Hub& hub_;
  std::optional<Peer> peer_;
  bool talks_ = false;
};

std::int64_t described(const Hub& hub, std::string_view name) {
  for (const auto& [line, value] : hub.describe()) {
    if (line == name) return std::stoll(value);
  }
  return -1;
}

void check_output(Peer& subject, const HubOptions& options) {
  if (subject.closed()) return;
  MUSTER_ASSERT(subject.session().output().size() <=
                options.output_bytes_max + kOutputBytesOfOneRequestMax);
}

struct Seen {
  std::string output;
  bool closed = false;
};

Seen run(Dialect begins_as, const HubOptions& options, const std::vector<std::string_view>& pieces,
         bool reading) {
  ChatService chat;
  Hub hub(options);
  hub.add_service(static_cast<store::ServiceId>(1), chat);
  Seen seen;
  {
    Observer observer(hub);
    Listener listener(hub);
    Peer subject(hub);
    if (begins_as != Dialect::Undecided) subject.send(kValidate);
    if (begins_as == Dialect::Extension) {
      subject.send(bytes_of(upgrade(1, ""), Dialect::Modern));
    }
    for (const std::string_view piece : pieces) {
      subject.send(piece);
      check_output(subject, options);
      if (reading) seen.output += subject.read();
    }
    observer.check();
    observer.write();
    check_output(subject, options);
    if (reading) seen.output += subject.read();
    seen.closed = subject.closed();
    subject.close();
    MUSTER_ASSERT(described(hub, "waiting") == 0);
    MUSTER_ASSERT(described(hub, "watching") == 0);
    listener.listen();
    MUSTER_ASSERT(described(hub, "conversations") == 1 && chat.size() == 1);
    observer.delete_everything();
  }
  MUSTER_ASSERT(chat.size() == 0);
  for (const std::string& name : hub.namespaces()) MUSTER_ASSERT(hub.drop_namespace(name));
  MUSTER_ASSERT(hub.memory_bytes() == 0);
  return seen;
}

std::vector<std::string_view> cut(std::string_view bytes, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::string_view> pieces;
  while (!bytes.empty()) {
    const std::size_t size = 1 + random.below(std::uint64_t{1} << random.below(8));
    pieces.push_back(bytes.substr(0, size));
    bytes.remove_prefix(pieces.back().size());
  }
  return pieces;
}

}  // namespace

void run_server(Dialect begins_as, std::string_view input) {
  const auto [bytes, seed] = split_input(input);
  const auto pieces = cut(bytes, seed);
  HubOptions options = small_limits();
  if (seed % 4 == 0) run(begins_as, options, pieces, false);

  // Read at once, no output can grow so large that it decides anything.
  options.output_bytes_max = std::size_t{1} << 20U;
  const Seen whole = run(begins_as, options, {bytes}, true);
  const Seen in_pieces = run(begins_as, options, pieces, true);
  MUSTER_ASSERT(whole.closed == in_pieces.closed);
  // What is still answered when it is clear that the connection will be closed is of no interest.
  const auto shorter = std::min(whole.output.size(), in_pieces.output.size());
  MUSTER_ASSERT(whole.output.substr(0, shorter) == in_pieces.output.substr(0, shorter));
  MUSTER_ASSERT(whole.closed || whole.output.size() == in_pieces.output.size());
}

}  // namespace muster::tests
