#include "muster/logs/layout.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <cerrno>
#include <dirent.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace muster::logs {
namespace {

constexpr mode_t kFolderMode = 0700;
// How often a name that is taken is replaced by another one.
constexpr int kNameTriesMax = 100;
// File names have at most 255 bytes, and some of them are ours.
constexpr std::size_t kRunIdBytesMax = 200;

std::string random_suffix(Random& random) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  std::string suffix;
  for (int index = 0; index < 8; ++index) suffix += kLetters[random.below(kLetters.size())];
  return suffix;
}

// The run id as part of a file name: it may not leave the folder.
std::string as_file_name(std::string_view run_id) {
  std::string name(run_id.substr(0, kRunIdBytesMax));
  for (char& letter : name) {
    if (letter == '/' || letter == '\0') letter = '_';
  }
  return name;
}

std::string absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path result = std::filesystem::absolute(path, error);
  return error ? path : result.lexically_normal().string();
}

std::string join(const std::string& folder, std::string_view name) {
  return folder.ends_with('/') ? fmt::format("{}{}", folder, name)
                               : fmt::format("{}/{}", folder, name);
}

Error folder_error(const std::string& path, int number) {
  return Error{number == EEXIST || number == ENOTDIR ? ErrorKind::Invalid : ErrorKind::Unavailable,
               fmt::format("cannot create the log folder {}: {}", path, describe_errno(number))};
}

// Creates `path` and its parents where they are missing.
Result<> make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path, error))
    return fail(folder_error(path, ENOTDIR));
  if (error) return fail(folder_error(path, error.value()));
  return {};
}

// Removes `path` and the folders below it as far as they are empty. Never a file, and no folder
// behind a link.
void remove_empty_folders(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string inner = join(path, name);
    struct stat facts {};
    if (::lstat(inner.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode)) remove_empty_folders(inner);
  }
  ::closedir(folder);
  ::rmdir(path.c_str());  // fails if anything is left in it, as it should
}

}  // namespace

WorkerPaths worker_paths(const std::string& worker_folder) {
  if (worker_folder.empty()) return {};
  return WorkerPaths{.folder = worker_folder,
                     .out = join(worker_folder, "stdout.log"),
                     .err = join(worker_folder, "stderr.log"),
                     .error_file = join(worker_folder, "error.json")};
}

WorkerPaths AttemptFolder::worker(int local_rank, std::int64_t restart) const {
  if (path.empty()) return WorkerPaths();
  std::string name = std::to_string(local_rank);
  if (restart > 0) name += fmt::format(".restart_{}", restart);
  return worker_paths(join(path, name));
}

std::string AttemptFolder::filtered_out() const {
  return path.empty() ? std::string() : join(path, "filtered_stdout.log");
}

std::string AttemptFolder::filtered_err() const {
  return path.empty() ? std::string() : join(path, "filtered_stderr.log");
}

LogFolder::LogFolder(LogFolderOptions options, Random random)
    : options_(std::move(options)), random_(random) {
  if (!is_null()) choose_names();
}

void LogFolder::choose_names() {
  std::string parent = options_.log_dir;
  if (parent.empty()) {
    temporary_ = absolute(join(options_.temporary, "torchelastic_" + random_suffix(random_)));
    parent = temporary_;
  }
  path_ = absolute(
      join(parent, fmt::format("{}_{}", as_file_name(options_.run_id), random_suffix(random_))));
}

Result<> LogFolder::check() const {
  if (is_null() || options_.log_dir.empty()) return {};
  std::error_code error;
  const auto status = std::filesystem::status(options_.log_dir, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_directory(status)) {
    return fail(ErrorKind::Invalid,
                fmt::format("the log dir {} is not a directory: name one with --log-dir",
                            log::quote(options_.log_dir)));
  }
  return {};
}

Result<> LogFolder::create() {
  if (const Result<> checked = check(); !checked) return checked;
  if (!options_.log_dir.empty()) {
    if (Result<> made = make_folders(options_.log_dir); !made) return made;
  }
  for (int tries = 0; tries < kNameTriesMax; ++tries) {
    const bool has_parent = temporary_.empty() || ::mkdir(temporary_.c_str(), kFolderMode) == 0;
    if (has_parent && ::mkdir(path_.c_str(), kFolderMode) == 0) {
      created_ = true;
      return {};
    }
    if (errno != EEXIST) break;
    choose_names();
  }
  return fail(folder_error(path_, errno));
}

Result<AttemptFolder> LogFolder::start_attempt(int restart_count, int round, int worker_count) {
  if (is_null()) return AttemptFolder();
  if (!created_) {
    if (const Result<> made = create(); !made) return fail(made.error());
  }
  const std::string plain = join(path_, fmt::format("attempt_{}", restart_count));
  AttemptFolder attempt{.path = plain};
  for (int tries = 0; ::mkdir(attempt.path.c_str(), kFolderMode) != 0; ++tries) {
    if (errno != EEXIST || tries == kNameTriesMax) return fail(folder_error(attempt.path, errno));
    attempt.path = fmt::format("{}.round_{}", plain, round);
    // Taken as well: someone else writes here, and we do not write into what is theirs.
    if (tries > 0) attempt.path += fmt::format(".{}", tries);
  }
  for (int local_rank = 0; local_rank < worker_count; ++local_rank) {
    const std::string folder = attempt.worker(local_rank).folder;
    if (::mkdir(folder.c_str(), kFolderMode) != 0) return fail(folder_error(folder, errno));
  }
  return attempt;
}

Result<> LogFolder::add_restart(const AttemptFolder& attempt, int local_rank,
                                std::int64_t restart) {
  const std::string folder = attempt.worker(local_rank, restart).folder;
  if (folder.empty() || ::mkdir(folder.c_str(), kFolderMode) == 0) return {};
  return fail(folder_error(folder, errno));
}

void LogFolder::remove_if_empty() {
  if (!created_ || temporary_.empty()) return;
  remove_empty_folders(temporary_);
  created_ = false;
}

}  // namespace muster::logs
