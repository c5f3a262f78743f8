// Workers that gather, give up, die, are started again, come and go as a seed decides, without
// threads and without a network: what Gather does with GatherHall and GatherLines, step by step.

#include "muster/base/random.h"
#include "muster/rpc/gather_hall.h"
#include "tests/seeds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

constexpr const char* kSet = "all";

using Ticket = GatherHall::Ticket;

// One thread that gathers, as Gather::gather, follow and lead.
struct Visitor {
  enum class State : std::uint8_t {
    Idle,
    Ready,  // to go to whoever leads
    Asked,
    Cut,  // it had asked, and lost the connection
  };
  State state = State::Idle;
  GatherPlace place;
  std::string value;  // nobody else ever brings it
  std::string leader;
  std::uint64_t asked = 0;   // that process
  std::uint64_t holder = 0;  // may have had the arrival before
  Ticket ticket = 0;
  int complete_count = 0;
};

struct Process {
  std::string name;
  std::uint64_t number = 0;
  GatherMembers view;  // may be old
  GatherHall hall;
  GatherLines lines;
  std::vector<Visitor> visitors;

  bool gathers() const {
    for (const Visitor& one : visitors) {
      if (one.state != Visitor::State::Idle) return true;
    }
    return false;
  }
};

// What is on its way.
struct Letter {
  std::uint64_t to = 0;
  Ticket ticket = 0;
  GatherArrival arrival;
};
struct Answer {
  Ticket ticket = 0;
  CallResult<GatherAnswer> answer;
};

class Crowd {
 public:
  explicit Crowd(std::uint64_t seed)
      : random_(seed), is_dynamic_(random_.chance(500)), thread_count_(1 + random_.below(2)) {
    const std::size_t count = 2 + random_.below(3);
    for (std::size_t index = 0; index < count; ++index) {
      names_.push_back(std::string(1, static_cast<char>('a' + index)));
    }
    // Some days are good ones.
    for (std::uint64_t& weight : weights_) weight = random_.below(4) == 0 ? 0 : random_.below(20);
    for (const std::string& name : names_) {
      if (!is_dynamic_ || random_.chance(700)) start(name);
    }
    for (auto& [number, process] : processes_) process->view = members_;
  }

  void make_trouble(int step_count) {
    for (int step = 0; step < step_count && !has_failed(); ++step) take_a_step();
  }

  // Nothing goes wrong any more, and everybody gathers on and on.
  void expect_to_go_on() {
    while (!is_dynamic_ && processes_.size() < names_.size()) start_one_that_is_missing();
    if (processes_.empty()) start(names_.front());
    for (auto& [number, process] : processes_) {
      for (Visitor& one : process->visitors) one.complete_count = 0;
    }
    // Who has fallen behind hears of one failure after the other until it has caught up.
    const int pass_max = 100 + 10 * give_up_count_;
    for (int pass = 0; pass < pass_max && !has_failed(); ++pass) {
      const std::uint64_t before = event_count_;
      for (auto& [number, process] : processes_) process->view = members_;
      while (!letters_.empty()) deliver_a_letter();
      while (!answers_.empty()) deliver_an_answer();
      bool are_done = true;
      for (auto& [number, process] : processes_) {
        look(*process);
        for (Visitor& one : process->visitors) {
          if (one.state == Visitor::State::Idle) begin(*process, one);
          if (one.state == Visitor::State::Cut) retry(*process, one);
          if (one.state == Visitor::State::Ready) go(*process, one);
          are_done = are_done && one.complete_count >= 3;
        }
      }
      if (are_done) return;
      ASSERT_NE(event_count_, before) << "all of them wait for ever\n" << describe();
    }
    if (!has_failed()) FAIL() << "they do not come together\n" << describe();
  }

 private:
  static bool has_failed() { return ::testing::Test::HasFailure(); }

