// Views where they are good, and where they are not: what is marked must not compile. See
// refused_test.py.
#include "muster/rpc.h"

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rpc = muster::rpc;

struct Named {
  std::string_view name;
};
template <typename Archive>
void describe_fields(Archive& archive, Named& named) {
  archive(named.name);
}

struct Lent {
  std::int64_t count = 0;
  std::span<const float> values;
};
template <typename Archive>
void describe_fields(Archive& archive, Lent& lent) {
  archive(lent.count, lent.values);
}

struct Deep {
  std::vector<std::optional<std::array<Named, 2>>> all;
};
template <typename Archive>
void describe_fields(Archive& archive, Deep& deep) {
  archive(deep.all);
}

struct Tree {
  std::string name;
  std::map<std::string, Tree> children;
};
template <typename Archive>
void describe_fields(Archive& archive, Tree& tree) {
  archive(tree.name, tree.children);
  archive.require(!tree.name.empty(), "it has no name");
}

template <typename T>
rpc::Future<T> later(T value) {
  return rpc::Future<T>::ready(std::move(value));
}

void use(rpc::Functions& functions) {
  // A function that has its arguments only until it returns may look at the message itself.
  (void)functions.add("", [](const Named& named) { return named.name.empty(); });
  (void)functions.add("", [](const Deep&, std::string_view, std::span<const std::byte>) {});
  // One that answers later may not.
  (void)functions.add("", [](Tree tree) { return later(std::move(tree)); });
  (void)functions.add("", [](std::string_view) { return later(1); });  // refused
  (void)functions.add("", [](const Deep&) { return later(1); });       // refused

  // Results are sent, or kept, when the function has returned; a text alone is copied before.
  (void)functions.add("", []() -> std::string_view { return "text"; });
  (void)functions.add("", []() -> const char* { return "text"; });
  (void)functions.add("", [] { return Tree(); });
  (void)functions.add("", [] { return Named(); });                          // refused
  (void)functions.add("", [] { return Lent(); });                           // refused
  (void)functions.add("", [] { return later(std::string_view("text")); });  // refused

  // What is referred to is kept, and what was received outlives its message.
  (void)rpc::make_rref(Tree());
  (void)rpc::make_rref(std::optional<Lent>());  // refused
  (void)rpc::decode<std::vector<Tree>>("");
  (void)rpc::decode<std::pair<int, Deep>>("");  // refused
  const rpc::Procedure<Named()> get_named("named");
  (void)rpc::call("worker1", get_named);  // refused
  const rpc::Procedure<void(Named, Lent)> give("give");
  (void)rpc::call("worker1", give, Named(), Lent());
}
