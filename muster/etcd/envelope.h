// Envelope: how a state is stored in etcd. A line that says what it is and which write it was, then
// the blob. With the write id a writer that got no answer can tell its own write from others'.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster::etcd {

struct Envelope {
  std::string write_id;  // 32 hexadecimal digits
  std::string blob;

  friend bool operator==(const Envelope&, const Envelope&) = default;
};

std::string seal(const Envelope& envelope);
// Nothing if it is not one.
std::optional<Envelope> unseal(std::string_view stored);

}  // namespace muster::etcd
