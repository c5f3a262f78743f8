#include "muster/rpc/agent.h"

#include "muster/rpc/texts.h"

#include <mutex>
#include <utility>

namespace muster::rpc {
namespace {

std::mutex current_mutex;
std::shared_ptr<Agent> current;  // guarded by it

}  // namespace

Responder::~Responder() {
  if (back_ != nullptr) fail("", "the request was dropped without an answer");
}

void Responder::respond(Message response) {
  if (const auto back = std::move(back_)) back->respond(std::move(response));
}

void Responder::fail(std::string_view type, std::string_view text) {
  respond({MessageType::Exception, kNoMessageId, encode_failure(type, text), {}});
}

Future<Message> Agent::send(std::string_view to, Message request,
                            std::optional<double> timeout_seconds) {
  Promise<Message> promise;
  Future<Message> future = promise.future();
  const auto as_it_is = [](CallResult<Message> outcome) { return outcome; };
  auto sink = std::make_unique<PromiseSink<Message, decltype(as_it_is)>>(std::move(promise),
                                                                         callbacks(), as_it_is);
  submit(to, std::move(request), timeout_seconds, std::move(sink));
  return future;
}

Result<> set_current_agent(std::shared_ptr<Agent> agent) {
  const std::lock_guard lock(current_mutex);
  if (current) return fail(ErrorKind::Conflict, already_initialized_text());
  current = std::move(agent);
  return {};
}

void clear_current_agent() {
  std::shared_ptr<Agent> dropped;
  const std::lock_guard lock(current_mutex);
  dropped.swap(current);
}

std::shared_ptr<Agent> current_agent() {
  const std::lock_guard lock(current_mutex);
  return current;
}

}  // namespace muster::rpc
