#include "tests/linearizability/checker.h"

#include "tests/linearizability/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

namespace muster::linearizability {
namespace {

using Status = Answer::Status;

constexpr CheckOptions kDefaults;

// --- Histories by hand -------------------------------------------------------------------------

Operation operation(std::uint64_t invoked, std::uint64_t returned, Call call, Answer answer) {
  return {.client = 0,
          .call = std::move(call),
          .answer = std::move(answer),
          .outcome = Outcome::Ok,
          .invoked = invoked,
          .returned = returned};
}

Call call(Kind kind, std::string value = "", std::string expected = "", std::int64_t delta = 0) {
  return {.kind = kind,
          .key = "k",
          .value = std::move(value),
          .expected = std::move(expected),
          .delta = delta};
}

Operation set(std::uint64_t invoked, std::uint64_t returned, std::string value) {
  return operation(invoked, returned, call(Kind::Set, std::move(value)), {});
}
Operation append(std::uint64_t invoked, std::uint64_t returned, std::string data) {
  return operation(invoked, returned, call(Kind::Append, std::move(data)), {});
}
Operation get(std::uint64_t invoked, std::uint64_t returned, std::string value) {
  return operation(invoked, returned, call(Kind::Get), {Status::Done, std::move(value)});
}
Operation read(std::uint64_t invoked, std::uint64_t returned, Value value) {
  const Status status = value ? Status::Yes : Status::No;
  return operation(invoked, returned, call(Kind::TryGet), {status, value.value_or("")});
}
Operation add(std::uint64_t invoked, std::uint64_t returned, std::int64_t delta, std::string sum) {
  return operation(invoked, returned, call(Kind::Add, "", "", delta),
                   {Status::Done, std::move(sum)});
}
Operation add_refused(std::uint64_t invoked, std::uint64_t returned) {
  return operation(invoked, returned, call(Kind::Add, "", "", 1), {Status::Invalid, ""});
}
Operation erase(std::uint64_t invoked, std::uint64_t returned, bool existed) {
  return operation(invoked, returned, call(Kind::Erase), {existed ? Status::Yes : Status::No, ""});
}

struct Comparison {
  std::string expected;
  std::string desired;
};
Operation compare_set(std::uint64_t invoked, std::uint64_t returned, Comparison comparison,
                      Answer answer) {
  return operation(invoked, returned,
                   call(Kind::CompareSet, comparison.desired, comparison.expected),
                   std::move(answer));
}

Operation lost(Operation operation) {
  operation.outcome = Outcome::Unknown;
  operation.returned = kNotReturned;
  operation.answer = {};
  return operation;
}
Operation refused(Operation operation) {
  operation.outcome = Outcome::FailedNotApplied;
  return operation;
}

testing::AssertionResult accepted(const History& history) {
  const Verdict verdict = check(history, kDefaults);
  if (verdict.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << verdict.explanation;
}
testing::AssertionResult rejected(const History& history) {
  const Verdict verdict = check(history, kDefaults);
  if (verdict.kind == Verdict::Kind::NotLinearizable) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "the verdict is " << (verdict.ok() ? "linearizable" : verdict.explanation);
}

TEST(Checker, AcceptsAnEmptyHistory) { EXPECT_TRUE(accepted({})); }

TEST(Checker, AcceptsASequentialHistory) {
  EXPECT_TRUE(accepted({read(1, 2, {}), set(3, 4, "a"), read(5, 6, "a"), erase(7, 8, true),
                        erase(9, 10, false), add(11, 12, 2, "2"), get(13, 14, "2")}));
}

TEST(Checker, LetsAReadSeeEitherSideOfAWriteAtTheSameTime) {
  EXPECT_TRUE(accepted({set(1, 2, "a"), set(3, 6, "b"), read(4, 5, "a")}));
  EXPECT_TRUE(accepted({set(1, 2, "a"), set(3, 6, "b"), read(4, 5, "b")}));
}

TEST(Checker, RejectsAStaleRead) {
  EXPECT_TRUE(rejected({set(1, 2, "a"), set(3, 4, "b"), read(5, 6, "a")}));
}

TEST(Checker, RejectsAReadThatMissesAWrite) {
  EXPECT_TRUE(rejected({set(1, 2, "a"), read(3, 4, {})}));
}

TEST(Checker, RejectsAReadFromTheFuture) {
  EXPECT_TRUE(rejected({read(1, 2, "a"), set(3, 4, "a")}));
  EXPECT_TRUE(rejected({get(1, 2, "a"), set(3, 4, "a")}));
}

TEST(Checker, RejectsAValueThatNobodyWrote) {
  EXPECT_TRUE(rejected({set(1, 2, "a"), read(3, 4, "c")}));
}

TEST(Checker, RejectsALostUpdate) {
  EXPECT_TRUE(rejected({add(1, 4, 1, "1"), add(2, 3, 1, "1")}));
  EXPECT_TRUE(rejected({add(1, 4, 1, "1"), add(2, 3, 1, "2"), read(5, 6, "1")}));
}

TEST(Checker, RejectsAnAddThatWasAppliedTwice) {
  EXPECT_TRUE(rejected({add(1, 2, 5, "5"), read(3, 4, "10")}));
  EXPECT_TRUE(rejected({lost(add(1, 2, 5, "")), read(3, 4, "10")}));
  EXPECT_TRUE(accepted({lost(add(1, 2, 5, "")), lost(add(3, 4, 5, "")), read(5, 6, "10")}));
}

TEST(Checker, RejectsTwoComparisonsThatBothWon) {
  const Operation first = compare_set(2, 5, {"", "a"}, {Status::Yes, "a"});
  const Operation second = compare_set(3, 4, {"", "b"}, {Status::Yes, "b"});
  EXPECT_TRUE(rejected({first, second}));
  EXPECT_TRUE(accepted({first, compare_set(3, 4, {"", "b"}, {Status::No, "a"})}));
}

TEST(Checker, KnowsTheFourAnswersOfCompareSet) {
  EXPECT_TRUE(accepted({compare_set(1, 2, {"", "a"}, {Status::Yes, "a"}), read(3, 4, "a")}));
  EXPECT_TRUE(accepted({compare_set(1, 2, {"x", "a"}, {Status::No, "x"}), read(3, 4, {})}));
  EXPECT_TRUE(accepted({set(1, 2, "x"), compare_set(3, 4, {"x", "a"}, {Status::Yes, "a"})}));
  EXPECT_TRUE(accepted({set(1, 2, "y"), compare_set(3, 4, {"x", "a"}, {Status::No, "y"})}));
  EXPECT_TRUE(accepted({set(1, 2, ""), compare_set(3, 4, {"", "a"}, {Status::Yes, "a"})}));

  EXPECT_TRUE(rejected({compare_set(1, 2, {"x", "a"}, {Status::No, ""})}));
  EXPECT_TRUE(rejected({compare_set(1, 2, {"", "a"}, {Status::Yes, ""})}));
  EXPECT_TRUE(rejected({compare_set(1, 2, {"", "a"}, {Status::No, ""})}));
  EXPECT_TRUE(rejected({set(1, 2, "x"), compare_set(3, 4, {"x", "a"}, {Status::No, "x"})}));
}

TEST(Checker, RejectsReadsThatGoBack) {
  const Operation write = set(3, 20, "b");
  EXPECT_TRUE(rejected({set(1, 2, "a"), write, read(4, 5, "b"), read(6, 7, "a")}));
  EXPECT_TRUE(accepted({set(1, 2, "a"), write, read(4, 5, "a"), read(6, 7, "b")}));
  EXPECT_TRUE(accepted({set(1, 2, "a"), write, read(4, 7, "b"), read(5, 6, "a")}));
}

TEST(Checker, RejectsADeletedKeyThatComesBack) {
  EXPECT_TRUE(rejected({set(1, 2, "a"), erase(3, 4, true), read(5, 6, "a")}));
  EXPECT_TRUE(rejected({set(1, 2, "a"), erase(3, 6, true), erase(4, 5, true)}));
}

TEST(Checker, AddsLikeStrtollAndRefusesText) {
  EXPECT_TRUE(accepted({set(1, 2, "12abc"), add(3, 4, 1, "13"), read(5, 6, "13")}));
  EXPECT_TRUE(accepted({set(1, 2, "  7"), add(3, 4, -9, "-2")}));
  EXPECT_TRUE(accepted({set(1, 2, "9223372036854775807"), add(3, 4, 1, "-9223372036854775808")}));
  EXPECT_TRUE(accepted({set(1, 2, "-9223372036854775808"), add(3, 4, 0, "-9223372036854775808")}));
  EXPECT_TRUE(accepted({add(1, 2, 0, "0"), read(3, 4, "0")}));
  for (const char* text : {"", "-", "abc", "9223372036854775808", "- 1"}) {
    EXPECT_TRUE(accepted({set(1, 2, text), add_refused(3, 4), read(5, 6, text)})) << text;
  }
  EXPECT_TRUE(rejected({set(1, 2, "7"), add_refused(3, 4)}));
  EXPECT_TRUE(rejected({set(1, 2, "abc"), add(3, 4, 1, "1")}));
  EXPECT_TRUE(rejected({add(1, 2, 1, "01")}));
}

TEST(Checker, OrdersAppendsByWhatIsRead) {
  EXPECT_TRUE(accepted({append(1, 4, "a"), append(2, 3, "b"), read(5, 6, "ba")}));
  EXPECT_TRUE(rejected({append(1, 2, "a"), append(3, 4, "b"), read(5, 6, "ba")}));
  EXPECT_TRUE(rejected({append(1, 2, "a"), append(3, 4, "b"), read(5, 6, "b")}));
  EXPECT_TRUE(accepted({append(1, 2, "1"), append(3, 4, "2"), add(5, 6, 1, "13")}));
}

TEST(Checker, FollowsNumbersThatAreAppended) {
  EXPECT_TRUE(accepted({set(1, 2, ""), append(3, 4, "-5"), add(5, 6, 1, "-4")}));
  EXPECT_TRUE(accepted({set(1, 2, ""), append(3, 4, " 5"), add(5, 6, 1, "6")}));
  EXPECT_TRUE(
      accepted({set(1, 2, "50a"), lost(add(3, 0, 1, "")), append(5, 6, "1"), read(7, 8, "511")}));
  EXPECT_TRUE(
      accepted({set(1, 2, ""), lost(set(3, 0, "b")), append(5, 6, "1"), add_refused(7, 8)}));
  EXPECT_TRUE(rejected({set(1, 2, ""), append(5, 6, "1"), add_refused(7, 8)}));
}

TEST(Checker, LetsALostWriteTakeEffectLate) {
  EXPECT_TRUE(accepted(
      {set(1, 2, "a"), lost(set(3, 0, "b")), read(5, 6, "a"), set(7, 8, "c"), read(9, 10, "b")}));
  EXPECT_TRUE(rejected({set(1, 2, "a"), lost(set(3, 0, "b")), read(5, 6, "b"), read(7, 8, "a")}));
  EXPECT_TRUE(rejected({set(1, 2, "a"), read(3, 4, "b"), lost(set(5, 0, "b"))}));
}

TEST(Checker, LetsALostWriteNeverTakeEffect) {
  EXPECT_TRUE(accepted({set(1, 2, "a"), lost(erase(3, 0, true)), lost(set(3, 0, "b")),
                        lost(add(3, 0, 1, "")), read(5, 6, "a")}));
}

TEST(Checker, LetsALostWriteTakeEffectOnlyOnce) {
  EXPECT_TRUE(rejected({lost(set(1, 0, "b")), read(3, 4, "b"), set(5, 6, "a"), read(7, 8, "b"),
                        set(9, 10, "c"), read(11, 12, "b")}));
}

TEST(Checker, LetsARefusedWriteHaveNoEffect) {
  EXPECT_TRUE(rejected({refused(set(1, 2, "a")), read(3, 4, "a")}));
  EXPECT_TRUE(accepted({refused(set(1, 2, "a")), read(3, 4, {})}));
}

TEST(Checker, LetsAGetOfADeletedKeyBeEmptyOnlyIfTold) {
  const History history{set(1, 2, "a"), erase(3, 6, true), get(4, 5, "")};
  EXPECT_TRUE(rejected(history));
  EXPECT_TRUE(check(history, {.get_of_deleted_is_empty = true}).ok());
  EXPECT_FALSE(check({set(1, 2, "a"), get(3, 4, "")}, {.get_of_deleted_is_empty = true}).ok());
}

TEST(Checker, ChecksEachKeyAloneAndNamesTheOneThatWentWrongFirst) {
  History history{set(1, 2, "a"),  read(3, 4, {}), set(1, 2, "a"),
                  read(5, 6, "x"), set(1, 2, "a"), read(7, 8, "a")};
  history[0].call.key = history[1].call.key = "z";
  history[2].call.key = history[3].call.key = "b";
  const Verdict verdict = check(history, kDefaults);
  EXPECT_EQ(verdict.kind, Verdict::Kind::NotLinearizable);
  EXPECT_EQ(verdict.key, "z");
  EXPECT_NE(verdict.explanation.find("1 more key"), std::string::npos) << verdict.explanation;
}

TEST(Checker, ExplainsWhatWentWrong) {
  History history{set(1, 2, "a"),  set(3, 4, "b"),   lost(add(5, 0, 3, "")),
                  set(6, 12, "c"), read(7, 10, "a"), read(13, 14, "c")};
  for (std::size_t index = 0; index < history.size(); ++index) {
    history[index].client = static_cast<int>(index);
  }
  EXPECT_EQ(check(history, kDefaults).explanation,
            R"(not linearizable: key "k" (6 operations)
  No order explains client 4: try_get -> "a".
  With all that returned before it in place, the value can only be: "b", "c".
  What happened around it:
    client 0   |-|                 set "a" -> done at 1…2
    client 1       |-|             set "b" -> done at 3…4
    client 2           |.........? add 3 -> no answer at 5…
    client 3             |-----|   set "c" -> done at 6…12
    client 4               |-|     try_get -> "a" at 7…10   <== here
)");
}

TEST(Checker, KeepsItsExplanationShort) {
  History history;
  for (std::uint64_t index = 0; index < 100; ++index) {
    history.push_back(lost(append(index + 1, 0, "x")));
    history.push_back(set(400 + index * 2, 401 + index * 2, std::string(1000, '\n')));
  }
  history.push_back(read(1100, 1200, "y"));
  const Verdict verdict = check(history, kDefaults);
  EXPECT_EQ(verdict.kind, Verdict::Kind::NotLinearizable);
  EXPECT_LT(verdict.explanation.size(), 8000U) << verdict.explanation;
}

TEST(Checker, GivesUpAtItsLimitAndSaysSo) {
  History history;
  for (std::uint64_t index = 0; index < 12; ++index) {
    history.push_back(set(1, 100 + index, std::to_string(index)));
  }
  history.push_back(read(200, 201, "none"));
  const std::size_t needed = check(history, kDefaults).explored;
  const Verdict at_limit = check(history, {.configurations_max = needed});
  EXPECT_EQ(at_limit.kind, Verdict::Kind::NotLinearizable);
  const Verdict past_limit = check(history, {.configurations_max = needed - 1});
  EXPECT_EQ(past_limit.kind, Verdict::Kind::GaveUp);
  EXPECT_FALSE(past_limit.ok());
  EXPECT_EQ(past_limit.explanation.find("gave up: key \"k\""), 0U) << past_limit.explanation;
}

TEST(Checker, GivesUpOnMoreOperationsAtOneTimeThanItHasRoomFor) {
  History history(kConcurrentMax, read(1, 2, {}));
  EXPECT_TRUE(accepted(history));
  history.push_back(read(1, 2, {}));
  const Verdict verdict = check(history, kDefaults);
  EXPECT_EQ(verdict.kind, Verdict::Kind::GaveUp);
  EXPECT_NE(verdict.explanation.find("at one time"), std::string::npos) << verdict.explanation;
}

// --- Random small histories, compared with trying every order
// --------------------------------------

// Tries every order and every choice of lost operations, with `perform` as the only judge.
bool exists_order(const History& history, std::vector<bool>& placed, const Value& value) {
  bool all_answered_placed = true;
  std::uint64_t latest = kNotReturned;
  for (std::size_t index = 0; index < history.size(); ++index) {
    if (placed[index] || history[index].outcome != Outcome::Ok) continue;
    all_answered_placed = false;
    latest = std::min(latest, history[index].returned);
  }
  if (all_answered_placed) return true;
  for (std::size_t index = 0; index < history.size(); ++index) {
    const Operation& candidate = history[index];
    if (placed[index] || candidate.invoked > latest) continue;
    if (candidate.outcome == Outcome::FailedNotApplied) continue;
    Value next = value;
    const Answer answer = perform(candidate.call, next);
    if (candidate.outcome == Outcome::Ok && !(answer == candidate.answer)) continue;
    placed[index] = true;
    if (exists_order(history, placed, next)) return true;
    placed[index] = false;
  }
  return false;
}

template <std::size_t kSize>
std::string pick(Random& random, const std::array<const char*, kSize>& choices) {
  return choices[random.below(kSize)];
}

// Few values, so that operations meet and texts begin with each other.
Call small_call(Random& random, bool appends_numbers) {
  constexpr std::array kValues{"", "1", "2", "a", "1a", "11", "-", "50", "50a"};
  constexpr std::array kData{"1", "a", "-", "", "b", "ab"};
  constexpr std::array kKinds{Kind::Set, Kind::Get,        Kind::TryGet, Kind::TryGet,
                              Kind::Add, Kind::CompareSet, Kind::Erase,  Kind::Append};
  Call result = call(kKinds[random.below(kKinds.size())]);
  switch (result.kind) {
    case Kind::Set:
      result.value = pick(random, kValues);
      break;
    case Kind::Append:
      do {
        result.value = pick(random, kData);
      } while (!appends_numbers && (result.value == "1" || result.value == "-"));
      break;
    case Kind::Add:
      result.delta = static_cast<std::int64_t>(random.below(4)) - 1;
      break;
    case Kind::CompareSet:
      result.value = pick(random, kValues);
      result.expected = pick(random, kValues);
      break;
    default:
      break;
  }
  return result;
}

// Answers of the right form, from a sequential run in a random order within the intervals.
History small_history(Random& random) {
  struct Point {
    std::uint64_t time;
    std::size_t index;
  };
  const bool appends_numbers = random.chance(300);
  History history(1 + random.below(7));
  std::vector<Point> points;
  for (std::size_t index = 0; index < history.size(); ++index) {
    Operation& one = history[index];
    one.client = static_cast<int>(index);
    one.call = small_call(random, appends_numbers);
    one.invoked = random.below(12);
    one.returned = one.invoked + random.below(6);
    one.outcome = random.chance(250) ? Outcome::Unknown : Outcome::Ok;
    const std::uint64_t last = one.outcome == Outcome::Ok ? one.returned : 20;
    points.push_back({one.invoked + random.below(last - one.invoked + 1), index});
    // Some lost operations never take effect.
    if (one.outcome == Outcome::Unknown && random.chance(400)) points.pop_back();
  }
  std::stable_sort(points.begin(), points.end(),
                   [](const Point& left, const Point& right) { return left.time < right.time; });
  Value value;
  for (const Point& point : points) {
    Operation& one = history[point.index];
    one.answer = perform(one.call, value);
    // A Get of an absent key would wait. Asking without waiting keeps the run a right one.
    if (one.call.kind == Kind::Get && one.answer.status == Status::No) one.call.kind = Kind::TryGet;
  }
  return history;
}

void spoil(Random& random, Answer& answer) {
  constexpr std::array kValues{"", "0", "1", "2", "3", "a", "1a", "a1", "11", "12", "50a"};
  if (random.chance(300)) {
    answer.status = static_cast<Status>(random.below(4));
  } else {
    answer.value = pick(random, kValues);
  }
}

std::string print(const History& history) {
  std::string result;
  for (const Operation& one : history) {
    result += "  " + describe(one) + " at " + std::to_string(one.invoked) + "…" +
              std::to_string(one.returned) + "\n";
  }
  return result;
}

// Answers carry a value that nobody looks at for some kinds; `perform` leaves it empty there and so
// must we.
void normalise(Operation& one) {
  const bool no_value = one.call.kind == Kind::Set || one.call.kind == Kind::Append ||
                        one.call.kind == Kind::Erase || one.answer.status == Status::Invalid ||
                        (one.call.kind == Kind::TryGet && one.answer.status == Status::No);
  if (no_value) one.answer.value.clear();
  // The brute force answers a waiting Get with No, which is no answer in a history.
  if (one.call.kind == Kind::Get && one.answer.status == Status::No)
    one.answer.status = Status::Yes;
}

TEST(Checker, AgreesWithTryingEveryOrderOfSmallHistories) {
  std::size_t linearizable_count = 0;
  constexpr std::uint64_t kSeeds = 20'000;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Random random(seed);
    History history = small_history(random);
    std::vector<bool> placed(history.size());
    ASSERT_TRUE(exists_order(history, placed, std::nullopt)) << "seed " << seed << "\n"
                                                             << print(history);
    ASSERT_TRUE(accepted(history)) << "seed " << seed << "\n" << print(history);

    for (std::uint64_t left = 1 + random.below(2); left > 0; --left) {
      Operation& one = history[random.below(history.size())];
      spoil(random, one.answer);
      normalise(one);
    }
    placed.assign(history.size(), false);
    const bool expected = exists_order(history, placed, std::nullopt);
    const Verdict verdict = check(history, kDefaults);
    ASSERT_EQ(verdict.ok(), expected) << "seed " << seed << "\n"
                                      << print(history) << verdict.explanation;
    ASSERT_NE(verdict.kind, Verdict::Kind::GaveUp);
    linearizable_count += expected ? 1 : 0;
  }
  // Both sides must be well represented for the agreement to mean something.
  EXPECT_GT(linearizable_count, kSeeds / 10);
  EXPECT_LT(linearizable_count, kSeeds * 9 / 10);
}

// --- Random large histories --------------------------------------------------------------------

struct RunOptions {
  int client_count = 8;
  std::size_t operation_count = 2000;
  std::uint64_t lost_per_thousand = 0;
  WorkloadOptions workload{};
};

// A right history: clients invoke, the store performs and clients hear of it, each step at a random
// moment. Some replies get lost; then the operation is performed at any later moment, or never.
class RandomRun {
 public:
  RandomRun(std::uint64_t seed, RunOptions options)
      : random_(seed), options_(std::move(options)), recorder_(options_.client_count) {
    const auto client_count = static_cast<std::size_t>(options_.client_count);
    clients_.resize(client_count);
    for (std::size_t client = 0; client < client_count; ++client) {
      clients_[client].memory.client = static_cast<int>(client);
    }
  }

