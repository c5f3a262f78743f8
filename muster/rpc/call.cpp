#include "muster/rpc/call.h"

#include <utility>
#include <vector>

namespace muster::rpc {

Functions& functions() {
  // Never destroyed: threads that are still in a call at the end of the program may use it.
  static auto* const kFunctions = new Functions;
  return *kFunctions;
}

namespace internal {

CallError not_initialized() {
  return {CallErrorKind::Rejected, "RPC has not been initialized. Call rpc::init first.", "",
          false};
}

CallResult<WorkerInfo> find(const Agent& agent, const Destination& to) {
  return to.id() ? agent.find(*to.id()) : agent.find(to.name());
}

namespace {

// Tells what becomes of the references that a request carries.
class FreightSink final : public CallSink {
 public:
  FreightSink(std::unique_ptr<CallSink> sink, References& references,
              std::vector<std::uint64_t> forks)
      : sink_(std::move(sink)), references_(references), forks_(std::move(forks)) {}
  void set_helper(std::weak_ptr<internal::Helper> helper) override {
    sink_->set_helper(std::move(helper));
  }
  void ended(CallResult<Message> outcome, Calls& calls) override {
    if (!outcome && outcome.error().sent) {
      references_.maybe_sent(forks_);
    } else if (!outcome) {
      references_.not_sent(forks_);
    }
    sink_->ended(std::move(outcome), calls);
  }
  bool wants_late_answer() const override { return sink_->wants_late_answer(); }
  void came_late(Message response) override { sink_->came_late(std::move(response)); }

 private:
  std::unique_ptr<CallSink> sink_;
  References& references_;
  std::vector<std::uint64_t> forks_;
};

}  // namespace

Route::Route(Agent& agent, const Destination& to)
    : Freight(agent.references()), agent_(agent), to_(to) {
  if (to.id()) {
    auto info = agent.find(*to.id());
    found_ = info ? CallResult<std::string>(info->name()) : call_failed(std::move(info.error()));
  }
  const std::string_view name = to.id() && found_ ? *found_ : to.name();
  devices_ = agent.route_to(name);
}

CallResult<std::int16_t> Route::peer() {
  auto info = find(agent_, to_);
  if (!info) return call_failed(std::move(info.error()));
  return info->id();
}

void Route::submit(Result<Message> request, std::unique_ptr<CallSink> sink) {
  if (!forks.empty()) {
    sink = std::make_unique<FreightSink>(std::move(sink), *references(), std::move(forks));
  }
  if (!found_) return agent_.calls().refuse(std::move(sink), found_.error());
  if (!request) {
    return agent_.calls().refuse(std::move(sink),
                                 {CallErrorKind::Rejected, request.error().message, "", false});
  }
  const std::string_view name = to_.id() ? *found_ : to_.name();
  agent_.submit(name, std::move(*request), to_.timeout_seconds(), std::move(sink));
}

}  // namespace internal
}  // namespace muster::rpc
