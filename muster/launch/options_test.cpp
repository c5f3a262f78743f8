#include "muster/launch/options.h"

#include "muster/launch/fake_facts_test.h"
#include "muster/launch/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace muster::launch {
namespace {

using namespace std::chrono_literals;

// A value that the row takes and that is not its default, and one that wins over it.
std::pair<std::string, std::string> samples(const OptionRow& row) {
  if (row.words.size() > 1)
    return {std::string(row.words[1]), std::string(row.words[row.words.size() - 1])};
  struct Visitor {
    using Pair = std::pair<std::string, std::string>;
    Pair operator()(std::monostate) const { return {}; }
    Pair operator()(bool Options::*) const { return {"1", "1"}; }
    Pair operator()(std::int64_t Options::*) const { return {"17", "18"}; }
    Pair operator()(std::optional<std::int64_t> Options::*) const { return {"17", "18"}; }
    Pair operator()(double Options::*) const { return {"1.5", "2.5"}; }
    Pair operator()(std::optional<Duration> Options::*) const { return {"500ms", "2m"}; }
    Pair operator()(std::optional<std::uint64_t> Options::*) const { return {"64K", "2M"}; }
    Pair operator()(std::string Options::*) const { return {"one", "two"}; }
    Pair operator()(std::optional<std::string> Options::*) const { return {"one", "two"}; }
  };
  return std::visit(Visitor{}, row.field);
}

// The value as text, whatever its kind.
std::string value_of(const OptionRow& row, const Options& options) {
  struct Visitor {
    const Options& options;
    std::string operator()(std::monostate) const { return {}; }
    std::string operator()(bool Options::*field) const { return fmt::to_string(options.*field); }
    std::string operator()(std::int64_t Options::*field) const {
      return fmt::to_string(options.*field);
    }
    std::string operator()(std::optional<std::int64_t> Options::*field) const {
      return options.*field ? fmt::to_string(*(options.*field)) : "unset";
    }
    std::string operator()(double Options::*field) const { return fmt::to_string(options.*field); }
    std::string operator()(std::optional<Duration> Options::*field) const {
      return options.*field ? describe(*(options.*field)) : "unset";
    }
    std::string operator()(std::optional<std::uint64_t> Options::*field) const {
      return options.*field ? fmt::to_string(*(options.*field)) : "unset";
    }
    std::string operator()(std::string Options::*field) const { return options.*field; }
    std::string operator()(std::optional<std::string> Options::*field) const {
      return (options.*field).value_or("unset");
    }
  };
  return std::visit(Visitor{options}, row.field);
}

std::string with_underscores(std::string_view name) {
  std::string result(name);
  std::ranges::replace(result, '-', '_');
  return result;
}

std::vector<const OptionRow*> rows_with_values() {
  std::vector<const OptionRow*> rows;
  for (const OptionRow& row : option_table()) {
    if (row.takes_value() && !std::holds_alternative<std::monostate>(row.field))
      rows.push_back(&row);
  }
  return rows;
}

std::vector<const OptionRow*> flags() {
  std::vector<const OptionRow*> rows;
  for (const OptionRow& row : option_table()) {
    if (std::holds_alternative<bool Options::*>(row.field)) rows.push_back(&row);
  }
  return rows;
}

TEST(Options, HaveTheDefaultsOfTorchrun) {
  const Options options = options_of({"x"});
  EXPECT_EQ(options.nnodes, "1:1");
  EXPECT_EQ(options.nproc_per_node, "1");
  EXPECT_EQ(options.rdzv_backend, "static");
  EXPECT_EQ(options.rdzv_endpoint, "");
  EXPECT_EQ(options.rdzv_id, "none");
  EXPECT_EQ(options.rdzv_conf, "");
  EXPECT_FALSE(options.standalone);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.monitor_interval, 0.1);
  EXPECT_EQ(options.start_method, "spawn");
  EXPECT_EQ(options.event_log_handler, "null");
  EXPECT_EQ(options.role, "default");
  EXPECT_FALSE(options.module || options.no_python || options.run_path || options.python);
  EXPECT_FALSE(options.log_dir);
  EXPECT_EQ(options.redirects, "0");
  EXPECT_EQ(options.tee, "0");
  EXPECT_EQ(options.local_ranks_filter, "");
  EXPECT_FALSE(options.duplicate_stdout_filters || options.duplicate_stderr_filters);
  EXPECT_EQ(options.node_rank, 0);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_FALSE(options.master_port);
  EXPECT_FALSE(options.local_addr || options.log_line_prefix_template || options.logs_specs);
  EXPECT_FALSE(options.numa_binding || options.shutdown_timeout || options.virtual_local_rank);
  EXPECT_EQ(options.signals_to_handle, "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  EXPECT_TRUE(options.given.empty());
}

TEST(Options, AreTakenFromTheCommandLineInEverySpelling) {
  for (const OptionRow* row : rows_with_values()) {
    const auto [sample, other] = samples(*row);
    const Options first = options_of({fmt::format("--{}", row->name), sample, "x"});
    const std::string expected = value_of(*row, first);
    EXPECT_NE(expected, value_of(*row, Options())) << row->name;
    EXPECT_TRUE(first.was_given(row->name));
    EXPECT_FALSE(first.from_variable.contains(row->name));
    std::vector<WordList> spellings = {
        {fmt::format("--{}={}", row->name, sample), "x"},
        {fmt::format("--{}={}", with_underscores(row->name), sample), "x"},
        {fmt::format("--{}", with_underscores(row->name)), sample, "x"},
        {fmt::format("--{}={}", row->name, other), fmt::format("--{}", row->name), sample, "x"}};
    if (row->letter != 0) {
      spellings.push_back({fmt::format("-{}", row->letter), sample, "x"});
      spellings.push_back({fmt::format("-{}{}", row->letter, sample), "x"});
      spellings.push_back({fmt::format("-{}={}", row->letter, sample), "x"});
    }
    for (const WordList& words : spellings) {
      const Options options = options_of(words);
      EXPECT_EQ(value_of(*row, options), expected) << words.front();
      EXPECT_EQ(options.program, "x");
    }
  }
}

TEST(Options, AreTakenFromTheirVariableUnlessTheCommandLineHasThem) {
  for (const OptionRow* row : rows_with_values()) {
    const auto [sample, other] = samples(*row);
    const Variables variables = {{variable_of(*row), sample}};
    const Options from_variable = options_of({"x"}, variables);
    const std::string option = fmt::format("--{}={}", row->name, other);
    const Options both = options_of({option, "x"}, variables);
    const Options from_line = options_of({option, "x"});
    EXPECT_EQ(value_of(*row, both), value_of(*row, from_line)) << row->name;
    if (row->has_variable) {
      EXPECT_EQ(value_of(*row, from_variable),
                value_of(*row, options_of({fmt::format("--{}={}", row->name, sample), "x"})));
      EXPECT_TRUE(from_variable.from_variable.contains(row->name));
    } else {
      EXPECT_EQ(value_of(*row, from_variable), value_of(*row, Options())) << row->name;
    }
  }
}

TEST(Options, HaveNoVariableWhereTorchrunHasNone) {
  for (const std::string_view name : {"logs-specs", "numa-binding", "print-completion", "help"})
    EXPECT_FALSE(find_row(name)->has_variable) << name;
  EXPECT_EQ(variable_of(*find_row("nproc-per-node")), "PET_NPROC_PER_NODE");
}

TEST(Flags, AreTakenFromTheCommandLineAndFromVariables) {
  for (const OptionRow* row : flags()) {
    const std::string variable = variable_of(*row);
    EXPECT_EQ(value_of(*row, options_of({fmt::format("--{}", row->name), "x"})), "true");
    EXPECT_EQ(value_of(*row, options_of({fmt::format("--{}", with_underscores(row->name)), "x"})),
              "true");
    EXPECT_EQ(value_of(*row, options_of({"x"}, {{variable, "1"}})), "true");
    EXPECT_EQ(value_of(*row, options_of({"x"}, {{variable, "-7"}})), "true");
    EXPECT_EQ(value_of(*row, options_of({"x"}, {{variable, "0"}})), "false");
    EXPECT_EQ(value_of(*row, options_of({fmt::format("--{}", row->name), "x"}, {{variable, "0"}})),
              "true");
    for (const char* text : {"yes", "", "1.0"}) {
      const Told told = refusal_of({"--help"}, {{variable, text}});
      EXPECT_EQ(told.status, 1) << variable;
      EXPECT_TRUE(contains(told.line, variable)) << told.line;
    }
  }
}

TEST(Flags, TakeNoValue) {
  EXPECT_EQ(refusal_of({"--standalone=1", "x"}).status, 2);
  EXPECT_EQ(refusal_of({"-m=1", "x"}).status, 2);
  EXPECT_EQ(refusal_of({"--help=1", "x"}).status, 2);
}

TEST(Options, MayBeCutShortWhileUnambiguous) {
  EXPECT_EQ(options_of({"--nn=2", "x"}).nnodes, "2");
  EXPECT_EQ(options_of({"--nproc", "3", "x"}).nproc_per_node, "3");
  EXPECT_EQ(options_of({"--nproc_per=3", "x"}).nproc_per_node, "3");
  const Told told = refusal_of({"--rdzv=x", "x"});
  EXPECT_EQ(told.status, 2);
  EXPECT_TRUE(contains(told.line, "--rdzv-backend or --rdzv-endpoint")) << told.line;
}

TEST(Options, OfOursDoNotMakeThoseOfTorchrunAmbiguous) {
  EXPECT_EQ(options_of({"--start=fork", "x"}).start_method, "fork");
  EXPECT_EQ(options_of({"--numa=node", "x"}).numa_binding, "node");
  EXPECT_EQ(options_of({"--signals=SIGINT", "x"}).signals_to_handle, "SIGINT");
  EXPECT_EQ(options_of({"--start-t=5", "x"}).start_timeout, 5s);
  EXPECT_EQ(refusal_of({"--restart=5", "x"}).status, 2);
}

TEST(Options, CanBeCombinedAsLetters) {
  const Options options = options_of({"-mr3", "-t", "1", "x"});
  EXPECT_TRUE(options.module);
  EXPECT_EQ(options.redirects, "3");
  EXPECT_EQ(options.tee, "1");
  EXPECT_EQ(refusal_of({"-mq", "x"}).status, 2);
}

TEST(Options, EndAtTheProgram) {
  const Options options = options_of({"--nnodes=1", "prog", "--nnodes", "7", "--n", "3", "-h"});
  EXPECT_EQ(options.nnodes, "1");
  EXPECT_EQ(options.program, "prog");
  EXPECT_EQ(options.arguments, (WordList{"--nnodes", "7", "--n", "3", "-h"}));
}

TEST(Program, MayFollowOneSeparatorOrPrecedeOne) {
  EXPECT_EQ(options_of({"--", "prog", "a"}).arguments, WordList{"a"});
  EXPECT_EQ(options_of({"prog", "--", "a"}).arguments, WordList{"a"});
  EXPECT_EQ(options_of({"prog", "a", "--", "b"}).arguments, (WordList{"a", "--", "b"}));
  EXPECT_EQ(options_of({"--", "prog", "--", "a"}).arguments, (WordList{"--", "a"}));
  EXPECT_EQ(options_of({"prog", "--", "--", "a"}).arguments, (WordList{"--", "a"}));
  EXPECT_EQ(options_of({"--", "--odd"}).program, "--odd");
}

TEST(Program, IsMissedWithAUsageError) {
  for (const WordList& words : {WordList{}, WordList{"--"}, WordList{"--nnodes=2"}, WordList{""}}) {
    const Told told = refusal_of(words);
    EXPECT_EQ(told.status, 2);
    EXPECT_TRUE(contains(told.line, "which program?")) << told.line;
  }
}

TEST(Options, ThatAreUnknownAreRefusedWithASuggestion) {
  const Told told = refusal_of({"--nporc-per-node=2", "x"});
  EXPECT_EQ(told.status, 2);
  EXPECT_TRUE(contains(told.line, "did you mean --nproc-per-node?")) << told.line;
  EXPECT_EQ(refusal_of({"-z", "x"}).status, 2);
  EXPECT_EQ(refusal_of({"--=3", "x"}).status, 2);
}

TEST(Options, NeedTheirValue) {
  EXPECT_EQ(refusal_of({"--role"}).status, 2);
  EXPECT_EQ(refusal_of({"--role", "--standalone", "x"}).status, 2);
  EXPECT_EQ(refusal_of({"--role", "--", "x"}).status, 2);
  EXPECT_EQ(options_of({"--role=--standalone", "x"}).role, "--standalone");
  EXPECT_EQ(options_of({"--max-restarts", "-1", "x"}).max_restarts, -1);
  EXPECT_EQ(options_of({"--role", "- x", "x"}).role, "- x");
  EXPECT_EQ(options_of({"--role=", "x"}).role, "");
}

TEST(Options, RefuseWhatIsNoNumberAsAUsageError) {
  for (const std::string name :
       {"monitor-interval", "max-restarts", "node-rank", "master-port", "shutdown-timeout",
        "restart-delay", "log-rotate-bytes", "exit-barrier-timeout"}) {
    for (const std::string text : {"abc", "", "1x"}) {
      const Told told = refusal_of({fmt::format("--{}={}", name, text), "x"});
      EXPECT_EQ(told.status, 2) << name;
      EXPECT_TRUE(contains(told.line, "--" + name)) << told.line;
      const std::string variable = variable_of(*find_row(name));
      const Told other = refusal_of({"x"}, {{variable, text}});
      EXPECT_EQ(other.status, 2) << name;
      EXPECT_TRUE(contains(other.line, variable)) << other.line;
    }
  }
  EXPECT_EQ(options_of({"--max-restarts=3", "x"}, {{"PET_MAX_RESTARTS", "abc"}}).max_restarts, 3);
}

TEST(Options, EnforceListsOfWordsOnTheCommandLineOnly) {
  for (const std::string name : {"start-method", "numa-binding", "print-completion", "log-format"})
    EXPECT_EQ(refusal_of({fmt::format("--{}=bogus", name), "x"}).status, 2) << name;
  EXPECT_EQ(options_of({"x"}, {{"PET_START_METHOD", "bogus"}}).start_method, "bogus");
}

TEST(Options, CountAVariableThatIsSetAndEmptyAsGiven) {
  const Options options =
      options_of({"x"}, {{"PET_RDZV_ID", ""}, {"PET_DUPLICATE_STDOUT_FILTERS", ""}});
  EXPECT_EQ(options.rdzv_id, "");
  EXPECT_TRUE(options.was_given("rdzv-id"));
  EXPECT_EQ(options.duplicate_stdout_filters, "");
  EXPECT_EQ(refusal_of({"x"}, {{"PET_NODE_RANK", ""}}).status, 2);
}

TEST(UsageError, ShowsTheUsageAndThenOneLine) {
  const Parsed parsed = parse_words({"--bogus", "x"}, {}, Style::Torchrun);
  const auto& refusal = std::get<Refusal>(parsed);
  EXPECT_TRUE(refusal.text.starts_with("usage: torchrun ")) << refusal.text;
  EXPECT_TRUE(contains(refusal.text, "\ntorchrun: there is no option")) << refusal.text;
}

TEST(Help, IsPrintedInsteadOfAnythingElse) {
  for (const WordList& words :
       {WordList{"-h"}, WordList{"--help"}, WordList{"--nnodes=2", "--he"}}) {
    const Parsed parsed = parse_words(words);
    ASSERT_TRUE(std::holds_alternative<Print>(parsed));
    EXPECT_TRUE(contains(std::get<Print>(parsed).text, "--nproc-per-node"));
  }
  EXPECT_TRUE(std::holds_alternative<Print>(parse_words({"--print-completion=zsh"})));
}

TEST(Style, FollowsTheLastPartOfThePath) {
  EXPECT_EQ(style_of("torchrun"), Style::Torchrun);
  EXPECT_EQ(style_of("/usr/bin/torchrun"), Style::Torchrun);
  EXPECT_EQ(style_of("/opt/torchrun/muster"), Style::Muster);
  EXPECT_EQ(style_of(""), Style::Muster);
}

TEST(Variables, AreTheFirstOfEachName) {
  const char* const entries[] = {"A=1", "B=x=y", "A=2", "odd", "=C:", "D=", nullptr};
  EXPECT_EQ(read_variables(entries), (Variables{{"A", "1"}, {"B", "x=y"}, {"D", ""}}));
  EXPECT_TRUE(read_variables(nullptr).empty());
}

}  // namespace
}  // namespace muster::launch
