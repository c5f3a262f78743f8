// The inputs of the server's fuzz targets: the bytes of one connection, then two bytes that say how
// they are cut. And a mutator that knows where requests begin and end, since few random changes
// leave the lengths in front of everything right.
#pragma once

#include "muster/wire/store_protocol.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster::tests {

struct SplitInput {
  std::string_view bytes;
  std::uint64_t seed = 0;
};
SplitInput split_input(std::string_view input);

// For LLVMFuzzerCustomMutator: changes one request of the conversation in `data`, or, now and then,
// any of its bytes. `begins_as` as in run_server.
std::size_t mutate_conversation(wire::Dialect begins_as, std::uint8_t* data, std::size_t size,
                                std::size_t size_max, unsigned int seed);

}  // namespace muster::tests
