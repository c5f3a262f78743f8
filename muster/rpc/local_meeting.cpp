#include "muster/rpc/local_meeting.h"

#include "muster/base/log.h"
#include "muster/rpc/ring_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <type_traits>
#include <unistd.h>
#include <utility>

namespace muster::rpc {
namespace {

// Also says which version of the greeting and of the rings is spoken there.
constexpr std::string_view kNamePrefix = "muster-rpc-1-";
constexpr std::size_t kNameBytesMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr std::array<char, 8> kMagic = {'m', 'u', 's', 't', 'e', 'r', '\0', 'r'};
constexpr std::uint32_t kVersion = 1;
// More than ever come; what is too much is seen and not silently dropped.
constexpr std::size_t kDescriptorsMax = 4;
constexpr int kAcceptBurstMax = 64;
// How long a listener that ran out of descriptors rests before it tries again.
constexpr Duration kAcceptRest = std::chrono::milliseconds(100);

enum class Word : std::uint32_t { Hello = 1, Welcome = 2 };

// Both processes are of one machine, so it is sent as it lies in memory.
struct Greeting {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  Word word = Word::Hello;
  std::uint64_t ring_bytes = kRingBytesDefault;
};
static_assert(std::is_trivially_copyable_v<Greeting> && sizeof(Greeting) == 24);

bool is_ours(const Greeting& greeting, Word word) {
  return greeting.magic == kMagic && greeting.version == kVersion && greeting.word == word;
}

Result<std::string> read_boot_id() {
  const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t size = file.is_open() ? ::read(file.get(), text.data(), text.size()) : -1;
  if (size < 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot read the machine's boot id: {}", describe_errno(errno)));
  }
  std::string id(text.data(), static_cast<std::size_t>(size));
  id.erase(std::find_if(id.begin(), id.end(), [](char c) { return c <= ' '; }), id.end());
  if (id.empty()) return fail(ErrorKind::Unavailable, "the machine has no boot id");
  return id;
}

struct SocketAddress {
  sockaddr_un address{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// Requires: the name is not longer than kNameBytesMax.
SocketAddress socket_address(std::string_view name) {
  SocketAddress made;
  made.address.sun_family = AF_UNIX;
  // A zero first: a name of the kernel's own namespace, and not a file.
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

Fd make_socket() { return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// Of the user we run as, or of root.
bool is_trusted(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

bool send_greeting(int socket, const Greeting& greeting, const Fd* with) {
  iovec piece{const_cast<Greeting*>(&greeting), sizeof greeting};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (with != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = with->get();
    std::memcpy(CMSG_DATA(head), &number, sizeof number);
  }
  // So few bytes are taken as a whole or not at all.
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof greeting);
}

// Owns every descriptor that comes with it, whatever else is wrong with it.
Result<std::pair<Greeting, std::vector<Fd>>> receive_greeting(int socket) {
  Greeting greeting;
  iovec piece{&greeting, sizeof greeting};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const int error = errno;
  std::vector<Fd> descriptors;
  for (cmsghdr* head = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(head) + index * sizeof(int), sizeof number);
      descriptors.emplace_back(number);
    }
  }
  if (got < 0) return fail(ErrorKind::Unavailable, describe_errno(error));
  if (got == 0) return fail(ErrorKind::Closed, "it left without a greeting");
  // We cannot tell whether it is too much or whether we have no descriptors left.
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return fail(ErrorKind::Invalid, "not all that it sent could be received");
  if (got != static_cast<ssize_t>(sizeof greeting))
    return fail(ErrorKind::Invalid, "it does not greet as it must");
  return std::pair(greeting, std::move(descriptors));
}

// Greeted and checked, our side's stream; `socket` is the stranger's.
Result<std::unique_ptr<RingStream>> welcome(Fd socket) {
  auto greeted = receive_greeting(socket.get());
  if (!greeted) return fail(std::move(greeted.error()));
  const auto& [greeting, descriptors] = *greeted;
  if (!is_ours(greeting, Word::Hello))
    return fail(ErrorKind::Invalid, "it does not greet as it must");
  if (descriptors.size() != 1)
    return fail(ErrorKind::Invalid, fmt::format("it sent {} descriptors", descriptors.size()));
  auto stream = RingStream::create(std::move(socket), descriptors.front(),
                                   {.is_first = false, .ring_bytes = greeting.ring_bytes});
  if (!stream) return stream;
  const Greeting answer{.word = Word::Welcome, .ring_bytes = greeting.ring_bytes};
  if (!send_greeting((*stream)->fd(), answer, nullptr))
    return fail(ErrorKind::Unavailable, "it left before it was answered");
  return stream;
}

// Connects and greets. The stream is of no use before the answer.
Result<std::unique_ptr<RingStream>> approach(const std::string& address) {
  const std::size_t slash = address.find('/');
  const std::string name = slash == std::string::npos ? "" : address.substr(slash + 1);
  if (!name.starts_with(kNamePrefix) || name.size() > kNameBytesMax)
    return fail(ErrorKind::Unavailable, "it does not listen for shared memory of this version");
  const auto boot_id = read_boot_id();
  if (!boot_id) return fail(boot_id.error());
  if (address.compare(0, slash, *boot_id) != 0)
    return fail(ErrorKind::Unavailable, "it is on another machine");

  const auto memory = make_ring_memory(kRingBytesDefault);
  if (!memory) return fail(memory.error());
  Fd socket = make_socket();
  const SocketAddress to = socket_address(name);
  // A socket of this kind connects at once, or the other side's queue is full.
  if (!socket.is_open() || ::connect(socket.get(), to.get(), to.size) != 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("it cannot be reached within this machine: {}", describe_errno(errno)));
  }
  if (!is_trusted(socket.get())) return fail(ErrorKind::Unavailable, "it runs as another user");
  if (!send_greeting(socket.get(), Greeting{}, &*memory))
    return fail(ErrorKind::Unavailable, "it does not take a greeting");
  return RingStream::create(std::move(socket), *memory, {.is_first = true});
}

// `co_await`: until the descriptor is readable, or the time has come.
class Readable {
 public:
  Readable(net::EpollLoop& loop, int fd, TimePoint deadline)
      : loop_(loop),
        deadline_(deadline),
        watch_(loop, fd, [this](std::uint32_t) { resume(); }),
        timer_(loop, [this] { resume(); }) {}
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> waiter) {
    waiter_ = waiter;
    watch_.want(EPOLLIN);
    timer_.set(deadline_);
  }
  void await_resume() const {}