  History history() {
    while (begun_count_ < options_.operation_count) step(random_.below(clients_.size()));
    for (std::size_t client = 0; client < clients_.size(); ++client) {
      while (clients_[client].phase != Client::Phase::Idle) step(client);
    }
    return recorder_.history();
  }

 private:
  struct Client {
    enum class Phase { Idle, Sent, Performed };
    Phase phase = Phase::Idle;
    Memory memory;
    Call call;
    Answer answer;
    Recorder::Ticket ticket = 0;
  };

  void step(std::size_t index) {
    // What was lost shows up late.
    if (!floating_.empty() && random_.chance(20)) {
      std::swap(floating_[random_.below(floating_.size())], floating_.back());
      perform(floating_.back(), values_[floating_.back().key]);
      floating_.pop_back();
    }
    Client& client = clients_[index];
    switch (client.phase) {
      case Client::Phase::Idle:
        client.memory.operation_index = ++begun_count_;
        client.call = next_operation(random_, options_.workload, client.memory);
        client.ticket = recorder_.invoke(client.memory.client, client.call);
        client.phase = Client::Phase::Sent;
        break;
      case Client::Phase::Sent:
        send(client);
        break;
      case Client::Phase::Performed:
        client.phase = Client::Phase::Idle;
        if (random_.chance(options_.lost_per_thousand)) break;
        recorder_.answer(client.memory.client, client.ticket, client.answer);
        client.memory.seen[client.call.key] = values_[client.call.key];
        break;
    }
  }

