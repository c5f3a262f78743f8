#include "muster/observe/health.h"

#include "muster/observe/json.h"

namespace muster::observe {
namespace {

double seconds(Duration length) { return std::chrono::duration<double>(length).count(); }

}  // namespace

HealthAnswer judge(const HealthFacts& facts) {
  // A timeout below zero means for ever, as everywhere.
  const bool is_late = facts.timeout >= Duration::zero() && facts.progress_age > facts.timeout;
  const bool is_lost = facts.state == GroupState::Unhealthy || facts.state == GroupState::Unknown;
  std::optional<std::string> reason;
  if (is_late) {
    reason = "no progress for " + describe(facts.progress_age);
  } else if (is_lost) {
    reason = "the worker group is " + lower_name_of(facts.state);
  }
  JsonWriter json;
  json.begin_object();
  json.field("healthy", !reason.has_value());
  json.field("state", name_of(facts.state));
  if (!facts.phase.empty()) json.field("phase", facts.phase);
  json.field("round", facts.round);
  json.field("last_progress_age_seconds", seconds(facts.progress_age));
  json.field("timeout_seconds", seconds(facts.timeout));
  if (reason) json.field("reason", *reason);
  json.end_object();
  return {reason ? 503 : 200, json.take() + "\n"};
}

}  // namespace muster::observe
