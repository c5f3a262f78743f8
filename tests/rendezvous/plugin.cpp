// A small plugin with a backend that works alone: the round is complete at once. Built several
// times, once as it should be and otherwise with one thing wrong.
#include "muster/rendezvous/plugins.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

using namespace muster;
using namespace muster::rendezvous;

#ifndef PLUGIN_BACKEND
#define PLUGIN_BACKEND "alone"
#endif
#ifndef PLUGIN_ABI
#define PLUGIN_ABI kPluginAbi
#endif

class AloneHandler final : public Handler {
 public:
  explicit AloneHandler(std::string run_id) : run_id_(std::move(run_id)) {}

  std::string_view backend() const override { return PLUGIN_BACKEND; }
  const std::string& run_id() const override { return run_id_; }
  Task<Result<Info>> next_rendezvous() override {
    Info info;
    info.world_size = 1;
    info.round = round_++;
    co_return info;
  }
  Task<Result<bool>> is_closed() override { co_return closed_; }
  Task<Result<>> set_closed() override {
    closed_ = true;
    co_return Result<>();
  }
  Task<Result<std::int64_t>> num_nodes_waiting() override { co_return 0; }
  Task<Result<bool>> shutdown() override {
    closed_ = true;
    co_return true;
  }
  Task<Result<>> leave() override { co_return Result<>(); }
  Status status() const override { return {.round = round_, .closed = closed_, .member = true}; }
  Task<Result<Status>> wait_status(Status, TimePoint) override { co_return status(); }

 private:
  std::string run_id_;
  std::uint64_t round_ = 0;
  bool closed_ = false;
};

class AloneCreator final : public Creator {
 public:
  std::string_view origin() const override { return "plugin for tests"; }
  Task<Result<std::unique_ptr<Handler>>> create(const Parameters& parameters,
                                                Environment&) const override {
    co_return std::make_unique<AloneHandler>(parameters.run_id);
  }
};

}  // namespace

const PluginDescription* muster_rendezvous_plugin() {
#if defined(PLUGIN_DESCRIBES_NOTHING)
  return nullptr;
#elif defined(PLUGIN_THROWS)
  throw std::runtime_error("not today");
#else
  static const AloneCreator creator;
  static const PluginDescription description{
      .abi = PLUGIN_ABI, .backend = PLUGIN_BACKEND, .creator = &creator};
  return &description;
#endif
}