  void send(Client& client) {
    Value& value = values_[client.call.key];
    if (random_.chance(options_.lost_per_thousand)) {
      if (!is_read(client.call.kind)) floating_.push_back(client.call);
      client.phase = Client::Phase::Idle;
    } else if (client.call.kind == Kind::Get && !value) {
      client.phase = Client::Phase::Idle;  // it gives up waiting
    } else {
      client.answer = perform(client.call, value);
      client.phase = Client::Phase::Performed;
    }
  }

  Random random_;
  RunOptions options_;
  Recorder recorder_;
  std::vector<Client> clients_;
  std::map<std::string, Value> values_;
  std::vector<Call> floating_;
  std::size_t begun_count_ = 0;
};

TEST(Checker, AcceptsLongHistoriesOfManyClients) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    RunOptions options{.client_count = 16, .operation_count = 4000};
    options.workload.key_count = 1 + seed % 3;
    EXPECT_TRUE(accepted(RandomRun(seed, options).history())) << "seed " << seed;
  }
}

TEST(Checker, AcceptsLongHistoriesWithLostReplies) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    RunOptions options{.client_count = 8, .operation_count = 1500, .lost_per_thousand = 10};
    EXPECT_TRUE(accepted(RandomRun(seed, options).history())) << "seed " << seed;
  }
}

