// A wall clock that is wrong by as many seconds as TEST_CLOCK_SKEW_SECONDS says, for programs that
// this library is loaded into with LD_PRELOAD: a node whose clock nobody has set. What the kernel
// stamps by itself, such as files, keeps the right time.
#include <cstdlib>
#include <ctime>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

time_t skew_seconds() {
  const char* text = std::getenv("TEST_CLOCK_SKEW_SECONDS");
  return text == nullptr ? 0 : std::atol(text);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long status = ::syscall(SYS_clock_gettime, clock, now);
  const bool is_wall_clock = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (status == 0 && is_wall_clock) now->tv_sec += skew_seconds();
  return static_cast<int>(status);
}

time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
