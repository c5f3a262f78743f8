#include "muster/backends/machine.h"

#include "muster/backends/this_machine.h"

#include <cstdlib>
#include <memory>
#include <utility>

namespace muster::backends {
namespace {

// Runs what blocks on a thread of its own. The answer is shared by the thread and the task, which
// may be cancelled first.
template <typename T>
struct Answer {
  explicit Answer(Loop& loop) : value(loop) {}
  Oneshot<T> value;
};

template <typename T>
Task<T> in_background(net::EpollLoop& loop, std::function<T()> work) {
  const auto answer = std::make_shared<Answer<T>>(loop);
  loop.run_in_background([&loop, answer, work = std::move(work)] {
    T value = work();
    loop.post(
        [answer, value = std::move(value)]() mutable { answer->value.set(std::move(value)); });
  });
  co_return co_await answer->value;
}

}  // namespace

Task<bool> SystemMachine::is_called(std::string host) {
  std::function<bool()> ask = [host = std::move(host)] { return is_this_machine(host); };
  co_return co_await in_background<bool>(loop_, std::move(ask));
}

Task<std::string> SystemMachine::name() {
  std::function<std::string()> ask = [] { return fully_qualified_name(); };
  co_return co_await in_background<std::string>(loop_, std::move(ask));
}

Result<int> SystemMachine::free_port() { return find_free_port(); }

std::optional<std::string> SystemMachine::variable(const std::string& name) const {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace muster::backends
