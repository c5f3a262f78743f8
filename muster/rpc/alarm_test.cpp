#include "muster/rpc/alarm.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <poll.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace muster::rpc {
namespace {

bool rings(const Alarm& alarm) {
  pollfd watched{alarm.fd(), POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1;
}

TEST(Alarm, RingsForTheThreadThatHasItUntilItIsSilenced) {
  const Alarm::Taken alarm = Alarm::take();
  ASSERT_NE(alarm, nullptr);
  EXPECT_FALSE(rings(*alarm));
  alarm->ring();
  EXPECT_FALSE(rings(*alarm)) << "it is awake";
  std::thread([&] { alarm->ring(); }).join();
  EXPECT_TRUE(rings(*alarm));
  alarm->silence();
  EXPECT_FALSE(rings(*alarm));
}

TEST(Alarm, IsUsedAgain) {
  Alarm::Taken alarm = Alarm::take();
  const int fd = alarm->fd();
  alarm.reset();
  EXPECT_EQ(Alarm::take()->fd(), fd);
}

TEST(Alarm, OfAParentIsNotUsedByItsChild) {
  const int fd = Alarm::take()->fd();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  // The parent's is open in the child, so that another one has another number.
  if (child == 0) ::_exit(Alarm::take()->fd() == fd ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(Alarm::take()->fd(), fd);
}

}  // namespace
}  // namespace muster::rpc
