#include "muster/rpc/local_meeting.h"

#include "muster/base/clock.h"
#include "muster/rpc/ring_stream.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

std::size_t open_descriptor_count() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

struct SocketAddress {
  explicit SocketAddress(const std::string& name)
      : size(static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) {
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t size;
};

class LocalMeetingTest : public ::testing::Test {
 protected:
  LocalMeetingTest() { listen({}); }

  void listen(LocalMeetingOptions options) {
    const auto keep = [this](std::unique_ptr<Stream> stream) { met.push_back(std::move(stream)); };
    auto made = LocalListener::create(loop, random, keep, options);
    ASSERT_TRUE(made) << made.error().message;
    listener = std::move(*made);
  }
  Result<std::unique_ptr<Stream>> meet_at(const std::string& address) {
    return loop.block_on(meet(loop, address));
  }
  // Until it holds, or for so long that it never will.
  bool run_until(const std::function<bool()>& holds) {
    const TimePoint deadline = SystemClock().now() + 60s;
    return loop.block_on(wait(loop, deadline, holds));
  }
  static Task<void> keep(Task<Result<std::unique_ptr<Stream>>> task,
                         std::optional<Result<std::unique_ptr<Stream>>>& into) {
    into = co_await task;
  }
  static Task<bool> wait(Loop& on, TimePoint deadline, std::function<bool()> holds) {
    while (!holds() && SystemClock().now() < deadline) {
      const TimePoint soon = on.now() + 1ms;
      co_await sleep_until(on, soon);
    }
    co_return holds();
  }