  void take_a_step() {
    std::uint64_t sum = 0;
    // What must happen happens often enough.
    const auto weight_of = [&](std::size_t index) {
      return index < 6 ? 20 + 5 * weights_[index] : weights_[index];
    };
    for (std::size_t index = 0; index < std::size(weights_); ++index) sum += weight_of(index);
    std::uint64_t chosen = random_.below(sum);
    std::size_t index = 0;
    while (chosen >= weight_of(index)) chosen -= weight_of(index++);
    Process* const process = any_process();
    if (process == nullptr) return start_one_that_is_missing();
    Visitor& visitor = process->visitors[random_.below(process->visitors.size())];
    const bool is_idle = visitor.state == Visitor::State::Idle;
    switch (index) {
      case 0:
        if (is_idle) begin(*process, visitor);
        break;
      case 1:
        if (visitor.state == Visitor::State::Ready) go(*process, visitor);
        if (visitor.state == Visitor::State::Cut) retry(*process, visitor);
        break;
      case 2:
        if (!letters_.empty()) deliver_a_letter();
        break;
      case 3:
        if (!answers_.empty()) deliver_an_answer();
        break;
      case 4:
        look(*process);
        break;
      case 5:
        process->view = members_;
        break;
      case 6:
        if (!is_idle) give_up(*process, visitor);
        break;
      case 7:
        cut(*process, visitor);
        break;
      case 8:
        miss_the_dead(*process, visitor);
        break;
      case 9:
        if (random_.chance(300)) kill(*process);
        break;
      default:
        start_one_that_is_missing();
        break;
    }
    for (const auto& [number, one] : processes_) {
      // With several threads, one that has waited for long keeps what others have given up.
      if (thread_count_ > 1) break;
      ASSERT_LE(one->hall.waiting_count(), last_process_ * (1 + GatherHall::kGivenUpMax));
    }
  }

  // ---- who is there

  void start(const std::string& name) {
    auto process = std::make_unique<Process>();
    process->name = name;
    process->number = ++last_process_;
    process->visitors.resize(thread_count_);
    members_[name] = process->number;
    process->view = members_;
    processes_.emplace(process->number, std::move(process));
    ++event_count_;
  }
  void start_one_that_is_missing() {
    std::vector<std::string> missing;
    for (const std::string& name : names_) {
      const auto member = members_.find(name);
      if (member == members_.end() || !processes_.contains(member->second)) missing.push_back(name);
    }
    if (!missing.empty()) start(missing[random_.below(missing.size())]);
  }
  void kill(const Process& process) {
    const std::uint64_t number = process.number;
    if (is_dynamic_) members_.erase(process.name);
    processes_.erase(number);
    for (auto& [other, one] : processes_) {
      for (Visitor& visitor : one->visitors) {
        if (visitor.state == Visitor::State::Asked && visitor.asked == number) {
          visitor.state = Visitor::State::Cut;
          visitor.holder = number;
        }
      }
    }
  }
  Process* any_process() {
    if (processes_.empty()) return nullptr;
    auto one = processes_.begin();
    std::advance(one, static_cast<std::ptrdiff_t>(random_.below(processes_.size())));
    return one->second.get();
  }

  // ---- what one that gathers does

