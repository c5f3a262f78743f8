#include "muster/rpc/group_store.h"

#include "muster/base/error.h"

#include <gtest/gtest.h>

namespace muster::rpc {
namespace {

TEST(StoreRetries, GiveUpAfterAsManyConflictsAsThereMayBe) {
  StoreRetries retries(1);
  for (int count = 0; count < StoreRetries::kConflictsMax; ++count) {
    ASSERT_TRUE(retries.after_conflict()) << count;
  }
  EXPECT_FALSE(retries.after_conflict());
}

TEST(StoreRetries, GiveUpAfterAsManyFailuresInARowAsThereMayBe) {
  const Error away{ErrorKind::Unavailable, "it is away"};
  StoreRetries retries(1);
  for (int count = 0; count < StoreRetries::kFailuresMax; ++count) {
    ASSERT_TRUE(retries.after_failure(away)) << count;
  }
  EXPECT_FALSE(retries.after_failure(away));
  retries.answered();
  EXPECT_TRUE(retries.after_failure(away));
}

TEST(StoreRetries, TryNothingAgainThatCannotGoBetter) {
  StoreRetries retries(1);
  for (const ErrorKind kind : {ErrorKind::Invalid, ErrorKind::Timeout, ErrorKind::Corrupt}) {
    EXPECT_FALSE(retries.after_failure({kind, "no"}));
  }
  EXPECT_TRUE(retries.after_failure({ErrorKind::Closed, "nobody knows"}));
}

}  // namespace
}  // namespace muster::rpc
