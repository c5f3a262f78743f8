#include "muster/launch/files.h"

#include "muster/base/fd.h"

#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace muster::launch {

std::optional<std::string> read_small_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return std::nullopt;
  std::string text;
  while (text.size() < kSmallFileBytesMax) {
    char bytes[4096];
    const ssize_t count = ::read(file.get(), bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) break;
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

std::vector<std::string> list_folder(const std::string& path) {
  std::vector<std::string> names;
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return names;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(folder);
  std::ranges::sort(names);
  return names;
}

}  // namespace muster::launch
