"""Programs that end, and how: without goodbye, with calls under way, from odd places.

Each is a program of its own, whose exit status and last words are what is looked at.
"""

import os
import signal
import subprocess
import sys
import unittest

from workers import PATIENCE_SECONDS, TestCase

# What every program begins with. It is one worker, or two: then it has started the other, which
# runs the same program, as a process of its own.
HEAD = """
import atexit, faulthandler, gc, os, signal, subprocess, sys, threading, time, weakref
faulthandler.enable()
import muster.rpc as rpc
from muster.futures import Future

def start(size=1):
    rank = int(os.environ.get("TEST_RANK", 0))
    global other
    other = None
    if size == 2 and rank == 0:
        other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "TEST_RANK": "1"})
    options = rpc.TensorPipeRpcBackendOptions(init_method=sys.argv[1])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options)
    return rank

def echo(value):
    return value

ending = threading.Event()
atexit.register(ending.set)

def late():
    # Ends a little later than the program does, or its other worker, which nobody tells.
    while not ending.wait(0.01) and rpc._is_current_rpc_agent_set():
        pass
    ending.wait(0.02)
    return rpc.WorkerInfo("late", 1)

class Slow:
    def __del__(self):
        time.monotonic()

done = []
"""


class ExitTest(TestCase):
    def check_ends(self, text, *parts, expects=0, env=None):
        said = self.run_script(HEAD + text, expects=expects, env=env)
        for part in parts:
            self.assertIn(part, said)
        for bad in ("Fatal Python error", "Segmentation", "terminate called", "AddressSanitizer"):
            self.assertNotIn(bad, said)
        return said

    def test_without_shutdown(self):
        said = self.check_ends("start()\nprint(rpc.rpc_sync('worker0', echo, (5,)))", "5")
        self.assertIn("without rpc.shutdown()", said)

    def test_after_shutdown_nothing_is_said(self):
        said = self.check_ends("start()\nrpc.rpc_sync('worker0', echo, (5,))\nrpc.shutdown()")
        self.assertEqual(said, "")

    def test_without_having_started(self):
        self.assertEqual(self.check_ends("Future().then(print)"), "")

    def test_with_calls_under_way(self):
        self.check_ends(
            """
if start(2) == 0:
    futures = [rpc.rpc_async("worker1", late, timeout=0) for _ in range(4)]
    kept = [rpc.remote("worker1", late, timeout=0), rpc.remote("worker1", echo, (1,))]
    later = [future.then(lambda f: f.wait()) for future in futures]
    for future in futures:
        future.add_done_callback(done.append)
else:
    try:
        rpc.shutdown()
    except RuntimeError:
        ending.set()
print("reached", flush=True)
""",
            "reached",
        )

    def test_with_calls_to_itself_under_way(self):
        self.check_ends(
            """
start()
futures = [rpc.rpc_async("worker0", late, timeout=0) for _ in range(4)]
kept = rpc.remote("worker0", late, timeout=0)
rpc.rpc_sync("worker0", echo, (1,))
print("reached", flush=True)
""",
            "reached",
        )

    def test_from_an_atexit_handler(self):
        self.check_ends(
            """
@atexit.register
def goodbye():
    print("called", rpc.rpc_sync("worker0", echo, (7,)), flush=True)
    rpc.shutdown()
    print("ended", flush=True)
start()
""",
            "called 7",
            "ended",
        )

    def test_with_calls_from_an_atexit_handler_that_came_too_late(self):
        # Registered before the package was imported, so run after its own handler.
        said = self.run_script(
            """
import atexit, sys
@atexit.register
def goodbye():
    try:
        rpc.rpc_sync("worker0", len, ("abc",))
    except RuntimeError as error:
        print("refused:", error, flush=True)
import muster.rpc as rpc
options = rpc.TensorPipeRpcBackendOptions(init_method=sys.argv[1] + "2")
rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=options)
"""
        )
        self.assertIn("refused: RPC has not been initialized", said)

    def test_with_threads_that_wait(self):
        self.check_ends(
            """
start()
def wait(what):
    try:
        what()
    except RuntimeError:
        pass
waiting = [Future().wait, rpc.rpc_async("worker0", late, timeout=0).wait,
           rpc.remote("worker0", late, timeout=0).to_here,
           lambda: rpc.rpc_sync("worker0", late, timeout=0)]
for what in waiting * 2:
    threading.Thread(target=wait, args=(what,), daemon=True).start()
rpc.rpc_sync("worker0", echo, (1,))
print("reached", flush=True)
""",
            "reached",
        )

    def test_with_threads_that_call_on_and_on(self):
        self.check_ends(
            """
start()
def call():
    while True:
        try:
            rpc.rpc_async("worker0", echo, ([1] * 100,)).then(lambda f: f.wait())
            rpc.remote("worker0", echo, (Slow(),))
        except RuntimeError:
            return
for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
for _ in range(200):
    rpc.rpc_sync("worker0", echo, (1,))
print("reached", flush=True)
""",
            "reached",
        )

    def test_with_callbacks_pending(self):
        self.check_ends(
            """
start()
class Callback:
    def __call__(self, future):
        done.append(future.wait())
    def __del__(self):
        done.append(threading.current_thread())
future = Future()
future.add_done_callback(Callback())
later = future.then(Callback())
called = rpc.rpc_async("worker0", late, timeout=0)
called.add_done_callback(Callback())
print("reached", flush=True)
""",
            "reached",
        )

    def test_with_references_in_cycles(self):
        self.check_ends(
            """
if start(2) == 0:
    ring = [rpc.remote("worker1", echo, (n,)) for n in range(20)] + [rpc.RRef(Slow())]
    ring.append(ring)
    [one.to_here() for one in ring[:20]]
    gc.disable()
    del ring
    held = [rpc.RRef(Slow()) for _ in range(10)]
    rpc.rpc_sync("worker1", echo, (held,))
    rpc.shutdown()
    print("reached", flush=True)
else:
    rpc.shutdown()
""",
            "reached",
        )

    def test_with_values_whose_destructors_call(self):
        self.check_ends(
            """
class Calls:
    def __del__(self):
        try:
            rpc.rpc_sync("worker0", echo, (1,))
        except RuntimeError:
            pass
start()
held = [rpc.RRef(Calls()), rpc.remote("worker0", Calls), Calls()]
rpc.rpc_sync("worker0", echo, (1,))
print("reached", flush=True)
""",
            "reached",
        )

    def test_by_an_exception(self):
        said = self.check_ends("start()\nraise KeyError('the reason')", "the reason", expects=1)
        self.assertIn("KeyError", said)

    def test_by_sys_exit_in_the_middle_of_a_callback(self):
        self.check_ends(
            """
start()
future = rpc.rpc_async("worker0", echo, (1,)).then(lambda f: sys.exit(5))
try:
    future.wait()
except (SystemExit, RuntimeError):
    print("reached", flush=True)
sys.exit(3)
""",
            "reached",
            expects=3,
        )

    def test_with_a_signal_that_ends_it(self):
        self.check_ends(
            """
start()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
rpc.rpc_sync("worker0", late, timeout=0)
""",
            expects=4,
        )

    def test_the_other_is_told(self):
        said = self.check_ends(
            """
if start(2) == 1:
    rpc.api._wait_all_workers()
    sys.exit()
future = rpc.rpc_async("worker1", late, timeout=0)
rpc.api._wait_all_workers()
try:
    future.wait()
except RuntimeError as error:
    assert "worker1" in str(error), error
try:
    rpc.shutdown()
except RuntimeError as error:
    print("ended:", error, flush=True)
sys.exit(other.wait())
""",
            "ended:",
        )
        self.assertIn("worker1", said)

    def test_a_forked_child_ends_quietly(self):
        self.check_ends(
            """
start()
rpc.rpc_sync("worker0", echo, (1,))
pid = os.fork()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert subprocess.run(["true"]).returncode == 0
rpc.rpc_sync("worker0", echo, (1,))
rpc.shutdown()
print("reached", flush=True)
""",
            "reached",
        )


