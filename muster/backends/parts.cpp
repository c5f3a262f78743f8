#include "muster/backends/parts.h"

#include "muster/backends/hosted_store.h"
#include "muster/base/log.h"
#include "muster/rendezvous/options.h"
#include "muster/rendezvous/shared_driver.h"
#include "muster/rendezvous/store_backend.h"
#include "muster/store/prefix_store.h"

#include <utility>

namespace muster::backends {
namespace {

using namespace rendezvous;

// The store that the workers of a round begin with. Its port stays the same as long as it can, but
// PyTorch's workers write the same keys in every round and expect to find none: so it begins empty
// in every round, and whoever is left of an earlier one is cut off.
class Bootstrap {
 public:
  Bootstrap(Loop& loop, Random& random, net::Transport& transport)
      : loop_(loop), random_(random), transport_(transport) {}

  Result<int> port() {
    const int last_port = store_ ? store_->port() : 0;
    store_.reset();
    auto started = HostedStore::start(loop_, random_, transport_, {"", last_port});
    // Somebody else may have been faster.
    if (!started && last_port != 0) started = HostedStore::start(loop_, random_, transport_, {});
    if (!started) return fail(std::move(started.error()));
    store_ = std::move(*started);
    log::info("rendezvous", "this node hosts the workers' store port={}", store_->port());
    return store_->port();
  }

 private:
  Loop& loop_;
  Random& random_;
  net::Transport& transport_;
  std::unique_ptr<HostedStore> store_;
};

}  // namespace

Task<Result<DynamicHandlerParts>> begin_parts(Machine& machine, const Parameters& parameters,
                                              Environment& environment) {
  auto warnings = check_options(parameters.backend, parameters.config);
  if (!warnings) co_return fail(std::move(warnings.error()));
  for (const std::string& warning : *warnings) log::warn("rendezvous", "{}", warning);
  auto settings = settings_from(parameters);
  if (!settings) co_return fail(std::move(settings.error()));

  DynamicHandlerParts parts;
  parts.backend = parameters.backend;
  parts.settings = std::move(*settings);
  parts.local_addr = parameters.local_addr;
  if (parts.local_addr.empty()) parts.local_addr = co_await machine.name();
  parts.node = make_node(parts.local_addr, environment.random);
  parts.master_endpoint = parameters.endpoint;
  parts.shares_store = [&machine] {
    return machine.variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1";
  };
  const auto bootstrap =
      std::make_shared<Bootstrap>(environment.loop, environment.random, machine.transport());
  parts.bootstrap_port = [bootstrap] { return bootstrap->port(); };
  parts.free_port = [&machine] { return machine.free_port(); };
  co_return parts;
}

std::shared_ptr<store::Store> view_of(std::shared_ptr<void> owner, store::Store& store,
                                      std::string prefix) {
  // Shared by the handler and whoever got the store in an Info.
  struct View {
    std::shared_ptr<void> owner;
    std::unique_ptr<store::Store> store;
  };
  auto view = std::make_shared<View>();
  view->owner = std::move(owner);
  view->store = store::make_prefix_store(std::move(prefix), store);
  return {view, view->store.get()};
}

std::function<void(NodeState, std::string)> reporter(Environment& environment,
                                                     const DynamicHandlerParts& parts) {
  if (environment.events == nullptr) return {};
  Event event;
  event.name = "rendezvous";
  event.run_id = parts.settings.run_id;
  event.hostname = parts.node.addr;
  event.pid = parts.node.pid;
  event.local_id = parts.node.local_id;
  event.master_endpoint = parts.master_endpoint;
  return [sink = environment.events, event](NodeState state, std::string message) mutable {
    event.node_state = state;
    event.message = std::move(message);
    event.error_trace = state == NodeState::Failed ? event.message : "";
    sink->record(event);
  };
}

void drive_over_store(Environment& environment, std::shared_ptr<void> owner, store::Store& store,
                      DynamicHandlerParts& parts) {
  struct Foundation {
    std::shared_ptr<void> owner;
    std::unique_ptr<Backend> backend;
  };
  auto foundation = std::make_shared<Foundation>();
  foundation->owner = owner;
  foundation->backend =
      make_store_backend(environment.loop, store, environment.random, parts.settings.run_id);
  SharedDriverOptions options;
  options.report = reporter(environment, parts);
  parts.driver = make_shared_driver(environment.loop, environment.random, *foundation->backend,
                                    parts.settings, parts.node, std::move(options));
  parts.foundation = std::move(foundation);
  parts.round_store = [owner = std::move(owner), &store](std::string prefix) {
    return view_of(owner, store, std::move(prefix));
  };
}

}  // namespace muster::backends
