# Warnings for all our code. Headers of installed packages are system headers and stay silent.
add_compile_options(-Wall -Wextra -Wshadow -Wconversion)

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wno-deprecated-experimental-coroutine)
endif()

# What GCC 12 guesses about memory depends on what it has inlined, and often it guesses wrong: it takes
# the inside of a std::string that was moved or joined for an array that is read past its end. The
# sanitizers know better; their builds show the guesses, and do not fail for them.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  foreach(guess IN ITEMS array-bounds dangling-pointer free-nonheap-object maybe-uninitialized
                         nonnull restrict stringop-overflow stringop-overread use-after-free)
    if(MUSTER_WERROR)
      list(APPEND muster_guesses -Wno-error=${guess})
    else()
      list(APPEND muster_guesses -Wno-${guess})
    endif()
  endforeach()
endif()

if(MUSTER_WERROR)
  add_compile_options(-Werror)
endif()
add_compile_options(${muster_guesses})
