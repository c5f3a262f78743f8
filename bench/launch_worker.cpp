// The worker of `bench/run launch`: the first thing it does is to say when it began, on the pipe
// that BENCH_STAMPS names. Then it ends, or with the argument `stay` waits until it is told to end.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <unistd.h>

namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "0" : value;
}

}  // namespace

int main(int count, char** words) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t nanoseconds = std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  char line[256];
  // One write of less than PIPE_BUF: lines of several workers do not mix.
  const int size =
      std::snprintf(line, sizeof line, "%" PRId64 " %d %s %s %s\n", nanoseconds, ::getpid(),
                    variable("RANK"), variable("WORLD_SIZE"), variable("BENCH_NODE"));
  const int pipe = ::open(variable("BENCH_STAMPS"), O_WRONLY | O_CLOEXEC);
  if (pipe < 0 || ::write(pipe, line, static_cast<std::size_t>(size)) != size) return 9;
  ::close(pipe);
  if (count > 1 && std::strcmp(words[1], "stay") == 0) {
    for (;;) ::pause();
  }
  return 0;
}
