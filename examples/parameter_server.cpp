// A parameter server: worker0 holds the parameters of a model, the other workers train it.
//
//   muster run --nproc-per-node 4 build/bin/parameter_server [--steps N]
//
// In each step every trainer sends the gradient of its own data. The server answers none of them
// before the last has come: then it takes the step with the average, and all get the new
// parameters. While they wait, no thread of the server is held up, since the function that they
// call is asynchronous: it returns a Future.
//
// The model is linear and the data made up, so every worker can do the whole computation alone, and
// checks that the same has come out.

#include "muster/base/random.h"
#include "muster/rpc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace rpc = muster::rpc;
using namespace std::chrono_literals;
using Vector = std::vector<double>;

constexpr std::size_t kFeatureCount = 8;
constexpr std::size_t kBatchSize = 32;
constexpr double kLearningRate = 0.5;
// Far beyond what a step takes: passing it means that a trainer is stuck.
constexpr auto kPatience = 60s;

// What the trainers call of the server. Declared once, for both sides.
const rpc::Procedure<Vector()> kParameters("parameters");
const rpc::Procedure<Vector(std::int64_t step, std::int64_t trainer, Vector gradient)> kStep(
    "step");

// ---- the model ----------------------------------------------------------------------------------

struct Batch {
  std::vector<Vector> inputs;
  Vector outputs;
};

double uniform(muster::Random& random) { return 2.0 * std::ldexp(random.next() >> 11U, -53) - 1.0; }

// The same for the same step and trainer, on whichever worker.
Batch make_batch(std::int64_t step, std::int64_t trainer) {
  muster::Random random(static_cast<std::uint64_t>(step * 1000 + trainer));
  Batch batch;
  for (std::size_t row = 0; row < kBatchSize; ++row) {
    Vector input(kFeatureCount);
    double output = 0.01 * uniform(random);
    for (std::size_t i = 0; i < kFeatureCount; ++i) {
      input[i] = uniform(random);
      output += static_cast<double>(i + 1) * input[i];
    }
    batch.inputs.push_back(std::move(input));
    batch.outputs.push_back(output);
  }
  return batch;
}

Vector gradient_of(const Vector& parameters, const Batch& batch) {
  Vector gradient(kFeatureCount);
  for (std::size_t row = 0; row < kBatchSize; ++row) {
    double error = -batch.outputs[row];
    for (std::size_t i = 0; i < kFeatureCount; ++i) error += parameters[i] * batch.inputs[row][i];
    for (std::size_t i = 0; i < kFeatureCount; ++i) {
      gradient[i] += error * batch.inputs[row][i] / kBatchSize;
    }
  }
  return gradient;
}

// Takes one step. The gradients are added in the order of the trainers, whoever came first, so that
// every run ends with the same numbers.
void descend(Vector& parameters, const std::map<std::int64_t, Vector>& gradients) {
  for (std::size_t i = 0; i < kFeatureCount; ++i) {
    double sum = 0;
    for (const auto& [trainer, gradient] : gradients) sum += gradient[i];
    parameters[i] -= kLearningRate * sum / static_cast<double>(gradients.size());
  }
}

// The whole computation in one process.
Vector train_alone(std::int64_t step_count, std::int64_t trainer_count) {
  Vector parameters(kFeatureCount);
  for (std::int64_t step = 0; step < step_count; ++step) {
    std::map<std::int64_t, Vector> gradients;
    for (std::int64_t trainer = 1; trainer <= trainer_count; ++trainer) {
      gradients[trainer] = gradient_of(parameters, make_batch(step, trainer));
    }
    descend(parameters, gradients);
  }
  return parameters;
}

// ---- the server ---------------------------------------------------------------------------------

// Its functions are called by several threads at once.
class Server {
 public:
  explicit Server(std::size_t trainer_count) : trainer_count_(trainer_count) {}

  Vector parameters() const {
    const std::lock_guard lock(mutex_);
    return parameters_;
  }

