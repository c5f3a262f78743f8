#include "muster/rpc/texts.h"

#include "muster/rpc/call_error.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

WorkerInfo me() { return WorkerInfo::create("worker0", 0).value(); }
WorkerInfo peer() { return WorkerInfo::create("worker1", 1).value(); }

// The texts are compared as a whole: whoever changes one sees here that programs match on it.

TEST(Texts, ShowATimeoutInWholeMilliseconds) {
  EXPECT_EQ(timeout_text(1s),
            "RPC ran for more than set timeout (1000 ms) and will now be marked with an error");
  EXPECT_EQ(timeout_text(1ms + 999us),
            "RPC ran for more than set timeout (1 ms) and will now be marked with an error");
}

TEST(Texts, OfATimeoutAreRenderedWithTheirHead) {
  const CallError error{CallErrorKind::Timeout, timeout_text(100ms), "", true};
  EXPECT_EQ(
      render(error),
      "RPCErr:1:RPC ran for more than set timeout (100 ms) and will now be marked with an error");
}

TEST(Texts, DescribeAnInjectedFailureWithoutThePayload) {
  Message message;
  message.type = MessageType::RrefUserDelete;
  message.payload = std::string("\x00\xff\x01", 3);
  EXPECT_EQ(injected_text(message),
            "Send attempt failed intentionally for RREF_USER_DELETE with 3 bytes");
}

TEST(Texts, NameTheLastErrorWhenAllRetriesAreUsed) {
  EXPECT_EQ(retries_exhausted_text(5, "connection refused"),
            "The RPC has not succeeded after the specified number of max retries (5). "
            "Last error: connection refused");
  EXPECT_EQ(retries_exhausted_text(0, ""),
            "The RPC has not succeeded after the specified number of max retries (0).");
}

TEST(Texts, SayWhichPeerIsLostAndWhenItWasLastHeard) {
  EXPECT_EQ(peer_lost_text(peer(), "connection reset by peer", LastHeard{1500ms, false}),
            "lost the connection to WorkerInfo(id=1, name=worker1): connection reset by peer "
            "(last heard more than 1.5s ago)");
  EXPECT_EQ(peer_lost_text(peer(), "connection reset by peer", LastHeard{1500ms, true}),
            "lost the connection to WorkerInfo(id=1, name=worker1): connection reset by peer "
            "(last heard less than 1.5s ago)");
  EXPECT_EQ(peer_lost_text(peer(), "connection refused", std::nullopt),
            "lost the connection to WorkerInfo(id=1, name=worker1): connection refused "
            "(never heard)");
}

TEST(Texts, SayWhichPeerHasDiedAndWhereItWas) {
  EXPECT_EQ(peer_died_text(peer(), "10.0.0.7:4400"),
            "WorkerInfo(id=1, name=worker1) has died: its process is gone, and nobody listens at "
            "10.0.0.7:4400 any more");
}

TEST(Texts, SayThatTheAgentStopped) {
  EXPECT_EQ(agent_stopped_text(me()),
            "the RPC agent of WorkerInfo(id=0, name=worker0) stopped before the call was over");
}

TEST(Texts, NameTheLimitOfCalls) {
  EXPECT_EQ(too_many_calls_text(2), "too many calls wait for their response: 2");
}

TEST(Texts, RefuseToSendWhatIsNoRequest) {
  EXPECT_EQ(requests_only_text(), "TensorPipeAgent::send(..) is only for sending requests.");
}

TEST(Texts, SayThatRpcIsNoLongerRunningWithABlankAfterTheNode) {
  EXPECT_EQ(not_running_text(peer(), MessageType::PythonCall),
            "Node 1 tried to send() a message of type 258 but RPC is no longer running on this "
            "node.");
}

TEST(Texts, NameTheDestinationThatIsNotFound) {
  EXPECT_EQ(unknown_destination_name_text(me(), "nobody"),
            "name:worker0,rank:0 could not find destination name nobody");
  EXPECT_EQ(unknown_destination_id_text(me(), -1),
            "name:worker0,rank:0 could not find destination id -1");
  EXPECT_EQ(unknown_destination_id_text(me(), 70000),
            "name:worker0,rank:0 could not find destination id 70000");
  EXPECT_EQ(unknown_destination_url_text(peer(), "worker3"),
            "name:worker1,rank:1 could not find destination url for name worker3");
}

TEST(Texts, RefuseNegativeTimeouts) {
  EXPECT_EQ(negative_timeout_text(-5),
            "an RPC timeout is 0 (never), a number of seconds, or -1 (the default), not -5");
  EXPECT_EQ(negative_default_timeout_text(-0.5), "RPC Timeout must be non-negative, got -0.5");
}

TEST(Texts, SayOnWhichNodeARequestCouldNotBeServed) {
  EXPECT_EQ(error_on_node_text(3, "bad bytes"), "Error on Node 3: bad bytes");
  EXPECT_EQ(not_supported_text(MessageType::RrefBackwardReq),
            "messages of type RREF_BACKWARD_REQ are not supported");
  EXPECT_EQ(not_supported_text(static_cast<MessageType>(0x1ff)),
            "messages of type 0x1ff are not supported");
}

TEST(Texts, QuoteTheNameThatIsNotFitForAWorker) {
  EXPECT_EQ(bad_worker_name_text("a\nb"),
            "Worker name must match [A-Za-z0-9_:-]*, must be non-empty and must be shorter than "
            "128 characters: \"a\\x0ab\"");
}

TEST(Texts, NameTheIdThatIsNotFitForAWorker) {
  EXPECT_EQ(bad_worker_id_text(32768), "RPC worker id 32768 out of bound of int16_t.");
  EXPECT_EQ(negative_worker_id_text(-1),
            "RPC worker id -1 is negative; a worker that joins a group has one from 0 to 32767");
}

TEST(Texts, RefuseAnAgentWithoutThreads) {
  EXPECT_EQ(bad_thread_count_text(0), "num_worker_threads must be positive, got 0");
}

TEST(Texts, NameBothWorkersThatShareAName) {
  EXPECT_EQ(duplicate_name_text(peer(), 3),
            "RPC worker name worker1 is not unique. Workers 1 and 3 share the same name.");
  EXPECT_EQ(duplicate_id_text(2), "RPC worker id 2 is not unique.");
}

TEST(Texts, SayHowAGroupIsMixed) {
  EXPECT_EQ(mixed_group_text(true),
            "RPC group mixes statically and dynamically initialized members which is not "
            "supported. It was started with a world size, this worker without a world size");
  EXPECT_EQ(mixed_group_text(false),
            "RPC group mixes statically and dynamically initialized members which is not "
            "supported. It was started without a world size, this worker with a world size");
}

TEST(Texts, SayWhetherThereIsAnAgent) {
  EXPECT_EQ(already_initialized_text(), "RPC is already initialized");
  EXPECT_EQ(agent_is_set_text(), "Current RPC agent is set! RPC is already initialized");
  EXPECT_EQ(no_current_agent_text().find(
                "Current RPC agent is not set! Did you initialize the RPC framework"),
            0u);
}

}  // namespace
}  // namespace muster::rpc
