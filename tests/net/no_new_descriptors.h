// NoNewDescriptors: while it lives, this process can open only so many more, as when it has reached
// its limit.
#pragma once

#include "muster/base/fd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fcntl.h>
#include <sys/resource.h>
#include <utility>
#include <vector>

namespace muster::testing {

// One at a time.
class NoNewDescriptors {
 public:
  explicit NoNewDescriptors(std::size_t left_count = 0) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<Fd> taken;
    taken.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    // Up to where others are, so that the limit is soon reached.
    rlimit low = before_;
    low.rlim_cur = std::min<rlim_t>(before_.rlim_cur, kLow);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    while (taken.back().is_open()) {
      taken.emplace_back(::fcntl(taken.front().get(), F_DUPFD_CLOEXEC, 0));
    }
    EXPECT_GT(taken.size(), left_count);
    taken.resize(taken.size() - 1 - std::min(left_count, taken.size() - 1));
    taken_ = std::move(taken);
  }
  ~NoNewDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoNewDescriptors(const NoNewDescriptors&) = delete;
  NoNewDescriptors& operator=(const NoNewDescriptors&) = delete;

 private:
  static constexpr rlim_t kLow = 1024;

  rlimit before_{};
  std::vector<Fd> taken_;
};

}  // namespace muster::testing
