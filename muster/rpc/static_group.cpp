// StaticGroup: ranks 0 … size - 1, each with its record under a key of its own.
//
//   kind        what kind of group this is, and its size
//   generation  how many groups have come to their end here; not there: none
//   rank/G/N    the Member that has rank N in generation G, or that it has gone: see Record
//
// A group that all its workers have ended together may be followed by another one in the same
// store. Each of them counts the generation up before it is done, so whoever comes again finds
// nothing of the last one, and takes its record out. A worker that dies and is started again finds
// the generation of the others.
//
// A worker that goes without that, because it waited in vain or was told to stop, says so in the
// place of its record: nobody takes it for one who is there. Whoever has its rank next writes over
// that. It is not deleted, since no PyTorch server can do that only if the record is still the
// same.
//
// Only commands that every PyTorch server knows are used.
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/rpc/group.h"
#include "muster/rpc/group_store.h"
#include "muster/rpc/member.h"
#include "muster/rpc/texts.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

namespace muster::rpc {

using muster::describe;  // of durations, beside that of devices

namespace {

// How long a worker that gives up may take to find out who is missing: the store may be the reason.
constexpr Duration kLastLookMax = std::chrono::seconds(5);

// How long a worker that goes may take to say so. The store may have gone before.
constexpr Duration kVacateMax = std::chrono::seconds(1);
// How often one that has come looks whether those are back who have gone.
constexpr BackoffOptions kLookAgain = {.first = std::chrono::milliseconds(5),
                                       .max = std::chrono::milliseconds(100)};

constexpr std::string_view kGenerationKey = "generation";

// What stands where the record of a worker was that has gone: before all had come; or from a group,
// with the number of the meeting, in 8 bytes, and the record.
constexpr std::string_view kGaveUp = "MusterRV1 gave up";
constexpr std::string_view kLeft = "MusterRV1 left ";

bool is_vacant(std::string_view bytes) { return bytes == kGaveUp || bytes.starts_with(kLeft); }

// Of one that has never been.
constexpr std::uint64_t kNoMeeting = 0;

// Tells a meeting of these workers from all others.
std::uint64_t number_of_meeting(const std::vector<Member>& members) {
  std::uint64_t number = 0xcbf29ce484222325;  // FNV-1a, by words
  for (const Member& member : members) number = (number ^ member.incarnation) * 0x100000001b3;
  return number == kNoMeeting ? 1 : number;
}

std::string encode_left(const Member& member, std::uint64_t meeting) {
  std::string out(kLeft);
  wire::put(out, meeting);
  return out + encode_member(member);
}

std::string record_key(std::int64_t generation, std::int64_t rank) {
  return fmt::format("rank/{}/{}", generation, rank);
}

// Where a rank has its record.
struct Place {
  std::int64_t generation = 0;
  std::int64_t rank = 0;

