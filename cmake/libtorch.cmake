# libtorch, for the example torch_tensors alone. Nothing else may need it.
#
# Found by its files, not with find_package(Torch): that looks for a dozen other packages, sets flags
# for everybody, and fails loudly where one of them is missing.
#
# MUSTER_LIBTORCH is the target to link, or empty; MUSTER_NO_LIBTORCH then says why.
set(MUSTER_LIBTORCH "")
set(MUSTER_NO_LIBTORCH "")
find_path(MUSTER_LIBTORCH_INCLUDE ATen/DLConvertor.h)
find_library(MUSTER_LIBTORCH_CPU torch_cpu)
find_library(MUSTER_LIBTORCH_C10 c10)
mark_as_advanced(MUSTER_LIBTORCH_INCLUDE MUSTER_LIBTORCH_CPU MUSTER_LIBTORCH_C10)

if(MUSTER_SANITIZE)
  # The sanitizers would see half of what happens, and report the rest.
  set(MUSTER_NO_LIBTORCH "libtorch is not built with a sanitizer")
elseif(MUSTER_TIDY OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # As C++20 and with the library of GCC 12, which makes Clang look into a vector of a type that is not
  # complete there.
  set(MUSTER_NO_LIBTORCH "the headers of libtorch 1.13 do not compile with Clang")
elseif(NOT (MUSTER_LIBTORCH_INCLUDE AND MUSTER_LIBTORCH_CPU AND MUSTER_LIBTORCH_C10))
  set(MUSTER_NO_LIBTORCH "libtorch is not installed (on Debian: libtorch-dev)")
else()
  set(MUSTER_LIBTORCH muster_libtorch)
  add_library(muster_libtorch INTERFACE)
  target_include_directories(muster_libtorch SYSTEM INTERFACE "${MUSTER_LIBTORCH_INCLUDE}")
  target_link_libraries(muster_libtorch INTERFACE "${MUSTER_LIBTORCH_CPU}" "${MUSTER_LIBTORCH_C10}")
endif()

if(MUSTER_LIBTORCH)
  message(STATUS "examples/torch_tensors: built, with ${MUSTER_LIBTORCH_CPU}")
else()
  message(STATUS "examples/torch_tensors: not built: ${MUSTER_NO_LIBTORCH}")
endif()