  std::string boot_id() const {
    return listener->address().substr(0, listener->address().find('/'));
  }
  std::string name() const { return listener->address().substr(boot_id().size() + 1); }
  // A stranger's socket.
  Fd connect() const {
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const SocketAddress to(name());
    EXPECT_EQ(::connect(socket.get(), to.get(), to.size), 0);
    return socket;
  }
  // Closed by the listener.
  bool is_turned_away(const Fd& stranger) {
    return run_until([&] {
      std::array<char, 100> answer{};
      const ssize_t got = ::recv(stranger.get(), answer.data(), answer.size(), MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    });
  }

  net::EpollLoop loop;
  Random random = Random::from_system();
  std::vector<std::unique_ptr<Stream>> met;
  std::unique_ptr<LocalListener> listener;
};

// As it is on the wire; version 1.
struct RawGreeting {
  std::array<char, 8> magic = {'m', 'u', 's', 't', 'e', 'r', '\0', 'r'};
  std::uint32_t version = 1;
  std::uint32_t word = 1;
  std::uint64_t ring_bytes = kRingBytesMin;
};

void send_raw(const Fd& socket, const void* data, std::size_t size, const std::vector<int>& with) {
  iovec piece{const_cast<void*>(data), size};
  std::vector<char> control(CMSG_SPACE(with.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!with.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(with.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), with.data(), with.size() * sizeof(int));
  }
  EXPECT_EQ(::sendmsg(socket.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

bool say(Stream& stream, std::string_view text) {
  const iovec piece{const_cast<char*>(text.data()), text.size()};
  const auto taken = stream.write({&piece, 1});
  return taken && *taken == text.size();
}

std::string hear(Stream& stream) {
  std::string text(100, '\0');
  const auto got = stream.read(std::as_writable_bytes(std::span(text)));
  text.resize(got ? *got : 0);
  return text;
}

// Blocks until something came; for a process that has no loop to run.
std::string hear_soon(Stream& stream) {
  std::string text;
  for (int wakes = 0; wakes < 1000 && text.empty(); ++wakes) {
    text = hear(stream);
    if (!text.empty() || !stream.ask_for_bytes()) continue;
    pollfd watch{stream.fd(), POLLIN, 0};
    if (::poll(&watch, 1, 60'000) == 1) stream.woken();
  }
  return text;
}

TEST_F(LocalMeetingTest, GivesBothSidesAStream) {
  auto ours = meet_at(listener->address());
  ASSERT_TRUE(ours) << ours.error().message;
  ASSERT_EQ(met.size(), 1U);
  EXPECT_TRUE(say(**ours, "hello"));
  EXPECT_EQ(hear(*met[0]), "hello");
  EXPECT_TRUE(say(*met[0], "welcome"));
  EXPECT_EQ(hear(**ours), "welcome");
  EXPECT_EQ((*ours)->kind(), "shared memory");
}

TEST_F(LocalMeetingTest, LeavesNothingOpen) {
  ASSERT_TRUE(meet_at(listener->address()));
  met.clear();
  const std::size_t before = open_descriptor_count();
  for (int round = 0; round < 3; ++round) {
    auto ours = meet_at(listener->address());
    ASSERT_TRUE(ours);
    EXPECT_EQ(open_descriptor_count(), before + 2) << "one for each side";
    met.clear();
  }
  EXPECT_EQ(open_descriptor_count(), before);
}

TEST_F(LocalMeetingTest, RefusesAnAddressOfAnotherMachine) {
  const auto ours = meet_at("00000000-0000-0000-0000-000000000000/" + name());
  ASSERT_FALSE(ours);
  EXPECT_EQ(ours.error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(ours.error().message, "it is on another machine");
}

TEST_F(LocalMeetingTest, RefusesWhatIsNoAddress) {
  const std::string here = boot_id();
  for (const std::string& address :
       {std::string(), std::string("/"), here, here + "/", here + "/other",
        here + "/muster-rpc-2-0000", here + "/muster-rpc-1-" + std::string(200, 'a')}) {
    const auto ours = meet_at(address);
    ASSERT_FALSE(ours) << address;
    EXPECT_EQ(ours.error().kind, ErrorKind::Unavailable) << address;
  }
}

TEST_F(LocalMeetingTest, RefusesAListenerThatIsGone) {
  const std::string address = listener->address();
  listener.reset();
  const std::size_t before = open_descriptor_count();
  const auto ours = meet_at(address);
  ASSERT_FALSE(ours);
  EXPECT_EQ(ours.error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(open_descriptor_count(), before);
}

// A listener that is none of ours, at an address that looks like one.
struct Impostor {
  Impostor(const std::string& boot_id, Random& random)
      : address(boot_id + "/muster-rpc-1-" + random_id(random)) {
    const SocketAddress at(address.substr(boot_id.size() + 1));
    EXPECT_EQ(::bind(socket.get(), at.get(), at.size), 0);
    EXPECT_EQ(::listen(socket.get(), 1), 0);
  }
  std::string address;
  Fd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

TEST_F(LocalMeetingTest, RefusesAListenerThatLeavesBeforeItAnswers) {
  Impostor impostor(boot_id(), random);
  loop.post([&] { impostor.socket.reset(); });
  const std::size_t before = open_descriptor_count();
  const auto ours = meet_at(impostor.address);
  ASSERT_FALSE(ours);
  EXPECT_EQ(ours.error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(open_descriptor_count(), before - 1);
}

TEST_F(LocalMeetingTest, RefusesAListenerThatAnswersSomethingElse) {
  const Impostor impostor(boot_id(), random);
  Fd accepted;
  loop.post([&] {
    accepted = Fd(::accept4(impostor.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const RawGreeting hello;  // and not a welcome
    send_raw(accepted, &hello, sizeof hello, {impostor.socket.get()});
  });
  const auto ours = meet_at(impostor.address);
  ASSERT_FALSE(ours);
  EXPECT_EQ(ours.error().kind, ErrorKind::Unavailable);
  std::array<char, sizeof(RawGreeting) + 1> rest{};
  EXPECT_EQ(::recv(accepted.get(), rest.data(), rest.size(), 0),
            static_cast<ssize_t>(sizeof(RawGreeting)));
}

TEST_F(LocalMeetingTest, DoesNotWaitForAListenerThatNeverAnswers) {
  const Impostor impostor(boot_id(), random);
  const auto ours = loop.block_on(meet(loop, impostor.address, {.greeting_max = 1ms}));
  ASSERT_FALSE(ours);
  EXPECT_EQ(ours.error().kind, ErrorKind::Unavailable);
}

TEST_F(LocalMeetingTest, DoesNotWaitForAStrangerThatNeverGreets) {
  listen({.greeting_max = 1ms});
  const Fd stranger = connect();
  EXPECT_TRUE(is_turned_away(stranger));
}

TEST_F(LocalMeetingTest, MayLoseItsListenerInTheCall) {
  std::unique_ptr<Stream> theirs;
  auto made = LocalListener::create(loop, random, [&](std::unique_ptr<Stream> stream) {
    theirs = std::move(stream);
    listener.reset();
  });
  ASSERT_TRUE(made);
  listener = std::move(*made);
  auto ours = meet_at(listener->address());
  ASSERT_TRUE(ours);
  EXPECT_EQ(listener, nullptr);
  EXPECT_TRUE(say(*theirs, "still here"));
  EXPECT_EQ(hear(**ours), "still here");
}

TEST_F(LocalMeetingTest, TurnsAwayStrangers) {
  const RawGreeting good;
  const auto memory = make_ring_memory(kRingBytesMin);
  ASSERT_TRUE(memory);
  RawGreeting other_magic;
  other_magic.magic[0] = 'M';
  RawGreeting other_version;
  other_version.version = 2;
  RawGreeting other_word;
  other_word.word = 2;
  RawGreeting other_size;
  other_size.ring_bytes = 2 * kRingBytesMin;
  RawGreeting endless;
  endless.ring_bytes = ~std::uint64_t{0};
  const Fd no_memory(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int number = memory->get();
  const std::size_t before = open_descriptor_count();

  const auto expect_refusal = [&](const auto& greeting, std::size_t size,
                                  const std::vector<int>& with, const char* what) {
    const Fd stranger = connect();
    send_raw(stranger, &greeting, size, with);
    EXPECT_TRUE(is_turned_away(stranger)) << what;
  };
  constexpr std::size_t kSize = sizeof(RawGreeting);
  const std::array<char, 9> garbage = {"GET / HT"};
  expect_refusal(garbage, garbage.size(), {}, "garbage");
  expect_refusal(garbage, garbage.size(), {number}, "garbage with memory");
  expect_refusal(good, kSize - 1, {number}, "a greeting that is too short");
  expect_refusal(good, kSize, {}, "no descriptor");
  expect_refusal(good, kSize, {number, number}, "two descriptors");
  expect_refusal(good, kSize, std::vector<int>(20, number), "twenty descriptors");
  expect_refusal(good, kSize, {no_memory.get()}, "another kind of descriptor");
  expect_refusal(other_magic, kSize, {number}, "another magic");
  expect_refusal(other_version, kSize, {number}, "another version");
  expect_refusal(other_word, kSize, {number}, "another word");
  expect_refusal(other_size, kSize, {number}, "memory of another size");
  expect_refusal(endless, kSize, {number}, "more memory than there can be");
  EXPECT_TRUE(met.empty());
  EXPECT_EQ(open_descriptor_count(), before) << "descriptors of strangers were left open";

  // And one that does all this by hand is let in: the refusals were for what they are.
  const Fd known = connect();
  send_raw(known, &good, kSize, {number});
  EXPECT_TRUE(run_until([&] { return met.size() == 1; }));
}

TEST_F(LocalMeetingTest, LetsOthersInWhileStrangersSayNothing) {
  std::vector<Fd> strangers;
  for (std::size_t count = 0; count + 1 < kLocalStrangersMax; ++count)
    strangers.push_back(connect());
  EXPECT_TRUE(meet_at(listener->address()));
}

TEST_F(LocalMeetingTest, LetsNobodyInWhileTooManySayNothing) {
  std::vector<Fd> strangers;
  for (std::size_t count = 0; count < kLocalStrangersMax; ++count) strangers.push_back(connect());
  std::optional<Result<std::unique_ptr<Stream>>> ours;
  TaskScope scope;
  scope.start(keep(meet(loop, listener->address()), ours));
  std::size_t open = open_descriptor_count();
  EXPECT_TRUE(run_until([&] { return open_descriptor_count() >= open + kLocalStrangersMax; }));
  EXPECT_FALSE(ours);
  strangers.pop_back();
  EXPECT_TRUE(run_until([&] { return ours.has_value(); }));
  EXPECT_TRUE(*ours);
  scope.cancel_all();
}

// Runs in a child of ours: how it ended, as an exit status.
int status_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
constexpr int kMet = 0;
constexpr int kRefused = 10;
constexpr int kCannotTry = 11;

int try_to_meet(const std::string& address) {
  net::EpollLoop loop;
  auto stream = loop.block_on(meet(loop, address));
  if (!stream) return stream.error().kind == ErrorKind::Unavailable ? kRefused : 1;
  if (!say(**stream, "from the child")) return 2;
  return hear_soon(**stream) == "to the child" ? kMet : 3;
}

TEST_F(LocalMeetingTest, JoinsTwoProcesses) {
  const std::string address = listener->address();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(try_to_meet(address));
  ASSERT_TRUE(run_until([&] { return met.size() == 1; }));
  EXPECT_EQ(hear_soon(*met[0]), "from the child");
  EXPECT_TRUE(say(*met[0], "to the child"));
  EXPECT_EQ(status_of(child), kMet);
}

TEST_F(LocalMeetingTest, FindsOutThatAnotherNetworkNamespaceCannotBeReached) {
  const std::string address = listener->address();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
      ::_exit(kCannotTry);
    ::_exit(try_to_meet(address));
  }
  const int status = status_of(child);
  if (status == kCannotTry)
    GTEST_SKIP() << "SKIPPED: the system does not let us make a network namespace";
  EXPECT_EQ(status, kRefused);
  EXPECT_TRUE(met.empty());
}

TEST_F(LocalMeetingTest, TurnsAwayAProcessOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root can become another user";
  const std::string address = listener->address();
  constexpr uid_t kNobody = 65534;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(kCannotTry);
    ::_exit(try_to_meet(address));
  }
  siginfo_t ended{};
  EXPECT_TRUE(run_until([&] {
    return ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           ended.si_pid == child;
  }));
  EXPECT_EQ(status_of(child), kRefused);
  EXPECT_TRUE(met.empty());
}

}  // namespace
}  // namespace muster::rpc