  std::string key() const { return record_key(generation, rank); }
};

// The Member in the store at `place`; nobody else's record may be there.
Result<Member> read_member(Place place, std::string_view bytes) {
  const std::string key = place.key();
  Result<Member> member = decode_member(key, bytes);
  if (member && member->info.id() != place.rank) {
    return corrupt_value(key, fmt::format("it is the record of {}", member->info.describe()));
  }
  return member;
}

// What is in the store at a place.
struct Record {
  std::optional<Member> member;  // nothing: it gave up
  // Once it has left: the last meeting it was at.
  std::optional<std::uint64_t> left;
};

Result<Record> read_record(Place place, std::string_view bytes) {
  Record record;
  if (bytes == kGaveUp) return record;
  if (bytes.starts_with(kLeft)) {
    wire::Reader reader(bytes.substr(kLeft.size()));
    record.left = reader.integer<std::uint64_t>();
    if (reader.failed()) return corrupt_value(place.key(), "it is cut short");
    bytes = reader.rest();
  }
  auto member = read_member(place, bytes);
  if (!member) return fail(member.error());
  record.member = std::move(*member);
  return record;
}

// Whose records these are, by rank, if all of them are there. One that has left counts if it was at
// just this meeting: it had met all of the others, who may only find out later.
std::optional<std::vector<Member>> who_has_met(const std::vector<Record>& records) {
  std::vector<Member> members;
  for (const Record& record : records) {
    if (!record.member) return std::nullopt;
    members.push_back(*record.member);
  }
  const std::uint64_t meeting = number_of_meeting(members);
  for (const Record& record : records) {
    if (record.left && *record.left != meeting) return std::nullopt;
  }
  return members;
}

// Requires: `loop` and `store` outlive the task.
Task<Result<std::int64_t>> read_generation(Loop& loop, store::Store& store, std::uint64_t seed) {
  StoreRetries retries(seed);
  for (;;) {
    std::string key(kGenerationKey);
    const auto value = co_await store.try_get(std::move(key));
    if (value) {
      if (!*value) co_return 0;
      std::int64_t generation = 0;
      const char* const end = (*value)->data() + (*value)->size();
      const auto [stop, error] = std::from_chars((*value)->data(), end, generation);
      if (error == std::errc() && stop == end && generation > 0) co_return generation;
      co_return corrupt_value(std::string(kGenerationKey), "it is no number of groups");
    }
    const auto pause = retries.after_failure(value.error());
    if (!pause) co_return fail(value.error());
    const TimePoint next = after(loop.now(), *pause);
    co_await sleep_until(loop, next);
  }
}

// Says that the group of that generation has ended. Requires: `loop` and `store` outlive the task.
Task<Result<>> count_up(Loop& loop, store::Store& store, std::int64_t generation,
                        std::uint64_t seed) {
  StoreRetries retries(seed);
  for (;;) {
    std::string key(kGenerationKey);
    std::string before = generation == 0 ? "" : fmt::to_string(generation);
    std::string next = fmt::to_string(generation + 1);
    // Whoever is first changes it; for the others it is as it should be already.
    const auto swapped =
        co_await store.compare_set(std::move(key), std::move(before), std::move(next));
    if (swapped) co_return Result<>();
    const auto pause = retries.after_failure(swapped.error());
    if (!pause) co_return fail(swapped.error());
    const TimePoint later = after(loop.now(), *pause);
    co_await sleep_until(loop, later);
  }
}

// Writes `self` at its place. What is there may be of a worker of the same name that was here
// before: it is replaced. Whether there was one, so that the others may have met already. Requires:
// `loop` and `store` outlive the task.
Task<Result<bool>> write_record(Loop& loop, store::Store& store, Member self,
                                std::int64_t generation) {
  StoreRetries retries(self.incarnation);
  const Place place{generation, self.info.id()};
  const std::string wanted = encode_member(self);
  std::string expected;
  bool replaces = false;
  for (;;) {
    std::string key = place.key();
    std::string before = expected;
    std::string desired = wanted;
    const auto swapped =
        co_await store.compare_set(std::move(key), std::move(before), std::move(desired));
    std::optional<Duration> pause;
    if (!swapped) {
      pause = retries.after_failure(swapped.error());
      if (!pause) co_return fail(swapped.error());
    } else if (swapped->stored || swapped->value == wanted) {
      co_return replaces;
    } else if (swapped->value == expected) {
      expected.clear();  // it is not there any more
      pause = retries.after_conflict();
    } else {
      if (!is_vacant(swapped->value)) {
        const auto present = read_member(place, swapped->value);
        if (!present) co_return fail(present.error());
        if (present->info != self.info) {
          co_return fail(ErrorKind::Invalid, duplicate_id_text(place.rank));
        }
      }
      replaces = replaces || swapped->value != kGaveUp;
      // What was there before we looked is no reason to wait; what came since is.
      const bool looked_before = !std::exchange(expected, swapped->value).empty();
      if (!looked_before) continue;
      pause = retries.after_conflict();
    }
    if (!pause) {
      co_return fail(ErrorKind::Unavailable,
                     fmt::format("others keep writing key {}", log::quote(place.key())));
    }
    const TimePoint next = after(loop.now(), *pause);
    co_await sleep_until(loop, next);
  }
}

// Says that `self` has gone, unless another has its place. Tried once, and not for long: what stays
// then is as if it had died. Requires: `loop` and `store` outlive the task.
Task<void> vacate(Loop& loop, store::Store& store, Member self, std::int64_t generation,
                  std::string how, TimePoint deadline) {
  std::string key = record_key(generation, self.info.id());
  auto going = store.compare_set(std::move(key), encode_member(self), std::move(how));
  const TimePoint latest = std::min(deadline, after(loop.now(), kVacateMax));
  std::string silent = "the store does not answer";
  const auto gone = co_await with_deadline(loop, latest, std::move(going), std::move(silent));
  if (!gone) {
    log::debug("rpc", "{} could not say that it has gone: {}", self.info.describe(),
               gone.error().message);
  }
}

// All members by rank, once all are there. Requires: `loop` and `store` outlive the task.
Task<Result<std::vector<Member>>> read_all(Loop& loop, store::Store& store, Place self,
                                           std::int64_t world_size, TimePoint deadline) {
  Random random(static_cast<std::uint64_t>(self.rank));
  std::vector<std::string> keys;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    keys.push_back(record_key(self.generation, rank));
  }
  std::vector<std::string> vacant = keys;  // as far as is known
  for (int attempt = 0;; ++attempt) {
    const bool are_all = vacant.size() == keys.size();
    std::vector<std::string> wanted = vacant;
    const auto values = co_await store.multi_get(std::move(wanted), deadline);
    if (!values) co_return fail(values.error());
    std::vector<std::string> still_vacant;
    std::vector<Record> records;
    for (std::size_t index = 0; index < values->size(); ++index) {
      const std::string& value = (*values)[index];
      if (is_vacant(value)) still_vacant.push_back(vacant[index]);
      if (!are_all) continue;
      auto record = read_record({self.generation, static_cast<std::int64_t>(index)}, value);
      if (!record) co_return fail(record.error());
      records.push_back(std::move(*record));
    }
    if (are_all) {
      auto members = who_has_met(records);
      if (members) co_return std::move(*members);
    }
    if (still_vacant.empty()) {
      vacant = keys;  // when they are back, others may have gone meanwhile
      continue;
    }
    vacant = std::move(still_vacant);
    const TimePoint next = after(loop.now(), backoff(kLookAgain, attempt, random));
    co_await sleep_until(loop, next);
  }
}

// Whether they can be one group: no name twice, and devices that fit together.
Result<> check_all(const std::vector<Member>& members) {
  std::map<std::string_view, std::size_t> rank_of;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const auto [first, added] = rank_of.emplace(members[rank].info.name(), rank);
    if (added) continue;
    return fail(ErrorKind::Invalid,
                duplicate_name_text(members[first->second].info, members[rank].info.id()));
  }
  return check_devices(device_rows(members), Attendance::Complete);
}