// A read's value becomes another one that some client wrote.
bool spoil_a_read(Random& random, History& history) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    Operation& one = history[random.below(history.size())];
    const Operation& other = history[random.below(history.size())];
    const bool fits = one.call.kind == Kind::TryGet && other.call.kind == Kind::Set &&
                      one.answer.value != other.call.value && one.call.key == other.call.key;
    if (!fits) continue;
    one.answer = {Status::Yes, other.call.value};
    return true;
  }
  return false;
}

TEST(Checker, RejectsNearlyAllLongHistoriesWithOneWrongRead) {
  constexpr std::uint64_t kSeeds = 100;
  std::size_t rejected_count = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RunOptions options{
        .client_count = 8, .operation_count = 600, .lost_per_thousand = seed % 2 * 5};
    History history = RandomRun(seed, options).history();
    Random random(seed);
    ASSERT_TRUE(spoil_a_read(random, history));
    const Verdict verdict = check(history, kDefaults);
    ASSERT_NE(verdict.kind, Verdict::Kind::GaveUp) << verdict.explanation;
    rejected_count += verdict.ok() ? 0 : 1;
  }
  EXPECT_GE(rejected_count, kSeeds * 9 / 10);
}

// --- The workload ------------------------------------------------------------------------------

TEST(Workload, DrawsTheSameOperationsFromTheSameSeed) {
  const WorkloadOptions options;
  Memory memory;
  memory.seen["key0"] = "x";
  Random first(7);
  Random second(7);
  std::map<Kind, int> drawn;
  for (std::size_t index = 0; index < 1000; ++index) {
    memory.operation_index = index;
    const Call call = next_operation(first, options, memory);
    ASSERT_EQ(call, next_operation(second, options, memory));
    ++drawn[call.kind];
  }
  EXPECT_EQ(drawn.size(), 7U);
}

