# Python and C++ in one job.
muster_program(NAME interop_server SOURCES interop_server.cpp USES base rpc rref worker)
foreach(test IN ITEMS interop mixed_job)
  muster_python_test(python.${test} COMMAND /usr/bin/python3 ${test}_test.py)
  set_property(TEST python.${test} APPEND PROPERTY ENVIRONMENT
    "MUSTER_INTEROP_SERVER=$<TARGET_FILE:interop_server>"
    "MUSTER_PARAMETER_SERVER=$<TARGET_FILE:parameter_server>")
endforeach()