 private:
  void resume() {
    watch_.want(0);
    timer_.cancel();
    if (!ready_.queued()) loop_.soon(ready_, waiter_);
  }
  net::EpollLoop& loop_;
  const TimePoint deadline_;
  net::FdWatch watch_;
  Timer timer_;
  std::coroutine_handle<> waiter_;
  Ready ready_;
};

}  // namespace

struct LocalListener::Stranger {
  Stranger(LocalListener& listener, Fd of)
      : socket(std::move(of)),
        watch(listener.loop_, socket.get(),
              [this, &listener](std::uint32_t) { listener.hear(*this); }),
        deadline(listener.loop_, [this, &listener] { listener.forget(*this); }) {
    watch.want(EPOLLIN);
    deadline.set(listener.loop_.now() + listener.options_.greeting_max);
  }

  Fd socket;
  net::FdWatch watch;
  Timer deadline;
};

Result<std::unique_ptr<LocalListener>> LocalListener::create(net::EpollLoop& loop, Random& random,
                                                             Met met, LocalMeetingOptions options) {
  const auto boot_id = read_boot_id();
  if (!boot_id) return fail(boot_id.error());
  const std::string name = fmt::format("{}{}", kNamePrefix, random_id(random));
  Fd socket = make_socket();
  const SocketAddress at = socket_address(name);
  // The kernel cuts the queue to its own maximum: at start-up all workers connect at once.
  if (!socket.is_open() || ::bind(socket.get(), at.get(), at.size) != 0 ||
      ::listen(socket.get(), 1 << 20) != 0) {
    return fail(
        ErrorKind::Unavailable,
        fmt::format("cannot listen for processes of this machine: {}", describe_errno(errno)));
  }
  return std::unique_ptr<LocalListener>(
      new LocalListener(loop, std::move(socket), *boot_id + "/" + name, std::move(met), options));
}

LocalListener::LocalListener(net::EpollLoop& loop, Fd socket, std::string address, Met met,
                             LocalMeetingOptions options)
    : loop_(loop),
      socket_(std::move(socket)),
      address_(std::move(address)),
      options_(options),
      met_(std::make_shared<const Met>(std::move(met))),
      watch_(loop, socket_.get(), [this](std::uint32_t) { accept_some(); }),
      rest_(loop, [this] { update(); }) {
  update();
}

LocalListener::~LocalListener() = default;

void LocalListener::update() {
  const bool accepting = strangers_.size() < kLocalStrangersMax && !rest_.pending();
  watch_.want(accepting ? EPOLLIN : 0U);
}

void LocalListener::accept_some() {
  for (int count = 0; count < kAcceptBurstMax && strangers_.size() < kLocalStrangersMax; ++count) {
    Fd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        rest_.set(loop_.now() + kAcceptRest);
      break;
    }
    if (!is_trusted(socket.get())) {
      log::debug("rpc", "refused shared memory to a process of another user");
      continue;
    }
    strangers_.push_back(std::make_unique<Stranger>(*this, std::move(socket)));
  }
  update();
}

void LocalListener::hear(Stranger& stranger) {
  stranger.watch.want(0);
  Fd socket = std::move(stranger.socket);
  forget(stranger);
  auto stream = welcome(std::move(socket));
  if (!stream) {
    log::debug("rpc", "refused shared memory to a process of this machine: {}",
               stream.error().message);
    return;
  }
  const std::shared_ptr<const Met> met = met_;
  (*met)(std::move(*stream));
}

void LocalListener::forget(Stranger& stranger) {
  std::erase_if(strangers_, [&](const auto& one) { return one.get() == &stranger; });
  update();
}

Task<Result<std::unique_ptr<Stream>>> meet(net::EpollLoop& loop, std::string address,
                                           LocalMeetingOptions options) {
  auto stream = approach(address);
  if (!stream) co_return fail(std::move(stream.error()));
  const TimePoint deadline = loop.now() + options.greeting_max;
  {
    Readable answered(loop, (*stream)->fd(), deadline);
    co_await answered;
  }
  const auto answer = receive_greeting((*stream)->fd());
  if (!answer || !is_ours(answer->first, Word::Welcome))
    co_return fail(ErrorKind::Unavailable, "it does not want to share memory");
  std::unique_ptr<Stream> met = std::move(*stream);
  co_return met;
}

}  // namespace muster::rpc
