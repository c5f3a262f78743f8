// Owned: a value that is owned by this worker, or will be.
//
// There may be millions of them. So whoever waits for one waits for a future that is only made
// then, and is gone once there is a value. Any thread.
#pragma once

#include "muster/rpc/call_error.h"
#include "muster/rpc/future.h"
#include "muster/rpc/object.h"
#include "muster/rref/ids.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace muster::rref {

using ObjectFuture = rpc::Future<std::shared_ptr<rpc::Object>>;

class Owned {
 public:
  using Outcome = rpc::CallResult<std::shared_ptr<rpc::Object>>;

  Owned(GlobalId rref, std::string type) : rref_(rref), type_(std::move(type)) {}

  GlobalId rref() const { return rref_; }
  const std::string& type() const { return type_; }
  // The first outcome counts.
  void set(Outcome outcome);
  // The call that was to make it has failed: it never will be.
  void set_not_created(const rpc::CallError& error);
  std::optional<rpc::CallError> creation_error() const;
  // Nothing while it is not made, and if that has failed.
  std::shared_ptr<rpc::Object> object() const;
  ObjectFuture value() const;
  Outcome wait() const;

 private:
  using Promise = rpc::Promise<std::shared_ptr<rpc::Object>>;

  const GlobalId rref_;
  const std::string type_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<rpc::Object> object_;
  bool has_failed_ = false;
  bool is_not_created_ = false;
  // Of those who wait; with the error, if it has failed.
  mutable std::shared_ptr<Promise> promise_;
};

}  // namespace muster::rref
