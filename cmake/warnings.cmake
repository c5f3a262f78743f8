# Warnings for all our code. Headers of installed packages are system headers and stay silent.
add_compile_options(-Wall -Wextra -Wshadow -Wconversion)

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wno-deprecated-experimental-coroutine)
endif()

if(MUSTER_WERROR)
  add_compile_options(-Werror)
  # What GCC 12 guesses about memory depends on what it has inlined, and with sanitizers it guesses
  # wrong: it takes the inside of a std::string that was moved for an array that is read past its
  # end. The sanitizers themselves know better.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    foreach(guess IN ITEMS array-bounds dangling-pointer free-nonheap-object maybe-uninitialized
                           nonnull restrict stringop-overflow stringop-overread use-after-free)
      add_compile_options(-Wno-error=${guess})
    endforeach()
  endif()
endif()
