// How calls are served, without a network: what is answered, and what is counted meanwhile.
#include "muster/rpc/function_server.h"

#include "muster/rpc/call.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

constexpr std::int16_t kId = 3;

// Cannot be read.
struct Unreadable {};

// What became of one request.
struct Served {
  std::optional<Message> response;
  std::size_t waiting_bytes = 0;  // in line for a thread
};

class Back final : public Responder::Back {
 public:
  explicit Back(std::shared_ptr<Served> served) : served_(std::move(served)) {}
  void respond(Message response) override { served_->response = std::move(response); }
  bool is_cancelled() const override { return false; }
  void waits(std::size_t bytes) override { served_->waiting_bytes = bytes; }

 private:
  std::shared_ptr<Served> served_;
};

class Serving : public ::testing::Test {
 protected:
  template <typename F>
  void add(const std::string& name, F function) {
    ASSERT_TRUE(functions_.add(name, std::move(function), {.run = Run::Inline}));
  }
  std::shared_ptr<Served> serve(Message message) {
    auto served = std::make_shared<Served>();
    server_.on_request({std::move(message), from_, Responder(std::make_unique<Back>(served))});
    return served;
  }
  // Of a call that is answered at once, with a failure.
  CallError error_of(Message message) {
    const auto served = serve(std::move(message));
    EXPECT_TRUE(served->response && served->response->type == MessageType::Exception);
    return served->response ? decode_failure(*served->response) : CallError();
  }

  const std::shared_ptr<const WorkerInfo> from_ =
      std::make_shared<const WorkerInfo>(WorkerInfo::create_member("caller", 1).value());
  Functions functions_;
  FunctionServer server_{functions_, 1, kId};
};

}  // namespace

template <>
struct Codec<Unreadable> {
  static void write(Writer&, const Unreadable&) {}
  static void read(Reader&, Unreadable&) { throw std::out_of_range("no such colour"); }
  static void sign(Signature& signature) { signature.append_text("unreadable"); }
};

