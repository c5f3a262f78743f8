#include "muster/agent/board.h"

#include "muster/base/log.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

namespace muster::agent {
namespace {

namespace json = boost::json;

constexpr std::string_view kWordKey = "muster/word";
constexpr std::string_view kConfirmedKey = "muster/confirmed";
constexpr std::string_view kFailuresKey = "muster/failures";

std::string seat_key(std::int64_t node) { return fmt::format("muster/seat/{}", node); }
std::string place_key(std::int64_t node) { return fmt::format("muster/place/{}", node); }

std::string meet_key(const std::string& name) { return "muster/meet/" + name; }
std::string met_key(const std::string& name) { return "muster/met/" + name; }

json::array to_json(const std::vector<FailedRound>& rounds) {
  json::array array;
  for (const FailedRound& failed : rounds) {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(failed.age);
    array.push_back(json::array{failed.round, age.count()});
  }
  return array;
}

Error unreadable(std::string_view what, const std::string& text) {
  return {
      ErrorKind::Corrupt,
      fmt::format("what another agent wrote into the round's store as its {} cannot be read: {}",
                  what, log::quote(text))};
}

// Reading without exceptions: every step may find something else than expected.
const json::value* find(const json::value& value, std::string_view key) {
  const json::object* object = value.if_object();
  return object == nullptr ? nullptr : object->if_contains(key);
}

bool read(const json::value* value, std::int64_t& out) {
  if (value == nullptr) return false;
  if (const auto* number = value->if_int64()) {
    out = *number;
    return true;
  }
  return false;
}

bool read(const json::value* value, std::string& out) {
  const json::string* text = value == nullptr ? nullptr : value->if_string();
  if (text == nullptr) return false;
  out.assign(text->data(), text->size());
  return true;
}

bool read(const json::value* value, std::vector<FailedRound>& out) {
  const json::array* array = value == nullptr ? nullptr : value->if_array();
  if (array == nullptr || array->size() > kFailedRoundsMax) return false;
  for (const json::value& entry : *array) {
    const json::array* pair = entry.if_array();
    if (pair == nullptr || pair->size() != 2) return false;
    std::int64_t round = 0;
    std::int64_t age = 0;
    if (!read(&(*pair)[0], round) || !read(&(*pair)[1], age) || round < 0 || age < 0) return false;
    // More than a year ago is as good as a year ago, and cannot overflow.
    constexpr std::int64_t kAgeMax = std::int64_t{366} * 24 * 3600 * 1000;
    age = std::min(age, kAgeMax);
    out.push_back({static_cast<std::uint64_t>(round), std::chrono::milliseconds(age)});
  }
  return true;
}

json::value parse(const std::string& text) {
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error) return {};
  return value;
}

constexpr std::int64_t kWorkerCountMax = 1'000'000;

}  // namespace

std::string encode(const Introduction& introduction) {
  json::object object{{"role", introduction.seat.role},
                      {"workers", introduction.seat.worker_count},
                      {"host", introduction.host},
                      {"failed_rounds", to_json(introduction.failed_rounds)}};
  if (introduction.origin) {
    object["origin"] = json::array{introduction.origin->round, introduction.origin->node_count};
  }
  return json::serialize(object);
}

Result<Introduction> decode_introduction(const std::string& text) {
  const json::value value = parse(text);
  Introduction made;
  const bool whole = read(find(value, "role"), made.seat.role) &&
                     read(find(value, "workers"), made.seat.worker_count) &&
                     read(find(value, "host"), made.host) &&
                     read(find(value, "failed_rounds"), made.failed_rounds);
  if (!whole || made.seat.worker_count < 1 || made.seat.worker_count > kWorkerCountMax) {
    return fail(unreadable("introduction", text));
  }
  if (const json::value* origin = find(value, "origin")) {
    const json::array* pair = origin->if_array();
    std::int64_t round = 0;
    std::int64_t count = 0;
    if (pair == nullptr || pair->size() != 2 || !read(&(*pair)[0], round) ||
        !read(&(*pair)[1], count) || round < 0) {
      return fail(unreadable("introduction", text));
    }
    made.origin = {static_cast<std::uint64_t>(round), count};
  }
  return made;
}

std::string encode(const Placing& placing) {
  const Ranks& ranks = placing.ranks;
  return json::serialize(
      json::object{{"ranks", json::array{ranks.first_rank, ranks.world_size, ranks.first_role_rank,
                                         ranks.role_world_size}},
                   {"round", placing.round},
                   {"failed_rounds", to_json(placing.failed_rounds)},
                   {"written_nanoseconds", placing.written_nanoseconds}});
}

