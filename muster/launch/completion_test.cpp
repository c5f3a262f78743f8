#include "muster/launch/completion.h"

#include "muster/launch/file_tree_test.h"
#include "muster/launch/help.h"
#include "muster/launch/option_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

namespace muster::launch {
namespace {

using Words = std::vector<std::string>;

std::vector<std::string> names(const Words& words) {
  std::vector<std::string> result;
  for (const Candidate& candidate : complete(words)) result.push_back(candidate.name);
  return result;
}

// What a command prints; nothing if it fails.
std::optional<std::string> output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  char bytes[4096];
  while (const std::size_t count = std::fread(bytes, 1, sizeof bytes, pipe))
    text.append(bytes, count);
  return ::pclose(pipe) == 0 ? std::optional(text) : std::nullopt;
}

bool has_shell(const std::string& shell) {
  return output_of(fmt::format("command -v {} 2>&1", shell)).has_value();
}

TEST(Completion, NamesOptions) {
  EXPECT_EQ(names({"--nproc"}), Words{"--nproc-per-node"});
  EXPECT_EQ(names({"--standalone", "--max-r"}), Words{"--max-restarts"});
  EXPECT_EQ(names({"-"}).size(), option_table().size());
}

TEST(Completion, NamesValues) {
  EXPECT_EQ(names({"--start-method", "f"}), (Words{"fork", "forkserver"}));
  EXPECT_EQ(names({"--start_method=f"}),
            (Words{"--start_method=fork", "--start_method=forkserver"}));
  EXPECT_EQ(names({"-t", ""}), (Words{"0", "1", "2", "3"}));
  EXPECT_EQ(names({"--role", ""}), Words{});
}

TEST(Completion, LeavesTheProgramAlone) {
  EXPECT_EQ(names({"train.py", "--n"}), Words{});
  EXPECT_EQ(names({"--role", "x", "train.py", "--n"}), Words{});
  EXPECT_EQ(names({"--", "--n"}), Words{});
  EXPECT_EQ(names({""}), Words{});
  EXPECT_EQ(names({}), Words{});
}

// Asks the real shell what it would offer for the last word.
std::string bash_offers(Style style, const std::string& words, int index) {
  FileTree tree;
  tree.write("script", completion_script("bash", style));
  const std::string command = style == Style::Torchrun ? "torchrun" : "muster";
  return output_of(fmt::format("bash -c 'set -u; source {}/script; COMP_WORDS=({}); COMP_CWORD={}; "
                               "_{}_launch; echo ${{COMPREPLY[@]+\"${{COMPREPLY[@]}}\"}}' 2>&1",
                               tree.root(), words, index, command))
      .value_or("failed");
}

TEST(BashScript, CompletesOptionsAndValues) {
  if (!has_shell("bash")) GTEST_SKIP() << "bash is not installed";
  EXPECT_EQ(bash_offers(Style::Torchrun, "torchrun --nproc", 1), "--nproc-per-node\n");
  EXPECT_EQ(bash_offers(Style::Torchrun, "torchrun --tee \"\"", 2), "0 1 2 3\n");
  EXPECT_EQ(bash_offers(Style::Torchrun, "torchrun --start_method = fork", 3), "fork forkserver\n");
  EXPECT_EQ(bash_offers(Style::Torchrun, "torchrun -m --tee 1 --numa-b", 4), "--numa-binding\n");
  EXPECT_EQ(bash_offers(Style::Torchrun, "torchrun train.py --nproc", 2), "\n");
  EXPECT_EQ(bash_offers(Style::Muster, "muster run --nproc", 2), "--nproc-per-node\n");
}

TEST(Scripts, AreAcceptedByTheirShells) {
  for (const Style style : {Style::Muster, Style::Torchrun}) {
    for (const std::string shell : {"bash", "zsh"}) {
      if (!has_shell(shell)) continue;
      FileTree tree;
      tree.write("script", completion_script(shell, style));
      EXPECT_EQ(output_of(fmt::format("{} -n {}/script 2>&1", shell, tree.root())), "") << shell;
    }
  }
}

TEST(Scripts, KnowEveryOption) {
  for (const std::string_view shell : {"bash", "zsh", "tcsh"}) {
    const std::string script = completion_script(shell, Style::Torchrun);
    for (const OptionRow& row : option_table())
      EXPECT_NE(script.find(row.name), std::string::npos) << shell << row.name;
  }
}

TEST(Help, NamesEveryOptionInEightyColumns) {
  for (const Style style : {Style::Muster, Style::Torchrun}) {
    const std::string text = help_text(style);
    for (const OptionRow& row : option_table())
      EXPECT_NE(text.find(fmt::format("--{}", row.name)), std::string::npos) << row.name;
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = text.find('\n', begin);
      EXPECT_LE(end - begin, 80U) << text.substr(begin, end - begin);
      begin = end + 1;
    }
    EXPECT_TRUE(text.starts_with(fmt::format("usage: {} ", name_of(style))));
  }
}

}  // namespace
}  // namespace muster::launch
