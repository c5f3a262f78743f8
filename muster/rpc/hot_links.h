// HotLinks: the links of a loop on which something has just come. While the loop does not sleep it
// looks at them, and the other side need not wake it.
//
// Owned by an agent, lives on its loop.
#pragma once

#include "muster/rpc/link.h"

#include <memory>
#include <vector>

namespace muster::rpc {

class HotLinks {
 public:
  void add(std::shared_ptr<Link> link);
  // Looks at all of them; true if there was something.
  bool poll();
  // The loop is going to sleep: none is hot any more, and the others wake it. False if there is
  // something to do after all.
  bool prepare_to_sleep();

 private:
  std::vector<std::shared_ptr<Link>> links_;
};

}  // namespace muster::rpc
