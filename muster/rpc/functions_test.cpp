#include "muster/rpc/functions.h"

#include "muster/rpc/tensor.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace muster::rpc {

// What a future does: it keeps the duty to answer and answers later.
template <typename T>
struct Later {
  std::function<void(std::function<void(T)>)> when_done;
};
template <typename T>
struct ResultTraits<Later<T>> {
  using Value = T;
  static constexpr bool kAsynchronous = true;
  static void answer(Later<T>&& result, Reply reply) {
    auto kept = std::make_shared<Reply>(std::move(reply));
    result.when_done([kept](T value) { kept->succeed_with(std::move(value)); });
  }
};

namespace {

using namespace std::string_literals;

struct Account {
  std::string owner{};
  std::int64_t cents = 0;
};
template <typename Archive>
void describe_fields(Archive& archive, Account& account) {
  if (!Archive::kReading && account.owner == "unwritable") throw std::runtime_error("cannot write");
  archive(account.owner, account.cents);
}

class Overdrawn : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Keeps the answer to one call.
class Answer : public ReplySink {
 public:
  void succeed(Writer&& result) override {
    ++answer_count;
    buffers = result.take_buffers();
    control = result.take_control();
  }
  void fail(Failure reason) override {
    ++answer_count;
    failure = std::move(reason);
  }
  template <typename T>
  T value() const {
    EXPECT_FALSE(failure) << failure->text;
    auto decoded = decode<T>(control, buffers);
    EXPECT_TRUE(decoded);
    return decoded ? *decoded : T();
  }

