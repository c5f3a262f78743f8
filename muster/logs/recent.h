// RecentLines: the last lines of a stream, for the report about a worker that failed.
//
// A core that keeps bytes and finds the lines only when it is asked, so that a stream of a million
// lines a second pays for a copy and no more. Owned by one stream.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace muster::logs {

// How many bytes at the end of a stream are looked at.
inline constexpr std::size_t kRecentBytes = 16 * 1024;

class RecentLines {
 public:
  void append(std::string_view bytes);

  // At most `count` lines, the oldest first, without newlines.
  std::vector<std::string> last(std::size_t count) const;

 private:
  std::string tail_;     // at most twice kRecentBytes
  bool is_cut_ = false;  // something before the tail is gone, so its first line may be half
};

// The last lines of a file that a worker writes itself. Nothing if it cannot be read.
std::vector<std::string> last_lines_of_file(const std::string& path, std::size_t count);

}  // namespace muster::logs
