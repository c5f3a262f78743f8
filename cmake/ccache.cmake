# Compile through ccache when it is installed.
#
# `pch_defines,time_macros` is what ccache asks for before it caches anything that uses a
# precompiled header. The base directory makes a second checkout hit what the first one compiled.
find_program(MUSTER_CCACHE ccache)
mark_as_advanced(MUSTER_CCACHE)
if(MUSTER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros
    "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" "${MUSTER_CCACHE}")
  if(MUSTER_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  elseif(MUSTER_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  endif()
endif()