// Who is not there.
struct Absence {
  std::vector<std::int64_t> missing;  // they have never come
  std::vector<std::int64_t> gone;     // they have, and are not there any more
};

// Requires: `loop` and `store` outlive the task.
Task<Result<Absence>> find_absent(Loop& loop, store::Store& store, std::int64_t world_size) {
  const auto generation = co_await read_generation(loop, store, 0);
  if (!generation) co_return fail(generation.error());
  Absence absence;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    std::string key = record_key(*generation, rank);
    const auto value = co_await store.try_get(std::move(key));
    if (!value) co_return fail(value.error());
    if (!*value) {
      absence.missing.push_back(rank);
    } else if (is_vacant(**value)) {
      absence.gone.push_back(rank);
    }
  }
  co_return absence;
}

// "rank 3", "ranks 1 and 3", "ranks 0, 2 and 5 to 9": exactly those, however many.
std::string name_ranks(const std::vector<std::int64_t>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t index = 0; index < ranks.size();) {
    std::size_t end = index + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - index < 3) end = index + 1;
    runs.push_back(end == index + 1 ? fmt::format("{}", ranks[index])
                                    : fmt::format("{} to {}", ranks[index], ranks[end - 1]));
    index = end;
  }
  const std::string last = std::move(runs.back());
  runs.pop_back();
  return fmt::format("{} {}{}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(runs, ", "),
                     runs.empty() ? "" : " and ", last);
}

