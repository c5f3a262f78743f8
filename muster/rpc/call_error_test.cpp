#include "muster/rpc/call_error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace muster::rpc {
namespace {

constexpr CallErrorKind kKinds[] = {CallErrorKind::Timeout, CallErrorKind::Injected,
                                    CallErrorKind::Unreachable, CallErrorKind::Remote,
                                    CallErrorKind::Rejected};

CallError error_of(CallErrorKind kind, std::string message) {
  CallError error;
  error.kind = kind;
  error.message = std::move(message);
  return error;
}

TEST(CallError, HasANameForEachKind) {
  std::set<std::string_view> names;
  for (const CallErrorKind kind : kKinds) names.insert(name_of(kind));
  EXPECT_EQ(names, (std::set<std::string_view>{"timeout", "injected", "unreachable", "remote",
                                               "rejected"}));
}

TEST(CallError, HasACodeForTimeoutsAndInjectedFailuresOnly) {
  EXPECT_EQ(code_of(error_of(CallErrorKind::Timeout, "")), 1);
  EXPECT_EQ(code_of(error_of(CallErrorKind::Injected, "")), 2);
  EXPECT_EQ(code_of(error_of(CallErrorKind::Unreachable, "")), 0);
  EXPECT_EQ(code_of(error_of(CallErrorKind::Remote, "")), 0);
  EXPECT_EQ(code_of(error_of(CallErrorKind::Rejected, "")), 0);
}

TEST(CallError, IsRenderedWithItsCodeInFront) {
  EXPECT_EQ(render(error_of(CallErrorKind::Timeout, "too slow")), "RPCErr:1:too slow");
  EXPECT_EQ(render(error_of(CallErrorKind::Injected, "on purpose")), "RPCErr:2:on purpose");
  EXPECT_EQ(render(error_of(CallErrorKind::Timeout, "")), "RPCErr:1:");
}

TEST(CallError, IsRenderedAsItsTextWhereThereIsNoCode) {
  EXPECT_EQ(render(error_of(CallErrorKind::Unreachable, "gone")), "gone");
  EXPECT_EQ(render(error_of(CallErrorKind::Remote, "ValueError: 3")), "ValueError: 3");
  EXPECT_EQ(render(error_of(CallErrorKind::Rejected, "no")), "no");
}

TEST(CallError, ShowsItsCodeInTheRenderedText) {
  for (const CallErrorKind kind : kKinds) {
    const CallError error = error_of(kind, "text: with colons: in it");
    EXPECT_EQ(code_in(render(error)), code_of(error)) << name_of(kind);
  }
}

TEST(CallError, IsNotTakenForATimeoutBecauseItsTextSpeaksOfOne) {
  const CallError error = error_of(CallErrorKind::Remote, "I once saw RPCErr:1:RPC ran for more");
  EXPECT_EQ(code_of(error), 0);
  EXPECT_EQ(code_in(render(error)), 0);
  // The text of an application that looks just like ours: the kind knows better.
  EXPECT_EQ(code_of(error_of(CallErrorKind::Remote, "RPCErr:1:RPC ran for more than")), 0);
}

TEST(CallError, ShowsNoCodeInATextWithoutAWholeHead) {
  for (const char* text :
       {"", "RPCErr", "RPCErr:", "RPCErr:1", "RPCErr::", "RPCErr:x:", "RPCErr:1x:", "RPCErr: 1:",
        "RPCErr:+1:", "rpcerr:1:", "RPCErr:99999999999999999999:"}) {
    EXPECT_EQ(code_in(text), 0) << text;
  }
}

TEST(CallError, ShowsNoCodeThatNobodyKnows) {
  EXPECT_EQ(code_in("RPCErr:0:text"), 0);
  EXPECT_EQ(code_in("RPCErr:3:text"), 0);
  EXPECT_EQ(code_in("RPCErr:-1:text"), 0);
}

TEST(CallResult, IsAValueOrAnError) {
  const auto answer = [](bool good) -> CallResult<int> {
    if (!good) return call_failed(error_of(CallErrorKind::Rejected, "no"));
    return 7;
  };
  EXPECT_EQ(*answer(true), 7);
  ASSERT_FALSE(answer(false));
  EXPECT_EQ(answer(false).error(), error_of(CallErrorKind::Rejected, "no"));
  EXPECT_FALSE(answer(false).error().sent);
}

}  // namespace
}  // namespace muster::rpc
