# The examples, the snippets of the documentation, and the stubs. The interpreter is the one with NumPy.
foreach(test IN ITEMS examples docs stubs)
  muster_python_test(python.${test} COMMAND /usr/bin/python3 ${test}_test.py)
endforeach()
foreach(peer IN ITEMS debian torch2)
  muster_python_test(python.${peer}.examples COMMAND ../pytorch/run ${peer} torch_examples_test.py)
endforeach()
