#include "muster/launch/command.h"

#include "muster/launch/fake_facts_test.h"

namespace muster::launch {
namespace {

Command command_of(const WordList& words, Style style = Style::Muster, Variables variables = {}) {
  const Facts facts = fake_facts(std::move(variables));
  const auto command = make_command(options_of(words, {}, style), facts);
  if (!command) ADD_FAILURE() << command.error().message;
  return command ? *command : Command();
}

std::string refused(const WordList& words, Style style = Style::Muster, Variables variables = {},
                    FileMap files = fake_files()) {
  const Facts facts = fake_facts(std::move(variables), std::move(files));
  const auto command = make_command(options_of(words, {}, style), facts);
  return command ? std::string() : command.error().message;
}

TEST(Command, RunsAScriptWithPython) {
  const Command command = command_of({"train.py", "--lr", "1"});
  EXPECT_EQ(command.executable, "/usr/bin/python3");
  EXPECT_EQ(command.arguments, (WordList{"-u", "train.py", "--lr", "1"}));
  EXPECT_TRUE(command.python);
  EXPECT_EQ(command.display_name, "train.py");
  EXPECT_EQ(entry_point_of(command), "python3");
}

TEST(Command, RunsAnythingElseAsItIs) {
  const Command tool = command_of({"./tool", "a"});
  EXPECT_EQ(arguments_of(tool, 0), (WordList{"./tool", "a"}));
  EXPECT_FALSE(tool.python);
  EXPECT_EQ(tool.display_name, "./tool");
  EXPECT_EQ(arguments_of(command_of({"sh", "-c", "true"}), 0), (WordList{"sh", "-c", "true"}));
}

TEST(Command, IsAlwaysPythonForTorchrunUnlessToldOtherwise) {
  EXPECT_EQ(command_of({"file"}, Style::Torchrun).arguments, (WordList{"-u", "file"}));
  EXPECT_EQ(command_of({"--no-python", "./tool"}, Style::Torchrun).executable, "./tool");
}

TEST(Command, RunsModules) {
  const Command command = command_of({"-m", "pkg.mod", "a"});
  EXPECT_EQ(command.arguments, (WordList{"-u", "-m", "pkg.mod", "a"}));
  EXPECT_EQ(command.display_name, "pkg.mod");
}

TEST(Command, RunsWithPythonWhatIsNotCalledSo) {
  EXPECT_EQ(command_of({"--python", "file"}).arguments, (WordList{"-u", "file"}));
}

TEST(Command, RunsAPathInPythonEvenWithNoPython) {
  const Command command = command_of({"--run-path", "--no-python", "-m", "file", "a"});
  EXPECT_EQ(command.executable, "/usr/bin/python3");
  EXPECT_EQ(command.arguments, (WordList{"-u", "file", "a"}));
}

TEST(Command, ChoosesTheInterpreter) {
  EXPECT_EQ(command_of({"train.py"}, Style::Muster, {{"PYTHON_EXEC", "/opt/python"}}).executable,
            "/opt/python");
  EXPECT_EQ(command_of({"train.py"}, Style::Muster, {{"PYTHON_EXEC", "sh"}}).executable, "sh");
  EXPECT_EQ(command_of({"train.py"}, Style::Muster, {{"PYTHON_EXEC", ""}}).executable,
            "/usr/bin/python3");
  EXPECT_EQ(command_of({"train.py"}, Style::Muster, {{"PATH", "/nowhere:/opt"}}).executable,
            "/opt/python");
  EXPECT_TRUE(contains(refused({"train.py"}, Style::Muster, {{"PATH", "/nowhere"}}),
                       "neither python3 nor python"));
  EXPECT_TRUE(contains(refused({"train.py"}, Style::Muster, {{"PYTHON_EXEC", "/nope"}}),
                       "PYTHON_EXEC is \"/nope\""));
}

TEST(Command, RefusesFlagsThatExcludeOneAnother) {
  EXPECT_TRUE(contains(refused({"--no-python", "-m", "x"}), "--no-python and --module"));
  EXPECT_TRUE(contains(refused({"--no-python", "--python", "x"}), "--no-python and --python"));
}

TEST(Command, RefusesProgramsThatCannotRunAndSaysWhatToDo) {
  EXPECT_TRUE(contains(refused({"absent.py"}), "there is no script \"absent.py\""));
  EXPECT_TRUE(contains(refused({"./absent"}), "there is no program \"./absent\""));
  EXPECT_TRUE(contains(refused({"absent"}), "there is no program \"absent\" in PATH"));
  EXPECT_TRUE(contains(refused({"here"}), "./here"));
  EXPECT_TRUE(contains(refused({"notes"}), "in PATH"));
  EXPECT_TRUE(contains(refused({"./folder"}), "is a folder"));
  EXPECT_TRUE(contains(refused({"./data.txt"}), "chmod +x"));
  EXPECT_TRUE(contains(refused({"sh"}, Style::Torchrun), "--no-python"));
}

TEST(Command, DoesNotLookForScriptsThatDifferFromWorkerToWorker) {
  const Command command = command_of({"part_$local_rank.py"});
  EXPECT_EQ(arguments_of(command, 2).back(), "part_2.py");
}

TEST(Macros, FollowTheRules) {
  EXPECT_EQ(replace_macros("--x=${local_rank} $$y ${other}", 0), "--x=0 $y ${other}");
  EXPECT_EQ(replace_macros("$local_rank/$local_rank", 12), "12/12");
  EXPECT_EQ(replace_macros("$local_rank2 $local_ranks $LOCAL_RANK", 1),
            "$local_rank2 $local_ranks $LOCAL_RANK");
  EXPECT_EQ(replace_macros("$local_rank-2", 1), "1-2");
  EXPECT_EQ(replace_macros("${local_rank $ {local_rank} $1 $", 1),
            "${local_rank $ {local_rank} $1 $");
  EXPECT_EQ(replace_macros("$$local_rank $$$local_rank", 1), "$local_rank $1");
  EXPECT_EQ(replace_macros("${$local_rank}", 3), "${3}");
  EXPECT_EQ(replace_macros("", 3), "");
}

TEST(Macros, AreNotReplacedInTheExecutable) {
  Command command;
  command.executable = "/x/$local_rank";
  command.arguments = {"$local_rank"};
  EXPECT_EQ(arguments_of(command, 5), (WordList{"/x/$local_rank", "5"}));
}

TEST(ShellLine, QuotesWhatAShellWouldChange) {
  EXPECT_EQ(shell_line({"a", "--x=1", "b c", "", "it's", "$x"}),
            "a --x=1 'b c' '' 'it'\\''s' '$x'");
}

}  // namespace
}  // namespace muster::launch
