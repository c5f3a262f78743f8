// A folder of files made up by a test, which looks like /proc, /sys or /dev.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace muster::launch {

class FileTree {
 public:
  FileTree() {
    std::string pattern = testing::TempDir() + "/muster_tree_XXXXXX";
    const char* made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr);
    root_ = pattern;
  }
  FileTree(const FileTree&) = delete;
  FileTree& operator=(const FileTree&) = delete;
  ~FileTree() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  const std::string& root() const { return root_; }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void link(const std::string& path, const std::string& target) {
    const std::filesystem::path whole = root_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::filesystem::create_symlink(target, whole);
  }

 private:
  std::string root_;
};

}  // namespace muster::launch
