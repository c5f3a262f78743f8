// Host: the shell around the groups. What it decides itself: which run, which seat, when time
// passes, and what becomes of lines that say what nobody understands.
#include "muster/rendezvous/host.h"

#include "muster/sim/loop.h"
#include "tests/rendezvous/fake_line.h"
#include "tests/rendezvous/states.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using store::Service;
using testing::FakeLine;
using testing::node;
using testing::settings;
using Texts = std::vector<std::string>;

class HostTest : public ::testing::Test {
 protected:
  static std::string hello(std::string_view name, std::string run_id, std::int64_t min_nodes,
                           std::int64_t max_nodes) {
    Hello hello;
    hello.run_id = std::move(run_id);
    hello.joins = true;
    hello.node = node(name);
    hello.settings = settings(min_nodes, max_nodes);
    return encode(hello);
  }
  static std::string observer(std::string run_id) {
    Hello hello;
    hello.run_id = std::move(run_id);
    hello.observes = true;
    return encode(hello);
  }
  static std::string say(Said::Kind kind) { return encode(Said{kind, {}}); }

  tests::LogCapture log;
  sim::Loop loop;
  Random random{1};
  Host host{loop, random};
};

TEST_F(HostTest, KeepsRunsAndNamespacesApart) {
  FakeLine lines[4];
  host.opened(lines[0], "", hello("a", "run", 2, 2));
  host.opened(lines[1], "", hello("b", "other", 2, 2));
  host.opened(lines[2], "space", hello("c", "run", 2, 2));
  for (FakeLine& line : lines) EXPECT_EQ(line.take_texts(), Texts{});
  host.opened(lines[3], "", hello("d", "run", 2, 2));
  EXPECT_EQ(lines[0].take_texts(), Texts{"joined round=0 rank=0 of 2"});
  EXPECT_EQ(lines[3].take_texts(), Texts{"joined round=0 rank=1 of 2"});
  EXPECT_EQ(lines[1].take_texts(), Texts{});
  EXPECT_EQ(lines[2].take_texts(), Texts{});
  EXPECT_EQ(host.find("space", "run")->state().participants.size(), 1U);
  EXPECT_EQ(host.find("", "nothing"), nullptr);
  EXPECT_NE(host.find("", "run")->state().birth, host.find("", "other")->state().birth);
}

TEST_F(HostTest, RefusesAHelloThatItDoesNotUnderstand) {
  FakeLine line;
  host.opened(line, "", "\x02garbage");
  ASSERT_TRUE(line.ended());
  EXPECT_EQ(line.ended()->kind, ErrorKind::Invalid);
  FakeLine newer;
  host.opened(newer, "", "\x03");
  EXPECT_EQ(newer.ended()->kind, ErrorKind::Unimplemented);
}

TEST_F(HostTest, EndsALineThatSaysWhatNobodyUnderstands) {
  FakeLine a;
  FakeLine b;
  host.opened(a, "", hello("a", "run", 2, 3));
  host.heard(a, "garbage");
  ASSERT_TRUE(a.ended());
  EXPECT_EQ(a.ended()->kind, ErrorKind::Invalid);
  host.heard(a, say(Said::Kind::Alive));  // what was still on its way
  EXPECT_EQ(a.take_texts(), Texts{});
  // Its node has its grace, as if the connection had broken.
  EXPECT_EQ(host.find("", "run")->state().participants.size(), 1U);
  loop.advance(1s);
  EXPECT_TRUE(host.find("", "run")->state().participants.empty());
}

TEST_F(HostTest, RefusesANodeThatDoesNotFit) {
  FakeLine a;
  FakeLine b;
  host.opened(a, "", hello("a", "run", 2, 3));
  host.opened(b, "", hello("b", "run", 2, 4));
  ASSERT_TRUE(b.ended());
  EXPECT_EQ(b.ended()->kind, ErrorKind::Invalid);
  EXPECT_EQ(host.find("", "run")->seat_count(), 1U);
}

