#include "python/native/line_function.h"

#include "python/native/bind.h"
#include "python/native/line.h"

#include <utility>

namespace muster::python {
namespace {

// Never destroyed: threads may still serve it at the end of the program.
Line& line() {
  static auto* const kLine = new Line;
  return *kLine;
}

}  // namespace

void LineFunction::invoke(rpc::Reader& arguments, rpc::Reply reply) const {
  rpc::Freight& freight = *arguments.freight();
  auto waiting = std::make_shared<rpc::Reply>(std::move(reply));
  // The arguments and the freight are there until the call is answered.
  auto run = [this, &arguments, &freight, waiting = std::move(waiting)] {
    freight.run_here([&] { load_and_run(arguments, std::move(*waiting)); });
  };
  freight.stand_in_line();
  line().add(std::move(run), *freight.pool());
}

void LineFunction::load_and_run(rpc::Reader& arguments, rpc::Reply reply) const {
  const Gil gil;
  Result<py::object> loaded = py::object();
  try {
    loaded = load(arguments);
  } catch (const std::exception& thrown) {
    rpc::Failure failure{"", thrown.what()};
    const Unlocked released;
    return reply.refuse(std::move(failure));
  }
  if (!loaded) {
    const Unlocked released;
    return refuse(loaded.error(), std::move(reply));
  }
  rpc::Freight& freight = *arguments.freight();
  if (freight.forks.empty()) return run(*loaded, std::move(reply));
  run_later(freight, std::move(*loaded), std::move(reply));
}

void LineFunction::run_later(rpc::Freight& freight, py::object arguments, rpc::Reply reply) const {
  struct Waiting {
    Ref arguments;
    rpc::Reply reply;
  };
  auto waiting = std::make_shared<Waiting>(Waiting{Ref(std::move(arguments)), std::move(reply)});
  const auto forks = std::move(freight.forks);
  const Unlocked released;
  freight.references()->when_confirmed(
      forks, [this, &freight, waiting](const rpc::CallError* error) {
        if (error != nullptr) return waiting->reply.fail({error->type, error->message});
        // Work that is dropped drops the reply, which answers.
        (void)freight.resume([this, waiting] {
          const Gil gil;
          run(waiting->arguments.take(), std::move(waiting->reply));
        });
      });
}

void answer(rpc::Reply reply, const py::object& result, const Answering& how) {
  std::shared_ptr<rpc::Object> kept;
  rpc::Writer writer;
  std::optional<rpc::Failure> failure;
  const rpc::DeviceRoute route = reply.route();
  try {
    if (reply.keeps_result()) {
      kept = how.keep(result);
    } else {
      writer.set_freight(reply.freight());
      writer.set_route(route);
      how.write(writer, result);
      if (const auto written = writer.finish(); !written) failure = {"", written.error().message};
    }
  } catch (const std::exception& thrown) {
    failure = {"", thrown.what()};
  }
  const Unlocked released;
  if (failure) return reply.fail(std::move(*failure));
  if (kept) return reply.keep(std::move(kept));
  reply.succeed(std::move(writer));
}

void fail(rpc::Reply reply, rpc::Failure failure) {
  const Unlocked released;
  reply.fail(std::move(failure));
}

void Completion::complete(const py::object& result) {
  auto reply = std::exchange(reply_, std::nullopt);
  if (reply) answer(std::move(*reply), result, how_);
}

void Completion::fail(std::string type, std::string text) {
  auto reply = std::exchange(reply_, std::nullopt);
  if (reply) python::fail(std::move(*reply), {std::move(type), std::move(text)});
}

void bind_line_function(py::module_& module) {
  py::class_<Completion>(module, "Completion")
      .def("__call__", &Completion::complete)
      .def("fail", &Completion::fail, py::arg("type"), py::arg("text"));
}

}  // namespace muster::python
