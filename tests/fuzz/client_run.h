// What the fuzz target of the client runs, on what a server says (fake_server.h).
#pragma once

#include <cstdint>
#include <string_view>

namespace muster::tests {

// Reads the text as replies, and gives it to an ExtensionLink on which several requests are under
// way. Aborts if one of them is told anything but replies and, at most once, the loss.
void run_link(std::string_view text, std::uint64_t seed);

// Lets a TcpStore connect and do everything a store can do. Aborts if an operation never ends. With
// `turns_max` the store and all that is under way are destroyed after so many turns of the loop.
struct StoreRunOptions {
  std::uint64_t seed = 0;
  int turns_max = -1;
};
void run_store(std::string_view text, StoreRunOptions options);

}  // namespace muster::tests
