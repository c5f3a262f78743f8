#include "muster/store/store.h"

#include "muster/base/assert.h"

namespace muster::store {

std::string_view name_of(Change::Kind kind) {
  switch (kind) {
    case Change::Kind::Present:
      return "present";
    case Change::Kind::Absent:
      return "absent";
    case Change::Kind::Created:
      return "created";
    case Change::Kind::Updated:
      return "updated";
    case Change::Kind::Deleted:
      return "deleted";
  }
  MUSTER_ASSERT(false);
  return "";
}

}  // namespace muster::store