std::string absence_text(const Absence& absence, std::int64_t world_size, Duration waited) {
  const auto has = [](const std::vector<std::int64_t>& ranks) {
    return ranks.size() == 1 ? "has" : "have";
  };
  constexpr std::string_view kAdvice =
      "see whether they were started and still run, and with this store and world size";
  const auto& [missing, gone] = absence;
  if (missing.empty()) {
    return fmt::format("{} of {} {} gone again, and not come back within {}; {}", name_ranks(gone),
                       world_size, has(gone), describe(waited), kAdvice);
  }
  std::string text = fmt::format("{} of {} {} not come within {}; {}", name_ranks(missing),
                                 world_size, has(missing), describe(waited), kAdvice);
  if (!gone.empty()) {
    text += fmt::format("; {} came and {} gone again", name_ranks(gone), has(gone));
  }
  return text;
}

// Who has met, in which generation.
struct Meeting {
  std::int64_t generation = 0;
  std::vector<Member> members;  // all of them, by rank
};

class StaticGroup final : public Group {
 public:
  StaticGroup(Loop& loop, store::Store& store, Member self, Meeting meeting, GroupEvents& events)
      : loop_(loop),
        store_(store),
        self_(std::move(self)),
        generation_(meeting.generation),
        members_(std::move(meeting.members)),
        meeting_(number_of_meeting(members_)),
        events_(events) {
    events_.on_members(members_);
  }

  bool is_static() const override { return true; }

  Task<Result<Member>> look_up(std::string name) override {
    std::size_t rank = 0;
    while (rank < members_.size() && members_[rank].info.name() != name) ++rank;
    if (rank == members_.size()) {
      co_return fail(ErrorKind::Invalid, unknown_destination_name_text(self_.info, name));
    }
    const Place place{generation_, static_cast<std::int64_t>(rank)};
    std::string key = place.key();
    const auto value = co_await store_.try_get(std::move(key));
    if (!value) co_return fail(value.error());
    if (!*value) {
      co_return fail(ErrorKind::Closed,
                     fmt::format("the record of {} is gone from the store: its group has ended, or "
                                 "the store was started again",
                                 members_[rank].info.describe()));
    }
    if (is_vacant(**value)) {
      co_return fail(ErrorKind::Closed, fmt::format("{} has left", members_[rank].info.describe()));
    }
    auto found = read_member(place, **value);
    if (!found) co_return found;
    // The name of a rank never changes while it is in use.
    if (found->info.name() != name) {
      co_return fail(ErrorKind::Closed,
                     fmt::format("{} has left, and {} has its place",
                                 members_[rank].info.describe(), found->info.describe()));
    }
    if (*found != members_[rank]) {
      members_[rank] = *found;
      events_.on_members(members_);
    }
    co_return found;
  }

  void suspect(const Member&) override {}
  Task<Result<>> leave(TimePoint deadline) override {
    if (!has_ended_) {
      Member self = self_;
      std::string how = encode_left(self_, meeting_);
      co_await vacate(loop_, store_, std::move(self), generation_, std::move(how), deadline);
    }
    co_return Result<>();
  }

  Task<Result<>> end(TimePoint deadline) override {
    auto ending = end_on_store();
    std::string what = "the store does not answer";
    auto ended = co_await with_deadline(loop_, deadline, std::move(ending), std::move(what));
    co_return ended;
  }

 private:
  Task<Result<>> end_on_store() {
    const auto ended = co_await count_up(loop_, store_, generation_, self_.incarnation);
    if (!ended) co_return fail(ended.error());
    has_ended_ = true;
    // Nobody looks for it any more.
    std::string key = record_key(generation_, self_.info.id());
    const auto dropped = co_await store_.delete_key(std::move(key));
    if (!dropped) log::debug("rpc", "a record stays behind: {}", dropped.error().message);
    co_return Result<>();
  }

  Loop& loop_;
  store::Store& store_;
  const Member self_;
  const std::int64_t generation_;
  std::vector<Member> members_;  // by rank
  const std::uint64_t meeting_;
  bool has_ended_ = false;
  GroupEvents& events_;
};

// How far a worker has come that may have to give up.
struct Progress {
  std::optional<std::int64_t> generation;  // in which its record may be
  // Whether others may have met before it came; until that is known, they may have.
  bool comes_late = true;
};

