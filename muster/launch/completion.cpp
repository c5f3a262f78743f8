#include "muster/launch/completion.h"

#include "muster/base/assert.h"
#include "muster/launch/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace muster::launch {
namespace {

std::string command_of(Style style) { return style == Style::Torchrun ? "torchrun" : "muster"; }

// -- bash --------------------------------------------------------------------------------------

// The patterns of one `case` branch: every spelling of the option.
std::string patterns_of(const OptionRow& row) {
  std::string patterns = fmt::format("--{}", row.name);
  if (row.name.find('-') != std::string_view::npos) {
    std::string other(row.name);
    std::ranges::replace(other, '-', '_');
    patterns += fmt::format("|--{}", other);
  }
  if (row.letter != 0) patterns += fmt::format("|-{}", row.letter);
  return patterns;
}

std::string bash_value(const OptionRow& row) {
  switch (row.completes) {
    case Completes::Files:
      return "compgen -f -- \"$typed\"";
    case Completes::Folders:
      return "compgen -d -- \"$typed\"";
    default:
      return row.words.empty()
                 ? std::string(":")
                 : fmt::format("compgen -W \"{}\" -- \"$typed\"", fmt::join(row.words, " "));
  }
}

// Walks over the words before the one that is typed, to know whether the program was named already.
std::string bash_script(Style style) {
  const std::string command = command_of(style);
  std::string values;
  std::string takers;
  std::string names;
  for (const OptionRow& row : option_table()) {
    names += fmt::format("{}--{}", names.empty() ? "" : " ", row.name);
    if (!row.takes_value()) continue;
    values +=
        fmt::format("      {}) COMPREPLY=($({})); return ;;\n", patterns_of(row), bash_value(row));
    takers += fmt::format("{}{}", takers.empty() ? "" : "|", patterns_of(row));
  }
  std::string others;
  if (style == Style::Muster) {
    others =
        "  if [[ ${COMP_CWORD} -eq 1 || ${words[1]} != run ]]; then\n"
        "    COMPREPLY=($(compgen -W \"$(muster complete -- \"${words[@]:1:COMP_CWORD}\" "
        "2>/dev/null | cut -f1)\" -- \"$typed\"))\n"
        "    return\n"
        "  fi\n";
  }
  return fmt::format(
      R"(# bash completion for {name}
_{command}_launch() {{
  local -a words=("${{COMP_WORDS[@]}}")
  local typed=${{words[COMP_CWORD]}} previous=${{words[COMP_CWORD-1]}} index={first}
  COMPREPLY=()
  [[ $typed == "=" ]] && typed=
  [[ $previous == "=" ]] && previous=${{words[COMP_CWORD-2]}}
{others}  while (( index < COMP_CWORD )); do
    case ${{words[index]}} in
      {takers})
        [[ ${{words[index+1]}} == "=" ]] && (( index += 1 ))
        (( index += 2 )) ;;
      --) COMPREPLY=($(compgen -f -- "$typed")); return ;;
      -*) (( index += 1 )) ;;
      *) COMPREPLY=($(compgen -f -- "$typed")); return ;;
    esac
  done
  if (( index > COMP_CWORD )); then
    case $previous in
{values}    esac
  fi
  if [[ $typed == -* ]]; then
    COMPREPLY=($(compgen -W "{names}" -- "$typed"))
  else
    COMPREPLY=($(compgen -f -- "$typed"))
  fi
}}
complete -o filenames -o bashdefault -F _{command}_launch {command}
)",
      fmt::arg("name", name_of(style)), fmt::arg("command", command),
      fmt::arg("first", style == Style::Muster ? 2 : 1), fmt::arg("others", others),
      fmt::arg("takers", takers), fmt::arg("values", values), fmt::arg("names", names));
}

// -- zsh ---------------------------------------------------------------------------------------

// For text inside single quotes of an _arguments specification.
std::string zsh_text(std::string_view text) {
  std::string safe;
  for (const char letter : text) {
    if (letter == '\'') {
      safe += "'\\''";
    } else {
      if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') safe += '\\';
      safe += letter;
    }
  }
  return safe;
}

std::string zsh_action(const OptionRow& row) {
  switch (row.completes) {
    case Completes::Files:
      return "_files";
    case Completes::Folders:
      return "_files -/";
    default: {
      if (row.words.empty()) return " ";
      std::vector<std::string> words;
      for (const std::string_view word : row.words) words.push_back(zsh_text(word));
      return fmt::format("({})", fmt::join(words, " "));
    }
  }
}