  void begin(Process& process, Visitor& visitor) {
    ++event_count_;
    visitor.place = process.lines.take(kSet).value();
    visitor.value = fmt::format("{} {} {}", process.name, process.number, ++last_value_);
    visitor.holder = 0;
    visitor.state = Visitor::State::Ready;
  }
  void go(Process& process, Visitor& visitor) {
    look(process);
    const auto own = process.view.find(process.name);
    if (own == process.view.end() || own->second != process.number) return end(process, visitor);
    visitor.leader = process.view.begin()->first;
    visitor.asked = process.view.begin()->second;
    visitor.place = process.lines.go_to(kSet, visitor.place, visitor.asked);
    ask(process, visitor);
  }
  void ask(Process& process, Visitor& visitor) {
    ++event_count_;
    visitor.ticket = ++last_ticket_;
    visitor.state = Visitor::State::Asked;
    Letter letter{visitor.asked, visitor.ticket, {}};
    letter.arrival.set = kSet;
    letter.arrival.name = process.name;
    letter.arrival.process = process.number;
    letter.arrival.place = visitor.place;
    letter.arrival.value = visitor.value;
    letter.arrival.is_repeat = visitor.holder != 0;
    letter.arrival.attempt = visitor.ticket;
    letter.arrival.leader = visitor.asked;
    process.lines.fill_awaits(letter.arrival);
    if (visitor.asked == process.number) return arrive(process, std::move(letter));
    if (processes_.contains(visitor.asked)) {
      letters_.push_back(std::move(letter));
      return;
    }
    // Nothing could be sent.
    visitor.state = is_dynamic_ ? Visitor::State::Ready : Visitor::State::Cut;
    if (!is_dynamic_) visitor.holder = visitor.asked;
  }
  void retry(Process& process, Visitor& visitor) {
    const auto leader = process.view.find(visitor.leader);
    const bool is_lost = leader == process.view.end() || leader->second != visitor.holder;
    const bool is_gone = !is_dynamic_ && !processes_.contains(visitor.holder);
    if (is_lost || is_gone) return end(process, visitor);
    if (!processes_.contains(visitor.holder)) return;  // until the group says so
    ask(process, visitor);
  }
  void end(Process& process, Visitor& visitor) {
    ++event_count_;
    process.lines.leave(kSet, visitor.place);
    visitor.state = Visitor::State::Idle;
  }
  void give_up(Process& process, Visitor& visitor) {
    ++give_up_count_;
    if (visitor.state == Visitor::State::Asked && visitor.asked == process.number) {
      hand_on(process, process.hall.fail(kSet, visitor.ticket, timed_out()));
    }
    end(process, visitor);
  }
  // The letter, or the answer, may arrive all the same.
  void cut(Process& process, Visitor& visitor) {
    if (visitor.state != Visitor::State::Asked || visitor.asked == process.number) return;
    visitor.state = Visitor::State::Cut;
    visitor.holder = visitor.asked;
    const auto is_its = [&](const auto& one) { return one.ticket == visitor.ticket; };
    if (random_.chance(500)) std::erase_if(letters_, is_its);
    std::erase_if(answers_, is_its);
  }
  void miss_the_dead(Process& process, const Visitor& visitor) {
    if (visitor.state != Visitor::State::Asked || is_dynamic_) return;
    if (visitor.asked != process.number) return stand_in(process, *processes_.at(visitor.asked));
    for (const std::string& name : process.hall.missing(kSet, visitor.ticket)) {
      if (processes_.contains(members_.at(name))) continue;
      ++give_up_count_;
      return hand_on(process, process.hall.fail(kSet, visitor.ticket, timed_out()));
    }
  }
  void stand_in(const Process& deputy, Process& leader) {
    if (leader.gathers()) return;
    const auto waiting = leader.hall.waiting_with(kSet, deputy.name);
    if (waiting.empty()) return;
    for (const std::string& name : names_) {
      const bool waits = std::find(waiting.begin(), waiting.end(), name) != waiting.end();
      if (waits || processes_.contains(members_.at(name))) continue;
      ++give_up_count_;
      return hand_on(leader, leader.hall.fail_without(kSet, name, timed_out()));
    }
  }
  static CallError timed_out() { return {CallErrorKind::Remote, "it took too long", "", true}; }

  // ---- what arrives

