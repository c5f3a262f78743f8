#include "muster/etcd/envelope.h"

#include "muster/base/assert.h"

namespace muster::etcd {
namespace {

constexpr std::string_view kMagic = "muster-state-1 ";
constexpr std::size_t kWriteIdBytes = 32;
constexpr std::size_t kHeaderBytes = kMagic.size() + kWriteIdBytes + 1;

}  // namespace

std::string seal(const Envelope& envelope) {
  MUSTER_ASSERT(envelope.write_id.size() == kWriteIdBytes);
  std::string stored;
  stored.reserve(kHeaderBytes + envelope.blob.size());
  stored += kMagic;
  stored += envelope.write_id;
  stored += '\n';
  stored += envelope.blob;
  return stored;
}

std::optional<Envelope> unseal(std::string_view stored) {
  if (stored.size() < kHeaderBytes || !stored.starts_with(kMagic) ||
      stored[kHeaderBytes - 1] != '\n') {
    return std::nullopt;
  }
  const std::string_view id = stored.substr(kMagic.size(), kWriteIdBytes);
  if (id.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  return Envelope{std::string(id), std::string(stored.substr(kHeaderBytes))};
}

}  // namespace muster::etcd