std::string zsh_row(const OptionRow& row) {
  std::string specifications;
  const auto add = [&](const std::string& spelling) {
    specifications +=
        fmt::format("    '{}[{}]{}' \\\n", spelling, zsh_text(row.meaning),
                    row.takes_value() ? fmt::format(":{}:{}", zsh_text(row.value), zsh_action(row))
                                      : std::string());
  };
  add(fmt::format("--{}{}", row.name, row.takes_value() ? "=" : ""));
  if (row.letter != 0) add(fmt::format("-{}{}", row.letter, row.takes_value() ? "+" : ""));
  return specifications;
}

std::string zsh_script(Style style) {
  const std::string command = command_of(style);
  std::string rows;
  for (const OptionRow& row : option_table()) rows += zsh_row(row);
  std::string others;
  if (style == Style::Muster) {
    others = R"(  if (( CURRENT == 2 )) || [[ ${words[2]} != run ]]; then
    local -a candidates
    local name text
    while IFS=$'\t' read -r name text; do
      candidates+=("${name//:/\\:}:$text")
    done < <(muster complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( ${#candidates} )); then _describe muster candidates; else _files; fi
    return
  fi
  shift words
  (( CURRENT -= 1 ))
)";
  }
  return fmt::format(R"(#compdef {command}
# zsh completion for {name}
_{command}_launch() {{
{others}  _arguments -S \
{rows}    '1:program:_files' \
    '*::arguments:_files'
}}
if [ "$funcstack[1]" = "_{command}" ]; then
  _{command}_launch "$@"
else
  compdef _{command}_launch {command}
fi
)",
                     fmt::arg("command", command), fmt::arg("name", name_of(style)),
                     fmt::arg("others", others), fmt::arg("rows", rows));
}

// -- tcsh --------------------------------------------------------------------------------------

std::string tcsh_script(Style style) {
  std::string rules;
  std::string names;
  for (const OptionRow& row : option_table()) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", row.name);
    if (!row.takes_value()) continue;
    std::string list;
    if (row.completes == Completes::Folders) {
      list = "d";
    } else if (row.completes == Completes::Files) {
      list = "f";
    } else if (!row.words.empty()) {
      list = fmt::format("({})", fmt::join(row.words, " "));
    } else {
      list = "x:" + std::string(row.value);
    }
    rules += fmt::format("  'n@--{}@{}@' \\\n", row.name, list);
    if (row.letter != 0) rules += fmt::format("  'n@-{}@{}@' \\\n", row.letter, list);
  }
  const std::string first = style == Style::Muster ? "  'p@1@(run)@' \\\n" : "";
  return fmt::format(
      "# tcsh completion for {}\n"
      "complete {} \\\n"
      "{}{}  'c@--@({})@' \\\n"
      "  'p@*@f@'\n",
      name_of(style), command_of(style), first, rules, names);
}

// -- for a shell that asks ---------------------------------------------------------------------

// The option that the word spells out with dashes or a letter; nothing if it is none.
const OptionRow* row_of(std::string_view word) {
  for (const OptionRow& row : option_table()) {
    if (row.letter != 0 && word == fmt::format("-{}", row.letter)) return &row;
  }
  if (!word.starts_with("--")) return nullptr;
  std::string name(word.substr(2));
  std::ranges::replace(name, '_', '-');
  return find_row(name);
}

std::vector<Candidate> values_of(const OptionRow& row, std::string_view typed,
                                 std::string_view before) {
  std::vector<Candidate> found;
  for (const std::string_view word : row.words) {
    if (word.starts_with(typed)) found.push_back({fmt::format("{}{}", before, word), ""});
  }
  return found;
}

}  // namespace

std::string completion_script(std::string_view shell, Style style) {
  if (shell == "bash") return bash_script(style);
  if (shell == "zsh") return zsh_script(style);
  MUSTER_ASSERT(shell == "tcsh");
  return tcsh_script(style);
}

std::vector<Candidate> complete(std::span<const std::string> words) {
  if (words.empty()) return {};
  const std::string& typed = words.back();
  for (std::size_t index = 0; index + 1 < words.size(); ++index) {
    const std::string& word = words[index];
    if (!word.starts_with('-') || word == "-" || word == "--") return {};
    const OptionRow* row = row_of(word);
    if (row == nullptr || !row->takes_value()) continue;
    if (index + 2 == words.size()) return values_of(*row, typed, "");
    ++index;
  }
  if (!typed.starts_with('-')) return {};
  if (const std::size_t equals = typed.find('='); equals != std::string::npos) {
    const OptionRow* row = row_of(std::string_view(typed).substr(0, equals));
    if (row == nullptr) return {};
    const std::string_view whole = typed;
    return values_of(*row, whole.substr(equals + 1), whole.substr(0, equals + 1));
  }
  std::vector<Candidate> found;
  for (const OptionRow& row : option_table()) {
    std::string name = fmt::format("--{}", row.name);
    if (name.starts_with(typed)) found.push_back({std::move(name), std::string(row.meaning)});
  }
  return found;
}

}  // namespace muster::launch
