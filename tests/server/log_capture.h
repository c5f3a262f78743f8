// LogCapture: what is logged while it lives, for tests of what people will read.
//
// One at a time: it takes the log's only sink. Lines may come from any thread.
#pragma once

#include "muster/base/log.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::tests {

class LogCapture {
 public:
  explicit LogCapture(log::Level level = log::Level::Info) {
    log::set_level(level);
    log::set_sink([this](log::Level line_level, std::string_view, std::string_view message) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line_level, message);
      came_.notify_all();
    });
  }
  ~LogCapture() {
    log::set_sink({});
    log::set_level(log::Level::Info);
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // What people should look at: warnings and errors, in order.
  std::vector<std::string> warnings() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> messages;
    for (const auto& [level, message] : lines_) {
      if (level >= log::Level::Warn) messages.push_back(message);
    }
    return messages;
  }

  // How many lines contain `text`.
  std::size_t count(std::string_view text) const {
    const std::lock_guard lock(mutex_);
    std::size_t lines = 0;
    for (const auto& [level, message] : lines_) {
      if (message.find(text) != std::string::npos) ++lines;
    }
    return lines;
  }

  // Waits until there is a line that contains `text`; false if none comes.
  bool wait_for(std::string_view text) const {
    std::unique_lock lock(mutex_);
    return came_.wait_for(lock, std::chrono::seconds(30), [&] {
      for (const auto& [level, message] : lines_) {
        if (message.find(text) != std::string::npos) return true;
      }
      return false;
    });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  std::vector<std::pair<log::Level, std::string>> lines_;  // guarded by mutex_
};

}  // namespace muster::tests