# Import hooks that make modules look as if they were not installed.
BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "cloudpickle"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


class BareTest(TestCase):
    def test_works_without_pytorch_numpy_and_cloudpickle(self):
        said = self.run_script(
            BLOCKER
            + HEAD
            + """
assert not {"torch", "numpy", "cloudpickle", "asyncio"} & {"torch", "numpy", "cloudpickle"} & set(sys.modules)
class Thing:
    def __init__(self, data):
        self.data = data
    def size(self):
        return len(self.data)
@rpc.functions.async_execution
def later(value):
    return rpc.rpc_async("worker0", echo, (value,)).then(lambda f: f.wait() + 1)
async def coroutine(value):
    return await rpc.rpc_async("worker0", echo, (value,))
if start(2) == 0:
    assert rpc.rpc_sync("worker1", echo, ({"a": [1, b"x" * 100000]},)) == {"a": [1, b"x" * 100000]}
    rref = rpc.remote("worker1", Thing, (bytearray(1 << 20),))
    assert rref.rpc_sync().size() == 1 << 20
    assert rpc.rpc_sync("worker1", later, (1,)) == 2
    assert rpc.rpc_sync("worker1", coroutine, (3,)) == 3
    from muster.futures import wait_all
    assert wait_all([rpc.rpc_async("worker1", echo, (n,)) for n in range(5)]) == [0, 1, 2, 3, 4]
    try:
        rpc.rpc_sync("worker1", lambda: 1)
    except Exception as error:
        assert "cloudpickle" in str(error), error
    options = rpc.TensorPipeRpcBackendOptions(device_maps={"worker1": {0: 1}})
    assert len(options.device_maps["worker1"]) == 1
    try:
        rpc.rpc_sync("worker1", echo, (open(__file__),))
    except TypeError:
        pass
    del rref
rpc.shutdown()
assert not {"torch", "numpy", "cloudpickle"} & set(sys.modules)
if other is not None:
    sys.exit(other.wait())
"""
        )
        self.assertNotIn("Traceback", said)

    def test_importing_it_imports_little(self):
        said = self.run_script(
            """
import sys
before = set(sys.modules)
import muster.rpc
heavy = {"torch", "numpy", "cloudpickle", "asyncio", "multiprocessing", "typing", "socket"}
print("loaded:", sorted(heavy & (set(sys.modules) - before)))
"""
        )
        self.assertIn("loaded: []", said)

    def test_can_be_imported_without_the_users_environment(self):
        # -I -S: neither the user's folders nor the site's; only this package is added.
        import muster

        root = os.path.dirname(os.path.dirname(os.path.abspath(muster.__file__)))
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                f"import sys; sys.path.insert(0, {root!r}); import muster.rpc as rpc; "
                f"rpc.init_rpc('me', rank=0, world_size=1, rpc_backend_options="
                f"rpc.TensorPipeRpcBackendOptions(init_method={self.meeting!r})); "
                "assert rpc.rpc_sync('me', len, ('abc',)) == 3; rpc.shutdown()",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
            text=True,
        )
        self.assertEqual((done.returncode, done.stdout), (0, ""))


