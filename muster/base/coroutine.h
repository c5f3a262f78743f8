// <coroutine> for both compilers. Clang 14 still looks for the names in std::experimental and does
// not announce the feature, so libstdc++'s header needs to be told; newer Clangs and GCC take the
// header as it is.
#pragma once

#if defined(__clang__) && !defined(__cpp_impl_coroutine)
#define __cpp_impl_coroutine 1  // NOLINT(bugprone-reserved-identifier)
#endif

#include <coroutine>  // IWYU pragma: export

#if defined(__clang__) && __clang_major__ < 15
namespace std::experimental {  // NOLINT(cert-dcl58-cpp)
using std::coroutine_handle;
using std::coroutine_traits;
}  // namespace std::experimental
#endif
