#include "muster/observe/event_log.h"

#include "muster/observe/sinks.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::observe {
namespace {

class ListSink final : public EventSink {
 public:
  explicit ListSink(std::vector<std::string>& lines) : lines_(lines) {}
  void write(std::string_view line) override { lines_.emplace_back(line); }
  std::uint64_t lost_count() const override { return 2; }

 private:
  std::vector<std::string>& lines_;
};

class EventLogs : public testing::Test {
 protected:
  EventLog log_{[this] { return wall_; }};
  std::int64_t wall_ = 1'700'000'000'123'456'789;
  std::vector<std::string> lines_;

  static Event named(std::string name) {
    Event event;
    event.name = std::move(name);
    return event;
  }
  static std::vector<std::uint64_t> read_all(EventReader& reader) {
    std::vector<std::uint64_t> numbers;
    while (const auto record = reader.next()) numbers.push_back(record->number);
    return numbers;
  }
};

TEST_F(EventLogs, StampEventsThatHaveNoTime) {
  log_.add_sink(std::make_unique<ListSink>(lines_));
  log_.record(named("a"));
  Event old = named("b");
  old.timestamp_ms = 42;
  log_.record(old);

  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_EQ(lines_[0],
            R"({"name": "a", "source": "AGENT", "timestamp": 1700000000123, "metadata": {}})");
  EXPECT_NE(lines_[1].find(R"("timestamp": 42)"), std::string::npos);
}

TEST_F(EventLogs, HandEveryEventToEverySinkOnce) {
  std::vector<std::string> others;
  log_.add_sink(std::make_unique<ListSink>(lines_));
  log_.add_sink(std::make_unique<ListSink>(others));
  log_.add_sink(make_null_sink());
  log_.record(named("a"));

  EXPECT_EQ(lines_.size(), 1U);
  EXPECT_EQ(lines_, others);
  EXPECT_EQ(log_.lost_count(), 4U);
}

TEST_F(EventLogs, KeepRendezvousRecordsFromTheSinksOfOtherEvents) {
  std::vector<std::string> rendezvous;
  log_.add_sink(std::make_unique<ListSink>(lines_));
  log_.add_rendezvous_sink(std::make_unique<ListSink>(rendezvous));
  RendezvousRecord record;
  record.name = "joined";
  log_.record(record);

  EXPECT_TRUE(lines_.empty());
  ASSERT_EQ(rendezvous.size(), 1U);
  EXPECT_NE(rendezvous[0].find(R"("timestamp": 1700000000123)"), std::string::npos);
}

TEST_F(EventLogs, TellTheirObserverTheNames) {
  std::string names;
  log_.set_observer([&](std::string_view name) { names += std::string(name) + ";"; });
  log_.record(named("a"));
  log_.record(RendezvousRecord{});
  EXPECT_EQ(names, "a;rendezvous;");
}

TEST_F(EventLogs, LetAReaderSeeWhatWasAndWhatComes) {
  log_.record(named("a"));
  EventReader reader(log_, 0);
  EXPECT_EQ(read_all(reader), (std::vector<std::uint64_t>{1}));

  int woken = 0;
  reader.set_wake([&] { ++woken; });
  log_.record(named("b"));
  EXPECT_EQ(woken, 1);
  const auto record = reader.next();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->number, 2U);
  EXPECT_NE(record->line.find(R"("name": "b")"), std::string_view::npos);
  EXPECT_FALSE(reader.next());
}

TEST_F(EventLogs, LetAReaderGoOnWhereItStopped) {
  for (int count = 0; count < 5; ++count) log_.record(named("a"));
  EventReader reader(log_, 3);
  EXPECT_EQ(read_all(reader), (std::vector<std::uint64_t>{4, 5}));
  // A number from another life of the agent.
  EventReader confused(log_, 999);
  EXPECT_TRUE(read_all(confused).empty());
  log_.record(named("a"));
  EXPECT_EQ(read_all(confused), (std::vector<std::uint64_t>{6}));
}

TEST_F(EventLogs, KeepTheNewestEventsAndTellASlowReaderWhatItMissed) {
  EventReader slow(log_, 0);
  for (std::size_t count = 0; count < kRecentEventsMax; ++count) log_.record(named("a"));
  EventReader at_the_limit(log_, 0);
  const auto first = at_the_limit.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->number, 1U);

  log_.record(named("a"));
  log_.record(named("a"));
  const auto record = slow.next();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->lost_count, 2U);
  EXPECT_EQ(record->number, 3U);
  EXPECT_EQ(slow.next()->lost_count, 0U);
  // One who comes now has lost nothing.
  EventReader late(log_, 0);
  EXPECT_EQ(late.next()->lost_count, 0U);
}

TEST_F(EventLogs, BoundTheBytesTheyKeepButKeepTheNewest) {
  log_.record(named("small"));
  log_.record(named(std::string(kRecentEventBytesMax, 'x')));
  EventReader reader(log_, 0);
  EXPECT_EQ(read_all(reader), (std::vector<std::uint64_t>{2}));
}

TEST_F(EventLogs, MayEndBeforeTheirReaders) {
  auto log = std::make_unique<EventLog>();
  EventReader reader(*log, 0);
  bool woken = false;
  reader.set_wake([&] { woken = true; });
  log->record(named("a"));
  woken = false;
  log.reset();
  EXPECT_TRUE(woken);
  EXPECT_TRUE(reader.has_ended());
  EXPECT_FALSE(reader.next());
}

}  // namespace
}  // namespace muster::observe
