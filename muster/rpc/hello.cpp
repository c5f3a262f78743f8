#include "muster/rpc/hello.h"

#include "muster/rpc/value.h"

#include <fmt/format.h>

namespace muster::rpc {
namespace {

// "MUSTRRPC", so that nothing else is taken for it.
constexpr std::uint64_t kMagic = 0x4350525254'53554dULL;

}  // namespace

Message encode(const Hello& hello) {
  Writer writer;
  writer.write(kMagic, kProtocolVersion, hello.job, hello.from_name, hello.from_id,
               hello.from_incarnation, hello.to_incarnation);
  return {kHello, 0, writer.take_control(), {}};
}

Result<Hello> decode_hello(const Message& message) {
  Reader reader(message.payload, message.buffers);
  const auto magic = reader.read<std::uint64_t>();
  if (message.type != kHello || !reader.ok() || magic != kMagic) {
    return fail(ErrorKind::Corrupt, "it does not speak Muster's RPC");
  }
  const auto version = reader.read<std::uint32_t>();
  if (reader.ok() && version != kProtocolVersion) {
    return fail(ErrorKind::Unimplemented,
                fmt::format("it speaks version {} of the protocol, and this worker version {}; use "
                            "the same Muster everywhere",
                            version, kProtocolVersion));
  }
  Hello hello;
  reader.read(hello.job, hello.from_name, hello.from_id, hello.from_incarnation,
              hello.to_incarnation);
  if (auto read = reader.finish(); !read) return fail(ErrorKind::Corrupt, read.error().message);
  return hello;
}

Message refusal(std::string_view reason) {
  return {kRefused, 0, std::string(reason.substr(0, kHelloBytesMax)), {}};
}

}  // namespace muster::rpc
