// Functions: the native functions that other workers may call here, by name.
//
//   Functions functions;
//   auto added = functions.add("add", [](std::int64_t a, std::int64_t b) { return a + b; });
//   functions.add("norm", &norm, {.run = Run::Inline});
//
// The types come from the callable itself: parameters by value or const reference, of types that
// value.h can read; a result that it can write, void, Result<T>, or whatever ResultTraits knows.
// A function is called from several threads at once, so a lambda must not be `mutable`.
//
// Serving one call:
//
//   auto found = functions.find(name);                       // or an error with a suggestion
//   if (auto fits = (*found)->check(hash); !fits) …          // the caller has other types
//   (*found)->invoke(reader, Reply(sink));                   // answers `sink` exactly once
//
// What a function throws is caught here, and only here, and becomes a Failure.
#pragma once

#include "muster/base/assert.h"
#include "muster/base/error.h"
#include "muster/rpc/device_route.h"
#include "muster/rpc/freight.h"
#include "muster/rpc/future.h"
#include "muster/rpc/object.h"
#include "muster/rpc/texts.h"
#include "muster/rpc/value.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::rpc {

inline constexpr std::size_t kFunctionNameBytesMax = 255;
inline constexpr std::size_t kFunctionsMax = 65536;

// Why there is no result.
struct Failure {
  std::string type{};  // of what was thrown, e.g. "std::out_of_range"; empty: nothing was thrown
  std::string text{};

  friend bool operator==(const Failure&, const Failure&) = default;
};
template <typename Archive>
void describe_fields(Archive& archive, Failure& failure) {
  archive(failure.type, failure.text);
}

// Requires: an exception is being handled. Rethrows the unwinding of a thread that is cancelled.
Failure describe_current_exception();
// The type is "muster::Error<timeout>", with the kind of the error.
Failure failure_of(const Error& error);
// What a function tells that passes the error of a call on, whether it throws it or answers with a
// future that has failed: the text as it is rendered; the type that the callee has named, if it
// has.
Failure failure_of(const CallError& error);

// Where the answer to one call goes. A result may have buffers of memory that is only borrowed
// (Buffer::borrow); whoever returns such a thing keeps the memory for as long as it is served.
// Whoever serves the call implements it; it lives until it is answered, which happens exactly once,
// from any thread, and possibly before invoke() returns.
class ReplySink {
 public:
  // None of these throws.
  virtual void succeed(Writer&& result) = 0;
  virtual void fail(Failure failure) = 0;
  // Nothing was run: the arguments cannot be read.
  virtual void refuse(Failure failure) { fail(std::move(failure)); }
  // The function has returned, and one of the others is called later.
  virtual void answers_later() {}
  // Whether the result stays here; it is then given to `keep` instead of `succeed`.
  virtual bool keeps_result() const { return false; }
  virtual void keep(std::shared_ptr<Object> result) { (void)result; }
  // Of the message with the result.
  virtual Freight* freight() { return nullptr; }
  // Where the tensors of the result go; good until it is answered.
  virtual DeviceRoute route() const { return {.direction = DeviceRoute::Direction::Response}; }

 protected:
  ~ReplySink() = default;
};

// The duty to answer one call. A Reply that is dropped unanswered fails the call.
class [[nodiscard]] Reply {
 public:
  explicit Reply(ReplySink& sink) : sink_(&sink) {}
  Reply(Reply&& other) noexcept : sink_(std::exchange(other.sink_, nullptr)) {}
  Reply& operator=(Reply&& other) noexcept {
    std::swap(sink_, other.sink_);
    return *this;
  }
  ~Reply() {
    if (sink_ != nullptr) drop();
  }

