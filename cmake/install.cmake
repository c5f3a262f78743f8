# What `make install` puts beside the program: the library for programs in C++, its headers, how
# CMake and pkg-config find them, and the completions of the shells. README.md tells it by example;
# tests/install does what a user does with the outcome.
#
# libmuster.a is one archive of all that a worker may use: calls, references, the store, and the two
# small parts by which it tells its agent how it is. The agent's own libraries are not in it, nor is
# anything that needs more than fmt to be linked.
if(MUSTER_SANITIZE)
  return()  # nobody installs that
endif()
set(MUSTER_INSTALLED_LIBRARIES base wire net store rpc rref worker)
set(MUSTER_INSTALLED_ALONE failures/recorder watchdog/tell_agent)
set(MUSTER_INSTALLED_HEADERS
  rpc.h failures/recorder.h failures/recorder_c.h watchdog/socket.h watchdog/message.h)

add_library(libmuster STATIC)
foreach(library IN LISTS MUSTER_INSTALLED_LIBRARIES)
  target_sources(libmuster PRIVATE $<TARGET_OBJECTS:muster_${library}>)
  install(DIRECTORY "muster/${library}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/muster"
    FILES_MATCHING PATTERN "*.h" PATTERN "*_test.h" EXCLUDE)
endforeach()
foreach(source IN LISTS MUSTER_INSTALLED_ALONE)
  target_sources(libmuster PRIVATE "muster/${source}.cpp")
endforeach()
foreach(header IN LISTS MUSTER_INSTALLED_HEADERS)
  get_filename_component(folder "muster/${header}" DIRECTORY)
  install(FILES "muster/${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
endforeach()
target_include_directories(libmuster PRIVATE "${PROJECT_SOURCE_DIR}"
  INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_libraries(libmuster PUBLIC fmt::fmt Threads::Threads)
target_compile_features(libmuster INTERFACE cxx_std_20)
set_target_properties(libmuster PROPERTIES OUTPUT_NAME muster EXPORT_NAME muster)
add_dependencies(product libmuster)
install(TARGETS libmuster EXPORT muster ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")

# find_package(muster) gives the target muster::muster.
include(CMakePackageConfigHelpers)
set(folder "${CMAKE_INSTALL_LIBDIR}/cmake/muster")
install(EXPORT muster NAMESPACE muster:: FILE muster-targets.cmake DESTINATION "${folder}")
configure_package_config_file(cmake/muster-config.cmake.in
  "${PROJECT_BINARY_DIR}/package/muster-config.cmake" INSTALL_DESTINATION "${folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/muster-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/package/muster-config.cmake"
  "${PROJECT_BINARY_DIR}/package/muster-config-version.cmake" DESTINATION "${folder}")

# The file for pkg-config says where it lies relative to itself, so that the whole may be moved.
file(RELATIVE_PATH MUSTER_PREFIX_FROM_PC "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/muster.pc.in "${PROJECT_BINARY_DIR}/package/muster.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/muster.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# The program itself prints the scripts, so they are always those of its version.
set(completions "${PROJECT_BINARY_DIR}/completions")
file(MAKE_DIRECTORY "${completions}")
foreach(shell IN ITEMS bash zsh)
  add_custom_command(OUTPUT "${completions}/${shell}" DEPENDS muster VERBATIM
    COMMAND sh -c "\"$0\" completion \"$1\" > \"$2\"" $<TARGET_FILE:muster> ${shell}
      "${completions}/${shell}")
endforeach()
add_custom_target(completions ALL DEPENDS "${completions}/bash" "${completions}/zsh")
add_dependencies(product completions)
install(FILES "${completions}/bash" RENAME muster
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
install(FILES "${completions}/zsh" RENAME _muster
  DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
