# Precompiled headers: one for the product, one for tests, shared by all targets of that kind.
#
# Each is compiled once per build folder by a target of its own, made when the first target asks for
# it. The definitions of fmt and GoogleTest must be those of the targets that reuse the header, so
# every one of our targets links fmt.
#
# A source may not rely on this: the presets tidy and fuzz build without it, and the lint compiles
# each header alone.
set(MUSTER_PCH_HEADERS
  <algorithm> <array> <atomic> <chrono> <compare> <cstddef> <cstdint> <cstring> <deque> <functional>
  <iterator> <limits> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <thread>
  <tuple> <type_traits> <unordered_map> <utility> <variant> <vector>
  <fmt/format.h> <tl/expected.hpp>)

# Lets `target` use the shared precompiled header of `kind`: product or test.
function(muster_precompile target kind)
  if(NOT MUSTER_PCH)
    return()
  endif()
  set(owner muster_pch_${kind})
  if(NOT TARGET ${owner})
    set(source "${CMAKE_BINARY_DIR}/pch/${owner}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "// Carries the precompiled header.\n")
    add_library(${owner} OBJECT EXCLUDE_FROM_ALL "${source}")
    target_link_libraries(${owner} PRIVATE fmt::fmt)
    target_precompile_headers(${owner} PRIVATE ${MUSTER_PCH_HEADERS})
    if(kind STREQUAL "test")
      target_link_libraries(${owner} PRIVATE GTest::gtest)
      target_precompile_headers(${owner} PRIVATE <gtest/gtest.h>)
    endif()
    set_target_properties(${owner} PROPERTIES CXX_CLANG_TIDY "")
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()
