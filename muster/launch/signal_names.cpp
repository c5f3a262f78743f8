#include "muster/launch/signal_names.h"

#include <fmt/format.h>

#include <csignal>
#include <utility>

namespace muster::launch {
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

std::optional<int> signal_number(std::string_view name) {
  for (const auto& [each, number] : kNames) {
    if (each == name) return number;
  }
  if (name == "SIGRTMIN") return SIGRTMIN;
  if (name == "SIGRTMAX") return SIGRTMAX;
  return std::nullopt;
}

std::string signal_name(int number) {
  for (const auto& [name, each] : kNames) {
    if (each == number) return std::string(name);
  }
  return fmt::to_string(number);
}

std::vector<std::string> signal_names() {
  std::vector<std::string> names;
  for (const auto& [name, number] : kNames) names.emplace_back(name);
  return names;
}

bool can_be_handled(int number) {
  switch (number) {
    // The kernel gives these to nobody.
    case SIGKILL:
    case SIGSTOP:
    // These say that the process itself did something wrong; going on is not possible.
    case SIGILL:
    case SIGTRAP:
    case SIGBUS:
    case SIGFPE:
    case SIGSEGV:
    case SIGSYS:
    // The supervision of the workers needs it.
    case SIGCHLD:
      return false;
    default:
      return true;
  }
}

}  // namespace muster::launch
