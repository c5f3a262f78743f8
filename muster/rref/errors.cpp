#include "muster/rref/errors.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace muster::rref {
namespace {

using rpc::CallError;
using rpc::CallErrorKind;

CallError rejected(std::string text) {
  return {CallErrorKind::Rejected, std::move(text), {}, false};
}

}  // namespace

CallError creation_error(const CallError& cause) {
  if (cause.kind == CallErrorKind::Timeout || cause.kind == CallErrorKind::Injected) {
    return rejected(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner "
        "node does not exist.");
  }
  return rejected(fmt::format("RRef creation via rpc.remote() failed: {}", cause.message));
}

CallError deleted_error(GlobalId rref, GlobalId fork, std::string_view operation) {
  return rejected(fmt::format("{} has been deleted. Cannot {} after deletion.",
                              user_error_text(rref, fork), operation));
}

CallError ended_error(GlobalId rref) {
  return rejected(fmt::format("no such reference: {} has ended", owner_error_text(rref)));
}

CallError cancelled_error(GlobalId rref, GlobalId fork) {
  return rejected(
      fmt::format("{} came too late: its sender has taken it back", user_error_text(rref, fork)));
}

CallError lost_worker_error(WorkerId worker, std::string_view reason) {
  return {
      CallErrorKind::Unreachable, fmt::format("worker {} is lost: {}", worker, reason), {}, false};
}

CallError replaced_worker_error(WorkerId worker) {
  return lost_worker_error(worker, "another process is known by its id");
}

CallError lost_owner_error(GlobalId rref, GlobalId fork, const CallError& lost) {
  return {CallErrorKind::Unreachable,
          fmt::format("{} has lost its owner: {}", user_error_text(rref, fork), lost.message),
          {},
          false};
}

CallError lost_creator_error(GlobalId rref, const CallError& lost) {
  return rejected(fmt::format("no such reference: {} was not created in time: {}",
                              owner_error_text(rref), lost.message));
}

CallError given_up_error(GlobalId rref) {
  return rejected(fmt::format(
      "RRef creation via rpc.remote() failed: the creator of {} has let go before it was created",
      owner_error_text(rref)));
}

CallError unconfirmed_error(GlobalId rref, GlobalId fork, const CallError& cause) {
  return {cause.kind,
          fmt::format("{} was not confirmed by its owner: {}", user_error_text(rref, fork),
                      cause.message),
          cause.type, cause.sent};
}

CallError refused_creation_error(GlobalId rref, std::string_view why) {
  return rejected(fmt::format("{} is not created: {}", owner_error_text(rref), why));
}

}  // namespace muster::rref
