# MUSTER_SANITIZE instruments everything; MUSTER_FUZZ adds libFuzzer's coverage on top of `address`.
# MUSTER_TEST_ENVIRONMENT is what every test gets in its environment.
set(MUSTER_TEST_ENVIRONMENT "")

if(MUSTER_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "MUSTER_FUZZ needs Clang: use `cmake --preset fuzz`")
  endif()
  if(NOT MUSTER_SANITIZE STREQUAL "address")
    message(FATAL_ERROR "MUSTER_FUZZ needs MUSTER_SANITIZE=address")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(MUSTER_SANITIZE STREQUAL "address")
  # `vptr` looks at memory through a pipe, and takes a sound object for a broken one where a test has
  # used up the descriptors.
  set(flags -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Clang 14 cannot assemble coroutines with it ("Cannot represent a difference across sections").
    list(APPEND flags -fno-sanitize=function)
    # What GCC says by itself: by it, tests know that they are slow and that memory is watched.
    add_compile_definitions(__SANITIZE_ADDRESS__)
  endif()
  list(APPEND MUSTER_TEST_ENVIRONMENT
    "ASAN_OPTIONS=detect_stack_use_after_return=1" "UBSAN_OPTIONS=print_stacktrace=1")
elseif(MUSTER_SANITIZE STREQUAL "thread")
  set(flags -fsanitize=thread -fno-omit-frame-pointer)
  list(APPEND MUSTER_TEST_ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
elseif(NOT MUSTER_SANITIZE STREQUAL "")
  message(FATAL_ERROR "MUSTER_SANITIZE must be empty, address or thread")
endif()

if(MUSTER_SANITIZE)
  add_compile_options(${flags})
  add_link_options(${flags})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's flow warnings are unreliable in instrumented code; the release build keeps them.
    add_compile_options(-Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow)
    if(MUSTER_SANITIZE STREQUAL "thread")
      # Fences, which GCC's ThreadSanitizer does not model, are warned about even in packages.
      add_compile_options(-Wno-tsan)
    endif()
  endif()
endif()
