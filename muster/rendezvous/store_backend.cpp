#include "muster/rendezvous/store_backend.h"

#include "muster/base/assert.h"
#include "muster/base/task.h"
#include "muster/rendezvous/wishes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace muster::rendezvous {
namespace {

constexpr std::string_view kPointerMagic = "muster-rendezvous-1";
// Of old signals, so many stay for those who are slow to look.
constexpr std::uint64_t kSignalsKept = 64;
// Every attempt means that somebody has written meanwhile.
constexpr int kReadAttemptsMax = 100;
// Of keys that are read at the same time.
constexpr std::size_t kBatchesMax = 8;

// The pointer: "muster-rendezvous-1 <version> <signals> <write id>".
struct Pointer {
  std::uint64_t version = 0;
  std::uint64_t signal_count = 0;
  std::uint64_t write_id = 0;
};

std::string text_of(const Pointer& pointer) {
  return fmt::format("{} {} {} {:016x}", kPointerMagic, pointer.version, pointer.signal_count,
                     pointer.write_id);
}

bool take_number(std::string_view& text, int base, std::uint64_t& number) {
  if (!text.starts_with(' ')) return false;
  text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end == text.data()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

std::optional<Pointer> parse_pointer(std::string_view text) {
  if (!text.starts_with(kPointerMagic)) return std::nullopt;
  text.remove_prefix(kPointerMagic.size());
  Pointer pointer;
  if (!take_number(text, 10, pointer.version) || !take_number(text, 10, pointer.signal_count) ||
      !take_number(text, 16, pointer.write_id) || !text.empty()) {
    return std::nullopt;
  }
  return pointer;
}

class StoreBackend final : public Backend {
 public:
  StoreBackend(Loop& loop, store::Store& store, Random& random, std::string run_id)
      : loop_(loop),
        store_(store),
        random_(random),
        key_("muster.rendezvous." + std::move(run_id)) {}

  Task<Result<std::optional<Stored>>> get_state() override {
    auto pointer = co_await store_.try_get(key_);
    if (!pointer) co_return unreachable(pointer.error());
    if (!*pointer) co_return std::nullopt;
    auto stored = co_await read_blob(std::move(**pointer));
    co_return stored;
  }

  Task<Result<std::optional<Written>>> set_state(std::string blob, std::optional<Token> token,
                                                 bool signal) override {
    std::optional<Pointer> before = Pointer();
    if (token) before = parse_pointer(*token);
    if (!before) {
      auto found = co_await get_state();
      co_return not_set(std::move(found));
    }
    const Pointer after{before->version + 1, before->signal_count + (signal ? 1 : 0),
                        random_.next()};
    const std::string mine = text_of(after);
    auto put = co_await store_.set(blob_key(after), blob);
    if (!put) co_return unreachable(put.error());

    auto swapped = co_await store_.compare_set(key_, token.value_or(""), mine);
    const bool outcome_was_told = swapped.has_value();
    if (!outcome_was_told) {
      // Whether it took effect, the pointer says; unless it was replaced meanwhile, which is the
      // same as having lost.
      auto pointer = co_await store_.try_get(key_);
      if (!pointer) co_return unreachable(swapped.error());
      // Not swapped, or not yet.
      if (*pointer == token) co_return unreachable(swapped.error());
      store::CompareSet outcome;
      outcome.stored = *pointer == mine;
      outcome.value = pointer->value_or(token.value_or(""));
      swapped = std::move(outcome);
    }
    if (swapped->stored) {
      co_await clean_up_after(token ? before : std::nullopt, after, signal);
      co_return Written{{std::move(blob), mine}, true};
    }
    // Nobody will ever see it; but one whose swap may still be under way must stay.
    if (outcome_was_told) (void)co_await store_.delete_key(blob_key(after));
    // An absent key gives back what was expected of it.
    if (swapped->value == token.value_or("")) co_return std::nullopt;
    auto found = co_await read_blob(std::move(swapped->value));
    co_return not_set(std::move(found));
  }

  Task<Result<bool>> wait_signal(std::optional<Token> token, bool wake_on_loss,
                                 TimePoint deadline) override {
    (void)wake_on_loss;  // nobody tells us; the observers look at their own pace
    std::uint64_t seen = 0;
    if (token) {
      const auto pointer = parse_pointer(*token);
      if (!pointer) co_return true;  // not one of ours: look again
      seen = pointer->signal_count;
    }
    std::vector<std::string> keys;
    keys.push_back(signal_key(seen + 1));
    auto waited = co_await store_.wait(std::move(keys), deadline);
    if (waited) co_return true;
    if (waited.error().kind == ErrorKind::Timeout) co_return false;
    co_return unreachable(waited.error());
  }

  bool has_leases() const override { return false; }

  Task<Result<>> beat(std::string name, Duration window) override {
    (void)window;
    // A random mark and not a counter: one that begins anew must not repeat what was seen.
    auto done = co_await store_.set(sign_key(name), fmt::format("{:016x}", random_.next()));
    if (!done) co_return unreachable(done.error());
    co_return Result<>();
  }

  Task<Result<>> retire(std::string name) override {
    auto done = co_await store_.delete_key(sign_key(name));
    if (!done) co_return unreachable(done.error());
    co_return Result<>();
  }

  Task<Result<std::vector<Sign>>> signs(std::vector<std::string> names) override {
    std::vector<std::string> keys;
    for (const std::string& name : names) keys.push_back(sign_key(name));
    auto values = co_await read_all(std::move(keys));
    if (!values) co_return unreachable(values.error());
    std::vector<Sign> signs;
    for (std::optional<std::string>& value : *values) {
      signs.push_back({value.has_value(), std::move(value).value_or("")});
    }
    co_return signs;
  }

  bool has_wishes() const override { return true; }
  bool has_wish_numbers() const override { return true; }

  Task<Result<std::uint64_t>> take_wish_number() override {
    const auto number = co_await store_.add(wish_count_key(), 1);
    if (!number) co_return unreachable(number.error());
    co_return static_cast<std::uint64_t>(*number);
  }

  Task<Result<>> wish(std::string name, std::uint64_t number, std::string text) override {
    (void)name;
    auto done = co_await store_.set(wish_key(number), std::move(text));
    if (!done) co_return unreachable(done.error());
    co_return Result<>();
  }

  // Not by removing it: that would look as if the node were yet to say what it wants.
  Task<Result<>> withdraw(std::string name, std::uint64_t number) override {
    return wish(std::move(name), number, "");
  }

  Task<Result<std::vector<Wish>>> wishes(WishMarks marks) override {
    const auto given = co_await store_.add(wish_count_key(), 0);
    if (!given) co_return unreachable(given.error());
    const auto numbers = open_wishes(marks, static_cast<std::uint64_t>(*given));
    std::vector<std::string> keys;
    for (const std::uint64_t number : numbers) keys.push_back(wish_key(number));
    auto values = co_await read_all(std::move(keys));
    if (!values) co_return unreachable(values.error());
    std::vector<Wish> wishes;
    for (std::size_t index = 0; index < numbers.size(); ++index) {
      wishes.push_back({numbers[index], std::move((*values)[index])});
    }
    co_return wishes;
  }

  Task<void> clear_wishes(std::vector<std::uint64_t> numbers) override {
    for (const std::uint64_t number : numbers) (void)co_await store_.delete_key(wish_key(number));
  }

 private:
  std::string blob_key(const Pointer& pointer) const {
    return fmt::format("{}/state/{}-{:016x}", key_, pointer.version, pointer.write_id);
  }
  std::string signal_key(std::uint64_t number) const {
    return fmt::format("{}/signal/{}", key_, number);
  }
  std::string sign_key(const std::string& name) const {
    return fmt::format("{}/alive/{}", key_, name);
  }

  std::string wish_count_key() const { return key_ + "/wish/count"; }
  std::string wish_key(std::uint64_t number) const {
    return fmt::format("{}/wish/{}", key_, number);
  }

  using Values = Result<std::vector<std::optional<std::string>>>;

  // Several keys at once: a store may be far away, and not every one can be asked for many keys.
  Task<Values> read_all(std::vector<std::string> keys) {
    struct Batch {
      std::vector<std::string> keys;
      Values values;
    };
    std::vector<Batch> batches(std::min(keys.size(), kBatchesMax));
    std::size_t taken = 0;
    for (std::size_t index = 0; index < batches.size(); ++index) {
      const std::size_t end = keys.size() * (index + 1) / batches.size();
      for (; taken < end; ++taken) batches[index].keys.push_back(std::move(keys[taken]));
    }
    std::size_t left = batches.size();
    Oneshot<bool> done(loop_);
    if (left == 0) done.set(true);
    TaskScope scope;
    for (Batch& batch : batches) {
      scope.start(read_batch(std::move(batch.keys), batch.values, left, done));
    }
    co_await done;
    std::vector<std::optional<std::string>> all;
    for (Batch& batch : batches) {
      if (!batch.values) co_return fail(std::move(batch.values.error()));
      for (auto& value : *batch.values) all.push_back(std::move(value));
    }
    co_return all;
  }
  Task<void> read_batch(std::vector<std::string> keys, Values& values, std::size_t& left,
                        Oneshot<bool>& done) {
    values = co_await read_batch_now(std::move(keys));
    if (--left == 0) done.set(true);
  }
  Task<Values> read_batch_now(std::vector<std::string> keys) {
    std::vector<std::optional<std::string>> values;
    // To ask for each whether it is there takes twice as long, and almost always all of them are.
    const auto all_there = co_await store_.check(keys);
    if (!all_there) co_return fail(all_there.error());
    if (*all_there) {
      auto found = co_await store_.multi_get(keys, loop_.now());
      if (found) {
        for (std::string& value : *found) values.emplace_back(std::move(value));
        co_return values;
      }
      if (found.error().kind != ErrorKind::Timeout) co_return fail(std::move(found.error()));
    }
    for (const std::string& key : keys) {
      auto value = co_await store_.try_get(key);
      if (!value) co_return fail(std::move(value.error()));
      values.push_back(std::move(*value));
    }
    co_return values;
  }

  static tl::unexpected<Error> unreachable(const Error& error) {
    // What the store says of a request is of no use to those who only know that there is a state.
    return fail(ErrorKind::Unavailable, error.message);
  }

  static Result<std::optional<Written>> not_set(Result<std::optional<Stored>> found) {
    if (!found) return fail(std::move(found.error()));
    if (!*found) return std::nullopt;
    return Written{std::move(**found), false};
  }

  // What the pointer points to. Whoever replaced it may have removed that already: then it is read
  // again.
  Task<Result<std::optional<Stored>>> read_blob(std::string pointer_text) {
    for (int attempt = 0; attempt < kReadAttemptsMax; ++attempt) {
      const auto pointer = parse_pointer(pointer_text);
      if (!pointer) {
        co_return fail(
            ErrorKind::Corrupt,
            fmt::format("key '{}' does not hold a rendezvous state of Muster; it was left "
                        "as it is",
                        key_));
      }
      auto blob = co_await store_.try_get(blob_key(*pointer));
      if (!blob) co_return unreachable(blob.error());
      if (*blob) co_return Stored{std::move(**blob), std::move(pointer_text)};
      auto current = co_await store_.try_get(key_);
      if (!current) co_return unreachable(current.error());
      if (!*current) co_return std::nullopt;
      if (**current == pointer_text) {
        co_return fail(ErrorKind::Corrupt,
                       fmt::format("key '{}' points to a state that is not there", key_));
      }
      pointer_text = std::move(**current);
    }
    co_return fail(ErrorKind::Unavailable,
                   fmt::format("the state of '{}' changes faster than it can be read", key_));
  }

  // Errors do not matter: what is left behind is only not as tidy, and a signal that was not given
  // is made up for by those who look at their own pace.
  Task<void> clean_up_after(std::optional<Pointer> before, Pointer after, bool signal) {
    if (signal) (void)co_await store_.set(signal_key(after.signal_count), "");
    if (before) (void)co_await store_.delete_key(blob_key(*before));
    if (signal && after.signal_count > kSignalsKept) {
      (void)co_await store_.delete_key(signal_key(after.signal_count - kSignalsKept));
    }
  }

  Loop& loop_;
  store::Store& store_;
  Random& random_;
  const std::string key_;
};

}  // namespace

std::unique_ptr<Backend> make_store_backend(Loop& loop, store::Store& store, Random& random,
                                            std::string run_id) {
  MUSTER_ASSERT(!run_id.empty());
  return std::make_unique<StoreBackend>(loop, store, random, std::move(run_id));
}

}  // namespace muster::rendezvous
