// Registry: which backends there are, and how a handler of each is made.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/rendezvous/environment.h"
#include "muster/rendezvous/handler.h"
#include "muster/rendezvous/parameters.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rendezvous {

// Makes the handlers of one backend. What it needs beyond the environment, such as sockets, it was
// given when it was made.
class Creator {
 public:
  Creator() = default;
  Creator(const Creator&) = delete;
  Creator& operator=(const Creator&) = delete;
  virtual ~Creator() = default;

  // Where it comes from, for messages: "built-in c10d", "plugin /…/x.so".
  virtual std::string_view origin() const = 0;

  // Requires: both arguments outlive the task, and what the environment refers to the handler.
  virtual Task<Result<std::unique_ptr<Handler>>> create(const Parameters& parameters,
                                                        Environment& environment) const = 0;
};

// A creator made of a function. The function may be a coroutine, but not a capturing lambda that is
// one.
using CreateFunction = std::function<Task<Result<std::unique_ptr<Handler>>>(
    const Parameters& parameters, Environment& environment)>;
std::shared_ptr<const Creator> make_creator(std::string origin, CreateFunction function);

// Owned by whoever builds the object graph, and filled by it: there is none for the whole process.
// Not bound to a loop, and not for use by several threads at once.
class Registry {
 public:
  // Invalid for an empty name and for one that has another creator already. The same creator is the
  // same object; registering it again does nothing. Creators are shared with those who want to
  // register them again, as plugins are when they are found again.
  Result<> add(std::string backend, std::shared_ptr<const Creator> creator);

  // Sorted.
  std::vector<std::string> names() const;
  bool has(std::string_view backend) const;

  // Makes the handler that `parameters.backend` names. Invalid, with a suggestion, if there is no
  // such backend, and if the creator makes a handler of another name. Its other errors are the
  // creator's. Requires: both arguments and the registry outlive the task.
  Task<Result<std::unique_ptr<Handler>>> create(const Parameters& parameters,
                                                Environment& environment) const;

 private:
  std::map<std::string, std::shared_ptr<const Creator>, std::less<>> creators_;
};

}  // namespace muster::rendezvous