  void deliver_a_letter() {
    ++event_count_;
    Letter letter = take_any(letters_);
    const auto to = processes_.find(letter.to);
    if (to == processes_.end()) return;
    const GatherArrival& arrival = letter.arrival;
    // Whoever connects is looked up in the store first.
    if (!is_dynamic_) to->second->view[arrival.name] = members_.at(arrival.name);
    arrive(*to->second, std::move(letter));
  }
  void arrive(Process& leader, Letter letter) {
    auto arrived = leader.hall.arrive(std::move(letter.arrival), letter.ticket);
    hand_on(leader, std::move(arrived.replies));
    if (arrived.needs_look) look(leader);
  }
  void look(Process& process) {
    if (process.gathers()) hand_on(process, process.hall.look(kSet, process.name, process.view));
  }
  void hand_on(const Process& leader, std::vector<GatherHall::Reply> replies) {
    event_count_ += replies.size();
    for (GatherHall::Reply& reply : replies) {
      if (reply.answer && reply.answer->verdict == GatherVerdict::Complete) {
        check_complete(leader, *reply.answer);
      }
      answers_.push_back({reply.ticket, std::move(reply.answer)});
    }
  }
  // All values are of one gather of those who were there, and of no other.
  void check_complete(const Process& leader, const GatherAnswer& answer) {
    for (const auto& [name, value] : *answer.values) {
      const auto [known, is_new] = outcomes_.emplace(value, answer.values);
      EXPECT_EQ(known->second, answer.values) << value << " was part of two gathers";
      if (!is_new) continue;
      ASSERT_TRUE(leader.view.contains(name));
      const auto whose = fmt::format("{} {} ", name, leader.view.at(name));
      EXPECT_EQ(value.substr(0, whose.size()), whose);
      EXPECT_EQ(answer.values->size(), leader.view.size());
    }
  }
  void deliver_an_answer() {
    ++event_count_;
    Answer answer = take_any(answers_);
    for (auto& [number, process] : processes_) {
      for (Visitor& one : process->visitors) {
        if (one.ticket == answer.ticket && one.state == Visitor::State::Asked) {
          return hear(*process, one, answer.answer);
        }
      }
    }
  }
  void hear(Process& process, Visitor& visitor, const CallResult<GatherAnswer>& answer) {
    if (!answer) return end(process, visitor);
    if (answer->verdict == GatherVerdict::Complete) {
      EXPECT_EQ(answer->values->at(process.name), visitor.value) << "of another gather";
      ++visitor.complete_count;
      process.lines.came_to(kSet, visitor.place, answer->era);
      return end(process, visitor);
    }
    const bool is_other = visitor.holder != 0 && answer->era.leader != visitor.holder;
    if (is_other) return end(process, visitor);  // the leader that had it was lost
    visitor.place = answer->verdict == GatherVerdict::Again
                        ? process.lines.take_again(kSet, visitor.place, answer->era)
                        : process.lines.keep_or_take(kSet, visitor.place);
    visitor.holder = 0;
    visitor.state = Visitor::State::Ready;
  }
  template <typename T>
  T take_any(std::vector<T>& some) {
    std::swap(some[random_.below(some.size())], some.back());
    T one = std::move(some.back());
    some.pop_back();
    return one;
  }

  std::string describe() const {
    std::string text = is_dynamic_ ? "a dynamic group\n" : "a static group\n";
    for (const auto& [number, process] : processes_) {
      for (const Visitor& one : process->visitors) {
        text += fmt::format("{} {}: state {} at line {} era {}.{} count {}, complete {}\n",
                            process->name, number, static_cast<int>(one.state), one.place.line,
                            one.place.era.leader, one.place.era.number, one.place.count,
                            one.complete_count);
      }
    }
    return text;
  }

  Random random_;
  const bool is_dynamic_;
  const std::size_t thread_count_;
  std::vector<std::string> names_;
  std::uint64_t weights_[11] = {};
  GatherMembers members_;
  std::map<std::uint64_t, std::unique_ptr<Process>> processes_;  // those that live
  std::vector<Letter> letters_;
  std::vector<Answer> answers_;
  std::map<std::string, std::shared_ptr<const GatherValues>> outcomes_;  // by what was brought
  std::uint64_t last_process_ = 0;
  std::uint64_t last_value_ = 0;
  Ticket last_ticket_ = 0;
  int give_up_count_ = 0;
  std::uint64_t event_count_ = 0;
};

// 25 found two threads of a worker that began to count at different times, 42 workers that waited
// for one that had gone on before they came.
TEST(GatherHallModel, BringsAllTogetherWhateverHasHappened) {
  for (const std::uint64_t seed :
       tests::seeds_to_run(tests::kIsSlow ? 200 : 2000, tests::kIsSlow ? 50 : 500)) {
    SCOPED_TRACE(tests::replay_command(seed));
    Crowd crowd(seed);
    crowd.make_trouble(20 + static_cast<int>(seed % 300));
    crowd.expect_to_go_on();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace muster::rpc
