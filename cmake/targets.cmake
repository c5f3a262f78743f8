# How libraries, programs, tests and fuzz targets are declared.
#
#   muster_library(NAME net SOURCES loop.cpp USES base wire [LIBS Boost::json]
#                  [TESTS loop_test.cpp] [TEST_USES sim] [TEST_LIBS ...])
#     The static library muster_net, also called muster::net. USES may name only what
#     tools/library_map.txt allows; a single header such as store/store.h may be named too and is
#     not linked. LIBS are libraries of others. TESTS make the executable net_tests, which may use
#     what the map's line `*_test` allows, too.
#
#   muster_program(NAME muster SOURCES main.cpp USES cli [LIBS CLI11::CLI11] [INSTALL])
#     An executable in bin/. INSTALL puts it into PREFIX/bin.
#
#   muster_test(NAME scenarios SOURCES scenarios_test.cpp USES store sim [LIBS ...]
#               [LABELS slow] [TIMEOUT 300])
#     The test executable scenarios_tests, for what crosses library lines. It may use every library.
#
#   muster_fuzzer(NAME frame SOURCES frame.cpp USES wire [LIBS ...])
#     The libFuzzer target fuzz_frame; its corpus is tests/fuzz/corpus/frame. Nothing unless
#     MUSTER_FUZZ is on.
#
# Four targets gather them: `product` (libraries, programs, examples), `checks` (test executables),
# `benches` (programs under bench/) and `fuzzers`.
include(GoogleTest)

# What has threads in it, ours or the test's. ThreadSanitizer can find nothing elsewhere, and costs
# minutes: only these are built for it.
set(MUSTER_THREADED_TESTS
  base_tests net_tests etcd_tests backends_tests process_tests logs_tests watchdog_tests
  observe_tests failures_tests rpc_tests worker_tests references_tests rpc_load_tests server_tests crowd_tests linearizability_tests
  real_etcd_tests)

add_custom_target(product)
add_custom_target(checks)
add_custom_target(benches)
add_custom_target(fuzzers)

# Reads the map into MUSTER_MAP_<library>; MUSTER_LIBRARIES lists the libraries.
set(MUSTER_MAP_FILE "${CMAKE_SOURCE_DIR}/tools/library_map.txt")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${MUSTER_MAP_FILE}")
file(STRINGS "${MUSTER_MAP_FILE}" muster_map_lines REGEX "^[^#]+:")
set(MUSTER_LIBRARIES "")
foreach(line IN LISTS muster_map_lines)
  string(REGEX MATCH "^([^:]+):(.*)$" ignored "${line}")
  set(name "${CMAKE_MATCH_1}")
  string(STRIP "${CMAKE_MATCH_2}" uses)
  string(REGEX REPLACE "[ \t]+" ";" uses "${uses}")
  if(name STREQUAL "*_test")
    set(MUSTER_MAP_OF_TESTS "${uses}")
  else()
    list(APPEND MUSTER_LIBRARIES "${name}")
    set(MUSTER_MAP_${name} "${uses}")
  endif()
endforeach()

function(muster_check_map library)
  if(NOT library IN_LIST MUSTER_LIBRARIES)
    message(FATAL_ERROR "library '${library}' is not in tools/library_map.txt")
  endif()
  foreach(use IN LISTS ARGN)
    if(NOT use IN_LIST MUSTER_MAP_${library})
      string(REPLACE ";" ", " allowed "${MUSTER_MAP_${library}}")
      message(FATAL_ERROR "library '${library}' may not use '${use}'; "
        "tools/library_map.txt allows: ${allowed}")
    endif()
  endforeach()
endfunction()

