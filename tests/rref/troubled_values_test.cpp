// References to values that could not be made, or cannot be written: everybody hears why, and
// nothing is left behind.
#include "muster/rpc/texts.h"
#include "muster/rref/control.h"
#include "muster/rref/rref.h"
#include "tests/rref/cluster.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace muster::rref {
namespace {

enum class Trouble : std::uint8_t { None, Throws, NoMemory, NoException };

// Can be read, and written unless it is in trouble.
struct Moody {
  Trouble trouble = Trouble::None;
};

}  // namespace
}  // namespace muster::rref

template <>
struct muster::rpc::Codec<muster::rref::Moody> {
  static void write(Writer& writer, const rref::Moody& value) {
    if (value.trouble == rref::Trouble::Throws) throw std::out_of_range("no such colour");
    if (value.trouble == rref::Trouble::NoMemory) throw std::bad_alloc();
    if (value.trouble == rref::Trouble::NoException) throw 5;
    writer.write(static_cast<std::uint8_t>(value.trouble));
  }
  static void read(Reader& reader, rref::Moody& value) {
    value.trouble = static_cast<rref::Trouble>(reader.read<std::uint8_t>());
  }
  static void sign(Signature& signature) { signature.append_text("moody"); }
};

namespace muster::rref {
namespace {

using namespace std::chrono_literals;
using rpc::CallError;
using rpc::CallErrorKind;
using rpc::Procedure;
using rpc::RRef;
using testing::Worker;
using testing::Workers;

using Number = std::int64_t;

// The reference is given away before what is behind it throws.
struct Pair {
  RRef<Number> reference;
  Moody moody;
};
template <typename Archive>
void describe_fields(Archive& archive, Pair& pair) {
  archive(pair.reference, pair.moody);
}

const Procedure<Number(std::string)> kThrow("throw");
const Procedure<Pair(std::uint8_t)> kMake("make");
const Procedure<Number(Pair)> kTake("take");

class TroubledValues : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    workers_ = testing::start_group(
        store_, 2, [](Worker& worker) { add_functions(worker); },
        [](rpc::AgentOptions& options) { options.uses_shared_memory = GetParam(); });
  }

  static void add_functions(Worker& worker) {
    ASSERT_TRUE(worker.functions.add(
        kThrow.name(), [](const std::string& text) -> Number { throw std::out_of_range(text); }));
    ASSERT_TRUE(worker.functions.add(kMake.name(), [&worker](std::uint8_t trouble) {
      return Pair{rpc::make_rref(*worker.agent, Number{7}).value(),
                  {static_cast<Trouble>(trouble)}};
    }));
    ASSERT_TRUE(worker.functions.add(
        kTake.name(), [](const Pair& pair) { return pair.reference.to_here().value(); }));
  }

  rpc::Agent& agent(std::size_t rank) { return *workers_[rank]->agent; }

  Pair pair_of(std::size_t rank, Trouble trouble) {
    return {rpc::make_rref(agent(rank), Number{7}).value(), {trouble}};
  }
  // Nobody waits for anything, and nobody has a reference to what another one owns.
  void expect_nothing_is_left() {
    for (const auto& worker : workers_) {
      const auto is_clean = [](const Ledger::Counters& now) {
        return now.owner_rrefs == 0 && now.forks == 0 && now.pending_users == 0 &&
               now.pending_children == 0 && now.pending_futures == 0;
      };
      EXPECT_TRUE(worker->keeper->wait_until(SystemClock().now() + 60s, is_clean));
    }
  }

  rpc::testing::StoreHost store_;
  Workers workers_;
};

TEST_P(TroubledValues, SayWhyTheyAreNotThereHoweverLongThatIs) {
  for (const std::size_t size : {rpc::kOutOfBandBytesMin - 1, rpc::kOutOfBandBytesMin,
                                 rpc::kFailureTextBytesMax, rpc::kFailureTextBytesMax + 1}) {
    const std::string text(size, 'x');
    const std::string cut = rpc::cut_text(text, rpc::kFailureTextBytesMax);
    for (const char* const owner : {"worker1", "worker0"}) {
      const auto reference = rpc::remote(agent(0), owner, kThrow, text);
      ASSERT_TRUE(reference);
      const auto fetched = reference->to_here();
      ASSERT_FALSE(fetched);
      EXPECT_EQ(fetched.error().message, cut) << owner << size;
      EXPECT_EQ(fetched.error().type, "std::out_of_range") << owner << size;
    }
  }
}

struct Told {
  Trouble trouble;
  std::string type;
  std::string text;
};
const Told kTroubles[] = {
    {Trouble::Throws, "std::out_of_range", "no such colour"},
    {Trouble::NoMemory, "std::bad_alloc", "std::bad_alloc"},
    {Trouble::NoException, "int", "an exception that is no std::exception"},
};

TEST_P(TroubledValues, FailAFetchIfTheyThrowWhileTheyAreWritten) {
  for (const Told& told : kTroubles) {
    {
      const auto reference =
          rpc::remote(agent(0), "worker1", kMake, static_cast<std::uint8_t>(told.trouble));
      ASSERT_TRUE(reference);
      for (int time = 0; time < 2; ++time) {
        const auto fetched = reference->to_here();
        ASSERT_FALSE(fetched);
        EXPECT_EQ(fetched.error(), (CallError{CallErrorKind::Remote, told.text, told.type, true}));
      }
    }
    expect_nothing_is_left();
  }
  EXPECT_TRUE(rpc::remote(agent(0), "worker1", kMake, 0)->to_here());
}