  rpc::Future<Vector> step(std::int64_t step, std::int64_t trainer, Vector gradient) {
    std::unique_lock lock(mutex_);
    const bool fits = gradient.size() == kFeatureCount;
    if (!fits || step != step_ || gradients_.contains(trainer)) {
      rpc::CallError error;
      error.message = fmt::format("trainer {} cannot bring {} numbers for step {} in step {}",
                                  trainer, gradient.size(), step, step_);
      return rpc::Future<Vector>::ready(rpc::call_failed(std::move(error)));
    }
    gradients_.emplace(trainer, std::move(gradient));
    // All who come in this step wait for one promise, which the first of them makes.
    if (!promise_) promise_ = std::make_shared<rpc::Promise<Vector>>();
    const std::shared_ptr<rpc::Promise<Vector>> promise = promise_;
    if (gradients_.size() < trainer_count_) return promise->future();
    descend(parameters_, gradients_);
    gradients_.clear();
    ++step_;
    promise_.reset();
    const Vector stepped = parameters_;
    lock.unlock();
    promise->set(stepped);
    return promise->future();
  }

 private:
  const std::size_t trainer_count_;
  mutable std::mutex mutex_;  // guards what follows
  Vector parameters_ = Vector(kFeatureCount);
  std::int64_t step_ = 0;
  std::map<std::int64_t, Vector> gradients_;       // of this step, by trainer
  std::shared_ptr<rpc::Promise<Vector>> promise_;  // its end, for those who wait
};

// ---- a trainer ----------------------------------------------------------------------------------

rpc::CallResult<Vector> train(std::int64_t step_count) {
  const std::int64_t trainer = rpc::self().id();
  auto parameters = rpc::call("worker0", kParameters);
  Batch batch = make_batch(0, trainer);
  for (std::int64_t step = 0; parameters && step < step_count; ++step) {
    const auto stepped = rpc::async(rpc::to("worker0").within(kPatience), kStep, step, trainer,
                                    gradient_of(*parameters, batch));
    batch = make_batch(step + 1, trainer);  // while the others and the server are busy
    parameters = stepped.wait();
  }
  return parameters;
}

bool are_equal(const Vector& a, const Vector& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > 1e-12 * std::abs(b[i])) return false;
  }
  return true;
}

int give_up(std::string_view what, std::string_view why) {
  fmt::print(stderr, "parameter_server: {}: {}\n", what, why);
  return 1;
}

int work(std::int64_t step_count) {
  // As soon as `init` returns on any worker, this one may be called: it is prepared before.
  const char* const size = std::getenv("WORLD_SIZE");
  const std::int64_t world_size = size == nullptr ? 0 : std::atoll(size);
  if (world_size < 2) return give_up("start", "a server and at least one trainer are needed");
  Server server(static_cast<std::size_t>(world_size - 1));
  const auto defined = rpc::define(kParameters, [&server] { return server.parameters(); });
  const auto also =
      rpc::define(kStep, [&server](std::int64_t step, std::int64_t trainer, Vector gradient) {
        return server.step(step, trainer, std::move(gradient));
      });
  if (!defined || !also) return give_up("define", (defined ? also : defined).error().message);

  if (const auto started = rpc::init(); !started) {
    return give_up("init", started.error().message);
  }
  const std::string name = rpc::self().name();
  const bool is_server = rpc::self().id() == 0;
  fmt::print("{}: one of {} workers\n", name, world_size);
  std::fflush(stdout);

  rpc::CallResult<Vector> trained;
  if (!is_server) trained = train(step_count);
  // Whoever has nothing left to do waits here for the others, and goes on to serve them.
  const auto stopped = rpc::shutdown();
  if (!trained) return give_up("train", rpc::render(trained.error()));
  if (!stopped) return give_up("shutdown", rpc::render(stopped.error()));
  if (is_server) trained = server.parameters();
  if (!are_equal(*trained, train_alone(step_count, world_size - 1))) {
    return give_up("check", fmt::format("{} is not what one process gets", *trained));
  }
  fmt::print("{}: as in one process: {}\n", name, fmt::join(*trained, " "));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t step_count = 50;
  if (argc == 3 && std::string_view(argv[1]) == "--steps") {
    step_count = std::atoll(argv[2]);
  } else if (argc != 1) {
    fmt::print(stderr, "usage: parameter_server [--steps N]\n");
    return 2;
  }
  return work(step_count);
}