  int answer_count = 0;
  std::optional<Failure> failure;
  std::string control;
  std::vector<Buffer> buffers;
};

template <typename... Args>
Answer call(const Functions& functions, std::string_view name, Args&&... arguments) {
  Answer answer;
  const auto function = functions.find(name);
  EXPECT_TRUE(function);
  Writer writer;
  writer.write(std::forward<Args>(arguments)...);
  Reader reader(writer.control(), writer.buffers());
  (*function)->invoke(reader, Reply(answer));
  EXPECT_EQ(answer.answer_count, 1);
  return answer;
}

std::int64_t twice(std::int64_t number) noexcept { return 2 * number; }

TEST(Functions, AreCalledWithTheTypesTheyHave) {
  Functions functions;
  ASSERT_TRUE(functions.add("add", [](int a, int b) { return a + b; }));
  ASSERT_TRUE(functions.add("twice", &twice));
  ASSERT_TRUE(functions.add("join", [](const std::vector<std::string>& parts, std::string_view by) {
    std::string all;
    for (const std::string& part : parts) all += part + std::string(by);
    return all;
  }));
  ASSERT_TRUE(functions.add("pay", [](Account account, std::int64_t cents) {
    account.cents += cents;
    return account;
  }));
  ASSERT_TRUE(functions.add("count", std::function<std::uint64_t(std::vector<float> &&)>(
                                         [](std::vector<float>&& all) { return all.size(); })));
  EXPECT_EQ(call(functions, "add", 2, 3).value<int>(), 5);
  EXPECT_EQ(call(functions, "twice", std::int64_t{4}).value<std::int64_t>(), 8);
  EXPECT_EQ(call(functions, "join", std::vector<std::string>{"a", "b"}, "-").value<std::string>(),
            "a-b-");
  EXPECT_EQ(call(functions, "pay", Account{"x", 5}, std::int64_t{7}).value<Account>().cents, 12);
  EXPECT_EQ(call(functions, "count", std::vector<float>(9'000)).value<std::uint64_t>(), 9'000U);
  EXPECT_EQ((*functions.find("join"))->signature(), "(vec<str>,str)->str");
  EXPECT_EQ((*functions.find("pay"))->signature(), "({str,i64},i64)->{str,i64}");
}

TEST(Functions, MayReturnNothing) {
  Functions functions;
  std::atomic<int> called_count = 0;
  ASSERT_TRUE(functions.add("poke", [&called_count] { ++called_count; }));
  const Answer answer = call(functions, "poke");
  EXPECT_FALSE(answer.failure);
  EXPECT_EQ(answer.control, "");
  EXPECT_EQ(called_count, 1);
  EXPECT_EQ((*functions.find("poke"))->signature(), "()->void");
}

TEST(Functions, MayReturnAnErrorInsteadOfAValue) {
  Functions functions;
  ASSERT_TRUE(functions.add("half", [](int number) -> Result<int> {
    if (number % 2 != 0) return fail(ErrorKind::Invalid, "an odd number");
    return number / 2;
  }));
  ASSERT_TRUE(functions.add("late", []() -> Result<> { return fail(ErrorKind::Timeout, "late"); }));
  ASSERT_TRUE(functions.add("fine", []() -> Result<> { return {}; }));
  EXPECT_EQ((*functions.find("half"))->signature(), "(i32)->i32");
  EXPECT_EQ(call(functions, "half", 8).value<int>(), 4);
  EXPECT_EQ(call(functions, "half", 7).failure,
            (Failure{"muster::Error<invalid>", "an odd number"}));
  EXPECT_EQ(call(functions, "late").failure, (Failure{"muster::Error<timeout>", "late"}));
  EXPECT_FALSE(call(functions, "fine").failure);
}

TEST(Functions, ReportTheTypeAndTextOfWhatTheyThrow) {
  Functions functions;
  ASSERT_TRUE(functions.add("overdraw", [](int cents) -> int {
    throw Overdrawn("by " + std::to_string(cents) + "\n¢ é 😀");
  }));
  ASSERT_TRUE(functions.add("at", [](const std::vector<int>& all) { return all.at(7); }));
  ASSERT_TRUE(functions.add("number", [] { throw 42; }));
  ASSERT_TRUE(functions.add("text", [] { throw "words"; }));
  ASSERT_TRUE(functions.add("string", [] { throw "more words"s; }));
  const Failure overdrawn = *call(functions, "overdraw", 3).failure;
  EXPECT_EQ(overdrawn.type, "muster::rpc::(anonymous namespace)::Overdrawn");
  EXPECT_EQ(overdrawn.text, "by 3\n¢ é 😀");
  EXPECT_EQ(call(functions, "at", std::vector<int>()).failure->type, "std::out_of_range");
  EXPECT_EQ(call(functions, "number").failure,
            (Failure{"int", "an exception that is no std::exception"}));
  EXPECT_EQ(call(functions, "text").failure, (Failure{"char const*", "words"}));
  EXPECT_EQ(call(functions, "string").failure->text, "more words");
}

TEST(Functions, CutATextThatIsTooLongAtTheBeginningOfACharacter) {
  Functions functions;
  ASSERT_TRUE(functions.add("throw", [](const std::string& text) { throw Overdrawn(text); }));
  const std::string most(kFailureTextBytesMax, 'x');
  EXPECT_EQ(call(functions, "throw", most).failure->text, most);
  EXPECT_EQ(call(functions, "throw", most + "y").failure->text, most + "…");
  const std::string with_umlaut = most.substr(1) + "ä";
  EXPECT_EQ(call(functions, "throw", with_umlaut).failure->text, most.substr(1) + "…");
}

// Whatever way a function has to fail.
TEST(Functions, CutEveryTextThatIsTooLong) {
  Functions functions;
  ASSERT_TRUE(functions.add("result", [](const std::string& text) -> Result<int> {
    return muster::fail(ErrorKind::Invalid, text);
  }));
  ASSERT_TRUE(functions.add("future", [](std::string text) {
    return Future<int>::ready(call_failed({CallErrorKind::Remote, std::move(text), "", true}));
  }));
  const std::string most(kFailureTextBytesMax, 'x');
  for (const char* const name : {"result", "future"}) {
    EXPECT_EQ(call(functions, name, most).failure->text, most);
    EXPECT_EQ(call(functions, name, most + "y").failure->text, most + "…");
  }
}

TEST(Functions, TakeAsManyAsTheyMayAndNoMore) {
  Functions functions;
  const auto nothing = [] {};
  for (std::size_t index = 0; index < kFunctionsMax; ++index) {
    ASSERT_TRUE(functions.add(std::to_string(index), nothing));
  }
  const auto refused = functions.add("one more", nothing);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(refused.error().message, "there are 65536 functions already");
  EXPECT_TRUE(functions.find(std::to_string(kFunctionsMax - 1)));
  EXPECT_FALSE(functions.find("one more"));
}

TEST(Functions, FailACallWhoseResultCannotBeSent) {
  Functions functions;
  ASSERT_TRUE(functions.add("unwritable", [] { return Account{"unwritable", 0}; }));
  ASSERT_TRUE(functions.add("null", []() -> const char* { return nullptr; }));
  EXPECT_EQ(call(functions, "unwritable").failure, (Failure{"std::runtime_error", "cannot write"}));
  EXPECT_EQ(call(functions, "null").failure,
            (Failure{"", "the result cannot be sent: a null pointer was passed for a text"}));
}

TEST(Functions, AreNotCalledWithArgumentsThatCannotBeRead) {
  Functions functions;
  ASSERT_TRUE(functions.add("add", [](int a, int b) { return a + b; }));
  EXPECT_EQ(call(functions, "add", 1).failure->text,
            "the arguments of \"add\" (i32,i32)->i32 cannot be read: at byte 4 of 4: it ends too "
            "early");
  EXPECT_EQ(call(functions, "add", 1, 2, 3).failure->text,
            "the arguments of \"add\" (i32,i32)->i32 cannot be read: 4 of 12 bytes are left over");
}

TEST(Functions, KeepATextThatIsOnlyLentAsOneOfTheirOwn) {
  class Kept final : public Answer {
   public:
    bool keeps_result() const override { return true; }
    void keep(std::shared_ptr<Object> result) override {
      ++answer_count;
      object = std::move(result);
    }
    std::shared_ptr<Object> object;
  };
  Functions functions;
  ASSERT_TRUE(functions.add("view", [](const std::string& of) -> std::string_view { return of; }));
  ASSERT_TRUE(functions.add("text", [](const std::string& of) -> const char* {
    return of.empty() ? nullptr : of.c_str();
  }));
  for (const char* const name : {"view", "text"}) {
    for (const std::string& argument : {std::string(100, 'a'), std::string()}) {
      Kept kept;
      Writer writer;
      writer.write(argument);
      Reader reader(writer.control());
      (*functions.find(name))->invoke(reader, Reply(kept));
      EXPECT_EQ(kept.answer_count, 1);
      if (kept.failure) {
        EXPECT_EQ(*kept.failure, (Failure{"", "a null pointer was returned for a text"}));
        EXPECT_TRUE(name == std::string("text") && argument.empty());
        continue;
      }
      const auto* const text = dynamic_cast<TypedObject<std::string>*>(kept.object.get());
      ASSERT_NE(text, nullptr);
      EXPECT_EQ(const_cast<TypedObject<std::string>*>(text)->value(), argument);
    }
  }
}

TEST(Functions, SayWhichTypesTheyHaveToACallerWithOthers) {
  Functions functions;
  ASSERT_TRUE(functions.add("add", [](int a, int b) { return a + b; }));
  const Function& add = **functions.find("add");
  EXPECT_TRUE(add.check(signature_hash<int(int, int)>()));
  const auto refused = add.check(signature_hash<int(int, std::int64_t)>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "\"add\" is (i32,i32)->i32 here, and was called with other types");
}

TEST(Functions, PassLargeBuffersAndTensorsWithoutACopy) {
  Functions functions;
  const void* seen = nullptr;
  ASSERT_TRUE(functions.add("echo", [&seen](Tensor tensor, const Buffer& buffer) {
    seen = buffer.data();
    return tensor;
  }));
  const auto tensor = Tensor::from(std::vector<float>(5'000), {50, 100});
  const Buffer buffer = copy_of(std::vector<std::byte>(kOutOfBandBytesMin));
  const Answer answer = call(functions, "echo", *tensor, buffer);
  EXPECT_EQ(seen, buffer.data());
  EXPECT_EQ(answer.value<Tensor>().data(), tensor->data());
  EXPECT_EQ((*functions.find("echo"))->signature(), "(tensor,bytes)->tensor");
}

TEST(Functions, MayAnswerLater) {
  Functions functions;
  std::function<void(int)> finish;
  ASSERT_TRUE(functions.add("later", [&finish](int number) {
    return Later<int>{[&finish, number](std::function<void(int)> done) {
      finish = [number, done = std::move(done)](int more) { done(number + more); };
    }};
  }));
  const Function& later = **functions.find("later");
  EXPECT_TRUE(later.is_asynchronous());
  EXPECT_EQ(later.signature(), "(i32)->i32");
  Answer answer;
  {
    const std::string arguments("\2\0\0\0", 4);
    Reader reader(arguments);
    later.invoke(reader, Reply(answer));
  }
  EXPECT_EQ(answer.answer_count, 0);
  std::thread([&finish] { finish(5); }).join();
  EXPECT_EQ(answer.answer_count, 1);
  EXPECT_EQ(answer.value<int>(), 7);
}

TEST(Functions, MayReturnAFuture) {
  Functions functions;
  Promise<std::string> promise;
  ASSERT_TRUE(functions.add("wait", [&] { return promise.future(); }));
  const auto found = functions.find("wait");
  ASSERT_TRUE(found);
  EXPECT_TRUE((*found)->is_asynchronous());
  Answer first;
  Answer second;
  const std::string nothing;
  for (Answer* answer : {&first, &second}) {
    Reader reader(nothing, {});
    (*found)->invoke(reader, Reply(*answer));
    EXPECT_EQ(answer->answer_count, 0);
  }
  std::thread([&] { promise.set("here"s); }).join();
  EXPECT_EQ(first.value<std::string>(), "here");
  EXPECT_EQ(second.value<std::string>(), "here");
}

TEST(Functions, FailWithTheErrorOfTheirFuture) {
  Functions functions;
  ASSERT_TRUE(functions.add("fail", [] {
    return Future<>::ready(
        call_failed({CallErrorKind::Remote, "no such row", "std::out_of_range", true}));
  }));
  const auto found = functions.find("fail");
  ASSERT_TRUE(found);
  Answer answer;
  const std::string nothing;
  Reader reader(nothing, {});
  (*found)->invoke(reader, Reply(answer));
  EXPECT_EQ(answer.failure, (Failure{"std::out_of_range", "no such row"}));
}

// Whether a function throws the error of a call that it has made, or answers with its future.
TEST(Functions, PassTheErrorOfACallOnInTheSameWay) {
  Functions functions;
  static CallError error;
  ASSERT_TRUE(functions.add("throw", [] { return Future<int>::ready(call_failed(error)).get(); }));
  ASSERT_TRUE(functions.add("answer", [] { return Future<int>::ready(call_failed(error)); }));
  for (const char* const name : {"throw", "answer"}) {
    error = {CallErrorKind::Timeout, "RPC ran for more than set timeout", "", true};
    EXPECT_EQ(
        call(functions, name).failure,
        (Failure{"muster::rpc::CallException", "RPCErr:1:RPC ran for more than set timeout"}));
    error = {CallErrorKind::Unreachable, "worker1 is gone", "", false};
    EXPECT_EQ(call(functions, name).failure,
              (Failure{"muster::rpc::CallException", "worker1 is gone"}));
    error = {CallErrorKind::Remote, "too far", "std::out_of_range", true};
    EXPECT_EQ(call(functions, name).failure, (Failure{"std::out_of_range", "too far"}));
  }
}

TEST(Functions, FailWithWhatTheyThrowBeforeTheyReturnTheirFuture) {  // S120
  Functions functions;
  ASSERT_TRUE(functions.add("fail", []() -> Future<int> { throw std::out_of_range("too far"); }));
  EXPECT_TRUE((*functions.find("fail"))->is_asynchronous());
  EXPECT_EQ(call(functions, "fail").failure, (Failure{"std::out_of_range", "too far"}));
}

TEST(Functions, FailACallWhoseReplyIsDropped) {
  Answer answer;
  { const Reply reply(answer); }
  EXPECT_EQ(answer.failure, (Failure{"", "the function was given up without an answer"}));
  Answer moved;
  {
    Reply first(moved);
    Reply second(std::move(first));
    second.succeed_with(1);
  }
  EXPECT_EQ(moved.answer_count, 1);
}

TEST(Functions, SuggestANameForOneThatIsNotThere) {
  Functions functions;
  ASSERT_TRUE(functions.add("average", [] {}));
  ASSERT_TRUE(functions.add("maximum", [] {}));
  const auto missing = functions.find("avreage");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::Unimplemented);
  EXPECT_EQ(missing.error().message,
            "there is no function \"avreage\" here; did you mean \"average\"?");
  EXPECT_EQ(functions.find("zzz\n").error().message, "there is no function \"zzz\\x0a\" here");
  EXPECT_LT(functions.find(std::string(100'000, 'x')).error().message.size(), 200U);
}

TEST(Functions, SuggestNoneOfVeryMany) {
  Functions functions;
  const auto nothing = [] {};
  ASSERT_TRUE(functions.add("average", nothing));
  for (int index = 1; index < 1000; ++index) {
    ASSERT_TRUE(functions.add(std::to_string(index), nothing));
  }
  EXPECT_EQ(functions.find("avreage").error().message,
            "there is no function \"avreage\" here; did you mean \"average\"?");
  ASSERT_TRUE(functions.add("one more", nothing));
  EXPECT_EQ(functions.find("avreage").error().message, "there is no function \"avreage\" here");
}

TEST(Functions, RefuseANameThatIsTakenOrIsNone) {
  Functions functions;
  ASSERT_TRUE(functions.add("f", [] {}));
  const auto again = functions.add("f", [](int) {});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().kind, ErrorKind::Conflict);
  EXPECT_EQ((*functions.find("f"))->signature(), "()->void");
  EXPECT_FALSE(functions.add("", [] {}));
  EXPECT_FALSE(functions.add("a\nb", [] {}));
  EXPECT_TRUE(functions.add(std::string(kFunctionNameBytesMax, 'n'), [] {}));
  EXPECT_FALSE(functions.add(std::string(kFunctionNameBytesMax + 1, 'n'), [] {}));
}

TEST(Functions, RunOnThePoolUnlessTheyAreAddedInline) {
  Functions functions;
  ASSERT_TRUE(functions.add("pooled", [] {}));
  ASSERT_TRUE(functions.add("inline", [] {}, {.run = Run::Inline}));
  EXPECT_EQ((*functions.find("pooled"))->run(), Run::Pool);
  EXPECT_EQ((*functions.find("inline"))->run(), Run::Inline);
  EXPECT_EQ(functions.names(), (std::vector<std::string>{"inline", "pooled"}));
  EXPECT_FALSE((*functions.find("inline"))->is_asynchronous());
}

TEST(Functions, AreFoundByAnyThreadWhileOthersAreAdded) {
  Functions functions;
  ASSERT_TRUE(functions.add("first", [] { return 1; }));
  constexpr int kAdded = 500;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&functions] {
      for (int i = 0; i < kAdded; ++i) {
        EXPECT_TRUE(functions.find("first"));
        const auto found = functions.find("f" + std::to_string(i % 100));
        EXPECT_TRUE(!found || (*found)->signature() == "()->void");
      }
    });
  }
  for (int i = 0; i < kAdded; ++i) ASSERT_TRUE(functions.add("f" + std::to_string(i), [] {}));
  for (std::thread& reader : readers) reader.join();
  for (int i = 0; i < kAdded; ++i) EXPECT_TRUE(functions.find("f" + std::to_string(i)));
  EXPECT_EQ(functions.names().size(), kAdded + 1U);
}

}  // namespace
}  // namespace muster::rpc
