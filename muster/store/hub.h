// Hub is the store server without the network: bytes of many connections in, bytes out.
//
// A Hub holds the namespaces (one Table each); a Session is one connection's side of the protocol,
// in whichever dialect it speaks. Everything a request does happens inside `Session::receive`,
// including the replies to others that it woke, so requests are atomic and the order in which
// sessions receive is the order of the store.
//
// Services (service.h) are hosted beside the keys: a session passes on what its client says to
// them, and they speak to any session whenever they like.
//
// Pure: no I/O, no clock, no logging. Owned by one Server, on its loop.
#pragma once

#include "muster/base/error.h"
#include "muster/store/conversations.h"
#include "muster/store/service.h"
#include "muster/store/table.h"
#include "muster/wire/store_protocol.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster::store {

class Hub;
class Session;

struct HubOptions {
  wire::Limits limits;
  // Of stored data, of waits, and of what connections have buffered, together.
  std::size_t memory_bytes_max = std::size_t{4} << 30U;
  // Of one reply.
  std::size_t reply_bytes_max = std::size_t{1} << 30U;
  // A connection with this much unread output is not served until it has read some of it...
  std::size_t output_bytes_high = std::size_t{1} << 20U;
  // ... and is closed when changes that it watches or messages of services make it this much.
  std::size_t output_bytes_max = std::size_t{64} << 20U;
  std::size_t waits_per_session_max = 65'536;
  std::size_t watches_per_session_max = 65'536;
  std::size_t conversations_per_session_max = 65'536;
  std::size_t namespaces_max = 4096;
};

// What a session tells the connection it belongs to. Called while another session receives, or
// from a service's timer, so implementations only take a note.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  virtual void output_added() = 0;
  virtual void must_close(std::string reason) = 0;
};

// One key space and who uses it. Owned by the Hub.
struct Space {
  std::string name;
  Table table;
  std::size_t session_count = 0;
  std::size_t counted_bytes = 0;  // of the table, in the Hub's sum
  bool dropped = false;           // nobody can enter any more
};

// A request that waits, and whose it is. The PyTorch dialects leave `keys` empty: there, a client
// that was woken asks for what it waited for.
struct Waiting {
  Session* session = nullptr;
  std::uint32_t id = 0;
  wire::Operation operation = wire::Operation::Wait;
  std::vector<std::string> keys;
  std::size_t bytes = 0;  // what remembering it costs, roughly
};

// One connection's side of the protocol. Owned by the connection.
class Session {
 public:
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Serves the complete requests in `input`, which begins where the last call's `consumed` ended;
  // stops early when there is too much output. An error means: close the connection, for the reason
  // given.
  Result<> receive(std::string_view input, std::size_t& consumed);

  // Replies that are to be sent, and how the connection says that it sent some of them.
  std::string_view output() const { return std::string_view(output_).substr(output_sent_bytes_); }
  void sent(std::size_t bytes);
  bool output_is_high() const { return output_.size() - output_sent_bytes_ >= output_bytes_high_; }
  wire::Dialect dialect() const { return parser_.dialect(); }
  const std::string& namespace_name() const { return space_->name; }

 private:
  friend class Hub;
  friend class Conversations;
  Session(Hub& hub, SessionOwner& owner, Space& space);

  Result<> serve(const wire::Request& request);
  Result<> serve_pytorch(const wire::Request& request);
  void serve_extension(const wire::Request& request);
  Result<> upgrade(const wire::Request& request);
  void settle_previous_wait(const wire::Request& request);
  // Answers a request that may wait, or leaves it waiting.
  void serve_waiting(const wire::Request& request);
  void finish_waiting(std::uint32_t id, wire::Operation operation, WaiterId waiter,
                      std::span<const std::string_view> keys);
  void watch(const wire::Request& request);
  void open_conversation(const wire::Request& request);
  // A message of a service, or its last words.
  void push(std::uint32_t id, std::uint8_t status, std::string_view body);
  void cancel(std::uint32_t id);
  bool is_in_use(std::uint32_t id) const;
  void released(WaiterId waiter, const Waiting& waiting);
  void notified(std::uint32_t id, const Notice& notice);
  void reply_error(std::uint32_t id, ErrorKind kind, std::string_view message);
  void reply_ok(std::uint32_t id);

