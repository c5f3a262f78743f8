#include "muster/base/fd.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <type_traits>
#include <unistd.h>
#include <utility>

namespace muster {
namespace {

static_assert(!std::is_copy_constructible_v<Fd> && !std::is_copy_assignable_v<Fd>);
static_assert(std::is_nothrow_move_constructible_v<Fd> && std::is_nothrow_move_assignable_v<Fd>);

int open_one() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int number) { return ::fcntl(number, F_GETFD) != -1; }

TEST(Fd, IsEmptyAtFirst) {
  Fd fd;
  EXPECT_FALSE(fd.is_open());
  EXPECT_EQ(fd.get(), -1);
  fd.reset();
  EXPECT_FALSE(fd.is_open());
}

TEST(Fd, ClosesWhatItOwns) {
  const int number = open_one();
  {
    const Fd fd(number);
    EXPECT_EQ(fd.get(), number);
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(Fd, HandsItsDescriptorOnWhenMoved) {
  const int number = open_one();
  Fd first(number);
  Fd second(std::move(first));
  EXPECT_FALSE(
      first.is_open());  // NOLINT(bugprone-use-after-move): that it is empty is the promise
  EXPECT_EQ(second.get(), number);
  Fd third;
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_TRUE(is_open(number));
}

TEST(Fd, ClosesTheOldDescriptorWhenANewOneIsMovedIn) {
  const int old_number = open_one();
  const int new_number = open_one();
  Fd fd(old_number);
  fd = Fd(new_number);
  EXPECT_FALSE(is_open(old_number));
  EXPECT_TRUE(is_open(new_number));
}

TEST(Fd, SurvivesBeingMovedToItself) {
  const int number = open_one();
  Fd fd(number);
  Fd& same = fd;
  fd = std::move(same);
  EXPECT_EQ(fd.get(), number);
  EXPECT_TRUE(is_open(number));
}

TEST(Fd, GivesItsDescriptorAwayOnRelease) {
  const int number = open_one();
  {
    Fd fd(number);
    EXPECT_EQ(fd.release(), number);
    EXPECT_FALSE(fd.is_open());
  }
  EXPECT_TRUE(is_open(number));
  ::close(number);
}

}  // namespace
}  // namespace muster
