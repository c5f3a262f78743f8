// What the program says when it was called wrongly: one line about what is wrong, one about where
// help is.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

// Prints to standard error; returns the exit status.
int report_usage(const CLI::App& program, const CLI::ParseError& error);

}  // namespace muster::cli
