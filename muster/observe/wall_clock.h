// The wall clock, for what people and other programs read: event times, metric times, HTTP dates.
// Nothing is decided by it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace muster::observe {

// Nanoseconds since 1970, UTC. Handed to whatever stamps records, so that tests give their own.
using WallClock = std::function<std::int64_t()>;

std::int64_t wall_nanoseconds();

// "Sun, 06 Nov 1994 08:49:37 GMT", as HTTP writes dates.
std::string http_date(std::int64_t wall_nanoseconds);

}  // namespace muster::observe
