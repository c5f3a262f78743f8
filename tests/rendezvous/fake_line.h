// FakeLine: a node's conversation with a Group or a Host, for tests: keeps what the node is told.
#pragma once

#include "muster/base/error.h"
#include "muster/rendezvous/host_protocol.h"
#include "muster/store/service.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {

// As scenarios spell it.
inline std::string describe(const Told& told) {
  switch (told.kind) {
    case Told::Kind::Joined:
      return fmt::format("joined round={} rank={} of {}", told.place.id.round, told.place.rank,
                         told.place.world_size);
    case Told::Kind::Failed:
      return fmt::format("failed {}", name_of(told.error.kind));
    case Told::Kind::Status: {
      std::string text = fmt::format("status round={}", told.status.round);
      if (told.status.waiting > 0) text += fmt::format(" waiting={}", told.status.waiting);
      if (told.status.closed) text += " closed";
      if (told.status.lost) text += " lost";
      if (told.spare) text += " spare";
      if (!told.status.member) text += " no-member";
      return text;
    }
    case Told::Kind::Left:
      return "left";
    case Told::Kind::Alive:
      return "alive";
    case Told::Kind::Snapshot:
      return fmt::format("snapshot members={} waiting={} spares={}", told.snapshot.members.size(),
                         told.snapshot.waiting.size(), told.snapshot.spare.size());
  }
  return "";
}

// Owned by the test, and outlives the group or host it is given to, unless that has been told that
// the line is gone.
class FakeLine final : public store::Conversation {
 public:
  void say(std::string_view message) override {
    auto told = decode_told(message);
    heard_.push_back(told ? std::move(*told) : Told());
    if (!told) garbled_ = true;
    byte_count_ += message.size();
  }
  void finish(std::string_view message) override {
    say(message);
    ended_ = Error{ErrorKind::Finished, ""};
  }
  void refuse(ErrorKind kind, std::string_view reason) override {
    ended_ = Error{kind, std::string(reason)};
  }

  // What was said and not taken yet.
  std::vector<Told> take() { return std::exchange(heard_, {}); }
  std::vector<std::string> take_texts() {
    std::vector<std::string> texts;
    for (const Told& told : take()) texts.push_back(describe(told));
    return texts;
  }
  const std::optional<Error>& ended() const { return ended_; }
  bool garbled() const { return garbled_; }
  std::size_t byte_count() const { return byte_count_; }

 private:
  std::vector<Told> heard_;
  std::optional<Error> ended_;
  bool garbled_ = false;
  std::size_t byte_count_ = 0;
};

}  // namespace muster::rendezvous::testing