TEST(Workload, NeverDrawsAKindWithoutWeight) {
  WorkloadOptions options;
  options.weights = {
      .set = 0, .get = 0, .try_get = 0, .add = 1, .compare_set = 0, .erase = 0, .append = 0};
  Random random(1);
  for (int count = 0; count < 100; ++count) {
    const Call call = next_operation(random, options, {});
    ASSERT_EQ(call.kind, Kind::Add);
    ASSERT_GE(call.delta, 1);
    ASSERT_LE(call.delta, static_cast<std::int64_t>(options.delta_max));
  }
}

TEST(Workload, TakesOnlyInvalidForASureFailure) {
  for (const Kind kind : {Kind::Set, Kind::Add, Kind::CompareSet, Kind::Erase, Kind::Append}) {
    for (const ErrorKind error : {ErrorKind::Unavailable, ErrorKind::Timeout, ErrorKind::Conflict,
                                  ErrorKind::Closed, ErrorKind::Unimplemented, ErrorKind::Cancelled,
                                  ErrorKind::Corrupt, ErrorKind::Finished}) {
      EXPECT_EQ(reply_for(kind, {error, ""}).outcome, Outcome::Unknown);
    }
  }
  EXPECT_EQ(reply_for(Kind::Set, {ErrorKind::Invalid, ""}).outcome, Outcome::FailedNotApplied);
  EXPECT_EQ(reply_for(Kind::Add, {ErrorKind::Invalid, ""}).outcome, Outcome::Ok);
  EXPECT_EQ(reply_for(Kind::Add, {ErrorKind::Invalid, ""}).answer.status, Status::Invalid);
}

