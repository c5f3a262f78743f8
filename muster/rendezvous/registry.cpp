#include "muster/rendezvous/registry.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/base/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace muster::rendezvous {
namespace {

class FunctionCreator final : public Creator {
 public:
  FunctionCreator(std::string origin, CreateFunction function)
      : origin_(std::move(origin)), function_(std::move(function)) {}

  std::string_view origin() const override { return origin_; }
  Task<Result<std::unique_ptr<Handler>>> create(const Parameters& parameters,
                                                Environment& environment) const override {
    return function_(parameters, environment);
  }

 private:
  std::string origin_;
  CreateFunction function_;
};

}  // namespace

std::shared_ptr<const Creator> make_creator(std::string origin, CreateFunction function) {
  return std::make_shared<FunctionCreator>(std::move(origin), std::move(function));
}

Result<> Registry::add(std::string backend, std::shared_ptr<const Creator> creator) {
  MUSTER_ASSERT(creator != nullptr);
  if (backend.empty())
    return fail(ErrorKind::Invalid, "the name of a rendezvous backend must not be empty");
  const auto found = creators_.find(backend);
  if (found == creators_.end()) {
    creators_.emplace(std::move(backend), std::move(creator));
    return {};
  }
  if (found->second == creator) return {};
  return fail(
      ErrorKind::Invalid,
      fmt::format("the rendezvous backend {} cannot be had from {}: it comes from {} already",
                  log::quote(backend), creator->origin(), found->second->origin()));
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, creator] : creators_) names.push_back(name);
  return names;
}

bool Registry::has(std::string_view backend) const { return creators_.contains(backend); }

Task<Result<std::unique_ptr<Handler>>> Registry::create(const Parameters& parameters,
                                                        Environment& environment) const {
  const std::string& name = parameters.backend;
  const auto found = creators_.find(name);
  if (found == creators_.end()) {
    const auto known = names();
    const std::string near = nearest(name, known);
    co_return fail(ErrorKind::Invalid,
                   fmt::format("there is no rendezvous backend {}{}; there {}", log::quote(name),
                               near.empty() ? "" : fmt::format(", did you mean {}?", near),
                               known.empty() ? "is none at all: register one first"
                                             : fmt::format("are: {}", fmt::join(known, ", "))));
  }
  // Kept, since the map may change while the creator works.
  const std::shared_ptr<const Creator> creator = found->second;
  auto handler = co_await creator->create(parameters, environment);
  if (!handler) co_return fail(handler.error());
  MUSTER_ASSERT(*handler != nullptr);
  if ((*handler)->backend() != name) {
    co_return fail(
        ErrorKind::Invalid,
        fmt::format("{} was asked for the rendezvous backend {} and made one of {}",
                    creator->origin(), log::quote(name), log::quote((*handler)->backend())));
  }
  co_return std::move(*handler);
}

}  // namespace muster::rendezvous
