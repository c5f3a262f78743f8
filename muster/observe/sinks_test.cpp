#include "muster/observe/sinks.h"

#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "tests/net/drive.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <vector>

namespace muster::observe {
namespace {

using namespace std::chrono_literals;

class Sinks : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster_sinks_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    log::set_sink([this](log::Level, std::string_view, std::string_view message) {
      said_.emplace_back(message);
    });
  }
  void TearDown() override {
    log::set_sink({});
    std::filesystem::remove_all(folder_);
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  static std::string contents(const std::string& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::string error_of(std::string_view name) {
    auto sink = make_sink(loop_, name, {});
    return sink ? "" : sink.error().message;
  }

  // A socket at `file` that takes what is sent to it.
  static Fd bind_socket(const std::string& file, int type) {
    Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, file.data(), file.size());
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    if (type == SOCK_STREAM) {
      EXPECT_EQ(::listen(fd.get(), 8), 0);
    }
    return fd;
  }
  static std::string receive(int fd) {
    std::array<char, 65536> buffer{};
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    return {buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
  }
  bool run_until(const std::function<bool()>& reached) { return tests::run_until(loop_, reached); }

  net::EpollLoop loop_;
  std::string folder_;
  std::vector<std::string> said_;
};

TEST_F(Sinks, AreRefusedByAnUnknownNameWithASuggestion) {
  EXPECT_EQ(error_of("consol"),
            "unknown event sink \"consol\", did you mean console?; known are null, console, "
            "file:PATH and unix:PATH");
  EXPECT_NE(error_of("fiel:/x").find("did you mean file:PATH?"), std::string::npos);
  EXPECT_EQ(error_of("quite something else").find("did you mean"), std::string::npos);
  EXPECT_NE(error_of("file").find("did you mean file:PATH?"), std::string::npos);
  EXPECT_NE(error_of("file:").find("needs a path"), std::string::npos);
  EXPECT_NE(error_of("unix:" + std::string(108, 'x')).find("too long"), std::string::npos);
  EXPECT_FALSE(check_sink_name(""));
  EXPECT_TRUE(check_sink_name("unix:" + std::string(107, 'x')));
}

TEST_F(Sinks, ThatDiscardSaySo) {
  for (const char* name : {"null", "dynamic_rendezvous"}) {
    auto sink = make_sink(loop_, name, {});
    ASSERT_TRUE(sink) << name;
    EXPECT_TRUE((*sink)->discards());
  }
}

TEST_F(Sinks, ForTheConsoleWriteWholeLines) {
  std::string out;
  SinkOptions options;
  options.console = [&](std::string_view line) { out += line; };
  auto sink = make_sink(loop_, "console", options);
  ASSERT_TRUE(sink);
  (*sink)->write("{}");
  (*sink)->write("[]");
  EXPECT_EQ(out, "{}\n[]\n");
}

TEST_F(Sinks, ForAFileAppendToWhatIsThere) {
  std::ofstream(path("events")) << "old\n";
  auto one = make_sink(loop_, "file:" + path("events"), {});
  auto two = make_sink(loop_, "file:" + path("events"), {});
  ASSERT_TRUE(one && two);
  (*one)->write("a");
  (*two)->write("b");
  (*one)->write("c");
  EXPECT_EQ(contents(path("events")), "old\na\nb\nc\n");
}

TEST_F(Sinks, ForAFileThatCannotBeOpenedAreAnErrorAtOnce) {
  auto sink = make_sink(loop_, "file:" + path("none/events"), {});
  ASSERT_FALSE(sink);
  EXPECT_EQ(sink.error().kind, ErrorKind::Unavailable);
  EXPECT_NE(sink.error().message.find("no such file or directory"), std::string::npos);

  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  auto pipe = make_sink(loop_, "file:" + path("pipe"), {});
  ASSERT_FALSE(pipe);
  EXPECT_NE(pipe.error().message.find("nobody reads the pipe"), std::string::npos);
}

TEST_F(Sinks, ForAFileThatIsFullCountWhatTheyLoseAndSayItOnce) {
  auto sink = make_sink(loop_, "file:/dev/full", {});
  ASSERT_TRUE(sink);
  (*sink)->write("a");
  (*sink)->write("b");
  EXPECT_EQ((*sink)->lost_count(), 2U);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_NE(said_[0].find("no space left"), std::string::npos);
}

TEST_F(Sinks, ForAStreamSocketSendLines) {
  const Fd server = bind_socket(path("socket"), SOCK_STREAM);
  auto sink = make_sink(loop_, "unix:" + path("socket"), {});
  ASSERT_TRUE(sink);
  (*sink)->write("a");
  (*sink)->write("b");
  const Fd client(::accept(server.get(), nullptr, nullptr));
  ASSERT_TRUE(client.is_open());
  loop_.block_on((*sink)->drain(loop_.now() + tests::kPatience));
  EXPECT_EQ(receive(client.get()), "a\nb\n");
  EXPECT_EQ((*sink)->lost_count(), 0U);
}

TEST_F(Sinks, ForADatagramSocketSendOneRecordEach) {
  const Fd server = bind_socket(path("socket"), SOCK_DGRAM);
  auto sink = make_sink(loop_, "unix:" + path("socket"), {});
  ASSERT_TRUE(sink);
  (*sink)->write("a");
  (*sink)->write("b");
  EXPECT_EQ(receive(server.get()), "a");
  EXPECT_EQ(receive(server.get()), "b");
}

TEST_F(Sinks, ForASocketThatIsNotThereYetKeepTheirRecords) {
  auto sink = make_sink(loop_, "unix:" + path("socket"), {.unix_retry = 1ms});
  ASSERT_TRUE(sink);
  (*sink)->write("early");
  const Fd server = bind_socket(path("socket"), SOCK_STREAM);
  Fd client;
  std::string got;
  EXPECT_TRUE(run_until([&] {
    if (!client.is_open()) client = Fd(::accept(server.get(), nullptr, nullptr));
    if (client.is_open()) got += receive(client.get());
    return got == "early\n";
  }));
  EXPECT_EQ(said_.size(), 2U);  // that it fails, and that it works again
}

TEST_F(Sinks, ForASocketThatIsRestartedGoOnWithWholeRecords) {
  Fd server = bind_socket(path("socket"), SOCK_STREAM);
  auto sink = make_sink(loop_, "unix:" + path("socket"), {.unix_retry = 1ms});
  ASSERT_TRUE(sink);
  (*sink)->write("a");
  Fd client(::accept(server.get(), nullptr, nullptr));
  // More than the socket holds: the last one is half sent when the reader goes.
  const std::string large(std::size_t{400} * 1024, 'x');
  (*sink)->write(large);
  EXPECT_FALSE(receive(client.get()).empty());
  client.reset();
  server.reset();
  std::filesystem::remove(path("socket"));
  EXPECT_TRUE(run_until([&] { return !said_.empty(); }));

  server = bind_socket(path("socket"), SOCK_STREAM);
  (*sink)->write("b");
  std::string got;
  EXPECT_TRUE(run_until([&] {
    if (!client.is_open()) client = Fd(::accept(server.get(), nullptr, nullptr));
    if (client.is_open()) got += receive(client.get());
    return got.ends_with("b\n");
  }));
  EXPECT_EQ(got, large + "\nb\n");
}

TEST_F(Sinks, ForASocketDropTheOldestWhenTooMuchWaits) {
  auto sink = make_sink(loop_, "unix:" + path("socket"), {});
  ASSERT_TRUE(sink);
  const std::string half(kUnixBacklogBytesMax / 2 - 1, 'x');  // with its newline exactly half
  (*sink)->write(half);
  (*sink)->write(half);
  EXPECT_EQ((*sink)->lost_count(), 0U);
  (*sink)->write("z");
  EXPECT_EQ((*sink)->lost_count(), 1U);
  // Nobody is there at the end either, and nobody is waited for.
  loop_.block_on((*sink)->drain(kNever));
  EXPECT_EQ((*sink)->lost_count(), 3U);
}

TEST_F(Sinks, ForASocketThatNobodyReadsAreDrainedUntilTheDeadlineOnly) {
  const Fd server = bind_socket(path("socket"), SOCK_STREAM);
  auto sink = make_sink(loop_, "unix:" + path("socket"), {});
  ASSERT_TRUE(sink);
  (*sink)->write(std::string(std::size_t{900} * 1024, 'x'));
  loop_.block_on((*sink)->drain(loop_.now() + 20ms));
  EXPECT_EQ((*sink)->lost_count(), 1U);
}

}  // namespace
}  // namespace muster::observe
