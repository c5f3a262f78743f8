#include "muster/store/server.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::store {
namespace {

// Room for a large value in one read, so that it is copied once: into the table.
constexpr std::size_t kScratchBytes = std::size_t{256} << 10U;
// One turn of a connection reads no more than this, so that a fast sender leaves room for the
// others.
constexpr int kReadsPerTurnMax = 4;
// Whoever sends so much at once is likely to have sent more meanwhile; to look is cheaper than to
// fall asleep and be woken.
constexpr std::size_t kPouredBytes = std::size_t{16} << 10U;
// Likewise it is sent no more than this, however fast it reads.
constexpr std::size_t kSendBytesPerTurnMax = std::size_t{4} << 20U;
// A larger input buffer is given back when it is empty.
constexpr std::size_t kInputBytesKept = 4096;

}  // namespace

// One client. Serving: bytes go through the session. Draining: the session is over; what the client
// still sends is thrown away until it closes too, because closing a socket with unread bytes would
// reset the connection.
class Server::Connection final : public net::StreamEvents, public SessionOwner {
 public:
  Connection(Server& server, std::unique_ptr<net::Stream> stream)
      : server_(server),
        stream_(std::move(stream)),
        linger_(server.loop_, [this] { server_.closed(*this); }) {}

  void open(std::string_view namespace_name) {
    stream_->set_events(this);
    auto session = server_.hub_.open(*this, namespace_name);
    if (!session) {
      log::warn("store", "refusing a connection peer={} reason={}", stream_->peer(),
                log::quote(session.error().message));
      begin_draining();
      return;
    }
    session_ = std::move(*session);
    stream_->want(true, false);
  }

  ~Connection() override { server_.buffered_bytes_ -= counted_bytes_; }

  void on_readable() override {
    if (draining()) {
      drain();
      return;
    }
    server_.will_settle_ = true;
    // Nothing is served behind a request for which the connection must be closed.
    for (int reads = 0; reads < kReadsPerTurnMax && close_reason_.empty(); ++reads) {
      const net::Transfer transfer = stream_->read(server_.scratch_);
      if (transfer.kind == net::Transfer::Kind::WouldBlock) break;
      if (transfer.kind != net::Transfer::Kind::Moved) {
        // Its waits and watches go with it; what it wrote stays.
        log::debug("store", "connection ended peer={}", stream_->peer());
        (transfer.kind == net::Transfer::Kind::End ? finished_ : gone_) = true;
        break;
      }
      take(std::string_view(server_.scratch_.data(), transfer.bytes));
      if (transfer.bytes < kPouredBytes || session_->output_is_high()) break;
    }
    note();
    server_.settle();
  }

  void on_writable() override {
    server_.will_settle_ = true;
    note();
    server_.settle();
  }

  void output_added() override { note(); }

  void must_close(std::string reason) override {
    if (close_reason_.empty()) close_reason_ = std::move(reason);
    note();
  }

  // Sends, resumes a client that had too much output, closes. False when the connection is to be
  // removed.
  bool settle() {
    noted_ = false;
    if (gone_) return false;
    if (draining()) return true;
    std::size_t sent_bytes = 0;
    if (!send(sent_bytes)) return false;
    if (!close_reason_.empty()) return close();
    // The client has read its backlog: go on with what it had sent meanwhile.
    while (paused_ && !session_->output_is_high()) {
      paused_ = false;
      take({});
      if (!close_reason_.empty()) return close();
      if (!send(sent_bytes)) return false;
    }
    const bool has_output = !session_->output().empty();
    // A client that has finished sending gets what it asked for.
    if (finished_ && !paused_ && !has_output) return false;
    stream_->want(!paused_ && !finished_, has_output);
    count();
    if ((paused_ || session_->output_is_high()) && !server_.hub_.has_room_for(0)) {
      close_reason_ =
          fmt::format("--max-memory is used up, and it does not read its {} bytes of replies",
                      session_->output().size());
      return close();
    }
    return true;
  }

  // Among those that are to be settled.
  bool noted() const { return noted_; }

 private:
  bool draining() const { return session_ == nullptr; }

  void note() {
    if (noted_) return;
    noted_ = true;
    server_.unsettled_.push_back(this);
    server_.settle_soon();
  }

  // Serves what has come, in front of it what had been left over.
  void take(std::string_view bytes) {
    const bool from_input = !input_.empty();
    if (from_input) input_.append(bytes);
    const std::string_view all = from_input ? std::string_view(input_) : bytes;
    std::size_t consumed = 0;
    const auto received = session_->receive(all, consumed);
    if (!received) {
      must_close(received.error().message);
      return;
    }
    if (from_input) {
      input_.erase(0, consumed);
      if (input_.empty() && input_.capacity() > kInputBytesKept) std::string().swap(input_);
    } else {
      input_.assign(bytes.substr(consumed));
    }
    paused_ = session_->output_is_high();
    if (input_.size() > kScratchBytes && !server_.hub_.has_room_for(input_.size())) {
      must_close(fmt::format("its unfinished request of {} bytes does not fit into --max-memory",
                             input_.size()));
    }
  }

