#include "muster/rref/rref.h"

#include <fmt/format.h>

namespace muster::rpc::internal {

CallError no_reference() {
  return {CallErrorKind::Rejected, "this RRef refers to nothing", "", false};
}

CallError another_type(const rref::Handle& handle) {
  return {CallErrorKind::Rejected,
          fmt::format("{} is used as a reference to another C++ type than its value has here. Both "
                      "are sent as {}, but only the type that the function made, or make_rref was "
                      "given, can be used where the value is",
                      handle.text(), handle.type()),
          "", false};
}

CallError not_the_owner(const rref::Handle& handle) {
  const auto owner = handle.keeper().owner_of(handle);
  const auto agent = handle.keeper().agent();
  return {CallErrorKind::Rejected,
          fmt::format("For {}, can't call localValue() on user {}. Call it on owner {}",
                      rref::user_error_text(handle.rref(), handle.fork()),
                      agent ? agent->self().describe() : fmt::to_string(handle.keeper().self()),
                      owner ? owner->describe() : fmt::to_string(handle.owner())),
          "", false};
}

}  // namespace muster::rpc::internal
