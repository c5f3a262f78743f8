// What the messages of a worker have to do with its references: those that carry some, those that
// make some, and those about them.
#include "muster/rpc/texts.h"
#include "muster/rref/control.h"
#include "muster/rref/errors.h"
#include "muster/rref/keeper.h"

#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <utility>

namespace muster::rref {
namespace {

using rpc::CallError;
using rpc::CallErrorKind;
using rpc::CallResult;
using rpc::Message;
using rpc::MessageType;

GlobalId id_of(std::uint64_t bits) {
  return GlobalId(static_cast<WorkerId>(bits >> 48U),
                  static_cast<std::int64_t>(bits & static_cast<std::uint64_t>(kLocalIdMax)));
}

std::vector<GlobalId> ids_of(const std::vector<std::uint64_t>& numbers) {
  std::vector<GlobalId> ids;
  ids.reserve(numbers.size());
  for (const std::uint64_t number : numbers) ids.push_back(id_of(number));
  return ids;
}

}  // namespace

// ---- in messages --------------------------------------------------------------------------------

Result<std::string> Keeper::give(const Handle& handle, rpc::Freight& freight) {
  const auto peer = freight.peer();
  if (!peer) return fail(ErrorKind::Invalid, peer.error().message);
  if (handle.is_owner()) {
    if (const auto error = handle.owned()->creation_error()) {
      return fail(ErrorKind::Invalid, error->message);
    }
  }
  // C++ types have short texts; whoever spells them otherwise may not know.
  if (handle.type().size() > kTypeTextBytesMax) {
    return fail(ErrorKind::Invalid,
                fmt::format("the type of {} has a name of {} bytes; at most {} can be sent",
                            handle.text(), handle.type().size(), kTypeTextBytesMax));
  }
  const std::lock_guard lock(mutex_);
  const rpc::ConnectionNumber by = freight.connection();
  auto data = handle.is_owner() ? ledger_.fork_owned(handle.rref(), *peer, by)
                                : ledger_.fork_user(handle.rref(), handle.fork(), *peer, by);
  if (!data) return fail(ErrorKind::Invalid, data.error().message);
  if (handle.is_owner()) owned_.emplace(handle.rref(), handle.owned());
  data->type = handle.type();
  freight.forks.push_back(data->fork.bits());
  return encode(*data);
}

Result<std::shared_ptr<Handle>> Keeper::take(std::string_view bytes, const std::string& type,
                                             rpc::Freight& freight) {
  auto data = decode_fork_data(bytes);
  if (!data) return fail(data.error());
  if (data->type != type) {
    return fail(ErrorKind::Invalid,
                fmt::format("the reference is to a value of type {}, not {}", data->type, type));
  }
  Effects effects;
  std::shared_ptr<Handle> handle;
  {
    const std::lock_guard lock(mutex_);
    const Ledger::Received received = ledger_.received(*data, effects);
    if (received.arrival == Ledger::Arrival::Owner) {
      handle = std::make_shared<Handle>(shared_from_this(), owned_entry(data->rref, data->type));
    } else {
      handle = std::make_shared<Handle>(shared_from_this(), *data);
    }
    if (received.arrival == Ledger::Arrival::Pending) freight.forks.push_back(data->fork.bits());
    changed_.notify_all();
  }
  carry_out(std::move(effects));
  return handle;
}

void Keeper::not_sent(const std::vector<std::uint64_t>& forks) {
  change([&](Effects& out) {
    for (const GlobalId fork : ids_of(forks)) ledger_.undo_fork(fork, out);
  });
}

void Keeper::maybe_sent(const std::vector<std::uint64_t>& forks) {
  change([&](Effects& out) {
    for (const GlobalId fork : ids_of(forks)) ledger_.fork_uncertain(fork, out);
  });
}

void Keeper::when_confirmed(const std::vector<std::uint64_t>& forks, GoOn go_on) {
  struct Waiting {
    std::atomic<std::size_t> missing;
    std::atomic<bool> is_over = false;
    GoOn go_on;
  };
  auto waiting = std::make_shared<Waiting>();
  waiting->missing = forks.size() + 1;
  waiting->go_on = std::move(go_on);
  const GoOn one = [waiting](const CallError* error) {
    const bool is_last = --waiting->missing == 0;
    if (error == nullptr && !is_last) return;
    if (!waiting->is_over.exchange(true)) waiting->go_on(error);
  };
  std::vector<std::optional<CallError>> known;
  {
    const std::lock_guard lock(mutex_);
    for (const GlobalId fork : ids_of(forks)) {
      switch (ledger_.state_of(fork)) {
        case Ledger::State::Pending:
          settling_[fork].push_back(one);
          break;
        case Ledger::State::Failed:
          known.emplace_back(ledger_.use_error({fork, fork, "use it"}));
          break;
        case Ledger::State::Confirmed:
        case Ledger::State::Deleted:
          known.emplace_back();
          break;
      }
    }
  }
  for (const auto& error : known) one(error ? &*error : nullptr);
  one(nullptr);
}

CallResult<> Keeper::begin_creation(std::uint64_t rref, std::uint64_t fork, std::int16_t from) {
  const std::lock_guard lock(mutex_);
  Ledger::Begin begun = ledger_.begin_creation(id_of(rref), id_of(fork), from);
  if (begun.creation == Ledger::Creation::Refuse) return call_failed(std::move(*begun.error));
  return {};
}

void Keeper::end_creation(std::uint64_t rref, CallResult<std::shared_ptr<rpc::Object>> outcome) {
  const GlobalId id = id_of(rref);
  std::shared_ptr<Owned> owned;
  {
    const std::lock_guard lock(mutex_);
    // Nobody wants the value of a reference that has ended meanwhile.
    if (ledger_.holds(id)) owned = owned_entry(id, outcome ? (*outcome)->type() : std::string());
  }
  if (owned && outcome && owned->type() != (*outcome)->type()) {
    outcome = rpc::call_failed(
        {CallErrorKind::Rejected,
         fmt::format("the function made a value of type {}, and the reference is to one of {}",
                     (*outcome)->type(), owned->type()),
         "", false});
  }
  // Before anybody is told that it exists.
  if (owned) owned->set(std::move(outcome));
  change([&](Effects& out) { ledger_.created(id, out); });
}

// ---- serving ------------------------------------------------------------------------------------

bool Keeper::serve(rpc::Request& request) {
  const MessageType type = request.message.type;
  const bool is_fetch =
      type == MessageType::ScriptRrefFetchCall || type == MessageType::PythonRrefFetchCall;
  if (!is_fetch && !is_control(type)) return false;
  if (!request.message.buffers.empty()) {
    refuse(request, fmt::format("{} has buffers", name_of(type)));
  } else if (is_fetch) {
    serve_fetch(request);
  } else {
    serve_control(request);
  }
  return true;
}

void Keeper::refuse(rpc::Request& request, std::string_view why) const {
  request.responder.fail("", rpc::error_on_node_text(self_, why));
}

void Keeper::serve_control(rpc::Request& request) {
  CallResult<std::string> answer;
  change([&](Effects& out) {
    answer =
        ledger_.on_control(request.from->id(), request.message.type, request.message.payload, out);
  });
  if (!answer) return refuse(request, answer.error().message);
  request.responder.respond({MessageType::RrefAck, rpc::kNoMessageId, std::move(*answer), {}});
}

void Keeper::serve_fetch(rpc::Request& request) {
  const auto call = decode_fetch_call(request.message.payload);
  if (!call) return refuse(request, call.error().message);
  // It may wait for long, beside many others.
  request.message.payload = {};
  const GlobalId rref = call->rref;
  Ledger::Fetch found;
  {
    const std::lock_guard lock(mutex_);
    found = ledger_.fetch(*call, request.from->id());
    if (found.answer == Ledger::FetchAnswer::Wait) {
      auto waiting = std::make_shared<rpc::Request>(std::move(request));
      creating_[rref].push_back([this, rref, waiting](const CallError* error) {
        if (error != nullptr) return waiting->responder.fail(error->type, error->message);
        answer_fetch(rref, std::move(*waiting));
      });
      return;
    }
  }
  if (found.answer == Ledger::FetchAnswer::Refused) {
    return request.responder.fail(found.error->type, found.error->message);
  }
  answer_fetch(rref, std::move(request));
}

namespace {

// Of the answer to a fetch.
class FetchFreight final : public rpc::Freight {
 public:
  FetchFreight(rpc::References* references, const rpc::Request& request)
      : Freight(references), to_(request.from->id()), by_(request.responder.connection()) {}
  CallResult<std::int16_t> peer() override { return to_; }
  rpc::ConnectionNumber connection() const override { return by_; }

