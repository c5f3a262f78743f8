#include "muster/failures/upward.h"

#include "muster/failures/error_file.h"

#include <boost/json.hpp>

#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <sys/stat.h>
#include <utility>

namespace muster::failures {
namespace {

namespace json = boost::json;

// The worker's file with `errorCode` added; nothing if it cannot be copied as it is. A file of the
// simple shape has no place for the code and stays unchanged.
std::optional<std::string> copy_of(const std::string& path, int exit_code) {
  const ErrorDetails details = read_error_file(path);
  if (!details.complete || details.shape == ErrorFileShape::Missing) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  if (details.shape == ErrorFileShape::Simple) return content;
  json::error_code error;
  json::value whole = json::parse(content, error);
  if (error || !whole.is_object()) return std::nullopt;
  json::value* const message = whole.get_object().if_contains("message");
  if (message == nullptr || !message->is_object()) return std::nullopt;
  message->get_object()["errorCode"] = exit_code;
  return json::serialize(whole);
}

Result<PassedUpward> write(PassedUpward::How how, const std::string& target,
                           const std::string& content) {
  struct stat facts {};
  const bool replaced = ::stat(target.c_str(), &facts) == 0;
  auto written = write_whole_file(target, content);
  if (!written) return fail(written.error());
  return PassedUpward{how, replaced};
}

std::string rebuilt(const Failure& root) {
  ErrorRecord record;
  record.message = message_of(root);
  record.traceback = root.traceback;
  record.timestamp_seconds = failed_nanoseconds(root) / 1'000'000'000;
  record.exit_code = root.exit_code;
  return to_json(record);
}

}  // namespace

Result<PassedUpward> pass_upward(const Failure& root, const std::string& target) {
  if (target.empty() || root.error_file.empty()) return PassedUpward{};
  const std::optional<std::string> copy = copy_of(root.error_file, root.exit_code);
  if (copy) return write(PassedUpward::How::Copied, target, *copy);
  return write(PassedUpward::How::Rebuilt, target, rebuilt(root));
}

Result<PassedUpward> pass_own_error_upward(const Error& error, const std::string& target) {
  if (target.empty()) return PassedUpward{};
  ErrorRecord record;
  record.message = std::string(name_of(error.kind)) + ": " + error.message;
  // Only for people to read, like every wall-clock time.
  record.timestamp_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
  return write(PassedUpward::How::Rebuilt, target, to_json(record));
}

}  // namespace muster::failures
