// StoreFolder: a temporary folder with the file of a FileStore, for tests that look at the file
// from outside the store.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/store/file_store.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <utility>

namespace muster::store::testing {

class StoreFolder {
 public:
  StoreFolder() {
    std::string pattern = ::testing::TempDir() + "muster-file-store-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/store";
  }
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;
  ~StoreFolder() { std::filesystem::remove_all(folder_); }

  const std::string& folder() const { return folder_; }
  const std::string& path() const { return path_; }
  std::string file() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write_file(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  // An open file description of its own, as another process would have.
  Fd lock_as_another(int operation) const {
    Fd fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    EXPECT_EQ(::flock(fd.get(), operation | LOCK_NB), 0);
    return fd;
  }
  // Nothing that ended left the lock behind.
  bool is_unlocked() const {
    const Fd fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  }

 private:
  std::string folder_;
  std::string path_;
};

inline std::unique_ptr<Store> open_store(Loop& loop, Random& random, FileStoreOptions options) {
  auto store = make_file_store(loop, random, std::move(options));
  if (!store) ADD_FAILURE() << store.error().message;
  return std::move(store).value();
}

template <typename T>
void expect_error(const Result<T>& result, ErrorKind kind, std::string_view text) {
  ASSERT_FALSE(result) << text;
  EXPECT_EQ(name_of(result.error().kind), name_of(kind)) << result.error().message;
  EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
}

}  // namespace muster::store::testing
