# The programs of the RPC comparison: build/bench/rpc_NAME from rpc/NAME_rpc.cpp, one for each peer.
# A peer whose package is not installed is not built, and bench/run names it as missing;
# `tools/packages install bench` brings all of them. MUSTER_BENCH_RPC_PROGRAMS lists the targets.
set(MUSTER_BENCH_RPC_PROGRAMS "")
find_package(PkgConfig QUIET)

add_library(bench_rpc_program STATIC rpc/program.cpp)
target_include_directories(bench_rpc_program PRIVATE "${PROJECT_SOURCE_DIR}")
target_link_libraries(bench_rpc_program PUBLIC fmt::fmt Threads::Threads)

# muster_rpc_peer(NAME [SOURCES ...] [LIBS ...])
function(muster_rpc_peer name)
  cmake_parse_arguments(peer "" "" "SOURCES;LIBS" ${ARGN})
  set(target bench_rpc_${name})
  add_executable(${target} rpc/${name}_rpc.cpp ${peer_SOURCES})
  target_link_libraries(${target} PRIVATE bench_rpc_program ${peer_LIBS})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME rpc_${name})
  set(MUSTER_BENCH_RPC_PROGRAMS ${MUSTER_BENCH_RPC_PROGRAMS} ${target} PARENT_SCOPE)
endfunction()

# muster_rpc_generated(NAME SOURCES ... LIBS ...): what a peer's compiler makes from its description,
# as the library bench_rpc_NAME_generated. How that is written is not ours to warn about.
set(muster_rpc_folder "${CMAKE_CURRENT_BINARY_DIR}/rpc")
file(MAKE_DIRECTORY "${muster_rpc_folder}")

function(muster_rpc_generated name)
  cmake_parse_arguments(peer "" "" "SOURCES;LIBS" ${ARGN})
  set(target bench_rpc_${name}_generated)
  add_library(${target} STATIC ${peer_SOURCES})
  target_compile_options(${target} PRIVATE -w)
  target_include_directories(${target} SYSTEM PUBLIC "${muster_rpc_folder}")
  target_link_libraries(${target} PUBLIC ${peer_LIBS})
  set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY "")
endfunction()

muster_rpc_peer(raw SOURCES rpc/large_bytes.cpp rpc/raw_shm.cpp rpc/raw_tcp.cpp LIBS muster::base)

# ---- Muster ----
if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/rpc/muster_rpc.cpp")
  muster_rpc_peer(muster LIBS muster::worker muster::rref muster::rpc muster::store muster::net muster::wire muster::base)
endif()

# Nobody compares instrumented programs.
if(MUSTER_SANITIZE OR NOT PkgConfig_FOUND)
  return()
endif()

# ---- gRPC ----
find_program(MUSTER_PROTOC protoc)
find_program(MUSTER_PROTOC_GRPC grpc_cpp_plugin)
pkg_check_modules(MUSTER_GRPC QUIET IMPORTED_TARGET grpc++ protobuf)
if(MUSTER_GRPC_FOUND AND MUSTER_PROTOC AND MUSTER_PROTOC_GRPC)
  set(generated
    "${muster_rpc_folder}/grpc_rpc.pb.cc" "${muster_rpc_folder}/grpc_rpc.grpc.pb.cc")
  add_custom_command(
    OUTPUT ${generated}
      "${muster_rpc_folder}/grpc_rpc.pb.h" "${muster_rpc_folder}/grpc_rpc.grpc.pb.h"
    COMMAND "${MUSTER_PROTOC}" "--proto_path=${CMAKE_CURRENT_SOURCE_DIR}/rpc"
      "--cpp_out=${muster_rpc_folder}" "--grpc_out=${muster_rpc_folder}"
      "--plugin=protoc-gen-grpc=${MUSTER_PROTOC_GRPC}" grpc_rpc.proto
    DEPENDS rpc/grpc_rpc.proto
    VERBATIM)
  muster_rpc_generated(grpc SOURCES ${generated} LIBS PkgConfig::MUSTER_GRPC)
  muster_rpc_peer(grpc LIBS bench_rpc_grpc_generated)
else()
  message(STATUS "gRPC is not installed: bench/run rpc goes without it")
endif()

# ---- Cap'n Proto ----
find_program(MUSTER_CAPNP capnp)
find_program(MUSTER_CAPNPC_CXX capnpc-c++)
pkg_check_modules(MUSTER_CAPNP_RPC QUIET IMPORTED_TARGET capnp-rpc)
if(MUSTER_CAPNP_RPC_FOUND AND MUSTER_CAPNP AND MUSTER_CAPNPC_CXX)
  set(generated "${muster_rpc_folder}/capnp_rpc.capnp.c++")
  add_custom_command(
    OUTPUT "${generated}" "${muster_rpc_folder}/capnp_rpc.capnp.h"
    COMMAND "${MUSTER_CAPNP}" compile "-o${MUSTER_CAPNPC_CXX}:${muster_rpc_folder}"
      "--src-prefix=${CMAKE_CURRENT_SOURCE_DIR}/rpc"
      "${CMAKE_CURRENT_SOURCE_DIR}/rpc/capnp_rpc.capnp"
    DEPENDS rpc/capnp_rpc.capnp
    VERBATIM)
  muster_rpc_generated(capnp SOURCES ${generated} LIBS PkgConfig::MUSTER_CAPNP_RPC)
  muster_rpc_peer(capnp LIBS bench_rpc_capnp_generated)
else()
  message(STATUS "Cap'n Proto is not installed: bench/run rpc goes without it")
endif()

# ---- TensorPipe ----
find_path(MUSTER_TENSORPIPE_INCLUDE tensorpipe/tensorpipe.h)
find_library(MUSTER_TENSORPIPE tensorpipe)
if(MUSTER_TENSORPIPE_INCLUDE AND MUSTER_TENSORPIPE)
  muster_rpc_peer(tensorpipe LIBS "${MUSTER_TENSORPIPE}")
  target_include_directories(bench_rpc_tensorpipe SYSTEM PRIVATE "${MUSTER_TENSORPIPE_INCLUDE}")
else()
  message(STATUS "TensorPipe is not installed: bench/run rpc goes without it")
endif()
