// A file's bytes against FileLog: whatever they are, and however they are read.
#include "muster/store/file_log.h"

#include "muster/base/assert.h"
#include "muster/base/random.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::store {
namespace {

// A log that is fed as a FileStore feeds it: what is no whole record yet is read again, with more
// behind it.
class Reading {
 public:
  void feed(std::string_view piece) {
    if (failed_) return;
    unread_ += piece;
    // In memory of exactly its size, so that AddressSanitizer notices every byte read past it.
    const std::vector<char> exact(unread_.begin(), unread_.end());
    const std::uint64_t before = log_.position();
    const auto replayed = log_.replay({exact.data(), exact.size()},
                                      [this](const FileChange& change) { note(change); });
    const std::uint64_t moved = log_.position() - before;
    MUSTER_ASSERT(moved <= exact.size());
    MUSTER_ASSERT(!replayed || *replayed == moved);
    failed_ = !replayed.has_value();
    unread_.erase(0, moved);
  }

  // What the observer was told amounts to what the log says.
  void check() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : told_) {
      keys.push_back(key);
      MUSTER_ASSERT(log_.find(key) != nullptr && *log_.find(key) == value);
      const auto sum = log_.sum(key, 1);
      MUSTER_ASSERT(sum.has_value() || !value.empty());
    }
    MUSTER_ASSERT(log_.keys("") == keys);
    MUSTER_ASSERT(log_.key_count() >= keys.size());
    for (const auto& [queue, count] : pushed_) {
      MUSTER_ASSERT(log_.queue_length(queue) <= count);
      MUSTER_ASSERT((log_.front(queue) == nullptr) == (log_.queue_length(queue) == 0));
    }
  }

  // Written anew, the users' keys are what they were.
  void check_rewritten() const {
    std::string bytes;
    for (const auto& [key, value] : told_) {
      // A reader takes one byte more of a record's key than a writer writes.
      if (key.size() <= kFileKeyBytesMax) append_set(key, value, bytes);
    }
    FileLog again;
    const auto replayed = again.replay(bytes, nullptr);
    MUSTER_ASSERT(replayed.has_value() && *replayed == bytes.size());
    for (const auto& [key, value] : told_) {
      if (key.size() > kFileKeyBytesMax) continue;
      MUSTER_ASSERT(again.find(key) != nullptr && *again.find(key) == value);
    }
  }

  bool same_as(const Reading& other) const {
    return failed_ == other.failed_ && log_.position() == other.log_.position() &&
           told_ == other.told_ && pushed_ == other.pushed_ &&
           log_.key_count() == other.log_.key_count();
  }

 private:
  void note(const FileChange& change) {
    const std::string name(change.name);
    switch (change.kind) {
      case FileChange::Kind::Created:
        MUSTER_ASSERT(told_.emplace(name, change.value).second);
        return;
      case FileChange::Kind::Updated:
        MUSTER_ASSERT(told_.contains(name));
        told_[name] = change.value;
        return;
      case FileChange::Kind::Deleted:
        MUSTER_ASSERT(told_.erase(name) == 1 && change.value.empty());
        return;
      case FileChange::Kind::Pushed:
        ++pushed_[name];
    }
  }

  FileLog log_;
  std::string unread_;
  bool failed_ = false;
  std::map<std::string, std::string> told_;
  std::map<std::string, std::size_t> pushed_;
};

void run(std::string_view input) {
  Reading whole;
  whole.feed(input);
  whole.check();
  whole.check_rewritten();

  Random random(input.size());
  Reading pieces;
  for (std::string_view rest = input; !rest.empty();) {
    const std::string_view piece = rest.substr(0, 1 + random.below(20));
    pieces.feed(piece);
    rest.remove_prefix(piece.size());
  }
  pieces.check();
  MUSTER_ASSERT(whole.same_as(pieces));
}

}  // namespace
}  // namespace muster::store

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::store::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
