// Events: what a rendezvous tells those who watch over it: joins, writes won and lost, completion,
// closing, and every error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace muster::rendezvous {

enum class NodeState { Init, Running, Succeeded, Failed };

// As event records spell it: "INIT", "RUNNING", "SUCCEEDED", "FAILED".
constexpr std::string_view name_of(NodeState state) {
  switch (state) {
    case NodeState::Init:
      return "INIT";
    case NodeState::Running:
      return "RUNNING";
    case NodeState::Succeeded:
      return "SUCCEEDED";
    case NodeState::Failed:
      return "FAILED";
  }
  return "";
}

struct Event {
  std::string name = {};  // what was being done, e.g. "next_rendezvous"
  std::string run_id = {};
  std::string message = {};
  std::string hostname = {};
  std::int64_t pid = 0;
  NodeState node_state = NodeState::Running;
  std::string master_endpoint = {};           // of the store, where there is one
  std::optional<std::int64_t> rank = {};      // once the node has one
  std::optional<std::int64_t> local_id = {};  // of the node's descriptor
  std::string error_trace = {};               // the error's message, for Failed

  friend bool operator==(const Event&, const Event&) = default;
};

// Takes events. Owned by whoever builds the object graph; outlives the handlers that report to it
// and is called on their loop.
class EventSink {
 public:
  EventSink() = default;
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;
  virtual ~EventSink() = default;

  virtual void record(const Event& event) = 0;
};

// Hands `build()` to the sink. Without a sink `build` is not called, so that events cost nothing
// where nobody listens: put everything an event needs inside of it.
template <typename Build>
void emit(EventSink* sink, Build&& build) {
  if (sink != nullptr) sink->record(std::forward<Build>(build)());
}

}  // namespace muster::rendezvous