# What all our targets share: include root, the libraries used, the precompiled header of `kind`.
# `visibility` is how USES and LIBS are linked.
function(muster_set_up target visibility kind)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "USES;LIBS")
  target_include_directories(${target} ${visibility} "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} ${visibility} fmt::fmt Threads::Threads ${arg_LIBS})
  foreach(use IN LISTS arg_USES)
    if(NOT use MATCHES "/")
      target_link_libraries(${target} ${visibility} muster::${use})
    endif()
  endforeach()
  muster_precompile(${target} ${kind})
endfunction()

# Makes the test executable `target` and registers its cases with ctest as PREFIX.Suite.Case.
function(muster_add_test_executable target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PREFIX;TIMEOUT" "SOURCES;USES;LIBS;LABELS")
  if(MUSTER_SANITIZE STREQUAL "thread" AND NOT target IN_LIST MUSTER_THREADED_TESTS)
    return()
  endif()
  add_executable(${target} ${arg_SOURCES})
  add_dependencies(checks ${target})
  muster_set_up(${target} PRIVATE test USES ${arg_USES} LIBS ${arg_LIBS} GTest::gtest_main)
  gtest_discover_tests(${target}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    TEST_PREFIX "${arg_PREFIX}."
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    PROPERTIES TIMEOUT ${arg_TIMEOUT})
  # gtest_discover_tests flattens properties that are lists; a file included after it can set them.
  set(script "${CMAKE_CURRENT_BINARY_DIR}/${target}_properties.cmake")
  file(CONFIGURE OUTPUT "${script}" @ONLY CONTENT [[
if(@target@_TESTS)
  set_tests_properties(${@target@_TESTS} PROPERTIES
    LABELS "@arg_LABELS@" ENVIRONMENT "@MUSTER_TEST_ENVIRONMENT@")
endif()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${script}")
endfunction()

function(muster_refuse_unknown function)
  if(ARGN)
    message(FATAL_ERROR "${function}: unknown arguments: ${ARGN}")
  endif()
endfunction()

function(muster_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;USES;LIBS;TESTS;TEST_USES;TEST_LIBS")
  muster_refuse_unknown(muster_library ${arg_UNPARSED_ARGUMENTS})
  muster_check_map(${arg_NAME} ${arg_USES})
  set(target muster_${arg_NAME})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(muster::${arg_NAME} ALIAS ${target})
  muster_set_up(${target} PUBLIC product USES ${arg_USES} LIBS ${arg_LIBS})
  if(arg_NAME STREQUAL "cli" OR arg_NAME STREQUAL "backends")
    target_compile_definitions(${target} PRIVATE "MUSTER_VERSION=\"${PROJECT_VERSION}\"")
  endif()
  add_dependencies(product ${target})

  if(MUSTER_TESTS AND arg_TESTS)
    foreach(use IN LISTS arg_TEST_USES)
      if(NOT use IN_LIST MUSTER_MAP_OF_TESTS AND NOT use IN_LIST MUSTER_MAP_${arg_NAME})
        message(FATAL_ERROR "the tests of '${arg_NAME}' may not use '${use}'; "
          "see the line *_test in tools/library_map.txt")
      endif()
    endforeach()
    muster_add_test_executable(${arg_NAME}_tests PREFIX ${arg_NAME} SOURCES ${arg_TESTS}
      USES ${arg_NAME} ${arg_TEST_USES} LIBS ${arg_TEST_LIBS} LABELS ${arg_NAME} TIMEOUT 120)
  endif()
endfunction()

function(muster_program)
  cmake_parse_arguments(PARSE_ARGV 0 arg "INSTALL" "NAME" "SOURCES;USES;LIBS")
  muster_refuse_unknown(muster_program ${arg_UNPARSED_ARGUMENTS})
  if("sim" IN_LIST arg_USES AND
      NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/(tests|bench)")
    message(FATAL_ERROR "program '${arg_NAME}' may not use sim: only tests and benchmarks do")
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  muster_set_up(${arg_NAME} PRIVATE product USES ${arg_USES} LIBS ${arg_LIBS})
  if(CMAKE_CURRENT_SOURCE_DIR STREQUAL "${CMAKE_SOURCE_DIR}/muster/cli")
    target_compile_definitions(${arg_NAME} PRIVATE "MUSTER_VERSION=\"${PROJECT_VERSION}\"")
  endif()
  if(arg_INSTALL)
    install(TARGETS ${arg_NAME} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/bench")
    add_dependencies(benches ${arg_NAME})
  elseif(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/tests")
    add_dependencies(product ${arg_NAME})
  endif()
endfunction()

function(muster_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TIMEOUT" "SOURCES;USES;LIBS;LABELS")
  muster_refuse_unknown(muster_test ${arg_UNPARSED_ARGUMENTS})
  if(NOT MUSTER_TESTS)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  muster_add_test_executable(${arg_NAME}_tests PREFIX ${arg_NAME} SOURCES ${arg_SOURCES}
    USES ${arg_USES} LIBS ${arg_LIBS} LABELS ${arg_NAME} ${arg_LABELS} TIMEOUT ${arg_TIMEOUT})
endfunction()

function(muster_fuzzer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;USES;LIBS")
  muster_refuse_unknown(muster_fuzzer ${arg_UNPARSED_ARGUMENTS})
  if(NOT MUSTER_FUZZ)
    return()
  endif()
  set(target fuzz_${arg_NAME})
  add_executable(${target} ${arg_SOURCES})
  muster_set_up(${target} PRIVATE product USES ${arg_USES} LIBS ${arg_LIBS})
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${target})
endfunction()
