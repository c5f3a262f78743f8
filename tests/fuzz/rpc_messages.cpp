// What workers say to each other beside calls, and write into the store, whatever the bytes: it is
// refused, or it means the same when it is said again. And what people write: the faults that they
// ask for.
#include "muster/base/assert.h"
#include "muster/rpc/calls.h"
#include "muster/rpc/faults.h"
#include "muster/rpc/gather_hall.h"
#include "muster/rpc/hello.h"
#include "muster/rpc/member.h"
#include "muster/rpc/membership.h"
#include "muster/rpc/texts.h"
#include "muster/rpc/value.h"
#include "muster/rref/control.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {
namespace {

void run_hello(std::string_view input) {
  const Message message{kHello, 0, std::string(input), {}};
  const auto hello = decode_hello(message);
  if (hello) MUSTER_ASSERT(encode(*hello).payload == input);
}

void run_failure(std::string_view input) {
  const CallError error = decode_failure({MessageType::Exception, 0, std::string(input), {}});
  MUSTER_ASSERT(error.kind == CallErrorKind::Remote && error.sent);
  const std::string bytes = encode_failure(error.type, error.message);
  MUSTER_ASSERT(bytes.size() <= kFailureTypeBytesMax + kFailureTextBytesMax + 16);
  const CallError again = decode_failure({MessageType::Exception, 0, bytes, {}});
  MUSTER_ASSERT(encode_failure(again.type, again.message) == bytes);
  (void)render(again);
  (void)code_in(again.message);
}

void run_fork_data(std::string_view input) {
  const auto data = rref::decode_fork_data(input);
  if (data) MUSTER_ASSERT(rref::encode(*data) == input);
}

void run_control(std::string_view input) {
  for (const MessageType type : all_message_types()) {
    const auto control = rref::decode_control(type, input);
    MUSTER_ASSERT(!control || rref::is_control(type));
    if (control) MUSTER_ASSERT(rref::encode(*control) == input);
  }
}

void run_small_ones(std::string_view input) {
  const auto ack = rref::decode_ack(input);
  if (ack) MUSTER_ASSERT(rref::encode(*ack) == input);
  const auto fetch = rref::decode_fetch_call(input);
  if (fetch) MUSTER_ASSERT(rref::encode(*fetch) == input);
  const auto lease = decode_lease(input);
  if (!lease) return;
  const auto again = decode_lease(encode_lease(*lease));
  MUSTER_ASSERT(again && *again == *lease);
}

// Without buffers; those of values are in rpc_value.
template <typename T>
void run_structure(std::string_view input) {
  const auto first = decode<T>(input);
  if (!first) return;
  Writer writer;
  writer.write(*first);
  const auto second = decode<T>(writer.control(), writer.buffers());
  MUSTER_ASSERT(second.has_value());
  Writer again;
  again.write(*second);
  MUSTER_ASSERT(again.control() == writer.control());
}

void run_member(std::string_view input) {
  const auto member = decode_member("key", input);
  if (!member) return;
  MUSTER_ASSERT(check_member(*member));
  const auto again = decode_member("key", encode_member(*member));
  MUSTER_ASSERT(again && *again == *member);
}

void run_list(std::string_view input) {
  const auto list = decode_list("key", input);
  if (!list) return;
  const auto again = decode_list("key", encode_list(*list));
  MUSTER_ASSERT(again && *again == *list);
  (void)check_devices(device_rows(list->members), Attendance::Open);
}

void run_faults(std::string_view input) {
  auto options = parse_faults(input);
  if (!options) {
    MUSTER_ASSERT(!options.error().message.empty());
    return;
  }
  Faults faults(std::move(*options));
  for (const MessageType type : all_message_types()) {
    for (const char* const payload : {"", "some bytes"}) {
      const Message message{type, 0, payload, {}};
      const auto verdict = faults.decide(message, "worker1");
      if (!verdict || verdict->action != FaultAction::Corrupt) continue;
      MUSTER_ASSERT(verdict->position < message.payload.size());
    }
  }
}

constexpr void (*kRuns[])(std::string_view) = {
    run_hello,
    run_failure,
    run_control,
    run_fork_data,
    run_member,
    run_list,
    run_faults,
    run_small_ones,
    run_structure<GatherArrival>,
    run_structure<GatherAnswer>,
};

}  // namespace
}  // namespace muster::rpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // In memory of exactly its size, so that AddressSanitizer notices every byte read past it.
  const std::vector<char> exact(data + 1, data + size);
  const std::size_t which = data[0] % std::size(muster::rpc::kRuns);
  muster::rpc::kRuns[which]({exact.data(), exact.size()});
  return 0;
}
