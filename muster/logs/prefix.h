// What stands before a worker's line on the console.
//
// Pure. The default is torchrun's: "[<role><local rank>]:", and the line follows at once. A
// template may name ${role_name}, ${rank}, ${local_rank} and ${hostname}, with or without braces;
// "$$" gives a dollar sign; names that are not known and references that are malformed stay as they
// are.
#pragma once

#include <string>
#include <string_view>

namespace muster::logs {

struct PrefixFields {
  std::string role;
  int rank = 0;
  int local_rank = 0;
  std::string hostname;  // the short one
};

// Empty template: the default prefix.
std::string make_prefix(std::string_view prefix_template, const PrefixFields& fields);

// The prefix in the colour of its rank, for terminals. It begins by undoing what the last line has
// left behind.
std::string in_colour(std::string_view prefix, int local_rank);

// Whether a stream gets colours: a terminal does, unless NO_COLOR is set to anything or TERM is
// "dumb". The variables as `getenv` gives them.
bool wants_colour(bool is_terminal, const char* no_color, const char* term);

// "node-3" for "node-3.example.org".
std::string short_host_name(std::string_view host_name);

}  // namespace muster::logs
