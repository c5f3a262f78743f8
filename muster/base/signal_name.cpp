#include "muster/base/signal_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <csignal>
#include <utility>

namespace muster {
namespace {

constexpr std::pair<std::string_view, int> kNames[] = {
    {"SIGHUP", SIGHUP},       {"SIGINT", SIGINT},   {"SIGQUIT", SIGQUIT},     {"SIGILL", SIGILL},
    {"SIGTRAP", SIGTRAP},     {"SIGABRT", SIGABRT}, {"SIGBUS", SIGBUS},       {"SIGFPE", SIGFPE},
    {"SIGKILL", SIGKILL},     {"SIGUSR1", SIGUSR1}, {"SIGSEGV", SIGSEGV},     {"SIGUSR2", SIGUSR2},
    {"SIGPIPE", SIGPIPE},     {"SIGALRM", SIGALRM}, {"SIGTERM", SIGTERM},     {"SIGCHLD", SIGCHLD},
    {"SIGCONT", SIGCONT},     {"SIGSTOP", SIGSTOP}, {"SIGTSTP", SIGTSTP},     {"SIGTTIN", SIGTTIN},
    {"SIGTTOU", SIGTTOU},     {"SIGURG", SIGURG},   {"SIGXCPU", SIGXCPU},     {"SIGXFSZ", SIGXFSZ},
    {"SIGVTALRM", SIGVTALRM}, {"SIGPROF", SIGPROF}, {"SIGWINCH", SIGWINCH},   {"SIGIO", SIGIO},
    {"SIGPWR", SIGPWR},       {"SIGSYS", SIGSYS},   {"SIGSTKFLT", SIGSTKFLT}, {"SIGIOT", SIGIOT},
    {"SIGPOLL", SIGPOLL},     {"SIGCLD", SIGCHLD},
};

}  // namespace

std::string signal_name(int number) {
  for (const auto& [name, each] : kNames) {
    if (each == number) return std::string(name);
  }
  return fmt::format("signal {}", number);
}

std::optional<int> signal_named(std::string_view name) {
  for (const auto& [each, number] : kNames) {
    if (each == name) return number;
  }
  if (name == "SIGRTMIN") return SIGRTMIN;
  if (name == "SIGRTMAX") return SIGRTMAX;
  return std::nullopt;
}

std::optional<int> parse_signal(std::string_view text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  if (problem == std::errc() && rest == end) {
    return number > 0 && number <= SIGRTMAX ? std::optional<int>(number) : std::nullopt;
  }
  std::string name(text);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  if (!name.starts_with("SIG")) name.insert(0, "SIG");
  return signal_named(name);
}

std::vector<std::string> signal_names() {
  std::vector<std::string> names;
  for (const auto& [name, number] : kNames) names.emplace_back(name);
  return names;
}

}  // namespace muster
