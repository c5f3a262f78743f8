// `muster run` (and the name `torchrun`): launches a program as the workers of an elastic job.
#pragma once

#include "muster/launch/options.h"

#include <string>
#include <vector>

namespace muster::cli {

// `words` are those behind `run`. Returns the exit status; does not return at all if a signal ends
// the program before any worker was started.
int run_command(const std::vector<std::string>& words, launch::Style style);

}  // namespace muster::cli