class InterruptTest(TestCase):
    def check_is_interrupted(self, text):
        """The program says that it waits, and then ends by Ctrl-C, pressed once."""
        path = self.folder / "program.py"
        path.write_text(HEAD + text)
        process = subprocess.Popen(
            [sys.executable, str(path), self.meeting],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.assertEqual(process.stdout.readline(), "waiting\n")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE_SECONDS)[0]
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_the_keyboard_ends_a_program_that_waits(self):
        self.check_is_interrupted(
            """
start()
print("waiting", flush=True)
Future().wait()
"""
        )

    def test_the_keyboard_ends_a_program_that_waits_for_the_end_of_its_calls(self):
        # A call that nobody answers keeps a graceful shutdown waiting.
        self.check_is_interrupted(
            """
never = Future()

@rpc.functions.async_execution
def wait_for_ever():
    return never

options = rpc.TensorPipeRpcBackendOptions(init_method=sys.argv[1])
rpc.init_rpc("worker0", rank=0, rpc_backend_options=options)
waiting = rpc.rpc_async("worker0", wait_for_ever, timeout=0)
print("waiting", flush=True)
rpc.shutdown()
"""
        )

    def test_the_keyboard_ends_a_program_that_waits_for_the_end_of_others(self):
        self.check_is_interrupted(
            """
if start(2) == 0:
    try:
        print("waiting", flush=True)
        rpc.shutdown()
    finally:
        other.kill()
        other.wait()
else:
    Future().wait()
"""
        )


if __name__ == "__main__":
    unittest.main()
