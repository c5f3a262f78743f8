// `muster store serve` as a process: it announces itself, serves, names an offender, and ends well.
#include "muster/base/fd.h"
#include "tests/server/raw_client.h"
#include "tests/server/requests.h"

#include <gtest/gtest.h>

#include <array>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to us

namespace muster::tests {
namespace {

// A child process whose output is read here.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(err.data(), O_CLOEXEC), 0);
    out_ = Fd(out[0]);
    err_ = Fd(err[0]);
    const Fd out_write(out[1]);
    const Fd err_write(err[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out_write.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, err_write.get(), STDERR_FILENO);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ), 0)
        << arguments[0];
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::string read_line() { return read_until(out_.get(), '\n'); }
  // Ends it and gives its exit status; -1 if a signal did that.
  int stop(int signal) {
    ::kill(pid_, signal);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // All that it wrote to standard error. Only when it has ended.
  std::string errors() { return read_until(err_.get(), '\0'); }

 private:
  static std::string read_until(int fd, char last) {
    std::string text;
    char byte = 0;
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    while (::poll(&entry, 1, 30'000) > 0 && ::read(fd, &byte, 1) == 1) {
      text += byte;
      if (byte == last) break;
    }
    return text;
  }

  pid_t pid_ = -1;
  Fd out_;
  Fd err_;
};

int number_behind(const std::string& text, const std::string& label) {
  const std::size_t at = text.find(label);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + label.size());
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(StoreProcess, AnnouncesItsPortServesNamesAnOffenderAndStopsWhenTold) {
  Process process({MUSTER_PROGRAM, "store", "serve", "--host", "127.0.0.1", "--port", "0", "--json",
                   "--namespace", "job-1=0"});
  const std::string announcement = process.read_line();
  const int port = number_behind(announcement, "\"port\":");
  const int job_port = number_behind(announcement, "\"job-1\":");
  ASSERT_GT(port, 0) << announcement;
  ASSERT_GT(job_port, 0) << announcement;

  Bystander bystander(port);
  ASSERT_TRUE(bystander.served());
  RawClient inside(job_port, Dialect::Modern);
  EXPECT_EQ(inside.ask(request_bytes(Dialect::Modern, Operation::NumKeys), 8), number(0));
  RawClient offender(port);
  offender.send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(offender.read_to_end(), RawClient::Ending::Closed);
  const std::string offender_name = offender.name();
  ASSERT_TRUE(bystander.served());

  EXPECT_EQ(process.stop(SIGTERM), 0);
  const std::string errors = process.errors();
  EXPECT_EQ(count_of(errors, "closing a connection"), 1U) << errors;
  EXPECT_EQ(count_of(errors, "peer=" + offender_name), 1U) << errors;
}

TEST(StoreProcess, SaysThatItsPortIsTaken) {
  Process first({MUSTER_PROGRAM, "store", "serve", "--host", "127.0.0.1", "--port", "0", "--json"});
  const std::string port = std::to_string(number_behind(first.read_line(), "\"port\":"));
  Process second(
      {MUSTER_PROGRAM, "store", "serve", "--host", "127.0.0.1", "--port", port, "--json"});
  EXPECT_EQ(second.read_line(), "");
  EXPECT_NE(second.stop(0), 0);
  const std::string errors = second.errors();
  EXPECT_NE(errors.find("cannot listen on 127.0.0.1:" + port + ": address already in use"),
            std::string::npos)
      << errors;
}

}  // namespace
}  // namespace muster::tests
