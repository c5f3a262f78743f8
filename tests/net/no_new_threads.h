// NoNewThreads: while it lives, no thread of this process can be started, as when the system has no
// room for another: new ones want a stack that no address space has. Those that run go on.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <pthread.h>

namespace muster::testing {

// One at a time.
class NoNewThreads {
 public:
  NoNewThreads() {
    EXPECT_EQ(::pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge;
    EXPECT_EQ(::pthread_attr_init(&huge), 0);
    EXPECT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 47U), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&huge), 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoNewThreads() {
    EXPECT_EQ(::pthread_setattr_default_np(&before_), 0);
    ::pthread_attr_destroy(&before_);
  }
  NoNewThreads(const NoNewThreads&) = delete;
  NoNewThreads& operator=(const NoNewThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace muster::testing
