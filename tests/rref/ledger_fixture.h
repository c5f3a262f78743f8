// Three workers with their ledgers, between which a test carries the messages by hand.
#pragma once

#include "muster/rref/errors.h"
#include "muster/rref/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rref::testing {

using rpc::CallError;
using rpc::CallErrorKind;
using rpc::MessageType;
using State = Ledger::State;
using Arrival = Ledger::Arrival;
using Creation = Ledger::Creation;
using FetchAnswer = Ledger::FetchAnswer;

inline const CallError kTimeout{CallErrorKind::Timeout, "RPC ran for more than", {}, true};
inline const CallError kCut{CallErrorKind::Unreachable, "the connection broke", {}, true};

struct Worker {
  explicit Worker(WorkerId number, std::int64_t first = 0)
      : id(number), ids(first), ledger({number}, ids) {}

  WorkerId id;
  IdSource ids;
  Ledger ledger;
  Effects out;

  // Takes the message of this type that it wants sent, which must be the only one.
  Effects::Send take(MessageType type) {
    const auto is_it = [&](const Effects::Send& send) { return send.type == type; };
    EXPECT_EQ(std::count_if(out.sends.begin(), out.sends.end(), is_it), 1) << rpc::name_of(type);
    const auto found = std::find_if(out.sends.begin(), out.sends.end(), is_it);
    if (found == out.sends.end()) return {};
    Effects::Send send = *found;
    out.sends.erase(found);
    return send;
  }
  // How the handle was settled last; nothing if it was not.
  std::optional<Effects::Settled> settled(GlobalId fork) const {
    std::optional<Effects::Settled> last;
    for (const Effects::Settled& one : out.settled) {
      if (one.fork == fork) last = one;
    }
    return last;
  }
  std::string error_of(GlobalId rref, GlobalId fork) const {
    const auto error = ledger.use_error({rref, fork, "call to_here() on it"});
    return error ? error->message : "";
  }
};

class LedgerTest : public ::testing::Test {
 protected:
  Worker& at(WorkerId id) { return id == 0 ? a : id == 1 ? b : c; }

  // The message arrives; what it is answered.
  Ack serve(const Worker& from, const Effects::Send& send) {
    Worker& to = at(send.to);
    const auto reply = to.ledger.on_control(from.id, send.type, send.payload, to.out);
    EXPECT_TRUE(reply) << reply.error().message;
    return reply ? *decode_ack(*reply) : Ack::Ended;
  }
  // It arrives, and so does the answer.
  Ack deliver(Worker& from, const Effects::Send& send) {
    const Ack ack = serve(from, send);
    from.ledger.acked(send.ticket, encode(ack), from.out);
    return ack;
  }
  // All that anybody wants sent arrives.
  void settle() {
    bool is_quiet = false;
    while (!is_quiet) {
      is_quiet = true;
      for (Worker* worker : {&a, &b, &c}) {
        for (const Effects::Send& send : std::exchange(worker->out.sends, {})) {
          deliver(*worker, send);
          is_quiet = false;
        }
      }
    }
  }
  // A reference of `creator` to a value on `owner`, all messages delivered.
  static Ledger::NewReference remote(Worker& creator, Worker& owner) {
    const Ledger::NewReference made = *creator.ledger.create(owner.id);
    EXPECT_EQ(owner.ledger.begin_creation(made.rref, made.fork, creator.id).creation,
              Creation::Run);
    owner.ledger.created(made.rref, owner.out);
    creator.ledger.creation_finished(made.fork, std::nullopt, creator.out);
    return made;
  }
  // `parent` gives its handle away; the fork is on its way.
  static ForkData fork(Worker& parent, const Ledger::NewReference& handle, const Worker& to) {
    return *parent.ledger.fork_user(handle.rref, handle.fork, to.id);
  }
  void expect_all_empty() {
    for (Worker* worker : {&a, &b, &c}) {
      EXPECT_TRUE(worker->ledger.is_empty()) << worker->id;
      EXPECT_EQ(worker->ledger.counters(), Ledger::Counters()) << worker->id;
    }
  }

  Worker a{0};
  Worker b{1};
  Worker c{2};
};

}  // namespace muster::rref::testing