  // False if the connection is lost. `sent_bytes` is the sum of this turn.
  bool send(std::size_t& sent_bytes) {
    while (!session_->output().empty() && sent_bytes < kSendBytesPerTurnMax) {
      const std::string_view piece =
          session_->output().substr(0, kSendBytesPerTurnMax - sent_bytes);
      const net::Transfer transfer = stream_->write({&piece, 1});
      if (transfer.kind == net::Transfer::Kind::WouldBlock) return true;
      if (transfer.kind != net::Transfer::Kind::Moved) {
        log::debug("store", "connection lost peer={} reason={}", stream_->peer(),
                   describe_errno(transfer.error_number));
        return false;
      }
      session_->sent(transfer.bytes);
      sent_bytes += transfer.bytes;
    }
    return true;
  }

  // True: the connection stays, to be drained.
  bool close() {
    log::warn("store", "closing a connection peer={} dialect={} reason={}", stream_->peer(),
              wire::name_of(session_->dialect()), log::quote(close_reason_));
    begin_draining();
    return true;
  }

  void begin_draining() {
    session_.reset();
    std::string().swap(input_);
    count();
    stream_->shutdown_write();
    stream_->want(true, false);
    linger_.set(server_.loop_.now() + server_.options_.linger);
  }

  void drain() {
    for (int reads = 0; reads < kReadsPerTurnMax; ++reads) {
      const net::Transfer transfer = stream_->read(server_.scratch_);
      if (transfer.kind == net::Transfer::Kind::WouldBlock) return;
      if (transfer.kind != net::Transfer::Kind::Moved) {
        server_.closed(*this);
        return;
      }
    }
  }

  void count() {
    const std::size_t bytes = draining() ? 0 : input_.size() + session_->output().size();
    server_.buffered_bytes_ += bytes - counted_bytes_;
    counted_bytes_ = bytes;
    server_.hub_.set_buffered_bytes(server_.buffered_bytes_);
  }

  Server& server_;
  std::unique_ptr<net::Stream> stream_;
  std::unique_ptr<Session> session_;  // none while draining
  std::string input_;                 // an unfinished request
  std::string close_reason_;
  std::size_t counted_bytes_ = 0;
  bool paused_ = false;    // too much output: not reading
  bool finished_ = false;  // the client sends nothing more; it may still read
  bool noted_ = false;     // in unsettled_
  bool gone_ = false;
  Timer linger_;
};

Server::Server(Loop& loop, ServerOptions options)
    : loop_(loop),
      options_(std::move(options)),
      hub_(options_.hub),
      scratch_(kScratchBytes, '\0') {}

Server::~Server() {
  ports_.clear();
  will_settle_ = true;  // never
  hub_.end_conversations();
  // A dying session can release others; nobody is there to be told any more, but they must outlive
  // the telling.
  while (!connections_.empty()) connections_.erase(connections_.begin());
}

void Server::add_service(ServiceId id, Service& service) {
  MUSTER_ASSERT(ports_.empty());
  hub_.add_service(id, service);
}

Result<int> Server::listen(net::Transport& transport, const net::Endpoint& endpoint,
                           std::string namespace_name) {
  const auto accept = [this, namespace_name](std::unique_ptr<net::Stream> stream) {
    accepted(std::move(stream), namespace_name);
  };
  auto listener = transport.listen(endpoint, accept);
  if (!listener) return fail(listener.error());
  const int port = (*listener)->port();
  if (!accepting_) (*listener)->set_accepting(false);
  ports_.push_back({std::move(namespace_name), std::move(*listener)});
  return port;
}

bool Server::drop_namespace(std::string_view name) {
  const auto listens = [&](const Port& port) { return port.namespace_name == name; };
  const bool listened = std::erase_if(ports_, listens) > 0;
  const bool existed = hub_.drop_namespace(name);
  if (!will_settle_) settle();
  return listened || existed;
}

void Server::accepted(std::unique_ptr<net::Stream> stream, const std::string& namespace_name) {
  auto connection = std::make_unique<Connection>(*this, std::move(stream));
  Connection* const key = connection.get();
  connections_.emplace(key, std::move(connection));
  key->open(namespace_name);
  update_accepting();
}

void Server::closed(Connection& connection) {
  if (connection.noted()) {
    std::replace(unsettled_.begin(), unsettled_.end(), &connection,
                 static_cast<Connection*>(nullptr));
  }
  connections_.erase(&connection);
  update_accepting();
}

void Server::update_accepting() {
  const bool accepting = connections_.size() < options_.connections_max;
  if (accepting == accepting_) return;
  accepting_ = accepting;
  if (!accepting) {
    log::warn("store",
              "{} connections, the most this server takes; new ones wait until others close",
              connections_.size());
  }
  for (const Port& port : ports_) port.listener->set_accepting(accepting);
}

void Server::settle_soon() {
  if (will_settle_ || settle_.queued()) return;
  loop_.soon(
      settle_, [](void* server) { static_cast<Server*>(server)->settle(); }, this);
}

void Server::settle() {
  will_settle_ = true;
  settle_.withdraw();
  // Settling one can add others: a connection that goes passes its wake-ups on, and services that
  // are told of it speak to others.
  for (std::size_t index = 0; index < unsettled_.size(); ++index) {
    Connection* const connection = unsettled_[index];
    if (connection != nullptr && !connection->settle()) closed(*connection);
  }
  unsettled_.clear();
  will_settle_ = false;
}

}  // namespace muster::store
