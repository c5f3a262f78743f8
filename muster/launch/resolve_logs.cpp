#include "muster/launch/resolve_parts.h"
#include "muster/launch/stream_texts.h"
#include "muster/rendezvous/text.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace muster::launch {
namespace {

using rendezvous::trim;

constexpr std::int64_t kLogKeepMax = 10'000;

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorKind::Invalid, std::move(message));
}

bool is_space(char letter) { return trim(std::string_view(&letter, 1)).empty(); }

void take_logs(const Options& options, const Facts& facts, LogConfig& logs) {
  logs.folder = options.log_dir.value_or("");
  logs.redirects = options.redirects;
  logs.tee = options.tee;
  // Python's int() takes spaces around a number; who reads the text later does not.
  logs.local_ranks = options.local_ranks_filter;
  std::erase_if(logs.local_ranks, is_space);
  logs.duplicate_stdout = options.duplicate_stdout_filters;
  logs.duplicate_stderr = options.duplicate_stderr_filters;
  logs.prefix_template = options.log_line_prefix_template.value_or("");
  if (logs.prefix_template.empty())
    logs.prefix_template =
        find_variable(facts.variables, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  logs.json = options.log_format == "json";
  logs.rotate_bytes = options.log_rotate_bytes.value_or(0);
  logs.keep = static_cast<int>(options.log_keep);
  logs.max_bytes = options.log_max_bytes.value_or(0);
}

// Also what is above it, as far as it exists: the folder is made when the first file is.
Result<> check_log_folder(const Facts& facts, const std::string& folder) {
  std::string path = folder;
  while (!path.empty()) {
    switch (facts.look_at(path).kind) {
      case FileFacts::Kind::Folder:
        return {};
      case FileFacts::Kind::NullDevice:
        if (path == folder) return {};
        break;
      case FileFacts::Kind::Missing: {
        const std::size_t slash = path.rfind('/');
        if (slash == std::string::npos || slash == 0) return {};
        path.resize(slash);
        continue;
      }
      default:
        break;
    }
    return refuse(
        fmt::format("--log-dir is {}, but {} is not a folder; choose another or remove "
                    "the file",
                    log::quote(folder), log::quote(path)));
  }
  return {};
}

}  // namespace

Result<> resolve_logs(const Options& options, const Facts& facts, LaunchConfig& config) {
  for (const auto& [name, text] :
       {std::pair<std::string_view, const std::string&>{"redirects", options.redirects},
        {"tee", options.tee}}) {
    if (!is_stream_text(text)) {
      return refuse(
          fmt::format("--{} is {}; write 0, 1, 2 or 3 for all workers, or "
                      "RANK:STREAMS,... such as 0:3,4-7:1",
                      name, log::quote(text)));
    }
  }
  if (!is_rank_text(options.local_ranks_filter)) {
    return refuse(fmt::format("--local-ranks-filter is {}; write local ranks such as 0,3,8-11",
                              log::quote(options.local_ranks_filter)));
  }
  if (options.logs_specs && *options.logs_specs != "default") {
    return refuse(
        fmt::format("--logs-specs: there is no plug-in {} in the group "
                    "torchrun.logs_specs; there is only default",
                    log::quote(*options.logs_specs)));
  }
  if (options.log_format != "text" && options.log_format != "json") {
    return refuse(fmt::format("PET_LOG_FORMAT is {}; it must be text or json",
                              log::quote(options.log_format)));
  }
  if (options.log_keep < 0 || options.log_keep > kLogKeepMax) {
    return refuse(
        fmt::format("--log-keep is {}, but must be 0 to {}", options.log_keep, kLogKeepMax));
  }
  if (options.was_given("log-keep") && options.log_rotate_bytes.value_or(0) == 0)
    config.warnings.emplace_back("--log-keep has no effect without --log-rotate-bytes");
  take_logs(options, facts, config.logs);
  return check_log_folder(facts, config.logs.folder);
}

}  // namespace muster::launch
