#include "muster/rendezvous/events.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::rendezvous {
namespace {

class Recorder final : public EventSink {
 public:
  void record(const Event& event) override { events.push_back(event); }
  std::vector<Event> events;
};

TEST(Events, AreHandedToTheSink) {
  Recorder recorder;
  emit(&recorder, [] { return Event{.name = "join", .run_id = "run", .rank = 3}; });
  ASSERT_EQ(recorder.events.size(), 1U);
  EXPECT_EQ(recorder.events[0].name, "join");
  EXPECT_EQ(recorder.events[0].node_state, NodeState::Running);
  EXPECT_EQ(recorder.events[0].rank, 3);
  EXPECT_EQ(recorder.events[0].local_id, std::nullopt);
}

TEST(Events, AreNotEvenBuiltWithoutASink) {
  bool built = false;
  emit(nullptr, [&] {
    built = true;
    return Event();
  });
  EXPECT_FALSE(built);
}

TEST(Events, SpellTheStateOfTheNodeInCapitals) {
  EXPECT_EQ(name_of(NodeState::Init), "INIT");
  EXPECT_EQ(name_of(NodeState::Running), "RUNNING");
  EXPECT_EQ(name_of(NodeState::Succeeded), "SUCCEEDED");
  EXPECT_EQ(name_of(NodeState::Failed), "FAILED");
}

}  // namespace
}  // namespace muster::rendezvous
