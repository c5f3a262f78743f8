#include "muster/rpc/texts.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <chrono>
#include <iterator>

namespace muster::rpc {
namespace {

int number_of(MessageType type) { return static_cast<std::uint16_t>(type); }

// Who speaks, in the texts about destinations.
std::string head_of(const WorkerInfo& me) {
  return fmt::format("name:{},rank:{} could not find destination", me.name(), me.id());
}

}  // namespace

std::string cut_text(std::string text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  std::size_t end = bytes_max;
  while (end > 0 && bytes_max - end < 4 &&
         (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) {
    --end;
  }
  text.resize(end);
  text += "…";
  return text;
}

std::string timeout_text(Duration timeout) {
  const auto length = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  return fmt::format(
      "RPC ran for more than set timeout ({} ms) and will now be marked with an error",
      length.count());
}

std::string injected_text(const Message& message) {
  return fmt::format("Send attempt failed intentionally for {} with {} bytes",
                     name_of(message.type), message.payload.size());
}

std::string retries_exhausted_text(std::int64_t retries_max, std::string_view last_error) {
  std::string text = fmt::format(
      "The RPC has not succeeded after the specified number of max retries ({}).", retries_max);
  if (!last_error.empty()) fmt::format_to(std::back_inserter(text), " Last error: {}", last_error);
  return text;
}

std::string peer_lost_text(const WorkerInfo& peer, std::string_view reason,
                           std::optional<LastHeard> heard) {
  const std::string when =
      heard ? fmt::format("last heard {} than {} ago", heard->was_since ? "less" : "more",
                          describe(heard->ago))
            : "never heard";
  return fmt::format("lost the connection to {}: {} ({})", peer.describe(), reason, when);
}

std::string peer_died_text(const WorkerInfo& peer, std::string_view address) {
  return fmt::format("{} has died: its process is gone, and nobody listens at {} any more",
                     peer.describe(), address);
}

std::string agent_stopped_text(const WorkerInfo& me) {
  return fmt::format("the RPC agent of {} stopped before the call was over", me.describe());
}

std::string too_many_calls_text(std::uint64_t calls_max) {
  return fmt::format("too many calls wait for their response: {}", calls_max);
}

std::string requests_only_text() {
  return "TensorPipeAgent::send(..) is only for sending requests.";
}

std::string not_running_text(const WorkerInfo& me, MessageType type) {
  return fmt::format(
      "Node {} tried to send() a message of type {} but RPC is no longer running on this node.",
      me.id(), number_of(type));
}

std::string unknown_destination_name_text(const WorkerInfo& me, std::string_view name) {
  return fmt::format("{} name {}", head_of(me), name);
}

std::string unknown_destination_id_text(const WorkerInfo& me, std::int64_t id) {
  return fmt::format("{} id {}", head_of(me), id);
}

std::string unknown_destination_url_text(const WorkerInfo& me, std::string_view name) {
  return fmt::format("{} url for name {}", head_of(me), name);
}

std::string negative_timeout_text(double seconds) {
  return fmt::format(
      "an RPC timeout is 0 (never), a number of seconds, or -1 (the default), not {}", seconds);
}

std::string negative_default_timeout_text(double seconds) {
  return fmt::format("RPC Timeout must be non-negative, got {}", seconds);
}

std::string unmapped_device_text(bool is_request, std::string_view what, std::string_view peer) {
  return fmt::format(
      "TensorPipe RPC backend only supports CPU tensors by default, and {} is not one; copy it to "
      "the CPU, or say with set_device_map where it goes. {} device mapping is not available for "
      "destination {}",
      what, is_request ? "Request" : "Response", peer);
}

std::string error_on_node_text(std::int16_t id, std::string_view text) {
  return fmt::format("Error on Node {}: {}", id, text);
}

std::string not_supported_text(MessageType type) {
  return fmt::format("messages of type {} are not supported", name_of(type));
}

std::string no_python_text() { return "Python calls are not supported!"; }

std::string bad_worker_name_text(std::string_view name) {
  return fmt::format(
      "Worker name must match [A-Za-z0-9_:-]*, must be non-empty and must be shorter than 128 "
      "characters: {}",
      log::quote(name));
}

std::string bad_worker_id_text(std::int64_t id) {
  return fmt::format("RPC worker id {} out of bound of int16_t.", id);
}

std::string negative_worker_id_text(std::int64_t id) {
  return fmt::format(
      "RPC worker id {} is negative; a worker that joins a group has one from 0 to {}", id,
      kWorkerIdMax);
}

std::string bad_thread_count_text(std::int64_t count) {
  return fmt::format("num_worker_threads must be positive, got {}", count);
}

std::string duplicate_name_text(const WorkerInfo& first, std::int16_t second_id) {
  return fmt::format("RPC worker name {} is not unique. Workers {} and {} share the same name.",
                     first.name(), first.id(), second_id);
}

std::string duplicate_id_text(std::int64_t id) {
  return fmt::format("RPC worker id {} is not unique.", id);
}

std::string mixed_group_text(bool group_is_static) {
  const std::string_view with = "with a world size";
  const std::string_view without = "without a world size";
  return fmt::format(
      "RPC group mixes statically and dynamically initialized members which is not "
      "supported. It was started {}, this worker {}",
      group_is_static ? with : without, group_is_static ? without : with);
}

std::string already_initialized_text() { return "RPC is already initialized"; }

std::string no_current_agent_text() {
  return "Current RPC agent is not set! Did you initialize the RPC framework (init_rpc)?";
}

// Whoever starts RPC beside an agent that a program has set sees it, too.
std::string agent_is_set_text() {
  return fmt::format("Current RPC agent is set! {}", already_initialized_text());
}

}  // namespace muster::rpc
