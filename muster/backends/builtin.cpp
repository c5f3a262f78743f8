#include "muster/backends/builtin.h"

#include "muster/backends/c10d.h"
#include "muster/backends/etcd.h"
#include "muster/backends/static_handler.h"
#include "muster/base/assert.h"

#include <fmt/format.h>

#include <utility>

namespace muster::backends {

using namespace rendezvous;

void add_builtin_backends(Registry& registry, net::EpollLoop& loop, Machine& machine) {
  const auto add = [&](std::string name, CreateFunction create) {
    auto creator = make_creator(fmt::format("built-in {}", name), std::move(create));
    const auto added = registry.add(std::move(name), std::move(creator));
    MUSTER_ASSERT(added.has_value());
  };
  add("c10d", [&machine](const Parameters& parameters, Environment& environment) {
    return create_c10d(machine, parameters, environment);
  });
  add("muster", [&machine](const Parameters& parameters, Environment& environment) {
    return create_muster(machine, parameters, environment);
  });
  add("file", [&machine](const Parameters& parameters, Environment& environment) {
    return create_file(machine, parameters, environment);
  });
  add("static", [&machine](const Parameters& parameters, Environment& environment) {
    return create_static(machine, parameters, environment);
  });
  for (const char* name : {"etcd", "etcd-v2"}) {
    add(name, [&loop, &machine](const Parameters& parameters, Environment& environment) {
      return create_etcd(loop, machine, parameters, environment);
    });
  }
}

}  // namespace muster::backends