  // Each of these at most once, and only one of them.
  void succeed(Writer&& result) { take().succeed(std::move(result)); }
  // What is too long is cut.
  void fail(Failure failure);
  void refuse(Failure failure);
  // Before that, by a function that has returned without it.
  void answers_later() const { sink_->answers_later(); }
  bool is_answered() const { return sink_ == nullptr; }
  // For functions that encode by themselves: whether the result stays here and is given to `keep`
  // instead, and what a Writer of the result is to be given.
  bool keeps_result() const { return sink_->keeps_result(); }
  void keep(std::shared_ptr<Object> result) { take().keep(std::move(result)); }
  Freight* freight() const { return sink_->freight(); }
  DeviceRoute route() const { return sink_->route(); }
  // Encodes the value; a value that cannot be sent fails the call.
  template <typename T>
  void succeed_with(T&& value);
  void succeed_with_nothing() {
    if (sink_->keeps_result()) return take().keep(std::make_shared<TypedObject<void>>());
    succeed(Writer());
  }

 private:
  ReplySink& take() {
    MUSTER_ASSERT(sink_ != nullptr);
    return *std::exchange(sink_, nullptr);
  }
  void drop();
  void finish(Writer&& result);

  ReplySink* sink_;
};

// A result that is copied before what it points into is gone.
template <typename T>
concept LentText =
    std::same_as<T, std::string_view> || std::same_as<T, const char*> || std::same_as<T, char*>;

template <typename T>
void Reply::succeed_with(T&& value) {
  MUSTER_ASSERT(sink_ != nullptr);
  using Value = std::remove_cvref_t<T>;
  const DeviceRoute route = sink_->route();
  std::optional<Failure> failure;
  Writer writer;
  std::shared_ptr<Object> kept;
  try {
    if constexpr (LentText<Value>) {
      if (sink_->keeps_result()) {
        if constexpr (std::is_pointer_v<Value>) {
          if (value == nullptr) return fail({"", "a null pointer was returned for a text"});
        }
        return succeed_with(std::string(value));
      }
    } else {
      if (sink_->keeps_result())
        kept = std::make_shared<TypedObject<Value>>(std::forward<T>(value));
    }
    writer.set_freight(sink_->freight());
    writer.set_route(route);
    if (kept) {
    } else if constexpr (Encodable<T>) {
      writer.write(std::forward<T>(value));
    } else {
      writer.fail("the result is of a type that is never sent; call the function with `remote`");
    }
  } catch (...) {
    failure = describe_current_exception();
  }
  if (failure) return fail(std::move(*failure));
  if (kept) return take().keep(std::move(kept));
  finish(std::move(writer));
}

// How what a function returns becomes an answer. For a future type of your own, a specialisation
// says
//
//   using Value = T;                             // what crosses the wire; may be void
//   static constexpr bool kAsynchronous = true;  // the answer may come after the function returned
//   static void answer(YourFuture<T>&& result, Reply reply);  // reply later, from any thread
//
// `answer` must not throw. With kAsynchronous, parameters that are views, or have them in them, are
// refused: the message they point into is gone when the function returns. So are such results,
// but for a text (std::string_view) of a function that is not asynchronous.
template <typename R>
struct ResultTraits {
  using Value = R;
  static constexpr bool kAsynchronous = false;
  static void answer(R&& result, Reply reply) { reply.succeed_with(std::move(result)); }
};

template <typename T>
struct ResultTraits<Result<T>> {
  using Value = T;
  static constexpr bool kAsynchronous = false;
  static void answer(Result<T>&& result, Reply reply) {
    if (!result) return reply.fail(failure_of(result.error()));
    if constexpr (std::is_void_v<T>) {
      reply.succeed_with_nothing();
    } else {
      reply.succeed_with(std::move(*result));
    }
  }
};

// Asynchronous functions: the thread is free as soon as they return, and the answer is sent when
// the future is done.
template <typename T>
struct ResultTraits<Future<T>> {
  using Value = T;
  static constexpr bool kAsynchronous = true;
  static void answer(Future<T>&& result, Reply reply) {
    auto shared = std::make_shared<Reply>(std::move(reply));  // a callback must be copyable
    result.on_done([shared](const CallResult<T>& outcome) {
      if (!outcome) return shared->fail(failure_of(outcome.error()));
      if constexpr (std::is_void_v<T>) {
        shared->succeed_with_nothing();
      } else {
        shared->succeed_with(*outcome);
      }
    });
  }
};

template <>
struct ResultTraits<void> {
  using Value = void;
  static constexpr bool kAsynchronous = false;
};

