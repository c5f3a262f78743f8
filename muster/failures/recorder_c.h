// recorder.h for programs in C. Link recorder.cpp (and the C++ library) with the program.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Records fatal signals from now on (and, in a mixed program, uncaught C++ exceptions). Call it
// once, before other threads start.
void muster_install_recorder(void);

// Writes the error file now. `traceback` may be NULL. 1 if it was written, 0 if there is none to
// write or it cannot be written.
int muster_record_error(const char* message, const char* traceback);

#ifdef __cplusplus
}
#endif
