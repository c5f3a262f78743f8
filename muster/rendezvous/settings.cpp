#include "muster/rendezvous/settings.h"

#include "muster/rendezvous/options.h"
#include "muster/rendezvous/parameters.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace muster::rendezvous {
namespace {

// Unlike describe(Duration), it keeps the sign.
std::string seconds_text(Duration length) {
  return fmt::format("{}s", std::chrono::duration<double>(length).count());
}

Result<> check_positive(std::string_view name, Duration length) {
  if (length <= Duration::zero()) {
    return fail(ErrorKind::Invalid,
                fmt::format("the rendezvous setting {} must be positive, not {}", name,
                            seconds_text(length)));
  }
  if (length > kSettingDurationMax) {
    return fail(ErrorKind::Invalid,
                fmt::format("the rendezvous setting {} must be at most {}, not {}", name,
                            seconds_text(kSettingDurationMax), seconds_text(length)));
  }
  return {};
}

Result<> check_timeouts(const Timeouts& timeouts) {
  const std::pair<std::string_view, Duration> all[] = {{"join_timeout", timeouts.join},
                                                       {"last_call_timeout", timeouts.last_call},
                                                       {"close_timeout", timeouts.close},
                                                       {"heartbeat_timeout", timeouts.heartbeat}};
  for (const auto& [name, length] : all) {
    if (auto checked = check_positive(name, length); !checked) return checked;
  }
  if (timeouts.regroup) return check_positive("regroup_timeout", *timeouts.regroup);
  return {};
}

Result<> check_keep_alive(const Settings& settings) {
  const Duration interval = settings.keep_alive_interval;
  const std::int64_t attempts = settings.keep_alive_max_attempt;
  if (auto checked = check_positive("keep_alive_interval", interval); !checked) return checked;
  if (attempts < 1) {
    return fail(
        ErrorKind::Invalid,
        fmt::format("the rendezvous setting keep_alive_max_attempt must be at least 1, not {}",
                    attempts));
  }
  if (attempts > kSettingDurationMax / interval) {
    return fail(
        ErrorKind::Invalid,
        fmt::format("the rendezvous settings keep_alive_interval ({}) and keep_alive_max_attempt "
                    "({}) make a node count as alive for more than {}",
                    seconds_text(interval), attempts, seconds_text(kSettingDurationMax)));
  }
  return {};
}

}  // namespace

Result<Timeouts> Timeouts::create(const TimeoutOptions& options) {
  const Timeouts defaults;
  const Timeouts timeouts{.join = options.join.value_or(defaults.join),
                          .last_call = options.last_call.value_or(defaults.last_call),
                          .regroup = options.regroup,
                          .close = options.close.value_or(defaults.close),
                          .heartbeat = options.heartbeat.value_or(defaults.heartbeat)};
  if (const auto checked = check_timeouts(timeouts); !checked) return fail(checked.error());
  return timeouts;
}

Result<Settings> Settings::create(Settings settings) {
  if (settings.run_id.empty())
    return fail(ErrorKind::Invalid, "the run id of a rendezvous must not be empty");
  if (settings.min_nodes < 1) {
    return fail(
        ErrorKind::Invalid,
        fmt::format("the minimum number of nodes must be at least 1, not {}", settings.min_nodes));
  }
  if (settings.max_nodes < settings.min_nodes) {
    return fail(ErrorKind::Invalid,
                fmt::format("the maximum number of nodes ({}) is less than the minimum ({})",
                            settings.max_nodes, settings.min_nodes));
  }
  if (const auto checked = check_timeouts(settings.timeouts); !checked)
    return fail(checked.error());
  if (const auto checked = check_keep_alive(settings); !checked) return fail(checked.error());
  // No grace at all is fine: a node is gone with its connection.
  if (settings.grace != Duration::zero()) {
    if (const auto checked = check_positive("grace", settings.grace); !checked)
      return fail(checked.error());
  }
  return settings;
}

Result<Settings> settings_from(const Parameters& parameters) {
  Settings settings;
  settings.run_id = parameters.run_id;
  settings.min_nodes = parameters.min_nodes;
  settings.max_nodes = parameters.max_nodes;
  const std::pair<std::string_view, Duration*> lengths[] = {
      {"join_timeout", &settings.timeouts.join},
      {"last_call_timeout", &settings.timeouts.last_call},
      {"close_timeout", &settings.timeouts.close},
      {"heartbeat_timeout", &settings.timeouts.heartbeat},
      {"keep_alive_interval", &settings.keep_alive_interval},
      {"grace", &settings.grace}};
  for (const auto& [option, place] : lengths) {
    const auto length = duration_option(parameters, option);
    if (!length) return fail(length.error());
    *place = *length;
  }
  const auto regroup = parameters.get_as_duration("regroup_timeout");
  if (!regroup) return fail(regroup.error());
  settings.timeouts.regroup = *regroup;
  const auto attempts = int_option(parameters, "keep_alive_max_attempt");
  if (!attempts) return fail(attempts.error());
  settings.keep_alive_max_attempt = *attempts;
  return Settings::create(std::move(settings));
}

}  // namespace muster::rendezvous
