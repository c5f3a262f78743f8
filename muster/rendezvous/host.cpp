#include "muster/rendezvous/host.h"

#include "muster/base/log.h"

#include <algorithm>
#include <chrono>

namespace muster::rendezvous {
namespace {

// A server that wakes so late was stopped, or its machine is overloaded: it has not heard what was
// said to it. Nodes then have as much time as it was deaf to be heard, and at most this, in which
// those that gave the server up come back.
constexpr Duration kLateMax = std::chrono::milliseconds(100);
constexpr Duration kExcuseMax = std::chrono::seconds(3);

}  // namespace

Host::Host(Loop& loop, Random& random)
    : loop_(loop), random_(random), timer_(loop, [this] { wake(); }) {}
Host::~Host() = default;

const Group* Host::find(const std::string& namespace_name, const std::string& run_id) const {
  const auto found = runs_.find({namespace_name, run_id});
  return found == runs_.end() ? nullptr : &found->second->group;
}

Host::Run* Host::find_or_add(std::string_view namespace_name, const std::string& run_id) {
  std::pair key(std::string(namespace_name), run_id);
  const auto found = runs_.find(key);
  if (found != runs_.end()) return found->second.get();
  if (runs_.size() >= kRunsMax) return nullptr;
  auto run = std::make_unique<Run>(run_id, random_.next() | 1);
  return runs_.emplace(std::move(key), std::move(run)).first->second.get();
}

void Host::opened(store::Conversation& conversation, std::string_view namespace_name,
                  std::string_view message) {
  auto hello = decode_hello(message);
  if (!hello) return conversation.refuse(hello.error().kind, hello.error().message);
  Run* run = find_or_add(namespace_name, hello->run_id);
  if (run == nullptr) {
    return conversation.refuse(ErrorKind::Unavailable,
                               "this server remembers too many runs; restart it");
  }
  if (hello->observes) {
    run->group.add_observer(conversation);
    add_line(conversation, {run, nullptr});
    return;
  }
  seat(conversation, *run, *hello);
  tend(*run);
}

void Host::seat(store::Conversation& conversation, Run& run, const Hello& hello) {
  auto seated = run.group.sit(conversation, hello, loop_.now());
  if (!seated) return conversation.refuse(seated.error().kind, seated.error().message);
  add_line(conversation, {&run, seated->seat});
  if (seated->replaced == nullptr) return;
  seated->replaced->set_note(nullptr);
  lines_.erase(seated->replaced);
  seated->replaced->refuse(ErrorKind::Closed, "the node has come back on another connection");
}

void Host::add_line(store::Conversation& conversation, Line line) {
  Line& place = lines_[&conversation];
  place = line;
  conversation.set_note(&place);
}

void Host::heard(store::Conversation& conversation, std::string_view message) {
  if (conversation.note() == nullptr) return;
  const Line line = *static_cast<const Line*>(conversation.note());
  auto said = decode_said(message);
  if (said && line.seat == nullptr) {
    heard_by_observer(conversation, *line.run, *said);
  } else {
    Result<> heard = said ? line.run->group.hear(*line.seat, *said, loop_.now())
                          : Result<>(fail(std::move(said.error())));
    if (!heard) {
      ended(conversation, End::Left);
      conversation.refuse(heard.error().kind, heard.error().message);
    }
  }
  tend(*line.run);
}

void Host::heard_by_observer(store::Conversation& conversation, Run& run, const Said& said) {
  switch (said.kind) {
    case Said::Kind::Show:
      conversation.say(encode_snapshot(run.group.snapshot(loop_.now())));
      break;
    case Said::Kind::Close:
      run.group.close(loop_.now());
      conversation.say(encode_snapshot(run.group.snapshot(loop_.now())));
      break;
    case Said::Kind::Alive:
      conversation.say(encode_plain(Told::Kind::Alive));
      break;
    case Said::Kind::Beat:
      break;
    case Said::Kind::Join:
    case Said::Kind::Leave:
      break;  // an observer has no seat
  }
}

void Host::ended(store::Conversation& conversation, End how) {
  (void)how;  // a node that ends its conversation may come back just as one whose connection broke
  const auto found = lines_.find(&conversation);
  if (found == lines_.end()) return;
  const Line line = found->second;
  conversation.set_note(nullptr);
  lines_.erase(found);
  if (line.seat != nullptr) {
    line.run->group.lose(*line.seat, loop_.now());
  } else {
    line.run->group.remove_observer(conversation);
  }
  tend(*line.run);
}

void Host::tend(Run& run) {
  log_progress(run);
  if (run.group.needs_flush(loop_.now()) && !run.to_flush) {
    run.to_flush = true;
    to_flush_.push_back(&run);
    if (!flush_.queued()) {
      loop_.soon(
          flush_, [](void* self) { static_cast<Host*>(self)->flush(); }, this);
    }
  }
  const TimePoint wakes = run.to_flush ? kNever : run.group.next_deadline();
  if (wakes == run.wakes) return;
  if (run.wakes != kNever) wakes_.erase({run.wakes, &run});
  run.wakes = wakes;
  if (run.wakes != kNever) wakes_.insert({run.wakes, &run});
  timer_.set(wakes_.empty() ? kNever : wakes_.begin()->first);
}

void Host::flush() {
  std::vector<Run*> runs;
  runs.swap(to_flush_);
  for (Run* run : runs) {
    run->to_flush = false;
    run->group.flush(loop_.now());
    tend(*run);
  }
}

void Host::wake() {
  const TimePoint now = loop_.now();
  while (!wakes_.empty() && wakes_.begin()->first <= now) {
    Run& run = *wakes_.begin()->second;
    const Duration late = now - wakes_.begin()->first;
    wakes_.erase(wakes_.begin());
    run.wakes = kNever;
    if (late > kLateMax) run.group.excuse_silence(now + std::min(late, kExcuseMax));
    run.group.tick(now);
    tend(run);
  }
  timer_.set(wakes_.empty() ? kNever : wakes_.begin()->first);
}

void Host::log_progress(Run& run) {
  const State& state = run.group.state();
  if (state.complete && (!run.logged_complete || run.logged_round != state.round)) {
    log::info("rendezvous", "round complete run={} round={} nodes={}", log::quote(run.name),
              state.round, state.world_size);
  }
  if (state.closed && !run.logged_closed) {
    log::info("rendezvous", "run closed run={} round={}", log::quote(run.name), state.round);
  }
  run.logged_round = state.round;
  run.logged_complete = state.complete;
  run.logged_closed = state.closed;
}

}  // namespace muster::rendezvous