enum class Run {
  Pool,    // on a thread of the pool; may block, and may call others and wait
  Inline,  // on the I/O thread, at once; must be short and never wait
};

struct FunctionOptions {
  Run run = Run::Pool;
};

// One function. Owned by Functions, at the same address until that is destroyed; any thread.
class Function {
 public:
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;
  virtual ~Function() = default;

  const std::string& name() const { return name_; }
  // "(i64,i64)->i64"
  const std::string& signature() const { return signature_; }
  Run run() const { return options_.run; }
  // Whether the sink may be answered after invoke() has returned.
  virtual bool is_asynchronous() const = 0;

  // Whether a caller with a signature of that hash means this function.
  Result<> check(std::uint64_t caller_signature_hash) const;
  // Reads the arguments, all of them, and calls. The memory of the reader must be there until this
  // returns. Throws nothing.
  virtual void invoke(Reader& arguments, Reply reply) const = 0;

 protected:
  Function(std::string name, std::string signature, FunctionOptions options);

  // Answers a call whose arguments could not be read; or while they were read, something was
  // thrown.
  void refuse(const Error& problem, Reply reply) const;
  void refuse(Failure thrown, Reply reply) const;

 private:
  std::string name_;
  std::string signature_;
  std::uint64_t signature_hash_;
  FunctionOptions options_;
};

namespace internal {

// The types of a callable that is not overloaded.
template <typename F>
struct CallableTypes {};
template <typename F>
requires requires { &F::operator(); }
struct CallableTypes<F> : CallableTypes<decltype(&F::operator())> {};
template <typename R, typename... P>
struct CallableTypes<R (*)(P...)> {
  using Return = R;
  using Parameters = std::tuple<P...>;
  using Values = std::tuple<std::remove_cvref_t<P>...>;
  using CallType = typename ResultTraits<R>::Value(P...);
  static constexpr bool kReferencesAreConst =
      ((!std::is_lvalue_reference_v<P> || std::is_const_v<std::remove_reference_t<P>>)&&...);
  static constexpr bool kReadable = (Decodable<P> && ...);
  static constexpr bool owns_parameters() { return (owns_memory<std::remove_cvref_t<P>>() && ...); }
};
template <typename R, typename... P>
struct CallableTypes<R (*)(P...) noexcept> : CallableTypes<R (*)(P...)> {};
template <typename C, typename R, typename... P>
struct CallableTypes<R (C::*)(P...) const> : CallableTypes<R (*)(P...)> {};
template <typename C, typename R, typename... P>
struct CallableTypes<R (C::*)(P...) const noexcept> : CallableTypes<R (*)(P...)> {};

template <typename F>
concept Callable = requires {
  typename CallableTypes<F>::Return;
};

// A std::span would be lent, and nobody knows for how long; a text is copied.
template <typename T>
concept SendableResult = std::is_void_v<T> || kIsObject<T> ||
    (Encodable<T> && !std::is_reference_v<T> && (!kIsView<T> || LentText<T>));

template <typename F>
class TypedFunction final : public Function {
  using Types = CallableTypes<F>;
  using Return = typename Types::Return;
  using Traits = ResultTraits<Return>;
  using Values = typename Types::Values;

  static_assert(Types::kReferencesAreConst,
                "a parameter of a remote function is a value or a const reference");
  static_assert(
      Types::kReadable,
      "a parameter of this function cannot be received; muster/rpc/value.h says what can");
  static_assert(SendableResult<typename Traits::Value>,
                "the result of this function cannot be sent; muster/rpc/value.h says what can");
  // It outlives the message that a view among its parameters would point into.
  static constexpr bool owns_parameters() {
    if constexpr (Traits::kAsynchronous) return Types::owns_parameters();
    return true;
  }
  static_assert(owns_parameters());
  // A view would point into what the function has left behind. A text alone is copied while that is
  // still there, unless it comes later.
  static constexpr bool owns_result() {
    using Value = typename Traits::Value;
    if constexpr (Traits::kAsynchronous || !LentText<Value>) return owns_memory<Value>();
    return true;
  }
  static_assert(owns_result());