namespace {

TEST_F(Serving, SaysThatItHasNoPython) {
  EXPECT_EQ(
      error_of(*encode_call<void()>({.type = MessageType::PythonCall}, "muster.python")).message,
      "Error on Node 3: Python calls are not supported!");
  EXPECT_EQ(error_of(*encode_call<void()>("muster.python")).message,
            "Error on Node 3: there is no function \"muster.python\" here");
}

TEST_F(Serving, SaysWhereArgumentsCouldNotBeRead) {
  add("add", [](std::int32_t a, std::int32_t b) { return a + b; });
  add("later", [](std::int32_t a) { return Future<std::int32_t>::ready(a); });
  add("unreadable", [](Unreadable) {});
  Message cut = *encode_call<std::int32_t(std::int32_t, std::int32_t)>("add", 1, 2);
  cut.payload.pop_back();
  EXPECT_EQ(
      error_of(std::move(cut)),
      (CallError{CallErrorKind::Remote,
                 "Error on Node 3: the arguments of \"add\" (i32,i32)->i32 cannot be read: at "
                 "byte 19 of 22: it ends too early",
                 "", true}));
  Message longer = *encode_call<std::int32_t(std::int32_t)>("later", 1);
  longer.payload += "x";
  EXPECT_EQ(error_of(std::move(longer)).message,
            "Error on Node 3: the arguments of \"later\" (i32)->i32 cannot be read: 1 of 22 bytes "
            "are left over");
  EXPECT_EQ(error_of(*encode_call<void(Unreadable)>("unreadable", Unreadable())),
            (CallError{CallErrorKind::Remote,
                       "Error on Node 3: the arguments of \"unreadable\" (unreadable)->void cannot "
                       "be read: no such colour",
                       "std::out_of_range", true}));
}

TEST_F(Serving, DoesNotSayThatOfWhatAFunctionThrows) {
  add("throw", [] { throw std::out_of_range("too far"); });
  EXPECT_EQ(error_of(*encode_call<void()>("throw")),
            (CallError{CallErrorKind::Remote, "too far", "std::out_of_range", true}));
}

TEST_F(Serving, CountsAsynchronousFunctionsFromTheirReturnToTheirAnswer) {
  std::vector<std::int64_t> inside;
  Promise<std::int32_t> promise;
  add("hold", [&] {
    inside.push_back(server_.asynchronous_count());
    return promise.future();
  });
  add("throw", []() -> Future<std::int32_t> { throw std::out_of_range("too far"); });
  const auto first = serve(*encode_call<std::int32_t()>("hold"));
  EXPECT_EQ(server_.asynchronous_count(), 1);
  const auto second = serve(*encode_call<std::int32_t()>("hold"));
  EXPECT_EQ(server_.asynchronous_count(), 2);
  EXPECT_EQ(inside, (std::vector<std::int64_t>{0, 1}));
  (void)error_of(*encode_call<std::int32_t()>("throw"));
  EXPECT_EQ(server_.asynchronous_count(), 2);
  promise.set(7);
  EXPECT_EQ(server_.asynchronous_count(), 0);
  for (const auto& served : {first, second}) {
    EXPECT_EQ(decode_response<std::int32_t>(*served->response).value(), 7);
  }
}

// Else a worker could be made to hold any number of them.
TEST_F(Serving, CountsEmptyBuffersOfWhatWaits) {
  server_.close();  // all of it waits
  Message message{MessageType::ScriptCall, 1, "", {}};
  message.buffers.resize(1000);
  const std::size_t with_empty_ones = serve(message)->waiting_bytes;
  EXPECT_GE(with_empty_ones, 1000 * sizeof(Buffer));
  for (Buffer& buffer : message.buffers) buffer = copy_of(std::vector<std::byte>(1));
  EXPECT_GE(serve(message)->waiting_bytes, with_empty_ones + 1000 * kBufferOverheadBytes);
  server_.open();
}

// ---- what a call is given that is gone when it is made

using Bytes = std::vector<std::byte>;

template <typename Parameter, typename Argument>
std::vector<Buffer> buffers_of(Argument&& argument) {
  return encode_call<void(Parameter)>(
             "take", internal::as_parameter<Parameter>(std::forward<Argument>(argument)))
      ->buffers;
}

TEST(Arguments, AreNotLentIfTheyAreGoneWhenTheCallIsMade) {
  constexpr std::size_t kCount = 100'000;
  using View = std::span<const std::byte>;
  Bytes row(kCount, std::byte{7});
  const std::byte* const memory = row.data();
  const auto moved = buffers_of<View>(std::move(row));
  ASSERT_EQ(moved.size(), 1U);
  EXPECT_FALSE(moved[0].is_borrowed());
  EXPECT_EQ(moved[0].data(), memory) << "it was copied";
  EXPECT_FALSE(buffers_of<const View&>(Bytes(kCount))[0].is_borrowed());
  EXPECT_FALSE(buffers_of<std::span<const float>>(std::vector<float>(kCount))[0].is_borrowed());
  const Bytes constant(kCount);
  EXPECT_FALSE(buffers_of<View>(std::move(constant))[0].is_borrowed());  // NOLINT: a const rvalue
  const auto array = buffers_of<View>(std::array<std::byte, kOutOfBandBytesMin>{std::byte{5}});
  EXPECT_FALSE(array[0].is_borrowed());
  EXPECT_EQ(array[0].data()[0], std::byte{5});
}

TEST(Arguments, AreLentIfTheCallerKeepsThem) {
  const Bytes row(100'000);
  using View = std::span<const std::byte>;
  for (const auto& buffers : {buffers_of<View>(row), buffers_of<View>(View(row))}) {
    EXPECT_TRUE(buffers[0].is_borrowed());
    EXPECT_EQ(buffers[0].data(), row.data());
  }
}

TEST(Arguments, HaveTheSameBytesWhetherTheyAreLentOrNot) {
  const Bytes row(100, std::byte{7});
  using View = std::span<const std::byte>;
  const auto lent = encode_call<void(View)>("take", internal::as_parameter<View>(row));
  const auto given = encode_call<void(View)>("take", internal::as_parameter<View>(Bytes(row)));
  EXPECT_EQ(lent->payload, given->payload);
}

}  // namespace
}  // namespace muster::rpc
