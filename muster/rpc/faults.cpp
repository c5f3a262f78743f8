#include "muster/rpc/faults.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <utility>

namespace muster::rpc {
namespace {

struct NamedAction {
  std::string_view name;
  FaultAction action;
};
constexpr std::array<NamedAction, 7> kActions{{{"fail", FaultAction::Fail},
                                               {"drop", FaultAction::Drop},
                                               {"delay", FaultAction::Delay},
                                               {"reorder", FaultAction::Reorder},
                                               {"duplicate", FaultAction::Duplicate},
                                               {"corrupt", FaultAction::Corrupt},
                                               {"disconnect", FaultAction::Disconnect}}};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

template <typename T>
bool read_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// "RREF_*" and "*" too.
std::vector<MessageType> types_like(std::string_view pattern) {
  const bool is_prefix = pattern.ends_with('*');
  if (is_prefix) pattern.remove_suffix(1);
  std::vector<MessageType> types;
  for (const MessageType type : all_message_types()) {
    const std::string name = name_of(type);
    if (is_prefix ? name.starts_with(pattern) : name == pattern) types.push_back(type);
  }
  return types;
}

tl::unexpected<Error> bad_part(std::string_view rule, std::string_view what) {
  return fail(ErrorKind::Invalid, fmt::format("the fault {} {}", log::quote(rule), what));
}

Result<FaultAction> action_named(std::string_view rule, std::string_view name) {
  std::string known;
  for (const NamedAction& one : kActions) {
    if (one.name == name) return one.action;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
  }
  return bad_part(rule, fmt::format("has no action {}; there are {}", log::quote(name), known));
}

Result<> read_condition(std::string_view text, std::string_view part, FaultRule& rule) {
  const auto equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
  if (name == "to" && !value.empty()) {
    rule.to = value;
    return {};
  }
  if (name == "p") {
    if (read_number(value, rule.probability) && rule.probability >= 0 && rule.probability <= 1) {
      return {};
    }
    return bad_part(text, "needs a probability from 0 to 1 after p=");
  }
  if (name == "first") {
    std::int64_t count = 0;
    if (read_number(value, count) && count >= 0) {
      rule.first = count;
      return {};
    }
    return bad_part(text, "needs a count after first=");
  }
  if (name == "for") {
    if (parse_duration(value, rule.length) && rule.length >= Duration::zero()) return {};
    return bad_part(text, "needs a duration such as 50ms after for=");
  }
  return bad_part(
      text, fmt::format("has a part {} that is none of p=, first=, to=, for=", log::quote(part)));
}

Result<FaultRule> read_rule(std::string_view text) {
  const auto parts = split(text, ':');
  if (parts.size() < 2) {
    return bad_part(text, "is not of the form action:TYPE, such as drop:SCRIPT_CALL:p=0.1");
  }
  const auto action = action_named(text, parts[0]);
  if (!action) return fail(action.error());
  FaultRule rule;
  rule.action = *action;
  for (const std::string_view pattern : split(parts[1], ',')) {
    const auto types = types_like(pattern);
    if (types.empty()) {
      return bad_part(
          text, fmt::format("names {}, and there is no such type of message", log::quote(pattern)));
    }
    rule.types.insert(rule.types.end(), types.begin(), types.end());
  }
  for (std::size_t index = 2; index < parts.size(); ++index) {
    if (auto read = read_condition(text, parts[index], rule); !read) return fail(read.error());
  }
  return rule;
}

Result<MessageType> known_type(const std::string& name) {
  const auto type = message_type_named(name);
  if (type) return *type;
  return fail(ErrorKind::Invalid,
              fmt::format("No mapping to rpc::MessageType exists for {}", name));
}

}  // namespace

Result<FaultOptions> parse_faults(std::string_view text) {
  FaultOptions options;
  for (const std::string_view part : split(text, ' ')) {
    if (part.starts_with("seed=")) {
      if (read_number(part.substr(5), options.seed)) continue;
      return bad_part(part, "needs a number after seed=");
    }
    auto rule = read_rule(part);
    if (!rule) return fail(rule.error());
    options.rules.push_back(std::move(*rule));
  }
  return options;
}

Result<FaultOptions> faults_of(const FaultPreset& preset) {
  if (preset.fail_count < 0) {
    return fail(ErrorKind::Invalid, "numFailSends should be non-negative");
  }
  FaultOptions options;
  FaultRule failing;
  failing.action = FaultAction::Fail;
  failing.first = preset.fail_count;
  for (const std::string& name : preset.messages_to_fail) {
    const auto type = known_type(name);
    if (!type) return fail(type.error());
    failing.types.push_back(*type);
  }
  options.rules.push_back(failing);  // failing comes first
  for (const auto& [name, seconds] : preset.messages_to_delay) {
    const auto type = known_type(name);
    if (!type) return fail(type.error());
    if (!(seconds >= 0)) {
      return fail(ErrorKind::Invalid,
                  "Delays passed to FaultyTensorPipeAgent must be non-negative.");
    }
    FaultRule late;
    late.action = FaultAction::Delay;
    late.types = {*type};
    late.length =
        std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, 1e9) * 1000));
    options.rules.push_back(late);
  }
  return options;
}

Faults::Faults(FaultOptions options) : options_(std::move(options)), random_(options_.seed) {}

bool Faults::applies(const FaultRule& rule, const Message& message, std::string_view to) {
  if (std::find(rule.types.begin(), rule.types.end(), message.type) == rule.types.end()) {
    return false;
  }
  if (!rule.to.empty() && rule.to != to) return false;
  const bool is_for_requests =
      rule.action == FaultAction::Fail || rule.action == FaultAction::Duplicate;
  if (is_for_requests && !is_request(message.type)) return false;
  if (rule.action == FaultAction::Corrupt && message.payload.empty()) return false;
  constexpr std::uint64_t kMillion = 1'000'000;
  if (rule.probability < 1 &&
      random_.below(kMillion) >= static_cast<std::uint64_t>(rule.probability * kMillion)) {
    return false;
  }
  if (!rule.first) return true;
  std::int64_t& count = sent_counts_[std::hash<std::string>()(message.payload)];
  if (count >= *rule.first) return false;
  ++count;
  return true;
}

std::optional<Faults::Verdict> Faults::decide(const Message& message, std::string_view to) {
  const std::lock_guard lock(mutex_);
  for (const FaultRule& rule : options_.rules) {
    if (!applies(rule, message, to)) continue;
    Verdict verdict{rule.action, rule.length, 0};
    if (rule.action == FaultAction::Reorder) {
      const auto most = static_cast<std::uint64_t>(rule.length.count()) + 1;
      verdict.length = Duration(static_cast<Duration::rep>(random_.below(most)));
    }
    if (rule.action == FaultAction::Corrupt) {
      verdict.position = random_.below(message.payload.size());
    }
    return verdict;
  }
  return std::nullopt;
}

}  // namespace muster::rpc