  Hub& hub_;
  SessionOwner& owner_;
  const std::uint64_t id_;
  Space* space_;
  wire::RequestParser parser_;
  std::string output_;
  std::size_t output_sent_bytes_ = 0;  // of its beginning; cut off now and then
  const std::size_t output_bytes_high_;
  // PyTorch dialects: the last WAIT or BARRIER, until it is known to be over; 0 if none.
  WaiterId wait_ = 0;
  bool wait_is_pending_ = false;
  // By request id; Legacy connections number their watches themselves.
  std::unordered_map<std::uint32_t, WaiterId> waits_;
  std::unordered_map<std::uint32_t, WatcherId> watches_;
  Conversations conversations_{*this};
};

class Hub {
 public:
  explicit Hub(HubOptions options) : options_(options) {}
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  const HubOptions& options() const { return options_; }

  // Requires: there is no service with that id and no session yet, and `service` outlives the Hub
  // and its sessions. A service must not open or close sessions, nor drop namespaces, from inside
  // a call to it.
  void add_service(ServiceId id, Service& service);

  // A new connection, in the namespace of the port it came to. Fails if there are too many
  // namespaces. Requires: the Hub and `owner` outlive the session.
  Result<std::unique_ptr<Session>> open(SessionOwner& owner, std::string_view namespace_name);

  // Closes every session of the namespace and forgets its data. False if there is none of that
  // name.
  bool drop_namespace(std::string_view name);
  std::vector<std::string> namespaces() const;

  // Every conversation ends, as when its connection is lost, in the order of arrival: the server is
  // going away.
  void end_conversations();

  // What the connections have buffered, kept up to date by the server.
  void set_buffered_bytes(std::size_t bytes) { buffered_bytes_ = bytes; }
  std::size_t memory_bytes() const {
    return table_bytes_ + buffered_bytes_ + waiting_bytes_ +
           conversation_count_ * Conversations::kBytesEach;
  }
  bool has_room_for(std::size_t bytes) const {
    return memory_bytes() + bytes <= options_.memory_bytes_max;
  }

  // For people: names and values in a fixed order.
  std::vector<std::pair<std::string, std::string>> describe() const;
  // Put in front of `describe`: what only the server knows, such as its version.
  void set_description(std::vector<std::pair<std::string, std::string>> lines) {
    description_ = std::move(lines);
  }

 private:
  friend class Session;
  friend class Conversations;

  Result<Space*> enter(std::string_view name);
  void leave(Space& space);
  void remember(WaiterId waiter, Waiting waiting);
  // Forgets the waiter and returns what it waited for; nothing if it does not wait.
  std::optional<Waiting> recall(WaiterId waiter);
  // Answers those that the last request released or notified, and takes stock of the memory.
  void carry_out(Space& space);
  std::uint64_t next_id() { return ++last_id_; }

  HubOptions options_;
  std::map<std::string, std::unique_ptr<Space>, std::less<>> spaces_;
  struct Watching {
    Session* session = nullptr;
    std::uint32_t id = 0;
  };
  std::vector<std::unique_ptr<Space>> dropped_spaces_;
  std::unordered_map<WaiterId, Waiting> waiters_;
  std::unordered_map<WatcherId, Watching> watchers_;
  std::map<std::uint8_t, Service*> services_;   // by their numbers on the wire
  std::map<std::uint64_t, Session*> sessions_;  // by id, which is the order of arrival
  Outcome outcome_;                             // of the request being served
  wire::Request request_;                       // the one being served; kept for its capacity
  std::uint64_t last_id_ = 0;
  std::size_t table_bytes_ = 0;
  std::size_t buffered_bytes_ = 0;
  std::size_t waiting_bytes_ = 0;
  std::size_t conversation_count_ = 0;
  std::uint64_t request_count_ = 0;
  std::vector<std::pair<std::string, std::string>> description_;
};

}  // namespace muster::store