TEST(Recorder, DropsReadsWithoutAnAnswerAndKeepsWrites) {
  Recorder recorder(2);
  const auto first = recorder.invoke(0, call(Kind::TryGet));
  recorder.invoke(1, call(Kind::Set, "a"));
  recorder.answer(0, first, {Status::No, ""});
  recorder.invoke(0, call(Kind::Get));
  const auto refusal = recorder.invoke(1, call(Kind::Set, "b"));
  recorder.refuse(1, refusal);

  const History history = recorder.history();
  ASSERT_EQ(history.size(), 3U);
  EXPECT_EQ(history[0].outcome, Outcome::Ok);
  EXPECT_LT(history[0].invoked, history[1].invoked);
  EXPECT_LT(history[1].invoked, history[0].returned);
  EXPECT_EQ(history[1].outcome, Outcome::Unknown);
  EXPECT_EQ(history[2].outcome, Outcome::FailedNotApplied);
  EXPECT_EQ(recorder.begun_count(0), 2U);
}

TEST(Recorder, GivesEveryThreadItsOwnTimes) {
  constexpr int kThreads = 4;
  constexpr int kOperations = 500;
  Recorder recorder(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int client = 0; client < kThreads; ++client) {
    threads.emplace_back([&recorder, client] {
      for (int count = 0; count < kOperations; ++count) {
        const auto ticket = recorder.invoke(client, call(Kind::TryGet));
        recorder.answer(client, ticket, {Status::No, ""});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const History history = recorder.history();
  ASSERT_EQ(history.size(), static_cast<std::size_t>(kThreads * kOperations));
  std::vector<std::uint64_t> times;
  for (const Operation& one : history) {
    EXPECT_LT(one.invoked, one.returned);
    times.push_back(one.invoked);
    times.push_back(one.returned);
  }
  std::sort(times.begin(), times.end());
  EXPECT_EQ(std::adjacent_find(times.begin(), times.end()), times.end());
  EXPECT_TRUE(accepted(history));
}

// --- Clients against a store on virtual time ---------------------------------------------------

class VirtualLoop final : public Loop {
 public:
  TimePoint now() const override { return now_; }
  void post(std::function<void()> /*work*/) override { MUSTER_ASSERT(false); }

  // Runs until nothing is left to do.
  void run() {
    for (;;) {
      while (run_ready()) {
      }
      const std::optional<TimePoint> next = next_timer();
      if (!next) return;
      now_ = std::max(now_, *next);
      run_timers(now_);
    }
  }

 private:
  TimePoint now_{};
};

enum class Fault { None, LosesReplies, RepeatsLostRequests, ReadsFromAnOldCopy, Dead };

// A store whose requests and replies take random virtual time, and which can be wrong on purpose.
class SlowStore final : public store::Store {
 public:
  SlowStore(VirtualLoop& loop, Fault fault) : loop_(loop), fault_(fault) {}

  Task<Result<>> set(std::string key, std::string value) override {
    return nothing({.kind = Kind::Set, .key = std::move(key), .value = std::move(value)});
  }
  Task<Result<>> append(std::string key, std::string data) override {
    return nothing({.kind = Kind::Append, .key = std::move(key), .value = std::move(data)});
  }
  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    Call call{.kind = Kind::Get, .key = std::move(key)};
    const Result<Answer> answer = co_await act(std::move(call));
    if (!answer) co_return fail(answer.error());
    if (answer->status == Status::Done) co_return answer->value;
    co_await sleep_until(loop_, deadline);
    co_return fail(ErrorKind::Timeout, "no such key");
  }
  Task<Result<Value>> try_get(std::string key) override {
    Call call{.kind = Kind::TryGet, .key = std::move(key)};
    const Result<Answer> answer = co_await act(std::move(call));
    if (!answer) co_return fail(answer.error());
    if (answer->status == Status::No) co_return std::nullopt;
    co_return Value(answer->value);
  }
  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    Call call{.kind = Kind::Add, .key = std::move(key), .delta = delta};
    const Result<Answer> answer = co_await act(std::move(call));
    if (!answer) co_return fail(answer.error());
    if (answer->status == Status::Invalid) co_return fail(ErrorKind::Invalid, "not a number");
    co_return std::stoll(answer->value);
  }
  Task<Result<store::CompareSet>> compare_set(std::string key, std::string expected,
                                              std::string desired) override {
    Call call{.kind = Kind::CompareSet,
              .key = std::move(key),
              .value = std::move(desired),
              .expected = std::move(expected)};
    const Result<Answer> answer = co_await act(std::move(call));
    if (!answer) co_return fail(answer.error());
    store::CompareSet result{.stored = answer->status == Status::Yes, .value = answer->value};
    co_return result;
  }
  Task<Result<bool>> delete_key(std::string key) override {
    Call call{.kind = Kind::Erase, .key = std::move(key)};
    const Result<Answer> answer = co_await act(std::move(call));
    if (!answer) co_return fail(answer.error());
    co_return answer->status == Status::Yes;
  }

  // The workload does not use the rest.
  Task<Result<bool>> check(std::vector<std::string>) override { return no<bool>(); }
  Task<Result<>> wait(std::vector<std::string>, TimePoint) override { return no<void>(); }
  Task<Result<std::int64_t>> num_keys() override { return no<std::int64_t>(); }
  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string>, TimePoint) override {
    return no<std::vector<std::string>>();
  }
  Task<Result<>> multi_set(std::vector<store::KeyValue>) override { return no<void>(); }
  Task<Result<>> queue_push(std::string, std::string) override { return no<void>(); }
  Task<Result<std::string>> queue_pop(std::string, TimePoint) override { return no<std::string>(); }
  Task<Result<Value>> try_queue_pop(std::string) override { return no<Value>(); }
  Task<Result<std::int64_t>> queue_length(std::string) override { return no<std::int64_t>(); }
  Task<Result<std::vector<std::string>>> list_keys(std::string) override {
    return no<std::vector<std::string>>();
  }
  Task<Result<>> barrier(std::string, std::int64_t, TimePoint) override { return no<void>(); }
  Task<Result<std::unique_ptr<store::Watch>>> watch(std::string, WatchScope) override {
    return no<std::unique_ptr<store::Watch>>();
  }

 private:
  template <typename T>
  Task<Result<T>> no() {
    co_return fail(ErrorKind::Unimplemented, "not in this store");
  }

  Task<Result<>> nothing(Call call) {
    const Result<Answer> answer = co_await act(std::move(call));
    if (!answer) co_return fail(answer.error());
    co_return Result<>();
  }

  TimePoint soon() {
    return loop_.now() + Duration(1 + static_cast<Duration::rep>(random_.below(50)));
  }

  Task<Result<Answer>> act(Call call) {
    if (fault_ == Fault::Dead) co_return fail(ErrorKind::Closed, "the store is gone");
    const TimePoint request_at = soon();
    co_await sleep_until(loop_, request_at);
    Value& value = values_[call.key];
    const bool old =
        fault_ == Fault::ReadsFromAnOldCopy && is_read(call.kind) && random_.chance(200);
    Value copy = copies_[call.key];
    if (!is_read(call.kind)) copies_[call.key] = value;
    Answer answer = perform(call, old ? copy : value);
    const bool loses = fault_ == Fault::LosesReplies || fault_ == Fault::RepeatsLostRequests;
    const bool lost = loses && random_.chance(20);
    if (lost && fault_ == Fault::RepeatsLostRequests) answer = perform(call, value);
    const TimePoint reply_at = soon();
    co_await sleep_until(loop_, reply_at);
    if (lost && fault_ == Fault::LosesReplies)
      co_return fail(ErrorKind::Closed, "connection reset");
    co_return answer;
  }

  VirtualLoop& loop_;
  Fault fault_;
  Random random_{99};
  std::map<std::string, Value> values_;
  std::map<std::string, Value> copies_;  // each value before its last write
};

struct ClientsOptions {
  Fault fault = Fault::None;
  std::uint64_t seed = 1;
};

History run_clients(ClientsOptions options) {
  constexpr int kClients = 6;
  VirtualLoop loop;
  SlowStore store(loop, options.fault);
  Recorder recorder(kClients);
  TaskScope scope;
  Random random(options.seed);
  for (int client = 0; client < kClients; ++client) {
    scope.start(run_client(store, loop, recorder, Random(random.next()),
                           ClientOptions{.client = client, .operation_count = 150}));
  }
  loop.run();
  EXPECT_TRUE(scope.empty());
  return recorder.history();
}

TEST(Client, RecordsALinearizableHistoryOfARightStore) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const History history = run_clients({.fault = Fault::None, .seed = seed});
    EXPECT_GT(history.size(), 500U);
    EXPECT_TRUE(accepted(history)) << "seed " << seed;
    std::map<Kind, int> answered;
    for (const Operation& one : history)
      answered[one.call.kind] += one.outcome == Outcome::Ok ? 1 : 0;
    EXPECT_EQ(answered.size(), 7U);
  }
}

