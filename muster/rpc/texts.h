// The texts of the errors that RPC makes itself, in one place: programs and their tests match on
// parts of them.
//
// None has the head `RPCErr:<code>:`; that is added by `render` from the kind of the error.
#pragma once

#include "muster/base/clock.h"
#include "muster/rpc/message.h"
#include "muster/rpc/worker_info.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::rpc {

// What is told of a failure is cut before it is sent or kept; it is for people.
inline constexpr std::size_t kFailureTextBytesMax = 65536;
inline constexpr std::size_t kFailureTypeBytesMax = 4096;

// The text with "…" in the place of what is too much, at the beginning of a character if it is
// UTF-8. What was cut so is not cut again.
std::string cut_text(std::string text, std::size_t bytes_max);

// ---- calls --------------------------------------------------------------------------------------

// The timeout is shown in whole milliseconds.
std::string timeout_text(Duration timeout);
// A failure made on purpose. Describes the message instead of showing its bytes, which nobody can
// read and Python cannot print.
std::string injected_text(const Message& message);
// With the text of the last attempt, which is what the reader needs.
std::string retries_exhausted_text(std::int64_t retries_max, std::string_view last_error);
// When somebody was last heard, as far as it is known: it is looked at only now and then.
struct LastHeard {
  Duration ago = Duration::zero();
  bool was_since = false;  // something came after that, too
};
// The connection to `peer` is gone. `heard`: nothing if it never was.
std::string peer_lost_text(const WorkerInfo& peer, std::string_view reason,
                           std::optional<LastHeard> heard);
// `peer` has ended without a word.
std::string peer_died_text(const WorkerInfo& peer, std::string_view address);
// A call or a retry that was still waiting when the agent stopped.
std::string agent_stopped_text(const WorkerInfo& me);
std::string too_many_calls_text(std::uint64_t calls_max);

// ---- what is refused before anything is sent ----------------------------------------------------

std::string requests_only_text();
std::string not_running_text(const WorkerInfo& me, MessageType type);
std::string unknown_destination_name_text(const WorkerInfo& me, std::string_view name);
// The id as the program gave it, which need not be one that a worker can have.
std::string unknown_destination_id_text(const WorkerInfo& me, std::int64_t id);
// The worker is known, but not where it listens.
std::string unknown_destination_url_text(const WorkerInfo& me, std::string_view name);
std::string negative_timeout_text(double seconds);
std::string negative_default_timeout_text(double seconds);

// A tensor that is on an accelerator for which there is no entry in the device map for `peer`.
// `what` is the tensor.
std::string unmapped_device_text(bool is_request, std::string_view what, std::string_view peer);

// ---- serving ------------------------------------------------------------------------------------

// The request could not be decoded or dispatched on worker `id`.
std::string error_on_node_text(std::int16_t id, std::string_view text);
std::string not_supported_text(MessageType type);
// A call of a Python function came to a process without Python.
std::string no_python_text();

// ---- starting -----------------------------------------------------------------------------------

std::string bad_worker_name_text(std::string_view name);
std::string bad_worker_id_text(std::int64_t id);
std::string negative_worker_id_text(std::int64_t id);
std::string bad_thread_count_text(std::int64_t count);
// Two workers have the name of `first`.
std::string duplicate_name_text(const WorkerInfo& first, std::int16_t second_id);
std::string duplicate_id_text(std::int64_t id);
// This worker came to a group that was started the other way.
std::string mixed_group_text(bool group_is_static);
std::string already_initialized_text();
std::string no_current_agent_text();
std::string agent_is_set_text();

}  // namespace muster::rpc
