#include "muster/rpc/message.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace muster::rpc {
namespace {

struct Row {
  MessageType type;
  std::string_view name;
  bool is_retried = false;
};

constexpr bool kRetried = true;

constexpr std::array kRows = {
    Row{MessageType::ScriptCall, "SCRIPT_CALL"},
    Row{MessageType::ScriptRet, "SCRIPT_RET"},
    Row{MessageType::PythonCall, "PYTHON_CALL"},
    Row{MessageType::PythonRet, "PYTHON_RET"},
    Row{MessageType::ScriptRemoteCall, "SCRIPT_REMOTE_CALL"},
    Row{MessageType::PythonRemoteCall, "PYTHON_REMOTE_CALL"},
    Row{MessageType::RemoteRet, "REMOTE_RET"},
    Row{MessageType::ScriptRrefFetchCall, "SCRIPT_RREF_FETCH_CALL"},
    Row{MessageType::PythonRrefFetchCall, "PYTHON_RREF_FETCH_CALL"},
    Row{MessageType::ScriptRrefFetchRet, "SCRIPT_RREF_FETCH_RET"},
    Row{MessageType::PythonRrefFetchRet, "PYTHON_RREF_FETCH_RET"},
    Row{MessageType::RrefUserDelete, "RREF_USER_DELETE", kRetried},
    Row{MessageType::RrefForkRequest, "RREF_FORK_REQUEST", kRetried},
    Row{MessageType::RrefChildAccept, "RREF_CHILD_ACCEPT", kRetried},
    Row{MessageType::RrefAck, "RREF_ACK"},
    Row{MessageType::ForwardAutogradReq, "FORWARD_AUTOGRAD_REQ"},
    Row{MessageType::ForwardAutogradResp, "FORWARD_AUTOGRAD_RESP"},
    Row{MessageType::BackwardAutogradReq, "BACKWARD_AUTOGRAD_REQ"},
    Row{MessageType::BackwardAutogradResp, "BACKWARD_AUTOGRAD_RESP"},
    Row{MessageType::CleanupAutogradContextReq, "CLEANUP_AUTOGRAD_CONTEXT_REQ", kRetried},
    Row{MessageType::CleanupAutogradContextResp, "CLEANUP_AUTOGRAD_CONTEXT_RESP"},
    Row{MessageType::RunWithProfilingReq, "RUN_WITH_PROFILING_REQ"},
    Row{MessageType::RunWithProfilingResp, "RUN_WITH_PROFILING_RESP"},
    Row{MessageType::RrefBackwardReq, "RREF_BACKWARD_REQ"},
    Row{MessageType::RrefBackwardResp, "RREF_BACKWARD_RESP"},
    Row{MessageType::RrefForkCancel, "RREF_FORK_CANCEL", kRetried},
    Row{MessageType::Exception, "EXCEPTION"},
    Row{MessageType::Unknown, "UNKNOWN"},
};

constexpr int low_byte(MessageType type) { return static_cast<std::uint16_t>(type) & 0xff; }

constexpr bool is_in_order() {
  for (std::size_t row = 1; row < kRows.size(); ++row) {
    if (low_byte(kRows[row - 1].type) >= low_byte(kRows[row].type)) return false;
  }
  return true;
}

constexpr bool has_one_flag_each() {
  for (const Row& row : kRows) {
    const bool one = is_request(row.type) != is_response(row.type);
    if (one == (row.type == MessageType::Unknown)) return false;
    if (row.is_retried && !is_request(row.type)) return false;
  }
  return true;
}

// The low bytes 0x00 to 0x19 without a gap, EXCEPTION and UNKNOWN.
static_assert(kRows.size() == 0x1a + 2);
static_assert(is_in_order());
static_assert(has_one_flag_each());

const Row* row_of(MessageType type) {
  for (const Row& row : kRows) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

}  // namespace

std::string name_of(MessageType type) {
  if (const Row* row = row_of(type)) return std::string(row->name);
  return fmt::format("{:#x}", static_cast<std::uint16_t>(type));
}

std::optional<MessageType> message_type_named(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

const std::vector<MessageType>& all_message_types() {
  static const std::vector<MessageType> types = [] {
    std::vector<MessageType> all;
    for (const Row& row : kRows) all.push_back(row.type);
    return all;
  }();
  return types;
}

MessageType response_to(MessageType request) {
  switch (request) {
    case MessageType::PythonCall:
      return MessageType::PythonRet;
    case MessageType::ScriptRrefFetchCall:
      return MessageType::ScriptRrefFetchRet;
    case MessageType::PythonRrefFetchCall:
      return MessageType::PythonRrefFetchRet;
    case MessageType::ScriptRemoteCall:
    case MessageType::PythonRemoteCall:
      return MessageType::RemoteRet;
    default:
      return MessageType::ScriptRet;
  }
}

bool is_retried(MessageType type) {
  const Row* row = row_of(type);
  return row != nullptr && row->is_retried;
}

}  // namespace muster::rpc
