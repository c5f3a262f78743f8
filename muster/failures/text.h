// Small tools for text that comes from programs which are not ours and may be in trouble.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muster::failures {

// `text` if it fits into `bytes_max`; else its beginning and its end, with a line between them that
// says how much was left out. Never cuts inside a UTF-8 sequence. The result may exceed `bytes_max`
// by the length of that line.
std::string keep_ends(std::string_view text, std::size_t bytes_max);

// Valid UTF-8 that is safe to print: control characters (except newline and tab) and bytes that are
// not UTF-8 become \xNN.
std::string printable(std::string_view text);

// Valid UTF-8, and otherwise unchanged: bytes that are not UTF-8 become U+FFFD.
std::string valid_utf8(std::string_view text);

// How many characters (code points) a terminal line holds; bytes that are not UTF-8 count as one.
std::size_t character_count(std::string_view text);

}  // namespace muster::failures
