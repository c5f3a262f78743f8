// Message: what workers send each other. A request has exactly one response, or fails at its
// sender.
//
// The names and numbers of the types are those of torch.distributed.rpc; SCRIPT carries native
// functions here. RREF_FORK_CANCEL is Muster's own. New types keep the low byte below 0x100 and set
// one of the two flags.
#pragma once

#include "muster/rpc/buffer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {

inline constexpr std::uint16_t kRequestFlag = 0x100;
inline constexpr std::uint16_t kResponseFlag = 0x200;

enum class MessageType : std::uint16_t {
  ScriptCall = 0x100,
  ScriptRet = 0x201,
  PythonCall = 0x102,
  PythonRet = 0x203,
  ScriptRemoteCall = 0x104,
  PythonRemoteCall = 0x105,
  RemoteRet = 0x206,
  ScriptRrefFetchCall = 0x107,
  PythonRrefFetchCall = 0x108,
  ScriptRrefFetchRet = 0x209,
  PythonRrefFetchRet = 0x20a,
  RrefUserDelete = 0x10b,
  RrefForkRequest = 0x10c,
  RrefChildAccept = 0x10d,
  RrefAck = 0x20e,
  ForwardAutogradReq = 0x10f,
  ForwardAutogradResp = 0x210,
  BackwardAutogradReq = 0x111,
  BackwardAutogradResp = 0x212,
  CleanupAutogradContextReq = 0x113,
  CleanupAutogradContextResp = 0x214,
  RunWithProfilingReq = 0x115,
  RunWithProfilingResp = 0x216,
  RrefBackwardReq = 0x117,
  RrefBackwardResp = 0x218,
  RrefForkCancel = 0x119,  // of Muster: asks whether a fork has arrived
  Exception = 0x237,
  Unknown = 0x03c,
};

constexpr bool is_request(MessageType type) {
  return (static_cast<std::uint16_t>(type) & kRequestFlag) != 0;
}
constexpr bool is_response(MessageType type) {
  return (static_cast<std::uint16_t>(type) & kResponseFlag) != 0;
}

// "SCRIPT_CALL"; a number such as "0x1ff" for one that nobody knows.
std::string name_of(MessageType type);
// By the name above. Nothing for a name that nobody knows.
std::optional<MessageType> message_type_named(std::string_view name);
// All of them, in the order of their low bytes.
const std::vector<MessageType>& all_message_types();
// The type of the response to a call or a fetch: that of its language.
MessageType response_to(MessageType request);
// Whether the result of the call stays where it was made, as a reference.
constexpr bool keeps_result(MessageType request) {
  return request == MessageType::ScriptRemoteCall || request == MessageType::PythonRemoteCall;
}
// Whether it calls a function.
constexpr bool is_call(MessageType request) {
  return request == MessageType::ScriptCall || request == MessageType::PythonCall ||
         keeps_result(request);
}
// Whether that is one of Python.
constexpr bool calls_python(MessageType request) {
  return request == MessageType::PythonCall || request == MessageType::PythonRemoteCall;
}
// Whether the framework repeats it by itself when it fails; those are idempotent.
bool is_retried(MessageType type);

inline constexpr std::int64_t kNoMessageId = -1;

struct Message {
  MessageType type = MessageType::Unknown;
  std::int64_t id = kNoMessageId;  // the sender numbers its requests; a response repeats the number
  std::string payload;
  std::vector<Buffer> buffers;
};

}  // namespace muster::rpc