// Comes to the group and waits for the others, without the last look for who is missing. Requires:
// `progress` outlives the task as well.
Task<Result<Meeting>> meet(Loop& loop, store::Store& store, Member self, std::int64_t world_size,
                           TimePoint deadline, Progress& progress) {
  const auto agreed = co_await agree_on_kind(loop, store, world_size, self.incarnation);
  if (!agreed) co_return fail(agreed.error());
  const std::int64_t rank = self.info.id();
  const std::uint64_t incarnation = self.incarnation;
  const auto generation = co_await read_generation(loop, store, incarnation);
  if (!generation) co_return fail(generation.error());
  progress.generation = *generation;
  const auto written = co_await write_record(loop, store, std::move(self), *generation);
  if (!written) co_return fail(written.error());
  progress.comes_late = *written;
  const Place place{*generation, rank};
  auto members = co_await read_all(loop, store, place, world_size, deadline);
  if (!members) co_return fail(members.error());
  if ((*members)[static_cast<std::size_t>(rank)].incarnation != incarnation) {
    // Somebody of our name and rank came after us. It cannot know that we still run, but we do.
    co_return fail(ErrorKind::Invalid, duplicate_id_text(rank));
  }
  auto fit = check_all(*members);
  if (!fit) {
    // All find the same, and none stays. Those that come again must not meet what was wrong here;
    // but a worker that was started again, with other devices, does not end the group of the
    // others.
    if (!progress.comes_late) {
      const auto ended = co_await count_up(loop, store, *generation, incarnation);
      if (!ended) log::debug("rpc", "a group that failed stays behind: {}", ended.error().message);
      progress.generation.reset();  // others may still have to find what was wrong
    }
    co_return fail(std::move(fit.error()));
  }
  co_return Meeting{*generation, std::move(*members)};
}

// Why not all have come, as far as that can be found out.
Task<Error> explain_timeout(Loop& loop, store::Store& store, std::int64_t world_size,
                            Duration waited, TimePoint deadline) {
  auto looking = find_absent(loop, store, world_size);
  std::string silent = "the store does not answer";
  const auto absence =
      co_await with_deadline(loop, deadline, std::move(looking), std::move(silent));
  std::string text;
  if (!absence) {
    text = fmt::format(
        "not all {} ranks have come within {}, and who is missing could not be found out: {}",
        world_size, describe(waited), absence.error().message);
  } else if (absence->missing.empty() && absence->gone.empty()) {
    text = fmt::format("all {} ranks have come, but not within {}", world_size, describe(waited));
  } else {
    text = absence_text(*absence, world_size, waited);
  }
  Error error{ErrorKind::Timeout, std::move(text)};
  co_return error;
}

}  // namespace

Task<Result<std::unique_ptr<Group>>> join_static_group(Loop& loop, store::Store& store, Member self,
                                                       std::int64_t world_size, GroupEvents& events,
                                                       TimePoint deadline) {
  if (const auto fit = check_member(self); !fit) co_return fail(fit.error());
  if (world_size < 1 || world_size > std::int64_t{kWorkerIdMax} + 1 ||
      self.info.id() >= world_size) {
    co_return fail(ErrorKind::Invalid, fmt::format("{} does not fit a world size of {}",
                                                   self.info.describe(), world_size));
  }
  const TimePoint since = loop.now();
  Progress progress;
  auto meeting = meet(loop, store, self, world_size, deadline, progress);
  std::string what = "the store does not answer";
  auto met = co_await with_deadline(loop, deadline, std::move(meeting), std::move(what));
  if (met) {
    std::unique_ptr<Group> group =
        std::make_unique<StaticGroup>(loop, store, std::move(self), std::move(*met), events);
    co_return group;
  }
  Error error = met.error();
  const TimePoint latest = after(loop.now(), kLastLookMax);
  if (error.kind == ErrorKind::Timeout) {
    const Duration waited = loop.now() - since;
    error = co_await explain_timeout(loop, store, world_size, waited, latest);
  }
  if (progress.generation) {
    std::string how = progress.comes_late ? encode_left(self, kNoMeeting) : std::string(kGaveUp);
    co_await vacate(loop, store, std::move(self), *progress.generation, std::move(how), latest);
  }
  co_return fail(std::move(error));
}

}  // namespace muster::rpc
