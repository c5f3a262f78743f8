#include "muster/cli/completion.h"

#include "muster/cli/exit_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::cli {
namespace {

constexpr std::string_view kBashScript = R"(# bash completion for muster
_muster() {
  local IFS=$'\n'
  local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
  local candidates
  candidates=$("${COMP_WORDS[0]}" complete -- "${words[@]}" 2>/dev/null | cut -f1)
  COMPREPLY=($(compgen -W "$candidates" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _muster muster
)";

constexpr std::string_view kZshScript = R"(#compdef muster
_muster() {
  local -a candidates
  local name text
  while IFS=$'\t' read -r name text; do
    candidates+=("${name//:/\\:}:$text")
  done < <("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( ${#candidates} )); then
    _describe 'muster' candidates
  else
    _files
  fi
}
if [ "$funcstack[1]" = "_muster" ]; then
  _muster "$@"
else
  compdef _muster muster
fi
)";

struct Candidate {
  std::string name;
  std::string description;
};

// Follows the words as far as they name subcommands.
const CLI::App* find_command(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  for (const std::string& word : words) {
    for (const CLI::App* next : command->get_subcommands([](const CLI::App*) { return true; })) {
      if (next->get_name() == word) {
        command = next;
        break;
      }
    }
  }
  return command;
}

std::vector<Candidate> candidates(const CLI::App& program, std::vector<std::string> words) {
  // The last word is the one being typed.
  const std::string typed = words.empty() ? "" : words.back();
  if (!words.empty()) words.pop_back();
  const CLI::App* command = find_command(program, words);
  std::vector<Candidate> found;
  if (typed.starts_with('-')) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames())
        found.push_back({"--" + name, option->get_description()});
    }
  } else {
    for (const CLI::App* next : command->get_subcommands([](const CLI::App*) { return true; })) {
      if (!next->get_group().empty()) found.push_back({next->get_name(), next->get_description()});
    }
    if (command->get_name() == "completion") found = {{"bash", ""}, {"zsh", ""}};
  }
  std::erase_if(found,
                [&](const Candidate& candidate) { return !candidate.name.starts_with(typed); });
  return found;
}

}  // namespace

void add_completion_commands(CLI::App& program, int& exit_status) {
  auto shell = std::make_shared<std::string>();
  CLI::App* script =
      program.add_subcommand("completion", "Print the completion script of a shell, to be sourced");
  script->add_option("shell", *shell, "bash or zsh")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  script->callback([shell, &exit_status] {
    fmt::print("{}", *shell == "bash" ? kBashScript : kZshScript);
    exit_status = kExitOk;
  });

  CLI::App* complete =
      program.add_subcommand("complete", "Print candidates for the last word")->group("");
  auto words = std::make_shared<std::vector<std::string>>();
  complete->add_option("words", *words, "What has been typed so far, behind --");
  complete->callback([words, &program, &exit_status] {
    for (const Candidate& candidate : candidates(program, *words)) {
      fmt::print("{}\t{}\n", candidate.name, candidate.description);
    }
    exit_status = kExitOk;
  });
}

}  // namespace muster::cli