TEST_F(HostTest, EndsTheOldLineOfANodeThatComesBack) {
  FakeLine old;
  FakeLine fresh;
  host.opened(old, "", hello("a", "run", 1, 1));
  host.opened(fresh, "", hello("a", "run", 1, 1));
  ASSERT_TRUE(old.ended());
  EXPECT_EQ(old.ended()->kind, ErrorKind::Closed);
  host.heard(fresh, say(Said::Kind::Alive));
  EXPECT_EQ(fresh.take_texts().back(), "alive");
  host.ended(fresh, Service::End::Lost);
  loop.advance(1s);
  EXPECT_EQ(host.find("", "run")->seat_count(), 0U);
}

TEST_F(HostTest, LetsTimePassForEveryRun) {
  FakeLine lines[3];
  host.opened(lines[0], "", hello("a", "one", 1, 2));
  loop.advance(10s);
  host.opened(lines[1], "", hello("a", "two", 1, 2));
  loop.advance(10s);
  host.opened(lines[2], "", hello("a", "three", 1, 2));
  for (FakeLine& line : lines) {
    EXPECT_EQ(line.take_texts(), Texts{});
    loop.advance(10s);
    loop.advance(1ms);
    EXPECT_EQ(line.take_texts(), Texts{"joined round=0 rank=0 of 1"});
  }
  // And then for their silence.
  loop.advance(10min);
  for (const char* run : {"one", "two", "three"})
    EXPECT_EQ(host.find("", run)->state().round, 1U) << run;
  EXPECT_FALSE(loop.next_event());
}

TEST_F(HostTest, TellsMembersOnceATurn) {
  FakeLine a;
  host.opened(a, "", hello("a", "run", 1, 9));
  loop.advance(31s);
  a.take();
  std::vector<std::unique_ptr<FakeLine>> late;
  for (char name = 'b'; name < 'g'; ++name) {
    late.push_back(std::make_unique<FakeLine>());
    host.opened(*late.back(), "", hello(std::string(1, name), "run", 1, 9));
  }
  EXPECT_EQ(a.take_texts(), Texts{});
  loop.run_until_idle();
  EXPECT_EQ(a.take_texts(), Texts{"status round=0 waiting=5"});
}

TEST_F(HostTest, ServesObservers) {
  FakeLine a;
  FakeLine eye;
  host.opened(eye, "", observer("run"));
  host.heard(eye, say(Said::Kind::Show));
  EXPECT_EQ(eye.take_texts(), Texts{"snapshot members=0 waiting=0 spares=0"});
  host.opened(a, "", hello("a", "run", 1, 1));
  loop.run_until_idle();
  EXPECT_EQ(eye.take_texts(), Texts{"status round=0 no-member"});
  host.heard(eye, say(Said::Kind::Alive));
  EXPECT_EQ(eye.take_texts(), Texts{"alive"});
  // It has no seat.
  host.heard(eye, say(Said::Kind::Leave));
  host.heard(eye, encode(Said{Said::Kind::Join, {}}));
  EXPECT_EQ(eye.take_texts(), Texts{});
  host.heard(eye, say(Said::Kind::Close));
  EXPECT_TRUE(host.find("", "run")->state().closed);
  loop.run_until_idle();
  EXPECT_EQ(a.take_texts().back(), "status round=0 closed");
  host.heard(eye, "garbage");
  EXPECT_TRUE(eye.ended());
  host.ended(a, Service::End::Lost);
  loop.advance(1s);
}

TEST_F(HostTest, KeepsAClosedRunClosedWhenAllAreGone) {
  FakeLine a;
  host.opened(a, "", hello("a", "run", 1, 1));
  host.heard(a, say(Said::Kind::Close));
  host.ended(a, Service::End::Left);
  loop.advance(1h);
  FakeLine b;
  host.opened(b, "", hello("b", "run", 1, 1));
  EXPECT_EQ(b.take_texts().front(), "failed closed");
}

}  // namespace
}  // namespace muster::rendezvous
