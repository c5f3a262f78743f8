#include "muster/watchdog/socket.h"

#include "muster/watchdog/address.h"
#include "muster/watchdog/watchdog_test.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace muster::watchdog {
namespace {

using namespace std::chrono_literals;

// Of the answer to a status that begins with "long".
constexpr std::size_t kLongAnswerBytes = 256;

// A connection of the test's own, for what tell_agent does not do.
class Client {
 public:
  explicit Client(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const auto address = internal::unix_address(path);
    EXPECT_TRUE(address);
    EXPECT_EQ(::connect(fd_.get(), address->get(), address->size), 0);
  }

  void send(std::string_view text) const {
    EXPECT_EQ(::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // As much as the socket takes.
  bool send_some(std::string_view text) const {
    return ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0;
  }
  void finish() const { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }

  // What has arrived; ends with "<end>" if the other side has closed.
  std::string received() const {
    std::string all;
    char buffer[4096];
    ssize_t got = 0;
    while ((got = ::recv(fd_.get(), buffer, sizeof buffer, 0)) > 0)
      all.append(buffer, static_cast<std::size_t>(got));
    return got == 0 || errno == ECONNRESET ? all + "<end>" : all;
  }

 private:
  Fd fd_;
};

class AgentSocketTest : public testing::Test {
 protected:
  std::unique_ptr<AgentSocket> start(AgentSocketOptions options) {
    auto made = AgentSocket::create(
        loop_, std::move(options), [this](pid_t sender, const Message& message) -> Result<> {
          senders_.push_back(sender);
          heard_.push_back(message);
          if (message.text.starts_with("long"))
            return fail(ErrorKind::Invalid, std::string(kLongAnswerBytes - 7, 'x'));
          if (message.text == "no") return fail(ErrorKind::Invalid, "not\nthat");
          return {};
        });
    EXPECT_TRUE(made) << made.error().message;
    return made ? std::move(*made) : nullptr;
  }

  net::EpollLoop loop_;
  TemporaryFolder folder_;
  std::string path_ = folder_ / "agent";
  std::vector<pid_t> senders_;
  std::vector<Message> heard_;
};

TEST_F(AgentSocketTest, AnswersEachLine) {
  const auto agent = start({.path = path_});
  const Client client(path_);
  client.send("alive\nready\nexpires step 5 TERM\nstatus no\nhello\n");
  run_what_is_due(loop_);
  EXPECT_EQ(client.received(),
            "ok\nok\nok\nerror not that\n"
            "error \"hello\" is not known; expected alive, ready, expires, release or status\n");
  ASSERT_EQ(heard_.size(), 4U);
  EXPECT_EQ(heard_[2], (Message{MessageKind::Expires, "step", 5s, SIGTERM, ""}));
  EXPECT_EQ(agent->message_count(), 4U);
}

TEST_F(AgentSocketTest, KnowsWhoSpeaks) {
  const auto agent = start({.path = path_});
  const pid_t child = ::fork();
  if (child == 0) {
    const Client client(path_);
    client.send("alive\n");
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  const Client client(path_);
  client.send("alive\n");
  run_what_is_due(loop_);
  run_what_is_due(loop_);
  EXPECT_EQ(senders_, (std::vector<pid_t>{child, ::getpid()}));
}

TEST_F(AgentSocketTest, KeepsAConnectionAndForgetsItWhenItIsClosed) {
  const auto agent = start({.path = path_});
  Client client(path_);
  for (int round = 0; round < 3; ++round) {
    client.send("alive\n");
    run_what_is_due(loop_);
    EXPECT_EQ(client.received(), "ok\n");
    EXPECT_EQ(agent->connection_count(), 1U);
  }
  client.close();
  run_what_is_due(loop_);
  EXPECT_EQ(agent->connection_count(), 0U);
}

TEST_F(AgentSocketTest, TakesALastLineWithoutNewline) {
  const auto agent = start({.path = path_});
  const Client client(path_);
  client.send("ready\nalive");
  client.finish();
  run_what_is_due(loop_);
  run_what_is_due(loop_);
  EXPECT_EQ(client.received(), "ok\nok\n<end>");
  EXPECT_EQ(agent->connection_count(), 0U);
}

TEST_F(AgentSocketTest, RefusesLinesThatAreTooLongAndGoesOn) {
  const auto agent = start({.path = path_});
  const Client client(path_);
  client.send(std::string(kMessageBytesMax + 1, 'x'));
  run_what_is_due(loop_);
  EXPECT_EQ(client.received(), "error the line is longer than 4096 bytes\n");
  client.send("xxx\nalive\n");
  run_what_is_due(loop_);
  EXPECT_EQ(client.received(), "ok\n");
}

TEST_F(AgentSocketTest, TakesConnectionsUpToTheLimit) {
  const auto agent = start({.path = path_, .connections_max = 2});
  Client first(path_);
  const Client second(path_);
  const Client third(path_);
  run_what_is_due(loop_);
  EXPECT_EQ(third.received(), "error there are too many connections\n<end>");
  EXPECT_EQ(agent->connection_count(), 2U);
  first.close();
  run_what_is_due(loop_);
  const Client fourth(path_);
  fourth.send("alive\n");
  run_what_is_due(loop_);
  run_what_is_due(loop_);
  EXPECT_EQ(fourth.received(), "ok\n");
}

TEST_F(AgentSocketTest, StopsListeningToThoseWhoDoNotTakeTheirAnswers) {
  const auto agent = start({.path = path_});
  const Client client(path_);
  const std::string many = "status long" + std::string(kLongAnswerBytes, 'x') + "\n";
  // Until neither direction takes any more: the agent has stopped reading.
  std::size_t heard_before = 0;
  int rounds = 0;
  do {
    heard_before = heard_.size();
    while (client.send_some(many)) {
    }
    run_what_is_due(loop_);
    ASSERT_LT(++rounds, 100'000);
  } while (heard_.size() > heard_before);
  EXPECT_EQ(agent->connection_count(), 1U);
  // It goes on once there is room again.
  std::size_t answer_bytes = 0;
  for (int turns = 0; turns < 1000 && answer_bytes < kLongAnswerBytes * heard_before; ++turns) {
    answer_bytes += client.received().size();
    run_what_is_due(loop_);
  }
  EXPECT_GE(answer_bytes, kLongAnswerBytes * heard_before);
}

TEST_F(AgentSocketTest, ClosesAConnectionWhoseAnswersPileUp) {
  const auto agent = start({.path = path_});
  const Client client(path_);
  // A line of two bytes has an answer many times as long.
  std::string many;
  for (int count = 0; count < 8000; ++count) many += "x\n";
  client.send(many);
  run_what_is_due(loop_);
  EXPECT_EQ(agent->connection_count(), 0U);
}

TEST_F(AgentSocketTest, IsOnlyForThisUserAndGoesAtTheEnd) {
  auto agent = start({.path = path_});
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 0077U, 0U);
  agent.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(AgentSocketTest, ReplacesASocketThatNobodyListensOn) {
  {
    const Fd left_behind(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = internal::unix_address(path_);
    ASSERT_TRUE(address);
    ASSERT_EQ(::bind(left_behind.get(), address->get(), address->size), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  EXPECT_TRUE(start({.path = path_}));
}

TEST_F(AgentSocketTest, LeavesASocketInUseAndOtherFilesAlone) {
  const auto agent = start({.path = path_});
  const auto handler = [](pid_t, const Message&) -> Result<> { return {}; };
  auto refused = AgentSocket::create(loop_, {.path = path_}, handler);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Conflict);
  const std::string file = folder_ / "file";
  std::ofstream(file).close();
  refused = AgentSocket::create(loop_, {.path = file}, handler);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Conflict);
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST_F(AgentSocketTest, SaysWhyAPathCannotBeUsed) {
  const auto handler = [](pid_t, const Message&) -> Result<> { return {}; };
  for (const std::string& path : {std::string(), folder_ / std::string(108, 'x')}) {
    const auto refused = AgentSocket::create(loop_, {.path = path}, handler);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  }
  const auto refused = AgentSocket::create(loop_, {.path = folder_ / "missing/agent"}, handler);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Unavailable);
}

TEST(UnixAddress, TakesPathsUpToTheLimit) {
  EXPECT_TRUE(internal::unix_address(std::string(107, 'x')));
  EXPECT_FALSE(internal::unix_address(std::string(108, 'x')));
}

// tell_agent blocks, so it runs on a thread of its own here.
class TellAgentTest : public AgentSocketTest {
 protected:
  Result<> tell(const std::string& line) {
    Result<> outcome;
    std::thread teller([&] {
      outcome = tell_agent(path_, line, kPatience);
      loop_.post([this] { loop_.stop(); });
    });
    run_until_stopped(loop_);
    teller.join();
    return outcome;
  }
};

TEST_F(TellAgentTest, DeliversALine) {
  const auto agent = start({.path = path_});
  const auto done = tell("status training");
  EXPECT_TRUE(done) << done.error().message;
  ASSERT_EQ(heard_.size(), 1U);
  EXPECT_EQ(heard_[0].text, "training");
  EXPECT_EQ(senders_[0], ::getpid());
}

TEST_F(TellAgentTest, ReportsWhatTheAgentSays) {
  const auto agent = start({.path = path_});
  auto refused = tell("status no");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), (Error{ErrorKind::Invalid, "not that"}));
  refused = tell("alive and kicking");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "`alive` takes no arguments");
}

TEST_F(TellAgentTest, SaysThatNobodyIsThere) {
  const auto refused = tell_agent(path_, "alive", kPatience);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(),
            (Error{ErrorKind::Unavailable,
                   fmt::format("cannot reach the agent at {}: no such file or directory", path_)}));
}

TEST_F(TellAgentTest, DoesNotWaitForAnAgentThatIsStuck) {
  const auto agent = start({.path = path_});  // its loop does not run
  const auto refused = tell_agent(path_, "alive", 1ms);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Timeout);
}

TEST_F(TellAgentTest, NoticesThatTheAgentHasGone) {
  const Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = internal::unix_address(path_);
  ASSERT_TRUE(address);
  ASSERT_EQ(::bind(listener.get(), address->get(), address->size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  std::thread agent([&] {
    const Fd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char buffer[64];
    EXPECT_GT(::recv(connection.get(), buffer, sizeof buffer, 0), 0);
  });
  const auto refused = tell_agent(path_, "alive", kPatience);
  agent.join();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(),
            (Error{ErrorKind::Closed, fmt::format("the agent at {} gave no answer", path_)}));
}

TEST_F(TellAgentTest, SendsNoTwoLinesAtOnce) {
  const auto refused = tell_agent(path_, "alive\nready", kPatience);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
}

}  // namespace
}  // namespace muster::watchdog
