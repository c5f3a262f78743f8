#include "muster/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

namespace muster {
namespace {

Result<int> half_of(int number) {
  if (number % 2 != 0) return fail(ErrorKind::Invalid, "odd");
  return number / 2;
}

Result<std::unique_ptr<int>> boxed(int number) {
  const Result<int> half = half_of(number);
  if (!half) return fail(half.error());
  return std::make_unique<int>(*half);
}

Result<> nothing_but(bool good) {
  if (!good) return fail(ErrorKind::Closed, "over");
  return {};
}

TEST(Error, HasADistinctLowerCaseNameForEveryKind) {
  std::set<std::string_view> names;
  for (const ErrorKind kind : {ErrorKind::Invalid, ErrorKind::Unavailable, ErrorKind::Timeout,
                               ErrorKind::Conflict, ErrorKind::Closed, ErrorKind::Unimplemented,
                               ErrorKind::Cancelled, ErrorKind::Corrupt, ErrorKind::Finished}) {
    names.insert(name_of(kind));
  }
  EXPECT_EQ(names,
            (std::set<std::string_view>{"invalid", "unavailable", "timeout", "conflict", "closed",
                                        "unimplemented", "cancelled", "corrupt", "finished"}));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kErrorKindCount));
}

TEST(Error, ComparesByKindAndMessage) {
  EXPECT_EQ((Error{ErrorKind::Closed, "over"}), (Error{ErrorKind::Closed, "over"}));
  EXPECT_NE((Error{ErrorKind::Closed, "over"}), (Error{ErrorKind::Timeout, "over"}));
  EXPECT_NE((Error{ErrorKind::Closed, "over"}), (Error{ErrorKind::Closed, "done"}));
}

TEST(Result, CarriesAValueOrAnError) {
  EXPECT_EQ(half_of(4).value(), 2);
  EXPECT_EQ(half_of(3).error(), (Error{ErrorKind::Invalid, "odd"}));
  EXPECT_TRUE(nothing_but(true));
  EXPECT_EQ(nothing_but(false).error().kind, ErrorKind::Closed);
}

TEST(Result, MovesWhatCannotBeCopiedAndPassesErrorsOn) {
  Result<std::unique_ptr<int>> box = boxed(4);
  ASSERT_TRUE(box);
  EXPECT_EQ(*std::move(*box), 2);
  EXPECT_EQ(boxed(5).error().message, "odd");
}

TEST(DescribeErrno, IsALowerCaseSentence) {
  EXPECT_EQ(describe_errno(ECONNREFUSED), "connection refused");
  EXPECT_EQ(describe_errno(EADDRINUSE), "address already in use");
  EXPECT_EQ(describe_errno(ETIMEDOUT), "connection timed out");
}

TEST(DescribeErrno, NamesNumbersItDoesNotKnow) {
  EXPECT_NE(describe_errno(123'456).find("123456"), std::string::npos);
}

}  // namespace
}  // namespace muster
