// What is called from other workers and runs Python: it is read, runs and answers when it is its
// turn in the line, and not before the references among its arguments may be used.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/functions.h"
#include "muster/rpc/object.h"
#include "python/native/interpreter.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace muster::python {

class LineFunction : public rpc::Function {
 public:
  bool is_asynchronous() const final { return is_asynchronous_; }
  void invoke(rpc::Reader& arguments, rpc::Reply reply) const final;

 protected:
  LineFunction(std::string name, std::string signature, bool is_asynchronous)
      : Function(std::move(name), std::move(signature), {.run = rpc::Run::Inline}),
        is_asynchronous_(is_asynchronous) {}

  // All of these with the lock. The arguments; an error if they cannot be read. May throw.
  virtual Result<py::object> load(rpc::Reader& arguments) const = 0;
  virtual void run(const py::object& arguments, rpc::Reply reply) const = 0;

 private:
  void load_and_run(rpc::Reader& arguments, rpc::Reply reply) const;
  void run_later(rpc::Freight& freight, py::object arguments, rpc::Reply reply) const;

  const bool is_asynchronous_;
};

// How a result is kept, and how it is written.
struct Answering {
  std::function<std::shared_ptr<rpc::Object>(const py::object& result)> keep;
  std::function<void(rpc::Writer& writer, const py::object& result)> write;  // may throw
};
// Both require the lock, and let go of it to send.
void answer(rpc::Reply reply, const py::object& result, const Answering& how);
void fail(rpc::Reply reply, rpc::Failure failure);

// The duty to answer a call whose function has returned.
class Completion {
 public:
  Completion(rpc::Reply reply, Answering how) : reply_(std::move(reply)), how_(std::move(how)) {}
  // Each of these does nothing once it has been answered.
  void complete(const py::object& result);
  // The function has returned.
  void answers_later() const {
    if (reply_) reply_->answers_later();
  }
  void fail(std::string type, std::string text);

 private:
  std::optional<rpc::Reply> reply_;
  Answering how_;
};

}  // namespace muster::python
