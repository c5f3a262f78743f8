// A machine for tests: four CPUs, no GPU, a few programs, and no surprises.
#pragma once

#include "muster/launch/resolve.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace muster::launch {

inline constexpr const char* kFakeRunId = "00000000-0000-4000-8000-000000000000";

using FileMap = std::map<std::string, FileFacts>;

inline FileMap fake_files() {
  using Kind = FileFacts::Kind;
  return {{"train.py", {Kind::Regular, false}},
          {"./tool", {Kind::Regular, true}},
          {"./data.txt", {Kind::Regular, false}},
          {"here", {Kind::Regular, true}},
          {"folder", {Kind::Folder, true}},
          {"./folder", {Kind::Folder, true}},
          {"/bin/sh", {Kind::Regular, true}},
          {"/usr/bin/python3", {Kind::Regular, true}},
          {"/opt/python", {Kind::Regular, true}},
          {"/dev/null", {Kind::NullDevice, false}},
          {"logs", {Kind::Folder, true}},
          {"file", {Kind::Regular, false}},
          {"/usr/bin/notes", {Kind::Regular, false}}};
}

inline Facts fake_facts(Variables variables = {}, FileMap files = fake_files()) {
  Facts facts;
  variables.emplace("PATH", "/usr/bin:/bin");
  facts.variables = std::move(variables);
  facts.cpus = {0, 1, 2, 3};
  facts.visible_gpus = [] { return std::vector<Gpu>(); };
  facts.xpu_count = [] { return 0; };
  facts.topology = [] {
    Topology topology;
    topology.nodes = {{0, {0, 1}, true}, {1, {2, 3}, true}};
    for (int id = 0; id < 4; ++id) {
      const int first = id / 2 * 2;
      topology.cpus.push_back({id, id / 2, {id}, {first, first + 1}});
    }
    return Result<Topology>(topology);
  };
  facts.device_node = [](const std::string&) { return Result<int>(0); };
  facts.look_at = [files = std::move(files)](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? FileFacts() : found->second;
  };
  facts.make_run_id = [] { return std::string(kFakeRunId); };
  return facts;
}

using WordList = std::vector<std::string>;

inline Parsed parse_words(const WordList& words, const Variables& variables = {},
                          Style style = Style::Muster) {
  return parse(words, variables, style);
}

// Requires: the words are right.
inline Options options_of(const WordList& words, const Variables& variables = {},
                          Style style = Style::Muster) {
  const Parsed parsed = parse(words, variables, style);
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) ADD_FAILURE() << refusal->text;
  const auto* options = std::get_if<Options>(&parsed);
  return options == nullptr ? Options() : *options;
}

// The last line of a refusal, and its status; empty and 0 if the words are right.
struct Told {
  std::string line;
  int status = 0;
};
inline Told refusal_of(const WordList& words, const Variables& variables = {},
                       Style style = Style::Muster) {
  const Parsed parsed = parse(words, variables, style);
  const auto* refusal = std::get_if<Refusal>(&parsed);
  if (refusal == nullptr) return {};
  std::string text = refusal->text;
  EXPECT_TRUE(text.ends_with('\n'));
  if (!text.empty()) text.pop_back();
  return {text.substr(text.rfind('\n') + 1), refusal->status};
}

// Parses and resolves.
inline Result<LaunchConfig> launch_of(const WordList& words, const Facts& facts = fake_facts(),
                                      Style style = Style::Muster) {
  return resolve(options_of(words, facts.variables, style), facts);
}

// What resolve refuses with; empty if it does not.
inline std::string error_of(const WordList& words, const Facts& facts = fake_facts(),
                            Style style = Style::Muster) {
  const auto config = launch_of(words, facts, style);
  if (config) return {};
  EXPECT_EQ(config.error().message.find('\n'), std::string::npos) << config.error().message;
  return config.error().message;
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

inline bool warns_of(const LaunchConfig& config, std::string_view part) {
  for (const std::string& warning : config.warnings) {
    if (contains(warning, part)) return true;
  }
  return false;
}

}  // namespace muster::launch
