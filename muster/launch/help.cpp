#include "muster/launch/help.h"

#include "muster/launch/option_table.h"

#include <fmt/format.h>

#include <string_view>

namespace muster::launch {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kTextColumn = 30;

// Appends `text` in lines that fit between the two columns. Requires: the line that was begun is
// shorter than kTextColumn, or ends at once.
void append_wrapped(std::string& out, std::string_view text) {
  std::size_t column = kTextColumn;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column > kTextColumn && column + 1 + word.size() > kColumns) {
      out += '\n';
      out.append(kTextColumn, ' ');
      column = kTextColumn;
    } else if (column > kTextColumn) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  out += '\n';
}

void append_row(std::string& out, const OptionRow& row) {
  std::string head = row.letter != 0 ? fmt::format("  -{}, --{}", row.letter, row.name)
                                     : fmt::format("      --{}", row.name);
  if (row.takes_value()) head += fmt::format(" {}", row.value);
  out += head;
  if (head.size() + 2 > kTextColumn) {
    out += '\n';
    out.append(kTextColumn, ' ');
  } else {
    out.append(kTextColumn - head.size(), ' ');
  }
  std::string text(row.meaning);
  if (!row.otherwise.empty()) text += fmt::format(" [{}]", row.otherwise);
  append_wrapped(out, text);
}

std::string_view program_rule(Style style) {
  if (style == Style::Torchrun) {
    return "PROGRAM is a Python script, unless --no-python is given. Options end there.\n";
  }
  return "PROGRAM is run with Python if it is a .py file, else as it is: any executable,\n"
         "in any language. Options end at PROGRAM; what follows is for the program.\n";
}

}  // namespace

std::string usage_text(Style style) {
  return fmt::format(
      "usage: {0} [OPTIONS] PROGRAM [ARGUMENTS]\n"
      "       {0} --nproc-per-node=4 train.py --epochs 3\n"
      "       {0} --help\n",
      name_of(style));
}

std::string help_text(Style style) {
  std::string text = fmt::format(
      "usage: {} [OPTIONS] [--] PROGRAM [ARGUMENTS]\n\n"
      "Starts the workers of this node, joins them with those of the other nodes, and\n"
      "keeps them running.\n\n"
      "{}\n"
      "  one machine, four workers:  {} --nproc-per-node=4 train.py\n"
      "  two machines, on each:      {} --nnodes=2 --rdzv-backend=c10d \\\n"
      "                                --rdzv-endpoint=HOST:29400 --rdzv-id=1 train.py\n",
      name_of(style), program_rule(style), name_of(style), name_of(style));
  for (int index = 0; index < kGroupCount; ++index) {
    const auto group = static_cast<Group>(index);
    text += fmt::format("\n{}:\n", title_of(group));
    for (const OptionRow& row : option_table()) {
      if (row.group == group) append_row(text, row);
    }
  }
  text +=
      "\n"
      "TIME is a number of seconds, or has a unit: 500ms, 5s, 2m, 1h. SIZE may end in\n"
      "K, M, G or T. Every option may be written with underscores, and be cut short\n"
      "while it is unambiguous. In arguments, ${local_rank} stands for the local rank.\n"
      "\n"
      "An option that is not given is read from the variable PET_ and its name, such as\n"
      "PET_NPROC_PER_NODE=4; flags are 0 or 1.\n"
      "\n"
      "Exit status: 0 success, 1 failure, 2 wrong usage, 3 success here, but\n"
      "other nodes have not confirmed theirs.\n";
  return text;
}

}  // namespace muster::launch