TEST_P(TroubledValues, FailACallIfTheyThrowWhileTheyAreWritten) {
  for (const Told& told : kTroubles) {
    {
      const Pair pair = pair_of(0, told.trouble);
      const auto outcome = rpc::async(agent(0), "worker1", kTake, pair).wait();
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().kind, CallErrorKind::Rejected);
      EXPECT_EQ(outcome.error().message,
                "the arguments cannot be written: " + told.type + ": " + told.text);
      EXPECT_FALSE(outcome.error().sent);
    }
    expect_nothing_is_left();
  }
  EXPECT_EQ(rpc::async(agent(0), "worker1", kTake, pair_of(0, Trouble::None)).wait().value(), 7);
  expect_nothing_is_left();
}

TEST_P(TroubledValues, FailACreationIfTheyThrowWhileTheyAreWritten) {
  for (const Told& told : kTroubles) {
    for (const char* const owner : {"worker1", "worker0"}) {
      const auto made = rpc::remote(agent(0), owner, kTake, pair_of(0, told.trouble));
      ASSERT_FALSE(made);
      EXPECT_EQ(made.error().kind, CallErrorKind::Rejected);
      EXPECT_EQ(made.error().message,
                "the arguments cannot be written: " + told.type + ": " + told.text);
    }
    expect_nothing_is_left();
  }
}

// Of an argument that is made into what the procedure takes, in the thread of whoever calls.
TEST_P(TroubledValues, LeaveNothingIfAnArgumentCannotEvenBeMade) {
  struct Reluctant {
    operator Pair() const { throw std::domain_error("not today"); }  // NOLINT: meant to be implicit
  };
  for (const char* const owner : {"worker1", "worker0"}) {
    EXPECT_THROW((void)rpc::async(agent(0), owner, kTake, Reluctant()), std::domain_error);
    EXPECT_THROW((void)rpc::remote(agent(0), owner, kTake, Reluctant()), std::domain_error);
  }
  expect_nothing_is_left();
}

TEST_P(TroubledValues, FailTheCallWhoseResultTheyAre) {
  for (const Told& told : kTroubles) {
    const auto outcome =
        rpc::async(agent(0), "worker1", kMake, static_cast<std::uint8_t>(told.trouble)).wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error(), (CallError{CallErrorKind::Remote, told.text, told.type, true}));
    expect_nothing_is_left();
  }
}

TEST_P(TroubledValues, FailAFetchOfWhatWasToBeMadeByPythonWhereThereIsNone) {
  const GlobalId rref(0, 1'000'000);
  rpc::Writer head;
  head.write(rref.bits(), creation_fork(rref).bits());
  rpc::Envelope envelope{.type = rpc::MessageType::PythonRemoteCall, .head = head.take_control()};
  auto request = rpc::encode_call<void()>(std::move(envelope), "muster.python");
  ASSERT_TRUE(agent(0).send("worker1", std::move(*request)).wait());
  const std::string fetch = encode(FetchCall{rref, creation_fork(rref)});
  const auto fetched =
      agent(0)
          .send("worker1", {rpc::MessageType::PythonRrefFetchCall, rpc::kNoMessageId, fetch, {}})
          .wait();
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().message, "Error on Node 1: Python calls are not supported!");
}

// ---- messages about references that are none

TEST_P(TroubledValues, ServeNoMessageAboutThemThatHasBuffers) {
  const GlobalId rref(0, 1'000'000);
  const GlobalId fork = creation_fork(rref);
  using rpc::MessageType;
  std::vector<rpc::Message> messages;
  for (const auto type : {MessageType::ScriptRrefFetchCall, MessageType::PythonRrefFetchCall}) {
    messages.push_back({type, rpc::kNoMessageId, encode(FetchCall{rref, fork}), {}});
  }
  for (const auto type : {MessageType::RrefUserDelete, MessageType::RrefForkRequest,
                          MessageType::RrefChildAccept, MessageType::RrefForkCancel}) {
    messages.push_back({type, rpc::kNoMessageId, encode(Control{type, rref, fork}), {}});
  }
  for (rpc::Message& message : messages) {
    const std::string name = name_of(message.type);
    message.buffers.emplace_back();
    const auto with_buffers = agent(0).send("worker1", message).wait();
    ASSERT_FALSE(with_buffers);
    EXPECT_EQ(with_buffers.error().message, "Error on Node 1: " + name + " has buffers");
    message.buffers.clear();
    message.payload += "x";
    const auto longer = agent(0).send("worker1", message).wait();
    ASSERT_FALSE(longer);
    EXPECT_TRUE(longer.error().message.starts_with("Error on Node 1: ")) << longer.error().message;
    EXPECT_TRUE(longer.error().message.ends_with("bytes are left over"));
  }
}

INSTANTIATE_TEST_SUITE_P(Way, TroubledValues, ::testing::Bool(), [](const auto& way) {
  return std::string(way.param ? "SharedMemory" : "Tcp");
});

}  // namespace
}  // namespace muster::rref
