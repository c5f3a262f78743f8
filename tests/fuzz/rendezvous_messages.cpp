// What nodes and the server that hosts their run say to each other, whatever the bytes: it is
// refused, or it means the same when it is said again.
#include "muster/base/assert.h"
#include "muster/rendezvous/host_protocol.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rendezvous {
namespace {

void run_hello(std::string_view input) {
  const auto hello = decode_hello(input);
  if (!hello) return;
  MUSTER_ASSERT(!hello->run_id.empty());
  const auto again = decode_hello(encode(*hello));
  MUSTER_ASSERT(again.has_value() && *again == *hello);
  if (hello->observes) return;
  MUSTER_ASSERT(encode(*hello) == input);
  MUSTER_ASSERT(Settings::create(hello->settings).has_value());
  if (!hello->place) return;
  MUSTER_ASSERT(hello->place->rank >= 0 && hello->place->rank < hello->place->world_size);
  MUSTER_ASSERT(hello->place->world_size <= hello->settings.max_nodes);
}

void run_said(std::string_view input) {
  const auto said = decode_said(input);
  if (said) MUSTER_ASSERT(encode(*said) == input);
}

std::string encode_again(const Told& told) {
  switch (told.kind) {
    case Told::Kind::Joined:
      return encode_joined(told.place);
    case Told::Kind::Failed:
      return encode_failed(told.error.kind, told.error.message);
    case Told::Kind::Status:
      return encode_status(told.status, told.spare);
    case Told::Kind::Snapshot:
      return encode_snapshot(told.snapshot);
    default:
      return encode_plain(told.kind);
  }
}

void run_told(std::string_view input) {
  const auto told = decode_told(input);
  if (!told) return;
  const std::string bytes = encode_again(*told);
  // Flags that a later version may add are dropped; nothing else is.
  MUSTER_ASSERT(bytes.size() == input.size());
  const auto again = decode_told(bytes);
  MUSTER_ASSERT(again.has_value() && encode_again(*again) == bytes);
}

}  // namespace
}  // namespace muster::rendezvous

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::vector<char> exact(data + 1, data + size);
  const std::string_view input{exact.data(), exact.size()};
  if (data[0] % 3 == 0) muster::rendezvous::run_hello(input);
  if (data[0] % 3 == 1) muster::rendezvous::run_said(input);
  if (data[0] % 3 == 2) muster::rendezvous::run_told(input);
  return 0;
}