 private:
  std::int16_t to_;
  rpc::ConnectionNumber by_;
};

}  // namespace

void Keeper::answer_fetch(GlobalId rref, rpc::Request request) {
  std::shared_ptr<Owned> owned;
  {
    const std::lock_guard lock(mutex_);
    const auto found = owned_.find(rref);
    if (found != owned_.end()) owned = found->second;
  }
  if (!owned) {
    const CallError error = ended_error(rref);
    return request.responder.fail(error.type, error.message);
  }
  auto waiting = std::make_shared<rpc::Request>(std::move(request));
  owned->value().on_done([self = weak_from_this(), id = self_, waiting](const auto& outcome) {
    if (!outcome) return waiting->responder.fail(outcome.error().type, outcome.error().message);
    const auto keeper = self.lock();
    const auto with = keeper ? keeper->agent() : nullptr;
    if (!with) {
      const std::string text = rpc::error_on_node_text(id, "RPC is no longer running");
      return waiting->responder.fail("", text);
    }
    const std::shared_ptr<rpc::Object>& object = *outcome;
    const auto respond = [keeper, object, waiting] { keeper->respond_with(*object, *waiting); };
    if (!object->is_slow_to_write()) return respond();
    (void)with->callbacks().post(respond);  // one that is stopped drops it, which answers
  });
}

void Keeper::respond_with(const rpc::Object& object, rpc::Request& request) {
  FetchFreight freight(this, request);
  rpc::Writer writer;
  writer.set_freight(&freight);
  const rpc::DeviceRoute route = rpc::response_route(request);
  writer.set_route(route);
  std::optional<rpc::Failure> failure;
  // A codec of a program's own may throw.
  try {
    object.write(writer);
    if (const auto written = writer.finish(); !written) failure = {"", written.error().message};
  } catch (...) {
    failure = rpc::describe_current_exception();
  }
  if (failure) {
    not_sent(freight.forks);
    return request.responder.fail(failure->type, failure->text);
  }
  Message response{
      rpc::response_to(request.message.type), rpc::kNoMessageId, writer.take_control(), {}};
  response.buffers = writer.take_buffers();
  // Whoever does not wait any more will not look at what it was given.
  const bool is_unwanted = !freight.forks.empty() && request.responder.is_cancelled();
  request.responder.respond(std::move(response));
  if (is_unwanted) maybe_sent(freight.forks);
}

void Keeper::worker_lost(std::int16_t worker, const std::string& reason) {
  change([&](Effects& out) { ledger_.worker_lost(worker, reason, out); });
}

void Keeper::worker_heard(std::int16_t worker) {
  change([&](Effects& out) { ledger_.worker_heard(worker, out); });
}

void Keeper::connection_lost(rpc::ConnectionNumber connection) {
  change([&](Effects& out) { ledger_.connection_lost(connection, out); });
}

void Keeper::worker_joined(std::int16_t worker, std::uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  std::optional<std::int64_t> first_id;
  if (incarnation != 0) first_id = first_of_incarnation(incarnation);
  if (worker != self_) {
    ledger_.worker_joined(worker, first_id);
  } else if (first_id) {
    ids_.begin_at(*first_id);
  }
}

}  // namespace muster::rref
