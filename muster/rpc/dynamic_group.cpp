#include "muster/rpc/group.h"
namespace muster::rpc {
Task<Result<std::unique_ptr<Group>>> join_dynamic_group(Loop&, store::Store&, Member, GroupOptions,
                                                        GroupEvents&, TimePoint) {
  co_return fail(ErrorKind::Unimplemented, "");
}
}  // namespace muster::rpc
