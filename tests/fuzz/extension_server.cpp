// A client's bytes against the server, when the connection has been upgraded, so requests are
// frames.
#include "tests/fuzz/conversation.h"
#include "tests/fuzz/server_run.h"

#include <cstddef>
#include <cstdint>

using muster::wire::Dialect;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::tests::run_server(Dialect::Extension, {reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t size_max, unsigned int seed) {
  return muster::tests::mutate_conversation(Dialect::Extension, data, size, size_max, seed);
}