Result<Placing> decode_placing(const std::string& text) {
  const json::value value = parse(text);
  Placing made;
  std::int64_t round = 0;
  const json::value* ranks = find(value, "ranks");
  const json::array* array = ranks == nullptr ? nullptr : ranks->if_array();
  const bool whole =
      array != nullptr && array->size() == 4 && read(&(*array)[0], made.ranks.first_rank) &&
      read(&(*array)[1], made.ranks.world_size) && read(&(*array)[2], made.ranks.first_role_rank) &&
      read(&(*array)[3], made.ranks.role_world_size) && read(find(value, "round"), round) &&
      read(find(value, "failed_rounds"), made.failed_rounds);
  if (!whole || round < 0) return fail(unreadable("placing", text));
  const json::value* written = find(value, "written_nanoseconds");
  const bool readable = written == nullptr || read(written, made.written_nanoseconds);
  if (!readable || made.written_nanoseconds < 0) return fail(unreadable("placing", text));
  made.round = static_cast<std::uint64_t>(round);
  return made;
}

std::string encode(const Word& word) {
  json::array failures;
  for (const std::string& failure : word.failures) failures.emplace_back(failure);
  return json::serialize(json::object{{"news", name_of(word.news)},
                                      {"node_rank", word.node_rank},
                                      {"host", word.host},
                                      {"failures", std::move(failures)}});
}

Result<Word> decode_word(const std::string& text) {
  const json::value value = parse(text);
  Word made;
  std::string news;
  bool whole = read(find(value, "news"), news) && read(find(value, "node_rank"), made.node_rank) &&
               read(find(value, "host"), made.host);
  bool known = false;
  for (const News candidate : {News::Restart, News::Failed, News::Done}) {
    if (news != name_of(candidate)) continue;
    made.news = candidate;
    known = true;
  }
  const json::value* failures = find(value, "failures");
  const json::array* array = failures == nullptr ? nullptr : failures->if_array();
  whole = whole && known && array != nullptr;
  if (!whole) return fail(unreadable("word", text));
  for (const json::value& entry : *array) {
    std::string failure;
    if (!read(&entry, failure)) return fail(unreadable("word", text));
    made.failures.push_back(std::move(failure));
  }
  return made;
}

std::vector<Placing> place_all(const std::vector<Introduction>& introductions,
                               std::uint64_t round) {
  std::vector<Seat> seats;
  // Times do not matter here: what counts is which rounds failed, and the oldest age of each.
  std::map<std::uint64_t, Duration> failed;
  for (const Introduction& one : introductions) {
    seats.push_back(one.seat);
    for (const FailedRound& known : one.failed_rounds) {
      Duration& age = failed.emplace(known.round, known.age).first->second;
      age = std::max(age, known.age);
    }
  }
  std::map<std::uint64_t, std::int64_t> missing;
  for (const Introduction& one : introductions) {
    if (!one.origin) continue;
    round = std::max(round, one.origin->round + 1);
    --missing.emplace(one.origin->round, one.origin->node_count).first->second;
  }
  for (const auto& [left, count] : missing) {
    if (count > 0) failed.erase(left);
  }
  std::vector<FailedRound> rounds;
  for (const auto& [failed_round, age] : failed) rounds.push_back({failed_round, age});
  std::vector<Placing> placings;
  for (const Ranks& ranks : assign_ranks(seats)) placings.push_back({ranks, round, rounds});
  return placings;
}

std::int64_t clock_lead(std::int64_t asked, std::int64_t written, std::int64_t answered) {
  if (written == 0 || (asked <= written && written <= answered)) return 0;
  // Of the two ways, that of the answer is the shorter one: it is waited for.
  return answered - written;
}

Board::Board(Loop& loop, std::shared_ptr<store::Store> store, std::int64_t node_rank,
             std::int64_t node_count, std::uint64_t round, observe::WallClock wall_clock)
    : loop_(loop),
      store_(std::move(store)),
      node_rank_(node_rank),
      node_count_(node_count),
      round_(round),
      wall_clock_(std::move(wall_clock)) {}

Task<Result<Placing>> Board::introduce(Introduction introduction, TimePoint deadline,
                                       std::function<Task<Result<>>()> ready) {
  if (alone()) {
    auto making_ready = ready();
    auto made_ready = co_await making_ready;
    if (!made_ready) co_return fail(std::move(made_ready.error()));
    std::vector<Introduction> all(1, std::move(introduction));
    co_return std::move(place_all(all, round_)[0]);
  }
  if (node_rank_ != 0) {
    const std::int64_t asked = wall_clock_();
    auto said = co_await store_->set(seat_key(node_rank_), encode(introduction));
    if (!said) co_return fail(std::move(said.error()));
    auto text = co_await store_->get(place_key(node_rank_), deadline);
    if (!text) co_return fail(std::move(text.error()));
    const std::int64_t answered = wall_clock_();
    auto placing = decode_placing(*text);
    if (placing) {
      placing->clock_lead_nanoseconds = clock_lead(asked, placing->written_nanoseconds, answered);
    }
    co_return placing;
  }
  std::vector<std::string> keys;
  for (std::int64_t node = 1; node < node_count_; ++node) keys.push_back(seat_key(node));
  auto texts = co_await store_->multi_get(std::move(keys), deadline);
  if (!texts) co_return fail(std::move(texts.error()));
  std::vector<Introduction> all(1, std::move(introduction));
  for (const std::string& text : *texts) {
    auto one = decode_introduction(text);
    if (!one) co_return fail(std::move(one.error()));
    all.push_back(std::move(*one));
  }
  auto making_ready = ready();
  auto made_ready = co_await making_ready;
  if (!made_ready) co_return fail(std::move(made_ready.error()));
  std::vector<Placing> placings = place_all(all, round_);
  const std::int64_t written = wall_clock_();
  for (Placing& placing : placings) placing.written_nanoseconds = written;
  std::vector<store::KeyValue> pairs;
  for (std::size_t node = 1; node < placings.size(); ++node) {
    pairs.push_back({place_key(static_cast<std::int64_t>(node)), encode(placings[node])});
  }
  auto told = co_await store_->multi_set(std::move(pairs));
  if (!told) co_return fail(std::move(told.error()));
  co_return placings[0];
}

