// Completion of the launcher's command line, made from the table of options.
#pragma once

#include "muster/launch/options.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::launch {

// The script for `--print-completion`. Requires: the shell is bash, zsh or tcsh. That of
// `muster run` leaves the other commands of muster to `muster complete`.
std::string completion_script(std::string_view shell, Style style);

struct Candidate {
  std::string name;
  std::string description;

  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// What may stand for the last of the words behind `muster run`, for a shell that asks the program.
// Nothing once the program was named, and where only file names help.
std::vector<Candidate> complete(std::span<const std::string> words);

}  // namespace muster::launch
