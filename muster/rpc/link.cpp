#include "muster/rpc/link.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{128} << 10U;
// Of one large buffer at a time, so that other connections get their turn.
constexpr std::size_t kDirectReadBytesMax = std::size_t{4} << 20U;
constexpr int kReadsPerTurnMax = 8;
constexpr std::size_t kPiecesMax = 64;

// What is to be written: a head, then buffers.
struct Outgoing {
  std::string head;
  std::vector<Buffer> buffers;
  std::size_t bytes = 0;
};

std::span<std::byte> scratch() {
  thread_local std::vector<std::byte> memory(kScratchBytes);
  return memory;
}

}  // namespace

// Guarded by the mutex, but for `link`, which belongs to the loop's thread.
struct Link::Output {
  Output(Fd of, LinkOptions with) : socket(std::move(of)), options(std::move(with)) {}

  // Writes as much as the socket takes. False if the connection is broken.
  bool flush();
  void drop_written(std::size_t bytes);

  const Fd socket;
  const LinkOptions options;
  std::mutex mutex;
  std::deque<Outgoing> queue;
  std::size_t front_sent_bytes = 0;  // of the first in the queue
  std::size_t queued_bytes = 0;
  std::uint64_t sent_bytes = 0;
  bool wants_loop = false;  // the loop has been asked to write the rest, or to look at the failure
  std::string failure;      // why nothing can be sent any more

  Link* link = nullptr;  // nothing once it is gone
};

bool Link::Output::flush() {
  while (!queue.empty()) {
    std::array<iovec, kPiecesMax> pieces{};
    std::size_t count = 0;
    std::size_t skip = front_sent_bytes;
    const auto add = [&](const void* data, std::size_t size) {
      const std::size_t skipped = std::min(skip, size);
      skip -= skipped;
      if (size == skipped || count == kPiecesMax) return;
      // The kernel does not write to it.
      auto* begin = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + skipped;
      pieces[count++] = {begin, size - skipped};
    };
    for (const Outgoing& one : queue) {
      if (count == kPiecesMax) break;
      add(one.head.data(), one.head.size());
      for (const Buffer& buffer : one.buffers) add(buffer.data(), buffer.size());
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (sent < 0) {
      failure = describe_errno(errno);
      return false;
    }
    drop_written(static_cast<std::size_t>(sent));
  }
  return true;
}

void Link::Output::drop_written(std::size_t bytes) {
  sent_bytes += bytes;
  queued_bytes -= bytes;
  front_sent_bytes += bytes;
  while (!queue.empty() && front_sent_bytes >= queue.front().bytes) {
    front_sent_bytes -= queue.front().bytes;
    queue.pop_front();
  }
}

Link::Link(net::EpollLoop& loop, Fd socket, LinkOptions options, LinkEvents& events)
    : loop_(loop),
      events_(events),
      output_(std::make_shared<Output>(std::move(socket), std::move(options))),
      watch_(loop, output_->socket.get(), [this](std::uint32_t bits) { ready(bits); }),
      reader_(output_->options.limits) {
  const int flags = ::fcntl(output_->socket.get(), F_GETFL);
  ::fcntl(output_->socket.get(), F_SETFL, flags | O_NONBLOCK);
  output_->link = this;
  watch_.want(EPOLLIN);
}

Link::~Link() {
  if (destroyed_ != nullptr) *destroyed_ = true;
  output_->link = nullptr;
  const std::lock_guard lock(output_->mutex);
  if (output_->failure.empty()) output_->failure = "the connection was closed";
  // Those who still hold the rest of it must not keep the connection open.
  ::shutdown(output_->socket.get(), SHUT_RDWR);
}

const std::string& Link::peer() const { return output_->options.peer; }

std::size_t Link::queued_bytes() const {
  const std::lock_guard lock(output_->mutex);
  return output_->queued_bytes;
}

std::uint64_t Link::sent_bytes() const {
  const std::lock_guard lock(output_->mutex);
  return output_->sent_bytes;
}

Result<> Link::send(Message message) {
  Output& output = *output_;
  if (auto fits = check_frame(message, output.options.limits); !fits) return fits;
  Outgoing outgoing;
  outgoing.head = encode_head(message);
  outgoing.buffers = std::move(message.buffers);
  outgoing.bytes = outgoing.head.size();
  for (const Buffer& buffer : outgoing.buffers) outgoing.bytes += buffer.size();

  const std::lock_guard lock(output.mutex);
  if (!output.failure.empty()) {
    return fail(ErrorKind::Unavailable,
                fmt::format("the connection to {} is lost: {}", peer(), output.failure));
  }
  if (output.queued_bytes > output.options.queue_bytes_max) {
    return fail(ErrorKind::Unavailable,
                fmt::format("{} does not read what it is sent: {} bytes wait already", peer(),
                            output.queued_bytes));
  }
  const bool is_first = output.queue.empty();
  output.queued_bytes += outgoing.bytes;
  output.queue.push_back(std::move(outgoing));
  // Behind others, whoever writes those writes this one, too.
  if (!is_first) return {};
  const bool works = output.flush();
  if (works && output.queue.empty()) return {};
  if (!std::exchange(output.wants_loop, true)) {
    loop_.post([shared = output_] {
      if (shared->link != nullptr) shared->link->write_some();
    });
  }
  // That it broke is told to all calls of this connection alike, from the loop.
  return {};
}

void Link::ready(std::uint32_t events) {
  bool gone = false;
  destroyed_ = &gone;
  if ((events & EPOLLOUT) != 0) {
    write_some();
    if (gone) return;
  }
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0 && !lost_) {
    for (int reads = 0; reads < kReadsPerTurnMax; ++reads) {
      const bool more = read_some();
      if (gone) return;
      if (!more) break;
    }
  }
  destroyed_ = nullptr;
}

bool Link::read_some() {
  const bool* const gone = destroyed_;
  std::span<std::byte> room = reader_.room();
  const bool directly = !room.empty();
  if (directly) room = room.first(std::min(room.size(), kDirectReadBytesMax));
  const std::span<std::byte> into = directly ? room : scratch();
  const ssize_t got = ::recv(output_->socket.get(), into.data(), into.size(), MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got <= 0) {
    std::string reason = got < 0             ? describe_errno(errno)
                         : reader_.is_idle() ? "it closed the connection"
                                             : "it closed the connection within a message";
    lose(std::move(reason));
    return false;
  }
  const auto bytes = static_cast<std::size_t>(got);
  received_bytes_ += bytes;
  std::vector<Message> messages;
  const Result<> fed =
      directly ? reader_.filled(bytes, messages) : reader_.feed(into.first(bytes), messages);
  for (Message& message : messages) {
    events_.on_message(*this, std::move(message));
    if (*gone || lost_) return false;
  }
  if (!fed) {
    lose(fmt::format("it breaks the protocol: {}", fed.error().message));
    return false;
  }
  return bytes == into.size();
}

void Link::write_some() {
  if (lost_) return;
  std::unique_lock lock(output_->mutex);
  const bool works = output_->failure.empty() && output_->flush();
  const bool has_more = !output_->queue.empty();
  output_->wants_loop = has_more;
  const std::string reason = works ? std::string() : output_->failure;
  lock.unlock();
  if (!works) return lose(reason);
  watch_.want(has_more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void Link::lose(std::string reason) {
  if (std::exchange(lost_, true)) return;
  watch_.want(0);
  {
    const std::lock_guard lock(output_->mutex);
    output_->failure = reason;
    output_->queue.clear();
    output_->queued_bytes = 0;
  }
  events_.on_lost(*this, std::move(reason));
}

}  // namespace muster::rpc
