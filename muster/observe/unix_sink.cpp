// The event sink that sends to a Unix socket.
#include "muster/base/assert.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/observe/sinks.h"

#include <cerrno>
#include <cstring>
#include <deque>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>

namespace muster::observe {
namespace {

class UnixSink final : public EventSink {
 public:
  UnixSink(net::EpollLoop& loop, std::string path, Duration pause)
      : loop_(loop), path_(std::move(path)), pause_(pause), retry_(loop, [this] { pump(); }) {}

  void write(std::string_view line) override {
    std::string record(line);
    record += '\n';
    waiting_bytes_ += record.size();
    waiting_.push_back(std::move(record));
    // The first one may be half sent; it cannot be taken back.
    const std::size_t first = sent_bytes_ > 0 ? 1 : 0;
    while (waiting_bytes_ > kUnixBacklogBytesMax && waiting_.size() > first + 1) drop(first);
    if (fd_.is_open() || !retry_.pending()) pump();
  }

  Task<void> drain(TimePoint deadline) override {
    if (!fd_.is_open()) pump();
    if (waiting_.empty()) co_return;
    if (fd_.is_open()) {
      Oneshot<bool> over(loop_);
      Timer limit(loop_, [&over] { over.set(false); });
      limit.set(deadline);
      struct Withdraw {
        UnixSink& sink;
        ~Withdraw() { sink.drained_ = nullptr; }
      };
      const Withdraw withdraw{*this};
      MUSTER_ASSERT(drained_ == nullptr);
      drained_ = &over;
      co_await over;
    }
    if (!waiting_.empty()) {
      log::warn("events", "{} events were not taken by {}, they are lost", waiting_.size(),
                log::quote(path_));
      while (!waiting_.empty()) drop(0);
    }
  }

  std::uint64_t lost_count() const override { return lost_; }

 private:
  void drop(std::size_t index) {
    const auto place = waiting_.begin() + static_cast<std::ptrdiff_t>(index);
    waiting_bytes_ -= place->size();
    waiting_.erase(place);
    if (index == 0) sent_bytes_ = 0;
    ++lost_;
  }

  // Sends what can be sent, connecting first if need be.
  void pump() {
    if (!fd_.is_open() && !connect()) return;
    while (!waiting_.empty()) {
      const std::string& record = waiting_.front();
      // A datagram is a record of its own and needs no newline.
      const std::size_t size = record.size() - (is_stream_ ? 0 : 1);
      const ssize_t sent = ::send(fd_.get(), record.data() + sent_bytes_, size - sent_bytes_,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno == EMSGSIZE) {
          drop(0);
          continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) break;
        disconnect(errno);
        return;
      }
      sent_bytes_ += static_cast<std::size_t>(sent);
      if (sent_bytes_ < size) continue;
      sent_bytes_ = 0;
      waiting_bytes_ -= record.size();
      waiting_.pop_front();
    }
    watch_->want(EPOLLIN | (waiting_.empty() ? 0U : EPOLLOUT));
    if (waiting_.empty() && drained_ != nullptr) drained_->set(true);
  }

  bool connect() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    int error = 0;
    for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
      Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (fd.is_open() &&
          ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        fd_ = std::move(fd);
        is_stream_ = type == SOCK_STREAM;
        watch_ = std::make_unique<net::FdWatch>(loop_, fd_.get(),
                                                [this](std::uint32_t events) { ready(events); });
        watch_->want(EPOLLIN);
        if (is_failing_) log::info("events", "sending events to {} again", log::quote(path_));
        is_failing_ = false;
        return true;
      }
      error = errno;
      // "Wrong type" is how a datagram socket answers a stream.
      if (error != EPROTOTYPE) break;
    }
    disconnect(error);
    return false;
  }

  void disconnect(int error) {
    watch_.reset();
    fd_.reset();
    sent_bytes_ = 0;  // whoever comes next gets whole records
    if (!is_failing_) {
      log::warn("events", "cannot send events to {}: {}, trying again every {}", log::quote(path_),
                describe_errno(error), muster::describe(pause_));
    }
    is_failing_ = true;
    if (drained_ != nullptr) drained_->set(false);
    retry_.set(loop_.now() + pause_);
  }

  void ready(std::uint32_t events) {
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      char ignored[256];
      const ssize_t got = ::recv(fd_.get(), ignored, sizeof ignored, MSG_DONTWAIT);
      // A datagram of no bytes is one; the end of a stream is the end.
      if (got == 0 && is_stream_) {
        disconnect(EPIPE);
        return;
      }
      if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        disconnect(errno);
        return;
      }
    }
    pump();
  }

  net::EpollLoop& loop_;
  const std::string path_;
  const Duration pause_;  // between two attempts to connect
  Fd fd_;
  std::unique_ptr<net::FdWatch> watch_;  // of fd_, and gone before it
  bool is_stream_ = true;
  std::deque<std::string> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::size_t sent_bytes_ = 0;  // of the first one
  std::uint64_t lost_ = 0;
  bool is_failing_ = false;  // and said so
  Oneshot<bool>* drained_ = nullptr;
  Timer retry_;
};

}  // namespace

Result<std::unique_ptr<EventSink>> make_unix_sink(net::EpollLoop& loop, std::string path,
                                                  const SinkOptions& options) {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return fail(ErrorKind::Invalid, "a Unix socket's path has 1 to 107 bytes");
  }
  std::unique_ptr<EventSink> sink =
      std::make_unique<UnixSink>(loop, std::move(path), options.unix_retry);
  return sink;
}

}  // namespace muster::observe
