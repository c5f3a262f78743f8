#include "muster/failures/report.h"

#include "muster/failures/root_cause.h"
#include "muster/failures/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <iterator>
#include <optional>
#include <string_view>

namespace muster::failures {
namespace {

constexpr std::size_t kWidthMax = 60;

std::string indent_continuations(std::string_view text) {
  std::string out;
  for (const char byte : text) {
    out += byte;
    if (byte == '\n') out += "  ";
  }
  return out;
}

// A plain message is shown as it is; continuation lines of a traceback are indented.
std::string traceback_of(const Failure& failure) {
  if (failure.traceback.empty()) return message_of(failure);
  std::string_view text = failure.traceback;
  return indent_continuations(text);
}

std::string entry(std::size_t index, const Failure& failure) {
  // The blank after the pid is torchrun's, and there without a signal, too.
  const std::string signal =
      failure.exit_code < 0 ? fmt::format(" ({})", signal_text(-failure.exit_code)) : "";
  return fmt::format(
      "[{}]:\n"
      "  time      : {}\n"
      "  host      : {}\n"
      "  rank      : {} (local_rank: {})\n"
      "  exitcode  : {} (pid: {}) {}\n"
      "  error_file: {}\n"
      "  traceback : {}",
      index, report_time(failed_nanoseconds(failure)), failure.host, failure.global_rank,
      failure.local_rank, failure.exit_code, failure.pid, signal,
      failure.error_file.empty() ? "<N/A>" : failure.error_file, traceback_of(failure));
}

std::size_t longest_line(std::string_view text) {
  std::size_t longest = 0;
  while (true) {
    const std::size_t end = text.find('\n');
    longest = std::max(longest, character_count(text.substr(0, end)));
    if (end == std::string_view::npos) return longest;
    text.remove_prefix(end + 1);
  }
}

// Which failures besides the root cause are shown, in order of their index.
std::vector<std::size_t> shown_others(const std::vector<Failure>& failures,
                                      std::optional<std::size_t> root, std::size_t others_max) {
  std::vector<std::size_t> others = in_order_of_time(failures);
  others.erase(std::remove(others.begin(), others.end(), root), others.end());
  if (others.size() > others_max) others.resize(others_max);
  std::sort(others.begin(), others.end());
  return others;
}

void append_last_lines(std::string& out, const Failure& root) {
  if (root.last_lines.empty()) return;
  fmt::format_to(std::back_inserter(out), "Last lines of rank {} on stderr:\n", root.global_rank);
  for (const std::string& line : root.last_lines)
    fmt::format_to(std::back_inserter(out), "  | {}\n", line);
}

// What Muster adds below the closing rule.
std::string additions(const std::vector<Failure>& failures, std::optional<std::size_t> root,
                      const ReportOptions& options) {
  std::string out;
  const auto put = std::back_inserter(out);
  if (root) {
    const Failure& failure = failures[*root];
    if (!failure.note.empty())
      fmt::format_to(put, "Rank {}: {}\n", failure.global_rank, failure.note);
    if (failure.out_of_memory) {
      fmt::format_to(put,
                     "Rank {} was killed by the kernel because memory ran out: give the job more "
                     "memory, or run fewer workers on a node.\n",
                     failure.global_rank);
    } else if (failure.exit_code == -SIGKILL && failure.note.empty()) {
      fmt::format_to(put,
                     "Rank {} was killed with SIGKILL, and not by Muster; a job manager that "
                     "enforces a limit does that.\n",
                     failure.global_rank);
    }
    append_last_lines(out, failure);
  }
  const auto collateral = std::count_if(failures.begin(), failures.end(),
                                        [](const Failure& failure) { return failure.collateral; });
  if (root && collateral > 0) {
    fmt::format_to(put, "{} other worker{} stopped because of this failure.\n", collateral,
                   collateral == 1 ? " was" : "s were");
  }
  if (!options.log_folder.empty()) fmt::format_to(put, "Logs: {}\n", options.log_folder);
  return out;
}

}  // namespace

std::string report_time(std::int64_t wall_nanoseconds) {
  const std::time_t seconds = static_cast<std::time_t>(wall_nanoseconds / 1'000'000'000);
  std::tm parts{};
  if (::localtime_r(&seconds, &parts) == nullptr) return "<N/A>";
  return fmt::format("{:04}-{:02}-{:02}_{:02}:{:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string report(const std::vector<Failure>& failures, const ReportOptions& options) {
  if (failures.empty()) return {};
  const std::optional<std::size_t> root = root_cause(failures);
  const std::vector<std::size_t> others = shown_others(failures, root, options.others_max);

  const std::string title = fmt::format("{} FAILED", options.job_name);
  std::size_t width = longest_line(title);
  std::string other_text;
  for (const std::size_t index : others) {
    const std::string text = entry(index, failures[index]);
    width = std::max(width, longest_line(text));
    other_text += text + "\n";
  }
  const std::size_t other_count = failures.size() - (root ? 1 : 0);
  if (other_count == 0) other_text = "  <NO_OTHER_FAILURES>\n";
  if (other_count > others.size())
    other_text += fmt::format("  ... and {} more\n", other_count - others.size());

  std::string root_text = "  <N/A> (every worker above was stopped because of a failure elsewhere)";
  if (root) {
    root_text = entry(*root, failures[*root]);
    width = std::max(width, longest_line(root_text));
  }
  width = std::min(width, kWidthMax);
  const std::string rule(width, '=');
  const std::string section(width, '-');
  return fmt::format(
      "\n{}\n{}\n{}\nFailures:\n{}{}\nRoot Cause (first observed failure):\n{}\n{}\n{}", rule,
      title, section, other_text, section, root_text, rule, additions(failures, root, options));
}

}  // namespace muster::failures
