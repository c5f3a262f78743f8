// The examples of docs/rpc.md and docs/remote-references.md. Every line of C++ that stands there
// stands here and is compiled and run; the last test compares the two.
#include "muster/rpc.h"
#include "muster/rpc/dlpack.h"
#include "muster/rpc/tensor.h"
#include "tests/rpc/cluster.h"
#include "tests/rpc/fake_devices.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
namespace rpc = muster::rpc;

// clang-format off

class Counter {
 public:
  explicit Counter(std::int64_t start) : value_(start) {}
  std::int64_t add(std::int64_t amount) { return value_ += amount; }

 private:
  std::int64_t value_;
};
template <>
inline constexpr bool muster::rpc::kIsObject<Counter> = true;

namespace {

const rpc::Procedure<Counter(std::int64_t)> kMakeCounter("counter.make");
const rpc::Procedure<std::int64_t(rpc::RRef<Counter>, std::int64_t)> kAddTo("counter.add");

const rpc::Procedure<double(std::vector<double>, double)> kScaledNorm("scaled_norm");

struct Sample {
  std::int64_t id = 0;
  std::string label;
  std::vector<float> values;
};
template <typename Archive>
void describe_fields(Archive& archive, Sample& sample) {
  archive(sample.id, sample.label, sample.values);
}

const rpc::Procedure<std::vector<Sample>(std::string query, std::int64_t count_max)> kFind("find");

const rpc::Procedure<rpc::Tensor(rpc::Tensor)> kDouble("double");

const rpc::Procedure<double(std::string)> kAverage("average");

const rpc::Procedure<std::int64_t()> kVersion("version");

void define_functions() {
  const auto defined = rpc::define(kScaledNorm, [](const std::vector<double>& v, double scale) {
    double sum = 0;
    for (const double x : v) sum += x * x;
    return scale * sum;
  });
  EXPECT_TRUE(defined);
  const auto found = rpc::define(kFind, [](std::string query, std::int64_t) {
    return std::vector<Sample>{{1, std::move(query), {0.5F}}};
  });
  EXPECT_TRUE(found);
  const auto version = rpc::define(kVersion, [] { return std::int64_t{3}; }, {.run = rpc::Run::Inline});
  EXPECT_TRUE(version);
  const auto average = rpc::define(kAverage, [](std::string worker) {
    return rpc::async(worker, kScaledNorm, std::vector<double>{3, 4}, 1.0)
        .then([](const rpc::CallResult<double>& norm) -> rpc::CallResult<double> {
          if (!norm) return rpc::call_failed(norm.error());
          return *norm / 2;
        });
  });
  EXPECT_TRUE(average);
  const auto doubled = rpc::define(kDouble, [](rpc::Tensor in) -> muster::Result<rpc::Tensor> {
    auto out = in.copy();
    if (!out) return out;
    auto values = out->mutable_values<float>();
    if (!values) return muster::fail(values.error());
    for (float& value : *values) value *= 2;
    return out;
  });
  EXPECT_TRUE(doubled);
}

void call_and_wait() {
  const std::vector<double> values{3, 4};
  const rpc::CallResult<double> norm = rpc::call("worker0", kScaledNorm, values, 2.0);
  if (!norm) throw std::runtime_error(rpc::render(norm.error()));
  EXPECT_EQ(*norm, 50);
}

void call_and_go_on() {
  const std::vector<double> values{3, 4};
  rpc::Future<double> later = rpc::async(rpc::to("worker0").within(2s), kScaledNorm, values, 2.0);
  later.on_done([](const rpc::CallResult<double>& outcome) {
    if (!outcome) fmt::print(stderr, "{}\n", rpc::render(outcome.error()));
  });
  const double norm = later.get();  // throws rpc::CallException if it failed
  EXPECT_EQ(norm, 50);
}

void call_all() {
  std::vector<rpc::Future<std::int64_t>> versions;
  for (const rpc::WorkerInfo& worker : rpc::workers()) {
    versions.push_back(rpc::async(worker, kVersion));
  }
  for (const auto& version : rpc::collect_all(versions).get()) EXPECT_EQ(version.get(), 3);
}

void look_at_an_error() {
  const auto outcome = rpc::call(rpc::to("worker0").within(5s), kFind, "blue", 10);
  if (!outcome) {
    switch (outcome.error().kind) {
      case rpc::CallErrorKind::Rejected:     // nothing was sent
      case rpc::CallErrorKind::Remote:       // it ran and failed, or could not be run there
      case rpc::CallErrorKind::Timeout:      // perhaps it ran, perhaps it still runs
      case rpc::CallErrorKind::Unreachable:  // likewise, unless error().sent is false
      case rpc::CallErrorKind::Injected:     // only in tests
        break;
    }
  }
  ASSERT_TRUE(outcome);
  EXPECT_EQ((*outcome)[0].label, "blue");
}

rpc::InitOptions with_devices(std::shared_ptr<rpc::DeviceSupport> my_gpus) {
  rpc::InitOptions options;
  options.device_support = my_gpus;  // moves bytes between the CPU and accelerators
  // What is on GPU 0 here arrives on GPU 1 of worker0, and comes back to 0.
  const auto set = options.devices.set_device_map("worker0", {{rpc::cuda(0), rpc::cuda(1)}});
  EXPECT_TRUE(set);
  return options;
}

void send_a_tensor() {
  const auto tensor = rpc::Tensor::from(std::vector<float>{1, 2, 3, 4}, {2, 2});
  const auto doubled = rpc::call("worker0", kDouble, *tensor);
  ASSERT_TRUE(doubled);
  EXPECT_EQ((*doubled->values<float>())[3], 8);
}

void define_counters() {
  const auto made = rpc::define(kMakeCounter, [](std::int64_t start) { return Counter(start); });
  const auto method = rpc::define(kAddTo, rpc::method(&Counter::add));
  EXPECT_TRUE(made && method);
}

void refer() {
  const auto counter = rpc::remote("worker1", kMakeCounter, 5);
  if (!counter) throw std::runtime_error(rpc::render(counter.error()));
  const rpc::CallResult<std::int64_t> sum = counter->call(kAddTo, 2);
  const rpc::Future<std::int64_t> later = counter->async(kAddTo, 2);
  EXPECT_EQ(sum.value(), 7);
  EXPECT_EQ(later.get(), 9);
  const rpc::CallResult<rpc::RRef<std::int64_t>> there = counter->within(2s).remote(kAddTo, 2);
  const rpc::CallResult<std::int64_t> copy = there->to_here();
  EXPECT_EQ(copy.value(), 11);
  const auto own = rpc::make_rref(std::int64_t{3});
  const rpc::CallResult<std::int64_t*> value = own->local_value();  // on the owner
  EXPECT_EQ(*value.value(), 3);
}

// clang-format on

TEST(RpcDocs, TheExamplesOfReferencesWork) {
  const rpc::testing::StoreHost store;
  define_counters();
  rpc::InitOptions options;
  options.name = "worker1";
  options.rank = 0;
  options.world_size = 1;
  options.store = "127.0.0.1:" + std::to_string(store.port());
  ASSERT_TRUE(rpc::init(options));
  refer();
  EXPECT_TRUE(rpc::shutdown({.ignores_leaks = false}));
}

TEST(RpcDocs, TheExamplesWork) {
  const rpc::testing::StoreHost store;
  ASSERT_EQ(::setenv("RANK", "0", 1), 0);
  ASSERT_EQ(::setenv("WORLD_SIZE", "1", 1), 0);
  ASSERT_EQ(::setenv("MASTER_ADDR", "127.0.0.1", 1), 0);
  ASSERT_EQ(::setenv("MASTER_PORT", std::to_string(store.port()).c_str(), 1), 0);
  define_functions();
  const rpc::InitOptions options = with_devices(std::make_shared<rpc::testing::FakeDevices>(2));
  ASSERT_TRUE(rpc::init(options));
  EXPECT_TRUE(rpc::call("worker0", kDouble, *rpc::Tensor::from(std::vector<float>{1}, {1})));
  ASSERT_TRUE(rpc::shutdown());
  // clang-format off
  if (const auto started = rpc::init(); !started) {
    throw std::runtime_error(started.error().message);
  }
  // clang-format on
  call_and_wait();
  call_and_go_on();
  call_all();
  look_at_an_error();
  send_a_tensor();
  const auto average = rpc::call("worker0", kAverage, "worker0");
  ASSERT_TRUE(average);
  EXPECT_EQ(*average, 12.5);
  // clang-format off
  if (const auto ended = rpc::shutdown(); !ended) {
    throw std::runtime_error(rpc::render(ended.error()));
  }
  // clang-format on
}

std::string trimmed(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

TEST(RpcDocs, EveryLineOfCodeThereIsHere) {
  std::ifstream source("tests/rpc/docs_test.cpp");
  std::vector<std::string> ours;
  for (std::string line; std::getline(source, line);) ours.push_back(trimmed(line));
  int count = 0;
  for (const char* const name : {"docs/rpc.md", "docs/remote-references.md"}) {
    std::ifstream docs(name);
    ASSERT_TRUE(docs.is_open()) << name;
    bool is_code = false;
    for (std::string line; std::getline(docs, line);) {
      if (line.starts_with("```")) {
        is_code = line == "```cpp";
        continue;
      }
      const std::string code = trimmed(line);
      if (!is_code || code.empty()) continue;
      ++count;
      EXPECT_NE(std::find(ours.begin(), ours.end(), code), ours.end()) << code;
    }
  }
  EXPECT_GT(count, 40);
}

}  // namespace
