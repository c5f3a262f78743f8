#include "muster/logs/recent.h"

#include "muster/logs/files_test.h"

#include <gtest/gtest.h>

#include <fstream>

namespace muster::logs {
namespace {

using Lines = std::vector<std::string>;

TEST(RecentLines, AreTheLastOnesInOrder) {
  RecentLines recent;
  EXPECT_TRUE(recent.last(3).empty());
  recent.append("one\ntwo\nth");
  recent.append("ree\nfour\n");
  EXPECT_EQ(recent.last(3), (Lines{"two", "three", "four"}));
  EXPECT_EQ(recent.last(9), (Lines{"one", "two", "three", "four"}));
  recent.append("unfinished");
  EXPECT_EQ(recent.last(2), (Lines{"four", "unfinished"}));
}

TEST(RecentLines, KeepEmptyLines) {
  RecentLines recent;
  recent.append("one\n\ntwo\n\n");
  EXPECT_EQ(recent.last(9), (Lines{"one", "", "two", ""}));
}

TEST(RecentLines, AreBoundedAndNeverBeginInTheMiddleOfALine) {
  RecentLines recent;
  for (int index = 0; index < 10000; ++index) recent.append("line " + std::to_string(index) + "\n");
  EXPECT_EQ(recent.last(2), (Lines{"line 9998", "line 9999"}));
  const Lines many = recent.last(100000);
  EXPECT_LT(many.size(), 2 * kRecentBytes / 9);
  EXPECT_TRUE(many.front().starts_with("line "));
  std::string chunk;
  for (int index = 0; index < 10000; ++index) chunk += "row " + std::to_string(index) + "\n";
  recent.append(chunk);
  EXPECT_EQ(recent.last(1), (Lines{"row 9999"}));
  EXPECT_TRUE(recent.last(100000).front().starts_with("row "));
}

TEST(RecentLines, ShowTheEndOfALineThatIsLongerThanTheyKeep) {
  RecentLines recent;
  recent.append(std::string(100000, 'x'));
  EXPECT_EQ(recent.last(5), (Lines{std::string(kRecentBytes, 'x')}));
}

TEST(RecentLines, CanBeReadFromAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stderr.log");
  {
    std::ofstream file(path);
    for (int index = 0; index < 5000; ++index) file << "line " << index << "\n";
    file << "the end";
  }
  EXPECT_EQ(last_lines_of_file(path, 2), (Lines{"line 4999", "the end"}));
  EXPECT_TRUE(last_lines_of_file(path, 100000).front().starts_with("line "));
  EXPECT_TRUE(last_lines_of_file(folder.file("missing"), 2).empty());
  EXPECT_TRUE(last_lines_of_file(folder.path(), 2).empty());
}

}  // namespace
}  // namespace muster::logs
