// Tensors of libtorch as arguments and results of remote functions, without a copy.
//
//   muster run --nproc-per-node 2 build/bin/torch_tensors [--rows N]
//
// worker0 has the weights of a layer; the others send it batches and get them back transformed.
// A few lines below teach Muster the type at::Tensor, by way of DLPack: the frame of a call is
// written from the memory that libtorch allocated, and what arrives is a tensor over the memory
// into which it was received. Both is checked whenever a tensor is sent, and a call with a tensor
// that was copied fails.

#include "muster/rpc.h"
#include "muster/rpc/dlpack.h"

#include <ATen/DLConvertor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace rpc = muster::rpc;

// ---- at::Tensor as a type that can be sent ------------------------------------------------------

namespace {

// How many tensors, and how many bytes, have left from and come to where they are.
struct Traffic {
  std::atomic<std::int64_t> sent_count = 0;
  std::atomic<std::int64_t> sent_bytes = 0;
  std::atomic<std::int64_t> received_count = 0;
  std::atomic<std::int64_t> received_bytes = 0;
};
Traffic traffic;

const void* address_of(const at::Tensor& tensor) { return tensor.data_ptr(); }

}  // namespace

namespace muster::rpc {

// On the wire it is what a muster::rpc::Tensor is, so the other side may use either.
template <>
struct Codec<at::Tensor> {
  static void write(Writer& writer, const at::Tensor& value) {
    // Whoever trains would lose the history of the tensor without a word.
    if (value.requires_grad()) return writer.fail("a tensor that requires grad; detach() it");
    const auto shared = from_dlpack(at::toDLPack(value));
    if (!shared) return writer.fail(shared.error().message);
    writer.write(*shared);
    // What is small is copied into the head of the frame, which costs less than to send it apart.
    if (!writer.ok() || shared->extent_bytes() < kOutOfBandBytesMin) return;
    writer.require(writer.buffers().back().data() == address_of(value),
                   "a tensor was copied on its way into the frame");
    ++traffic.sent_count;
    traffic.sent_bytes += static_cast<std::int64_t>(shared->extent_bytes());
  }

  static void read(Reader& reader, at::Tensor& value) {
    const auto received = reader.read<Tensor>();
    if (!reader.ok()) return;
    auto shared = to_dlpack(received);
    if (!shared) return reader.fail("there is no tensor where one is expected");
    value = at::fromDLPack(shared->release());
    if (received.extent_bytes() < kOutOfBandBytesMin) return;
    const Buffer& memory = received.storage();
    const auto* const first = static_cast<const std::byte*>(address_of(value));
    reader.require(first >= memory.data() && value.nbytes() <= memory.size() &&
                       first + received.extent_bytes() <= memory.data() + memory.size(),
                   "a tensor is not in the memory into which it was received");
    ++traffic.received_count;
    traffic.received_bytes += static_cast<std::int64_t>(received.extent_bytes());
  }

  static void sign(Signature& signature) { Codec<Tensor>::sign(signature); }
};

}  // namespace muster::rpc

namespace {

// ---- the layer ----------------------------------------------------------------------------------

constexpr std::int64_t kFeatureCount = 256;

const rpc::Procedure<at::Tensor(at::Tensor batch)> kTransform("transform");

// The same on all workers, so that each can check what it gets.
at::Tensor make_weights() {
  return at::arange(kFeatureCount * kFeatureCount, at::kFloat)
      .remainder(7)
      .reshape({kFeatureCount, kFeatureCount});
}

at::Tensor transform(const at::Tensor& weights, const at::Tensor& batch) {
  // What was received is not ours to change: nothing is done in place.
  return at::relu(at::matmul(batch, weights)).sub(1);
}

std::string shape_of(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return fmt::format("[{}]", fmt::join(sizes.begin(), sizes.end(), ","));
}

// Sends `batch` and says whether the answer is what it should be.
bool check(const std::string& name, const at::Tensor& weights, std::string_view what,
           const at::Tensor& batch) {
  const auto transformed = rpc::call("worker0", kTransform, batch);
  if (!transformed) {
    fmt::print(stderr, "torch_tensors: {}: {}\n", what, rpc::render(transformed.error()));
    return false;
  }
  // All numbers are small and whole: not a bit may differ.
  if (!transformed->equal(transform(weights, batch))) {
    fmt::print(stderr, "torch_tensors: {}: the answer is not what this worker computes\n", what);
    return false;
  }
  fmt::print("{}: {} {}: right\n", name, what, shape_of(batch));
  return true;
}

bool check_all(const std::string& name, const at::Tensor& weights, std::int64_t row_count) {
  const at::Tensor numbers =
      at::arange(row_count * kFeatureCount, at::kFloat).remainder(5).sub(name.back() - '0');
  const at::Tensor batch = numbers.reshape({row_count, kFeatureCount});
  const at::Tensor columns = numbers.reshape({kFeatureCount, row_count});
  bool good = check(name, weights, "a batch", batch);
  good = check(name, weights, "a transposed view", columns.t()) && good;
  good = check(name, weights, "the last rows", batch.slice(0, row_count / 4)) && good;
  good = check(name, weights, "one row", batch.slice(0, 0, 1)) && good;
  good = check(name, weights, "no rows", batch.slice(0, 0, 0)) && good;

  at::Tensor trained = batch.clone();
  trained.set_requires_grad(true);
  const auto refused = rpc::call("worker0", kTransform, trained);
  if (refused || refused.error().kind != rpc::CallErrorKind::Rejected) {
    fmt::print(stderr, "torch_tensors: a tensor that requires grad was sent\n");
    return false;
  }
  return good;
}

int give_up(std::string_view what, std::string_view why) {
  fmt::print(stderr, "torch_tensors: {}: {}\n", what, why);
  return 1;
}

int work(std::int64_t row_count) {
  const at::Tensor weights = make_weights();
  const auto defined = rpc::define(
      kTransform, [weights](const at::Tensor& batch) { return transform(weights, batch); });
  if (!defined) return give_up("define", defined.error().message);
  if (const auto started = rpc::init(); !started) return give_up("init", started.error().message);
  const std::string name = rpc::self().name();
  bool good = true;
  if (rpc::self().id() != 0) good = check_all(name, weights, row_count);
  if (const auto stopped = rpc::shutdown(); !stopped) {
    return give_up("shutdown", rpc::render(stopped.error()));
  }
  fmt::print("{}: {} tensors, {} bytes, were sent from the memory of libtorch\n", name,
             traffic.sent_count.load(), traffic.sent_bytes.load());
  fmt::print("{}: {} tensors, {} bytes, are where they were received\n", name,
             traffic.received_count.load(), traffic.received_bytes.load());
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t row_count = 1024;
  if (argc == 3 && std::string_view(argv[1]) == "--rows") {
    row_count = std::atoll(argv[2]);
  } else if (argc != 1) {
    fmt::print(stderr, "usage: torch_tensors [--rows N]\n");
    return 2;
  }
  try {
    return work(row_count);
  } catch (const std::exception& thrown) {  // libtorch throws
    return give_up("libtorch", thrown.what());
  }
}
