// Numbers as people type them: the spellings that Python's int() and float() take, since that is
// what scripts written for torchrun were tried with.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace muster::launch {

// White space around, a sign, and single underscores between digits are allowed.
std::optional<std::int64_t> parse_integer(std::string_view text);
// Finite ones only.
std::optional<double> parse_decimal(std::string_view text);
// "65536", "512M", "4GiB": K, M, G and T are powers of 1024.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace muster::launch
