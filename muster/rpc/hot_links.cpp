#include "muster/rpc/hot_links.h"

#include <algorithm>
#include <utility>

namespace muster::rpc {
namespace {

// A look at memory costs far less than the look at descriptors that follows.
constexpr int kLooks = 16;

}  // namespace

void HotLinks::add(std::shared_ptr<Link> link) {
  if (std::find(links_.begin(), links_.end(), link) == links_.end()) {
    links_.push_back(std::move(link));
  }
}

bool HotLinks::poll() {
  bool found = false;
  for (int look = 0; look < kLooks && !found; ++look) {
    for (std::size_t index = 0; index < links_.size(); ++index) found |= links_[index]->poll();
    if (links_.empty()) break;
  }
  return found;
}

bool HotLinks::prepare_to_sleep() {
  bool may_sleep = true;
  for (const auto& link : links_) may_sleep &= link->prepare_to_sleep();
  if (may_sleep) links_.clear();
  return may_sleep;
}

}  // namespace muster::rpc