void Board::settle(Word word) {
  if (own_word_) return;
  own_word_ = std::move(word);
  if (own_waiter_ != nullptr) own_waiter_->set(true);
}

Task<Result<Word>> Board::say(Word word) {
  if (alone()) {
    settle(std::move(word));
    co_return *own_word_;
  }
  std::string key(kWordKey);
  auto swapped = co_await store_->compare_set(std::move(key), "", encode(word));
  if (!swapped) co_return fail(std::move(swapped.error()));
  if (swapped->stored) co_return word;
  co_return decode_word(swapped->value);
}

Task<Result<Word>> Board::wait_word(TimePoint deadline) {
  if (alone()) {
    if (!own_word_) {
      Oneshot<bool> said(loop_);
      Timer timer(loop_, [&] { said.set(false); });
      timer.set(deadline);
      struct Withdraw {
        Board& board;
        ~Withdraw() { board.own_waiter_ = nullptr; }
      };
      own_waiter_ = &said;
      const Withdraw withdraw{*this};
      const bool came = co_await said;
      if (!came) co_return fail(ErrorKind::Timeout, "the round goes on");
    }
    co_return *own_word_;
  }
  std::string key(kWordKey);
  auto text = co_await store_->get(std::move(key), deadline);
  if (!text) co_return fail(std::move(text.error()));
  co_return decode_word(*text);
}

Task<Result<std::optional<Word>>> Board::look() {
  if (alone()) co_return own_word_;
  std::string key(kWordKey);
  auto text = co_await store_->try_get(std::move(key));
  if (!text) co_return fail(std::move(text.error()));
  if (!*text) co_return std::optional<Word>();
  auto word = decode_word(**text);
  if (!word) co_return fail(std::move(word.error()));
  co_return std::optional<Word>(std::move(*word));
}

Task<Result<>> Board::confirm() {
  Word done;
  done.news = News::Done;
  done.node_rank = node_rank_;
  if (!alone()) {
    std::string key(kConfirmedKey);
    auto count = co_await store_->add(std::move(key), 1);
    if (!count) co_return fail(std::move(count.error()));
    if (*count < node_count_) co_return Result<>();
  }
  auto said = co_await say(std::move(done));
  if (!said) co_return fail(std::move(said.error()));
  co_return Result<>();
}

Task<Result<>> Board::add_failures(std::vector<std::string> failures) {
  std::string lines;
  for (const std::string& failure : failures) lines += failure + '\n';
  if (lines.empty()) co_return Result<>();
  if (alone()) {
    for (std::string& failure : failures) own_failures_.push_back(std::move(failure));
    co_return Result<>();
  }
  std::string key(kFailuresKey);
  co_return co_await store_->append(std::move(key), std::move(lines));
}

Task<Result<std::vector<std::string>>> Board::failures() {
  if (alone()) co_return own_failures_;
  std::string key(kFailuresKey);
  auto text = co_await store_->try_get(std::move(key));
  if (!text) co_return fail(std::move(text.error()));
  std::vector<std::string> lines;
  if (!*text) co_return lines;
  const std::string_view all = **text;
  for (std::size_t start = 0; start < all.size();) {
    const std::size_t end = std::min(all.find('\n', start), all.size());
    if (end > start) lines.emplace_back(all.substr(start, end - start));
    start = end + 1;
  }
  co_return lines;
}

Task<bool> Board::pass(std::string name, TimePoint deadline) {
  if (alone()) co_return true;
  auto adding = store_->add(meet_key(name), 1);
  std::string what = "the store does not answer";
  auto count = co_await with_deadline(loop_, deadline, std::move(adding), std::move(what));
  if (!count) co_return false;
  if (*count < node_count_) co_return true;
  auto setting = store_->set(met_key(name), "");
  what = "the store does not answer";
  auto set = co_await with_deadline(loop_, deadline, std::move(setting), std::move(what));
  co_return set.has_value();
}

Task<bool> Board::meet(std::string name, TimePoint deadline) {
  if (alone()) co_return true;
  const bool counted = co_await pass(name, deadline);
  if (!counted) co_return false;
  auto all = co_await store_->get(met_key(name), deadline);
  co_return all.has_value();
}

}  // namespace muster::agent
