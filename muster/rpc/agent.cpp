#include "muster/rpc/agent.h"

#include "muster/rpc/texts.h"

#include <mutex>
#include <utility>

namespace muster::rpc {
namespace {

struct Current {
  std::mutex mutex;
  std::shared_ptr<Agent> agent;  // guarded by it
};
Current& current() {
  // Never destroyed: threads that are still in a call at the end of the program may use it.
  static auto* const kCurrent = new Current;
  return *kCurrent;
}

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
  if (!agent) return clear_current_agent();
  Current& now = current();
  const std::lock_guard lock(now.mutex);
  if (now.agent) return fail(ErrorKind::Conflict, agent_is_set_text());
  now.agent = std::move(agent);
  return {};
}

Result<> clear_current_agent() {
  std::shared_ptr<Agent> dropped;  // outlives the lock: its end may take a while
  Current& now = current();
  const std::lock_guard lock(now.mutex);
  if (!now.agent) return fail(ErrorKind::Invalid, no_current_agent_text());
  dropped.swap(now.agent);
  return {};
}

std::shared_ptr<Agent> current_agent() {
  Current& now = current();
  const std::lock_guard lock(now.mutex);
  return now.agent;
}

}  // namespace muster::rpc
