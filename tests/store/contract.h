// StoreContract: what every Store must do, whatever is behind it. The tests are in contract.cpp; a
// test of an implementation is linked with it, writes a StoreFixture that builds a store and drives
// its loop, and instantiates the suite:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreContract,
//                            ::testing::Values(StoreKind{"Memory", make_fixture, {}}), kind_name);
//
// The suite works on virtual time, on a real loop and with files: it asserts what has happened and
// what has not, never how long it took. On a real loop "has not happened" is only as strong as
// `settle`.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/store/store.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::store {

inline void PrintTo(const Change& change, std::ostream* out) {
  *out << name_of(change.kind) << " " << change.key << "=" << change.value;
}
inline void PrintTo(const CompareSet& result, std::ostream* out) {
  *out << (result.stored ? "stored " : "not stored ") << result.value;
}

}  // namespace muster::store

namespace muster::store::testing {

// `EXPECT_TRUE(gives(await(...), value))`: success with that value, or the error that came instead.
template <typename T, typename U>
::testing::AssertionResult gives(const Result<T>& result, const U& expected) {
  if (!result) {
    return ::testing::AssertionFailure()
           << name_of(result.error().kind) << ": " << result.error().message;
  }
  if (*result == expected) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << ::testing::PrintToString(*result) << " instead of "
                                       << ::testing::PrintToString(expected);
}

// What a store may lack because of what is behind it (a PyTorch 1.13 server, a file). What is false
// is skipped.
struct StoreCapabilities {
  bool queues = true;
  bool list_keys = true;
  bool key_watch = true;
  bool prefix_watch = true;
  bool barrier = true;
  // A waiter is released when compare_set creates its key; PyTorch's older servers let it sleep.
  bool compare_set_releases = true;
  // A number that cannot be added to is reported as Invalid, not as a lost connection.
  bool invalid_is_reported = true;
  // An empty value is not a number; PyTorch's FileStore takes it for 0.
  bool empty_is_no_number = true;
  // What is there already is delivered even if the deadline has passed.
  bool serves_past_deadline = true;
};

// One store, ready to use and empty except for the implementation's own keys.
class StoreFixture {
 public:
  virtual ~StoreFixture() = default;

  virtual Store& store() = 0;
  // A second handle on the same data (another connection, another opening of the file), or the same
  // store again.
  virtual Store& other() = 0;
  virtual Loop& loop() = 0;

  // Runs the loop until `done` returns true. False if it cannot become true, or (on a real loop)
  // did not within a bound that only a broken implementation exceeds.
  virtual bool run_until(const std::function<bool()>& done) = 0;
  // Runs the loop until everything that was started has come as far as it can without others, so
  // that a call that must wait does wait in the store.
  virtual void settle() = 0;
};

struct StoreKind {
  std::string name;
  std::function<std::unique_ptr<StoreFixture>()> make;
  StoreCapabilities can;
};
inline void PrintTo(const StoreKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string kind_name(const ::testing::TestParamInfo<StoreKind>& info) {
  return info.param.name;
}

// A call that was started and not awaited. Destroying it, or `cancel`, cancels the call.
template <typename T>
class Call {
 public:
  explicit Call(Task<Result<T>> task) { scope_.start(keep(std::move(task), result_)); }

  bool done() const { return result_.has_value(); }
  const Result<T>& result() const { return *result_; }
  Result<T> take() { return std::move(*result_); }
  void cancel() { scope_.cancel_all(); }

 private:
  static Task<void> keep(Task<Result<T>> task, std::optional<Result<T>>& result) {
    Result<T> value = co_await task;
    result.emplace(std::move(value));
  }

  std::optional<Result<T>> result_;
  TaskScope scope_;  // last: the task writes into result_
};

class StoreContract : public ::testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override { fixture_ = GetParam().make(); }

  Store& store() { return fixture_->store(); }
  Store& other() { return fixture_->other(); }
  void settle() { fixture_->settle(); }
  const StoreCapabilities& can() const { return GetParam().can; }

  // For what must succeed: on a real loop only a broken store takes that long.
  TimePoint patience() { return after(fixture_->loop().now(), std::chrono::seconds(30)); }
  // For what must time out.
  TimePoint shortly() { return after(fixture_->loop().now(), std::chrono::milliseconds(20)); }
  TimePoint already_passed() { return fixture_->loop().now() - std::chrono::milliseconds(1); }

  template <typename T>
  std::unique_ptr<Call<T>> begin(Task<Result<T>> task) {
    return std::make_unique<Call<T>>(std::move(task));
  }
  template <typename T>
  Result<T> finish(Call<T>& call) {
    fixture_->run_until([&] { return call.done(); });
    if (!call.done()) {
      ADD_FAILURE() << "the call does not come to an end";
      return fail(ErrorKind::Cancelled, "the call does not come to an end");
    }
    return call.take();
  }
  template <typename T>
  Result<T> await(Task<Result<T>> task) {
    Call<T> call(std::move(task));
    return finish(call);
  }

  void expect_value(std::string key, const std::string& value) {
    EXPECT_TRUE(gives(await(other().try_get(std::move(key))), value));
  }
  void expect_absent(std::string key) {
    EXPECT_TRUE(gives(await(other().try_get(std::move(key))), std::nullopt));
  }
  void set(std::string key, std::string value) {
    const Result<> result = await(other().set(std::move(key), std::move(value)));
    ASSERT_TRUE(result) << result.error().message;
  }
  template <typename T>
  static void expect_error(const Result<T>& result, ErrorKind kind) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, kind) << result.error().message;
    EXPECT_FALSE(result.error().message.empty());
  }
  template <typename T>
  void expect_invalid(const Result<T>& result) {
    ASSERT_FALSE(result);
    if (can().invalid_is_reported) {
      EXPECT_EQ(result.error().kind, ErrorKind::Invalid) << result.error().message;
    }
  }
  void expect_change(Watch& watch, const Change& expected) {
    EXPECT_TRUE(gives(await(watch.next(patience())), expected));
  }
  std::unique_ptr<Watch> watch(std::string key, Store::WatchScope scope) {
    Result<std::unique_ptr<Watch>> result = await(store().watch(std::move(key), scope));
    if (!result) {
      ADD_FAILURE() << result.error().message;
      return nullptr;
    }
    return std::move(*result);
  }

 private:
  std::unique_ptr<StoreFixture> fixture_;
};

}  // namespace muster::store::testing
