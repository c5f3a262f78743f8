#include "muster/base/signal_name.h"

#include <gtest/gtest.h>

#include <csignal>

namespace muster {
namespace {

TEST(SignalName, IsThatOfTheConstant) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(SIGCHLD), "SIGCHLD");
  EXPECT_EQ(signal_name(SIGABRT), "SIGABRT");
  EXPECT_EQ(signal_name(70), "signal 70");
}

TEST(SignalName, IsFoundExactlyAsTheConstantIsSpelled) {
  EXPECT_EQ(signal_named("SIGTERM"), SIGTERM);
  EXPECT_EQ(signal_named("SIGCLD"), SIGCHLD);
  EXPECT_EQ(signal_named("SIGRTMIN"), SIGRTMIN);
  for (const char* text : {"TERM", "sigterm", "", "15"}) EXPECT_FALSE(signal_named(text)) << text;
  for (const std::string& name : signal_names()) EXPECT_TRUE(signal_named(name)) << name;
}

TEST(SignalName, IsUnderstoodAsAPersonMayWriteIt) {
  for (const char* text : {"SIGTERM", "TERM", "term", "SigTerm", "15"}) {
    EXPECT_EQ(parse_signal(text), SIGTERM) << text;
  }
  for (const char* text : {"", "SIG", "0", "-1", "65", "15x", "nothing"}) {
    EXPECT_FALSE(parse_signal(text)) << text;
  }
}

}  // namespace
}  // namespace muster