 public:
  TypedFunction(std::string name, F function, FunctionOptions options)
      : Function(std::move(name), signature_of<typename Types::CallType>(), options),
        function_(std::move(function)) {}

  bool is_asynchronous() const override { return Traits::kAsynchronous; }

  void invoke(Reader& arguments, Reply reply) const override {
    std::optional<Failure> failure;
    try {
      Values values;
      std::apply([&arguments](auto&... each) { arguments.read(each...); }, values);
      if (auto finished = arguments.finish(); !finished) {
        return refuse(finished.error(), std::move(reply));
      }
      Freight* const freight = arguments.freight();
      if (freight != nullptr && !freight->forks.empty()) {
        return call_later(*freight, std::move(values), std::move(reply));
      }
      return call_and_answer(values, std::move(reply));
    } catch (...) {
      failure = describe_current_exception();
    }
    if (!reply.is_answered()) refuse(std::move(*failure), std::move(reply));
  }

 private:
  // Throws nothing.
  void call_and_answer(Values& values, Reply reply) const {
    std::optional<Failure> failure;
    constexpr auto kIndices = std::make_index_sequence<std::tuple_size_v<Values>>();
    try {
      if constexpr (std::is_void_v<Return>) {
        call(values, kIndices);
      } else {
        Return result = call(values, kIndices);
        if constexpr (Traits::kAsynchronous) reply.answers_later();
        // The result may refer to the arguments, so it is written while they are there.
        return Traits::answer(std::move(result), std::move(reply));
      }
    } catch (...) {
      failure = describe_current_exception();
    }
    if (failure) return reply.fail(std::move(*failure));
    reply.succeed_with_nothing();
  }

  // When the references among the arguments may be used. What views point into is there until the
  // call is answered, and the freight with it.
  void call_later(Freight& freight, Values values, Reply reply) const {
    struct Waiting {
      Values values;
      Reply reply;
    };
    auto waiting = std::make_shared<Waiting>(Waiting{std::move(values), std::move(reply)});
    const auto forks = std::move(freight.forks);
    freight.references()->when_confirmed(forks, [this, &freight, waiting](const CallError* error) {
      if (error != nullptr) return waiting->reply.fail({error->type, error->message});
      // Work that is dropped drops the reply, which answers.
      (void)freight.resume(
          [this, waiting] { call_and_answer(waiting->values, std::move(waiting->reply)); });
    });
  }

  template <std::size_t... indices>
  Return call([[maybe_unused]] Values& values, std::index_sequence<indices...>) const {
    using Parameters = typename Types::Parameters;
    return function_(
        static_cast<std::tuple_element_t<indices, Parameters>&&>(std::get<indices>(values))...);
  }

  F function_;
};

}  // namespace internal

// The registry. Finding takes no lock and may happen while functions are added, by any threads.
class Functions {
 public:
  Functions();
  ~Functions();
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  // Refuses a name that is taken, empty, too long or has control characters.
  template <typename F>
  Result<> add(std::string name, F function, FunctionOptions options = {}) {
    static_assert(internal::Callable<F>,
                  "a remote function is a function or a lambda with fixed types that is not "
                  "`mutable`, since several threads call it at once");
    if constexpr (internal::Callable<F>) {
      return add(std::make_unique<internal::TypedFunction<F>>(std::move(name), std::move(function),
                                                              options));
    }
  }
  Result<> add(std::unique_ptr<Function> function);

  // Unimplemented if there is none; the text suggests the nearest name, unless there are too many.
  Result<const Function*> find(std::string_view name) const;
  // Sorted.
  std::vector<std::string> names() const;

 private:
  struct Table;

  const Function* find_or_null(std::string_view name) const;
  std::string suggestion_for(std::string_view name) const;

  // The table in use, and those before it, which a reader may still look at. Tables double, so all
  // of the old ones together are no larger than the current one.
  std::atomic<Table*> table_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<std::unique_ptr<Function>> functions_;
  // Held only to add and to list: the one thing here that several threads may change.
  mutable std::mutex adding_;
};

}  // namespace muster::rpc
