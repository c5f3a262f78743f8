// Uses a FileStore from the command line, so that a test in another language can be its other side:
//
//   file_store_tool PATH COMMAND [ARGUMENT...]
//
// Prints what the command gives, one value a line; booleans as 0 and 1, nothing as "absent". An
// error goes to standard error and makes the exit status 1, wrong arguments make it 2.

#include "muster/base/random.h"
#include "muster/net/epoll_loop.h"
#include "muster/store/file_store.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {
namespace {

// The longest that a command waits; a test that reaches it has failed.
constexpr Duration kPatience = std::chrono::seconds(60);

using Arguments = std::vector<std::string>;

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}
void print(const std::string& text) { print(std::string_view(text)); }
void print(bool value) { print(std::string_view(value ? "1" : "0")); }
void print(std::int64_t value) { print(std::to_string(value)); }
void print(const CompareSet& outcome) { print(outcome.value); }
void print(const std::vector<std::string>& values) {
  for (const std::string& value : values) print(value);
}
void print(const std::optional<std::string>& value) {
  if (value) return print(*value);
  print(std::string_view("absent"));
}

class Tool {
 public:
  Tool(std::unique_ptr<Store> store, net::EpollLoop& loop)
      : store_(std::move(store)), loop_(loop) {}

  int run(const std::string& command, Arguments arguments) {
    const TimePoint deadline = SystemClock().now() + kPatience;
    const std::size_t count = arguments.size();
    const auto number = [&](std::size_t index) {
      return std::strtoll(arguments[index].c_str(), nullptr, 10);
    };
    Arguments& a = arguments;
    Store& store = *store_;
    if (command == "set" && count == 2) return show(store.set(a[0], a[1]));
    if (command == "get" && count == 1) return show(store.get(a[0], deadline));
    if (command == "try-get" && count == 1) return show(store.try_get(a[0]));
    if (command == "add" && count == 2) return show(store.add(a[0], number(1)));
    if (command == "add-many" && count == 3) return add_many(a[0], number(1), number(2));
    if (command == "compare-set" && count == 3) return show(store.compare_set(a[0], a[1], a[2]));
    if (command == "append" && count == 2) return show(store.append(a[0], a[1]));
    if (command == "delete" && count == 1) return show(store.delete_key(a[0]));
    if (command == "check") return show(store.check(a));
    if (command == "wait") return show(store.wait(a, deadline));
    if (command == "set-and-wait" && count == 2) return set_and_wait(a[0], a[1], deadline);
    if (command == "multi-get") return show(store.multi_get(a, deadline));
    if (command == "num-keys" && count == 0) return show(store.num_keys());
    if (command == "list-keys" && count == 1) return show(store.list_keys(a[0]));
    if (command == "push" && count == 2) return show(store.queue_push(a[0], a[1]));
    if (command == "pop" && count == 1) return show(store.queue_pop(a[0], deadline));
    if (command == "queue-length" && count == 1) return show(store.queue_length(a[0]));
    if (command == "barrier" && count == 2) return show(store.barrier(a[0], number(1), deadline));
    fmt::print(stderr, "no command {} with {} arguments\n", command, count);
    return 2;
  }

 private:
  template <typename T>
  int show(Task<Result<T>> task) {
    const Result<T> result = loop_.block_on(std::move(task));
    if (!result) {
      fmt::print(stderr, "{}: {}\n", name_of(result.error().kind), result.error().message);
      return 1;
    }
    if constexpr (!std::is_void_v<T>) print(*result);
    return 0;
  }

  int add_many(const std::string& key, std::int64_t delta, std::int64_t count) {
    for (std::int64_t index = 1; index < count; ++index) {
      if (const auto sum = loop_.block_on(store_->add(key, delta)); !sum) break;
    }
    return show(store_->add(key, delta));
  }

  // By the first key others know that this process has begun.
  int set_and_wait(const std::string& key, const std::string& awaited, TimePoint deadline) {
    const int status = show(store_->set(key, ""));
    return status != 0 ? status : show(store_->wait({awaited}, deadline));
  }

  std::unique_ptr<Store> store_;
  net::EpollLoop& loop_;
};

int main(int count, char** arguments) {
  if (count < 3) {
    fmt::print(stderr, "usage: {} PATH COMMAND [ARGUMENT...]\n", arguments[0]);
    return 2;
  }
  net::EpollLoop loop;
  Random random = Random::from_system();
  auto store = make_file_store(loop, random, {.path = arguments[1]});
  if (!store) {
    fmt::print(stderr, "{}: {}\n", name_of(store.error().kind), store.error().message);
    return 1;
  }
  return Tool(std::move(*store), loop).run(arguments[2], {arguments + 3, arguments + count});
}

}  // namespace
}  // namespace muster::store

int main(int count, char** arguments) { return muster::store::main(count, arguments); }
