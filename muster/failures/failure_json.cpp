// Failure records as JSON.

#include "muster/failures/failure.h"
#include "muster/failures/root_cause.h"
#include "muster/failures/text.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <type_traits>
#include <utility>

namespace muster::failures {
namespace {

namespace json = boost::json;

// One list of members for both directions. `visit` gets each name and member.
template <typename Record, typename Visit>
void visit_members(Record& failure, Visit&& visit) {
  visit("global_rank", failure.global_rank);
  visit("local_rank", failure.local_rank);
  visit("node_rank", failure.node_rank);
  visit("role", failure.role);
  visit("host", failure.host);
  visit("pid", failure.pid);
  visit("exit_code", failure.exit_code);
  visit("exited_nanoseconds", failure.exited_nanoseconds);
  visit("recorded_nanoseconds", failure.recorded_nanoseconds);
  visit("clock_lead_nanoseconds", failure.clock_lead_nanoseconds);
  visit("order", failure.order);
  visit("out_of_memory", failure.out_of_memory);
  visit("collateral", failure.collateral);
  visit("error_file", failure.error_file);
  visit("message", failure.message);
  visit("traceback", failure.traceback);
  visit("note", failure.note);
  visit("last_lines", failure.last_lines);
}

// Workers write what they like, and JSON holds only UTF-8.
json::value value_of(const std::string& text) {
  return json::value(valid_utf8(keep_ends(text, kErrorTextBytesMax)));
}
json::value value_of(const std::vector<std::string>& lines) {
  json::array array;
  for (const std::string& line : lines) array.push_back(value_of(line));
  return array;
}
template <typename Number>
json::value value_of(Number number) {
  return json::value(number);
}

json::object object_of(const Failure& failure) {
  json::object object;
  visit_members(failure, [&object](const char* name, const auto& member) {
    object[name] = value_of(member);
  });
  return object;
}

bool read_into(const json::value& value, std::string& out) {
  if (!value.is_string()) return false;
  out = std::string_view(value.get_string().data(), value.get_string().size());
  return true;
}
bool read_into(const json::value& value, bool& out) {
  if (!value.is_bool()) return false;
  out = value.get_bool();
  return true;
}
bool read_into(const json::value& value, std::vector<std::string>& out) {
  if (!value.is_array()) return false;
  out.clear();
  for (const json::value& line : value.get_array())
    if (!read_into(line, out.emplace_back())) return false;
  return true;
}
template <typename Number>
bool read_into(const json::value& value, Number& out) {
  json::error_code error;
  const Number number = value.to_number<Number>(error);
  if (error || value.is_double()) return false;
  out = number;
  return true;
}

Result<Failure> failure_of(const json::value& value) {
  if (!value.is_object()) return fail(ErrorKind::Corrupt, "a failure record is not a JSON object");
  Failure failure;
  const char* wrong = nullptr;
  visit_members(failure, [&](const char* name, auto& member) {
    const json::value* const found = value.get_object().if_contains(name);
    if (found != nullptr && !read_into(*found, member)) wrong = name;
  });
  if (wrong != nullptr) {
    return fail(ErrorKind::Corrupt,
                fmt::format("member '{}' of a failure record has the wrong type", wrong));
  }
  return failure;
}

Result<json::value> parse(std::string_view text) {
  json::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error)
    return fail(ErrorKind::Corrupt,
                fmt::format("a failure record is not JSON: {}", error.message()));
  return value;
}

}  // namespace

std::string to_json(const Failure& failure) { return json::serialize(object_of(failure)); }

std::string to_json(const std::vector<Failure>& failures) {
  json::array array;
  if (failures.size() <= kFailuresMax) {
    for (const Failure& failure : failures) array.push_back(object_of(failure));
  } else {
    for (const std::size_t index : in_order_of_time(failures)) {
      if (array.size() == kFailuresMax) break;
      array.push_back(object_of(failures[index]));
    }
  }
  return json::serialize(array);
}

Result<Failure> failure_from_json(std::string_view text) {
  const auto value = parse(text);
  if (!value) return fail(value.error());
  return failure_of(*value);
}

Result<std::vector<Failure>> failures_from_json(std::string_view text) {
  const auto value = parse(text);
  if (!value) return fail(value.error());
  if (!value->is_array()) return fail(ErrorKind::Corrupt, "a list of failures is not a JSON array");
  if (value->get_array().size() > kFailuresMax) {
    return fail(ErrorKind::Corrupt, fmt::format("a list of {} failures is longer than {}",
                                                value->get_array().size(), kFailuresMax));
  }
  std::vector<Failure> failures;
  for (const json::value& element : value->get_array()) {
    auto failure = failure_of(element);
    if (!failure) return fail(failure.error());
    failures.push_back(std::move(*failure));
  }
  return failures;
}

}  // namespace muster::failures
