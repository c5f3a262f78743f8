#include "muster/rpc/call_error.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <system_error>

namespace muster::rpc {
namespace {

constexpr std::string_view kHead = "RPCErr:";
constexpr int kUnknownCode = 0;
constexpr int kTimeoutCode = 1;
constexpr int kInjectedCode = 2;

}  // namespace

std::string_view name_of(CallErrorKind kind) {
  switch (kind) {
    case CallErrorKind::Timeout:
      return "timeout";
    case CallErrorKind::Injected:
      return "injected";
    case CallErrorKind::Unreachable:
      return "unreachable";
    case CallErrorKind::Remote:
      return "remote";
    case CallErrorKind::Rejected:
      return "rejected";
  }
  return "unknown";
}

int code_of(const CallError& error) {
  switch (error.kind) {
    case CallErrorKind::Timeout:
      return kTimeoutCode;
    case CallErrorKind::Injected:
      return kInjectedCode;
    case CallErrorKind::Unreachable:
    case CallErrorKind::Remote:
    case CallErrorKind::Rejected:
      return kUnknownCode;
  }
  return kUnknownCode;
}

std::string render(const CallError& error) {
  const int code = code_of(error);
  if (code == kUnknownCode) return error.message;
  return fmt::format("{}{}:{}", kHead, code, error.message);
}

int code_in(std::string_view text) {
  // Only in front: further behind it is part of what somebody quotes.
  if (!text.starts_with(kHead)) return kUnknownCode;
  text.remove_prefix(kHead.size());
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return kUnknownCode;
  int code = kUnknownCode;
  const auto [end, error] = std::from_chars(text.data(), text.data() + colon, code);
  const bool is_number = error == std::errc() && end == text.data() + colon;
  const bool is_known = code == kTimeoutCode || code == kInjectedCode;
  return is_number && is_known ? code : kUnknownCode;
}

}  // namespace muster::rpc
