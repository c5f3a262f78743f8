// A server's bytes against the client. The first byte of the input says what runs, the second how
// bytes are cut and, if it is large, when everything is cancelled.
#include "muster/base/log.h"
#include "tests/fuzz/client_run.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  muster::log::set_level(muster::log::Level::Off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[0] % 2 == 0) {
    muster::tests::run_link(text, data[1]);
  } else {
    const int turns_max = data[1] < 128 ? -1 : data[1] - 128;
    muster::tests::run_store(text, {.seed = data[1], .turns_max = turns_max});
  }
  return 0;
}
