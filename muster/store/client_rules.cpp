#include "muster/store/client_rules.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::store {
namespace {

using wire::Operation;

// In a message; a wait may be for thousands.
constexpr std::size_t kKeysNamedMax = 3;

std::string name_keys(const wire::Request& request) {
  if (request.keys.empty()) {
    return fmt::format("{} {}", request.operation == Operation::QueuePop ? "queue" : "key",
                       log::quote(user_key(request.key)));
  }
  std::string text = request.keys.size() == 1 ? "key" : "keys";
  const std::size_t named_count = std::min(request.keys.size(), kKeysNamedMax);
  for (std::size_t index = 0; index < named_count; ++index) {
    text += fmt::format("{} {}", index == 0 ? "" : ",", log::quote(user_key(request.keys[index])));
  }
  if (request.keys.size() > named_count)
    text += fmt::format(" and {} more", request.keys.size() - named_count);
  return text;
}

tl::unexpected<Error> too_long(std::string_view what, std::size_t size, std::size_t limit) {
  return fail(
      ErrorKind::Invalid,
      fmt::format(
          "a {} of {} bytes is over the limit of {} that PyTorch's and Muster's servers share",
          what, size, limit));
}

}  // namespace

std::string wire_key(std::string_view key) {
  std::string name;
  name.reserve(key.size() + 1);
  name += '/';
  name += key;
  return name;
}

std::vector<std::string> wire_keys(const std::vector<std::string>& keys) {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const std::string& key : keys) names.push_back(wire_key(key));
  return names;
}

std::string user_key(std::string_view wire_key) {
  if (wire_key.starts_with('/')) wire_key.remove_prefix(1);
  return std::string(wire_key);
}

Result<> check_limits(const wire::Request& request) { return check_limits(request, 0); }

Result<> check_limits(const wire::Request& request, std::size_t key_prefix_bytes) {
  constexpr wire::Limits kLimits;
  if (const std::size_t size = request.key.size() + key_prefix_bytes; size > kLimits.key_bytes)
    return too_long("key", size, kLimits.key_bytes);
  if (request.value.size() > kLimits.value_bytes)
    return too_long("value", request.value.size(), kLimits.value_bytes);
  if (request.desired.size() > kLimits.value_bytes)
    return too_long("value", request.desired.size(), kLimits.value_bytes);
  if (request.keys.size() > kLimits.key_count) {
    return fail(ErrorKind::Invalid, fmt::format("{} keys at once are over the limit of {}",
                                                request.keys.size(), kLimits.key_count));
  }
  std::size_t sum = 0;
  for (const std::string_view key : request.keys) {
    const std::size_t size = key.size() + key_prefix_bytes;
    if (size > kLimits.key_bytes) return too_long("key", size, kLimits.key_bytes);
    sum += size;
  }
  for (const std::string_view value : request.values) {
    if (value.size() > kLimits.value_bytes)
      return too_long("value", value.size(), kLimits.value_bytes);
    sum += value.size();
  }
  if (sum > kLimits.frame_bytes / 2) return too_long("request", sum, kLimits.frame_bytes / 2);
  return {};
}

Result<> check_message(std::string_view message) {
  constexpr wire::Limits kLimits;
  if (message.size() <= kLimits.message_bytes) return {};
  return fail(ErrorKind::Invalid, fmt::format("a message of {} bytes is over the limit of {}",
                                              message.size(), kLimits.message_bytes));
}

bool is_repeatable(const wire::Request& request) {
  switch (request.operation) {
    case Operation::Get:
    case Operation::Check:
    case Operation::Wait:
    case Operation::NumKeys:
    case Operation::MultiGet:
    case Operation::Ping:
    case Operation::QueueLength:
    case Operation::ListKeys:
    case Operation::Info:
    case Operation::WatchKey:
    case Operation::WatchPrefix:
      return true;
    default:
      // A set is not: between the lost one and its repetition another client may have written, and
      // would be overwritten.
      return false;
  }
}

std::string describe_wait(const wire::Request& request) {
  if (request.operation == Operation::Barrier) {
    return fmt::format("timed out at barrier {}: not all {} members came",
                       log::quote(user_key(request.key)), request.number);
  }
  return fmt::format("timed out waiting for {}", name_keys(request));
}

std::string describe_no_reply(const wire::Request& request, const TcpStoreOptions& options) {
  return fmt::format("the store at {} did not answer {} within {}", net::describe(options.endpoint),
                     wire::name_of(request.operation), muster::describe(options.reply_timeout));
}

std::string describe_uncertain(const wire::Request& request, const net::Endpoint& endpoint,
                               std::string_view reason) {
  return fmt::format(
      "lost the connection to the store at {} ({}) after {} of {} was sent; it may or may not have "
      "taken "
      "effect",
      net::describe(endpoint), reason, wire::name_of(request.operation), name_keys(request));
}

}  // namespace muster::store
