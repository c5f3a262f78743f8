// LogFolder: the folders and files that a job's logs live in.
//
//   <log dir>/<run id>_<8 random characters>/        one per agent, mode 0700
//       attempt_<restart count>/                     one per round of workers
//           filtered_stdout.log, filtered_stderr.log
//           <local rank>/stdout.log, stderr.log, error.json
//           <local rank>.restart_<n>/…               of a worker that was started again alone
//
// A round that begins with the same restart count as an earlier one (the membership changed) gets
// attempt_<restart count>.round_<round>: no folder is ever reused or deleted, so no round can
// destroy what an earlier one has written.
//
// Nothing is created before the first round starts its workers. Without a log dir everything is
// below <temporary folder>/torchelastic_<8 random characters>/, and `remove_if_empty` takes that
// away again if nobody has written anything. With the null device as log dir nothing is created and
// all paths are empty.
#pragma once

#include "muster/base/error.h"
#include "muster/base/random.h"

#include <cstdint>
#include <string>

namespace muster::logs {

inline constexpr const char* kNullDevice = "/dev/null";

struct LogFolderOptions {
  std::string log_dir;  // empty: a temporary folder
  std::string run_id;
  std::string temporary = "/tmp";  // usually $TMPDIR
};

// Where one worker's files are. All empty with the null device.
struct WorkerPaths {
  std::string folder;
  std::string out;
  std::string err;
  std::string error_file;
};
WorkerPaths worker_paths(const std::string& worker_folder);

// The folder of one round of workers. A value; empty path with the null device.
struct AttemptFolder {
  std::string path;

  // `restart`: how often this worker was started again alone.
  WorkerPaths worker(int local_rank, std::int64_t restart = 0) const;
  std::string filtered_out() const;
  std::string filtered_err() const;
};

// Owned by the agent. Makes system calls, all of them short.
class LogFolder {
 public:
  // Only chooses names.
  LogFolder(LogFolderOptions options, Random random);

  bool is_null() const { return options_.log_dir == kNullDevice; }

  // The job's folder, absolute, whether it exists yet or not; empty with the null device. May
  // change once, when the folder is created and the name turns out to be taken.
  const std::string& path() const { return path_; }

  // What could not work, found without creating anything: a log dir that is a file.
  Result<> check() const;

  // Creates the folder of a round and the folders of its workers, for a worker can only write its
  // error file into a folder that exists.
  Result<AttemptFolder> start_attempt(int restart_count, int round, int worker_count);

  // Creates the folder of a worker that is started again alone.
  Result<> add_restart(const AttemptFolder& attempt, int local_rank, std::int64_t restart);

  // Without a log dir: removes all folders if there is no file in them, and otherwise those that
  // are empty. Folders that the user named stay.
  void remove_if_empty();

 private:
  void choose_names();
  Result<> create();

  LogFolderOptions options_;
  Random random_;
  std::string temporary_;  // the torchelastic_… folder; empty with a log dir
  std::string path_;
  bool created_ = false;
};

}  // namespace muster::logs
