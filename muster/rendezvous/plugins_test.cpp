#include "muster/rendezvous/plugins.h"

#include "muster/base/log.h"
#include "muster/sim/loop.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

// Where the build put the plugins that are made of tests/rendezvous/plugin.cpp.
const fs::path kBuilt = MUSTER_TEST_PLUGINS;

std::shared_ptr<const Creator> some_creator() {
  return make_creator("a built-in", [](const Parameters&, Environment&) {
    return Task<Result<std::unique_ptr<Handler>>>();
  });
}

// A folder of its own for each test, and the warnings that were logged.
class PluginsTest : public testing::Test {
 protected:
  PluginsTest() {
    std::string name = (fs::temp_directory_path() / "muster_plugins_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    log::set_sink([this](log::Level level, std::string_view, std::string_view message) {
      if (level == log::Level::Warn) warnings_.emplace_back(message);
    });
  }
  ~PluginsTest() override {
    log::set_sink({});
    fs::remove_all(folder_);
  }

  void install(const std::string& built, const std::string& file) {
    fs::create_symlink(kBuilt / (built + ".so"), folder_ / file);
  }
  Names discover() { return discover_plugins(registry_, {folder_.string()}); }

  fs::path folder_;
  Names warnings_;
  Registry registry_;
};

// Row 27
TEST_F(PluginsTest, AreFoundWhenTheyAppear) {
  EXPECT_EQ(discover(), Names());
  EXPECT_FALSE(registry_.has("alone"));
  install("plugin_good", "good.so");
  EXPECT_EQ(discover(), Names{"alone"});
  EXPECT_TRUE(registry_.has("alone"));
  EXPECT_EQ(discover(), Names());
  EXPECT_TRUE(registry_.has("alone"));
  EXPECT_EQ(warnings_, Names());
}

TEST_F(PluginsTest, MakeHandlersThatWork) {
  install("plugin_good", "good.so");
  discover();
  sim::Loop loop;
  Random random(1);
  Environment environment{loop, random, nullptr};
  const Parameters parameters{.backend = "alone", .run_id = "run"};
  auto handler = loop.block_on(registry_.create(parameters, environment));
  ASSERT_TRUE(handler) << handler.error().message;
  EXPECT_EQ((*handler)->run_id(), "run");
  EXPECT_EQ(loop.block_on((*handler)->next_rendezvous())->round, 0U);
  EXPECT_EQ(loop.block_on((*handler)->next_rendezvous())->round, 1U);
  EXPECT_TRUE(*loop.block_on((*handler)->shutdown()));
}

// Row 27
TEST_F(PluginsTest, OnlyCauseAWarningWhenTheyAreBroken) {
  install("plugin_good", "m_good.so");
  install("plugin_wrong_abi", "a_wrong_abi.so");
  install("plugin_nothing", "b_nothing.so");
  install("plugin_throws", "c_throws.so");
  install("plugin_nameless", "d_nameless.so");
  std::ofstream(folder_ / "e_text.so") << "This is no shared object.\n";
  std::ofstream(folder_ / "z_empty.so") << "";
  EXPECT_EQ(discover(), Names{"alone"});
  EXPECT_EQ(registry_.names(), Names{"alone"});
  ASSERT_EQ(warnings_.size(), 6U);
  const std::pair<const char*, const char*> expected[] = {{"a_wrong_abi.so", "version 4711"},
                                                          {"b_nothing.so", "describes nothing"},
                                                          {"c_throws.so", "throws: not today"},
                                                          {"d_nameless.so", "must not be empty"},
                                                          {"e_text.so", "reason="},
                                                          {"z_empty.so", "reason="}};
  for (std::size_t index = 0; index < warnings_.size(); ++index) {
    EXPECT_NE(warnings_[index].find(expected[index].first), std::string::npos) << warnings_[index];
    EXPECT_NE(warnings_[index].find(expected[index].second), std::string::npos) << warnings_[index];
  }
}

TEST_F(PluginsTest, DoNotReplaceABuiltInBackend) {
  const auto built_in = some_creator();
  ASSERT_TRUE(registry_.add("alone", built_in));
  install("plugin_good", "good.so");
  EXPECT_EQ(discover(), Names());
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("a built-in"), std::string::npos) << warnings_[0];
  EXPECT_TRUE(registry_.add("alone", built_in));
}

TEST_F(PluginsTest, AreTakenInTheOrderOfFileNamesSoThatTheFirstOfOneNameWins) {
  install("plugin_other", "2.so");
  install("plugin_good", "1.so");
  install("plugin_good_again", "3.so");
  EXPECT_EQ(discover(), (Names{"alone", "other"}));
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("3.so"), std::string::npos) << warnings_[0];
}

TEST_F(PluginsTest, AreOnlyFilesThatEndInSo) {
  install("plugin_good", "good.txt");
  fs::create_directory(folder_ / "folder.so");
  fs::create_symlink(folder_ / "nowhere", folder_ / "dangling.so");
  EXPECT_EQ(discover(), Names());
  EXPECT_EQ(warnings_, Names());
}

TEST_F(PluginsTest, AreMissedWithAWarningWhenTheirFolderIsNotThere) {
  install("plugin_good", "good.so");
  const std::string missing = (folder_ / "missing").string();
  EXPECT_EQ(discover_plugins(registry_, {missing, folder_.string()}), Names{"alone"});
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("missing"), std::string::npos) << warnings_[0];
}

TEST(PluginFolders, AreListedWithColons) {
  EXPECT_EQ(split_folders(""), Names());
  EXPECT_EQ(split_folders("a"), Names{"a"});
  EXPECT_EQ(split_folders("a:b/c"), (Names{"a", "b/c"}));
  EXPECT_EQ(split_folders(":a::b:"), (Names{"a", "b"}));
}

TEST(PluginFolders, ComeFromTheEnvironmentFirst) {
  ASSERT_EQ(::setenv(kPluginsVariable, "first:second", 1), 0);
  const Names folders = plugin_folders();
  ::unsetenv(kPluginsVariable);
  ASSERT_GE(folders.size(), 2U);
  EXPECT_EQ(folders[0], "first");
  EXPECT_EQ(folders[1], "second");
}

}  // namespace
}  // namespace muster::rendezvous