TEST(Client, RecordsALinearizableHistoryWhenRepliesAreLost) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const History history = run_clients({.fault = Fault::LosesReplies, .seed = seed});
    const auto is_lost = [](const Operation& one) { return one.outcome == Outcome::Unknown; };
    EXPECT_GT(std::count_if(history.begin(), history.end(), is_lost), 0);
    EXPECT_TRUE(accepted(history)) << "seed " << seed;
  }
}

TEST(Client, ShowsThatAStoreRepeatsRequests) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_TRUE(rejected(run_clients({.fault = Fault::RepeatsLostRequests, .seed = seed})));
  }
}

TEST(Client, ShowsThatAStoreReadsFromAnOldCopy) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_TRUE(rejected(run_clients({.fault = Fault::ReadsFromAnOldCopy, .seed = seed})));
  }
}

TEST(Client, StopsWhenItsStoreIsGone) {
  VirtualLoop loop;
  SlowStore store(loop, Fault::Dead);
  Recorder recorder(1);
  TaskScope scope;
  scope.start(run_client(store, loop, recorder, Random(1), ClientOptions{.errors_max = 5}));
  loop.run();
  EXPECT_TRUE(scope.empty());
  EXPECT_EQ(recorder.begun_count(0), 5U);
}

TEST(Client, LeavesItsLastOperationUnknownWhenItIsCancelled) {
  VirtualLoop loop;
  SlowStore store(loop, Fault::None);
  Recorder recorder(1);
  ClientOptions options;
  options.workload.weights = {
      .set = 1, .get = 0, .try_get = 0, .add = 0, .compare_set = 0, .erase = 0, .append = 0};
  TaskScope scope;
  scope.start(run_client(store, loop, recorder, Random(1), options));
  scope.cancel_all();
  ASSERT_EQ(recorder.history().size(), 1U);
  EXPECT_EQ(recorder.history()[0].outcome, Outcome::Unknown);
}

}  // namespace
}  // namespace muster::linearizability
