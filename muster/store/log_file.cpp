#include "muster/store/log_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace muster::store {
namespace {

// What an errno asks of the caller.
ErrorKind kind_of(int number) {
  switch (number) {
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return ErrorKind::Invalid;
    case ESTALE:
      return ErrorKind::Closed;
    default:
      return ErrorKind::Unavailable;
  }
}

tl::unexpected<Error> io_failure(std::string_view verb, const std::string& path, int number) {
  return fail(kind_of(number),
              fmt::format("cannot {} the store file {}: {}", verb, path, describe_errno(number)));
}

template <typename Call>
auto without_interruption(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

Result<LogFile> LogFile::open(std::string path) {
  if (path.empty()) return fail(ErrorKind::Invalid, "the path of the store file is empty");
  // It is looked up again and again, and must then not depend on the working directory.
  std::error_code ignored;
  if (auto absolute = std::filesystem::absolute(path, ignored); !ignored) path = absolute.string();
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  Fd fd(without_interruption([&] { return ::open(path.c_str(), kFlags, 0644); }));
  if (!fd.is_open()) return io_failure("open", path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return io_failure("look at", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorKind::Invalid,
                fmt::format("cannot keep a store in {}: it is not a regular file", path));
  }
  return LogFile(std::move(path), std::move(fd));
}

Result<bool> LogFile::try_lock(Mode mode) {
  const int operation = (mode == Mode::Shared ? LOCK_SH : LOCK_EX) | LOCK_NB;
  if (without_interruption([&] { return ::flock(fd_.get(), operation); }) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return io_failure("lock", path_, errno);
}

void LogFile::unlock() { ::flock(fd_.get(), LOCK_UN); }

Result<std::uint64_t> LogFile::size() const {
  // Our descriptor keeps the inode from being given to another file, so its number can be trusted.
  struct stat ours {};
  struct stat there {};
  if (::fstat(fd_.get(), &ours) != 0) return io_failure("look at", path_, errno);
  if (::stat(path_.c_str(), &there) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return io_failure("look at", path_, errno);
    return fail(ErrorKind::Closed,
                fmt::format("the store file {} was removed, as PyTorch does when all of its "
                            "workers are done",
                            path_));
  }
  if (ours.st_ino != there.st_ino || ours.st_dev != there.st_dev) {
    return fail(ErrorKind::Closed,
                fmt::format("the store file {} was replaced by another file", path_));
  }
  return static_cast<std::uint64_t>(ours.st_size);
}

Result<> LogFile::read(std::uint64_t offset, std::size_t bytes_max, std::string& out) const {
  const std::size_t before = out.size();
  out.resize(before + bytes_max);
  const ssize_t count = without_interruption([&] {
    return ::pread(fd_.get(), out.data() + before, bytes_max, static_cast<off_t>(offset));
  });
  if (count < 0) return io_failure("read", path_, errno);
  out.resize(before + static_cast<std::size_t>(count));
  return {};
}

Result<> LogFile::append(std::uint64_t end, std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = without_interruption([&] {
      return ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                      static_cast<off_t>(end + done));
    });
    if (count <= 0) {
      const int number = count < 0 ? errno : ENOSPC;
      // Should this fail as well, the next writer finds an unfinished record and cuts it off.
      if (done > 0) static_cast<void>(cut(end));
      return io_failure("write", path_, number);
    }
    done += static_cast<std::size_t>(count);
  }
  return {};
}

Result<> LogFile::cut(std::uint64_t end) {
  const auto truncate = [&] { return ::ftruncate(fd_.get(), static_cast<off_t>(end)); };
  if (without_interruption(truncate) == 0) return {};
  return io_failure("mend", path_, errno);
}

}  // namespace muster::store
