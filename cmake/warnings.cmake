# Warnings for all our code. Headers of installed packages are system headers and stay silent.
add_compile_options(-Wall -Wextra -Wshadow -Wconversion)

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wno-deprecated-experimental-coroutine)
endif()

if(MUSTER_WERROR)
  add_compile_options(-Werror)
endif()
