// Reading what people type: sizes, durations, endpoints. Turns text into values or into a CLI11
// validation error that says what would have been right.
#pragma once

#include "muster/base/clock.h"

#include <CLI/CLI.hpp>

#include <cstddef>
#include <string>

namespace muster::cli {

// "512M", "4G", "65536"; K, M, G and T are powers of 1024.
bool parse_size(std::string_view text, std::size_t& out);

CLI::Option* add_size(CLI::App& command, const std::string& name, std::size_t& target,
                      const std::string& description);
CLI::Option* add_duration(CLI::App& command, const std::string& name, Duration& target,
                          const std::string& description);

}  // namespace muster::cli
