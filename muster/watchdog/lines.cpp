#include "muster/watchdog/lines.h"

#include <algorithm>

namespace muster::watchdog {

void LineReader::feed(std::string_view bytes, const Handler& handle) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    if (end != std::string_view::npos) {
      if (!complete(bytes.substr(0, end), handle)) return;
      bytes.remove_prefix(end + 1);
      continue;
    }
    if (!skipping_) {
      // One byte more than allowed is kept, to know that the line is too long.
      partial_.append(bytes.substr(0, line_bytes_max_ + 1 - partial_.size()));
      if (partial_.size() > line_bytes_max_) {
        skipping_ = true;
        const std::string beginning = std::move(partial_);
        partial_.clear();
        handle({std::string_view(beginning).substr(0, line_bytes_max_), true});
      }
    }
    return;
  }
}

bool LineReader::complete(std::string_view rest, const Handler& handle) {
  if (skipping_) {
    skipping_ = false;
    return true;
  }
  if (partial_.size() + rest.size() > line_bytes_max_) {
    partial_.append(rest.substr(0, line_bytes_max_ - std::min(line_bytes_max_, partial_.size())));
    const std::string beginning = std::move(partial_);
    partial_.clear();
    return handle({beginning, true});
  }
  if (partial_.empty()) return handle({rest, false});
  partial_.append(rest);
  const std::string line = std::move(partial_);
  partial_.clear();
  return handle({line, false});
}

void LineReader::finish(const Handler& handle) {
  if (!partial_.empty()) complete({}, handle);
  skipping_ = false;
}

}  // namespace muster::watchdog
