// MUSTER_ASSERT: on in every build. It guards our own promises, never input from outside.
#pragma once

namespace muster::internal {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);
}  // namespace muster::internal

#define MUSTER_ASSERT(condition) \
  (static_cast<bool>(condition)  \
       ? static_cast<void>(0)    \
       : ::muster::internal::assertion_failed(#condition, __FILE__, __LINE__))
