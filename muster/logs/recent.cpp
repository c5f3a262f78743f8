#include "muster/logs/recent.h"

#include "muster/base/fd.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::logs {
namespace {

// The last `count` lines of `text`. If `is_cut`, the first line is only the rest of one; it counts
// if there is no other.
std::vector<std::string> last_lines(std::string_view text, bool is_cut, std::size_t count) {
  std::vector<std::string> lines;
  if (text.ends_with('\n')) {
    text.remove_suffix(1);
  } else if (text.empty()) {
    return lines;
  }
  while (lines.size() < count) {
    const std::size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos) {
      if (!is_cut || lines.empty()) lines.emplace_back(text);
      break;
    }
    lines.emplace_back(text.substr(newline + 1));
    text = text.substr(0, newline);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace

void RecentLines::append(std::string_view bytes) {
  if (bytes.size() >= kRecentBytes) {
    is_cut_ = is_cut_ || !tail_.empty() || bytes.size() > kRecentBytes;
    tail_.assign(bytes.substr(bytes.size() - kRecentBytes));
    return;
  }
  if (tail_.size() + bytes.size() > 2 * kRecentBytes) {
    tail_.erase(0, tail_.size() + bytes.size() - kRecentBytes);
    is_cut_ = true;
  }
  tail_.append(bytes);
}

std::vector<std::string> RecentLines::last(std::size_t count) const {
  return last_lines(tail_, is_cut_, count);
}

std::vector<std::string> last_lines_of_file(const std::string& path, std::size_t count) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (!file.is_open() || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return {};
  const off_t begin = std::max<off_t>(0, facts.st_size - static_cast<off_t>(kRecentBytes));
  std::string text(static_cast<std::size_t>(facts.st_size - begin), '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::pread(file.get(), text.data() + length, text.size() - length,
                                begin + static_cast<off_t>(length));
    if (got <= 0) break;
    length += static_cast<std::size_t>(got);
  }
  text.resize(length);
  return last_lines(text, begin > 0, count);
}

}  // namespace muster::logs
