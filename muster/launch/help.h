// What `muster run` says about itself, made from the table of options.
#pragma once

#include "muster/launch/options.h"

#include <string>

namespace muster::launch {

// All options, grouped, in at most 80 columns.
std::string help_text(Style style);

// A few lines, which come before a usage error.
std::string usage_text(Style style);

}  // namespace muster::launch
