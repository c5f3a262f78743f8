# MUSTER_TIDY: clang-tidy beside every compilation; its checks are in .clang-tidy.
if(MUSTER_TIDY)
  find_program(MUSTER_CLANG_TIDY NAMES clang-tidy-14 clang-tidy REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY "${MUSTER_CLANG_TIDY}" --quiet)
endif()
