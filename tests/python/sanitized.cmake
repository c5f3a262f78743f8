# With the native module, and all under it, built for AddressSanitizer: into an interpreter that is
# not, so the sanitizer's libraries are loaded before everything else. Leaks are not looked for: the
# interpreter itself leaves things behind.
if(NOT MUSTER_SANITIZE STREQUAL "address" OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  return()
endif()

# Clang links the sanitizer into programs; a module needs it as a library.
target_link_options(muster_python PRIVATE -shared-libasan)
set(preloaded "")
foreach(library IN ITEMS "libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so" libstdc++.so)
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" "-print-file-name=${library}"
    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(APPEND preloaded "${path}:")
endforeach()

add_dependencies(checks muster_python)
foreach(test IN ITEMS rpc_calls rpc_future rpc_async rpc_reference rpc_exit rpc_edges rpc_stress)
  muster_python_test(python_sanitized.${test} COMMAND "${MUSTER_PYTHON_EXECUTABLE}" ${test}_test.py)
  set_property(TEST python_sanitized.${test} PROPERTY LABELS python_sanitized)
  set_property(TEST python_sanitized.${test} APPEND PROPERTY ENVIRONMENT
    "LD_PRELOAD=${preloaded}" "ASAN_OPTIONS=detect_leaks=0" "UBSAN_OPTIONS=print_stacktrace=1"
    "MUSTER_TEST_SANITIZED=1")
endforeach()
