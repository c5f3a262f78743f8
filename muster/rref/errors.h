// The errors that references make themselves, in one place: programs and their tests match on parts
// of the texts.
//
// What is refused before anything is sent is Rejected, so that none of the texts gets the head of a
// coded error in front.
#pragma once

#include "muster/rpc/call_error.h"
#include "muster/rref/ids.h"

#include <string_view>

namespace muster::rref {

// A use of a handle whose creating call failed for `cause`.
rpc::CallError creation_error(const rpc::CallError& cause);
// `operation`: "call to_here() on it".
rpc::CallError deleted_error(GlobalId rref, GlobalId fork, std::string_view operation);
// The owner knows the reference no more, or will never know it.
rpc::CallError ended_error(GlobalId rref);
// The fork was taken back before it came.
rpc::CallError cancelled_error(GlobalId rref, GlobalId fork);
// `reason` says what happened to the worker.
rpc::CallError lost_worker_error(WorkerId worker, std::string_view reason);
// Another process has the worker's id now, as far as this worker knows.
rpc::CallError replaced_worker_error(WorkerId worker);
rpc::CallError lost_owner_error(GlobalId rref, GlobalId fork, const rpc::CallError& lost);
rpc::CallError lost_creator_error(GlobalId rref, const rpc::CallError& lost);
// The creator let go of the reference, and nobody knows whether it will ever be created.
rpc::CallError given_up_error(GlobalId rref);
// The owner never confirmed it.
rpc::CallError unconfirmed_error(GlobalId rref, GlobalId fork, const rpc::CallError& cause);
// What another worker asked for cannot be done.
rpc::CallError refused_creation_error(GlobalId rref, std::string_view why);

}  // namespace muster::rref
