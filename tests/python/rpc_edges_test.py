"""What programs seldom do, and what must not bring a process down, or to a standstill."""

import gc
import math
import pickle
import sys
import threading
import unittest
import weakref

import muster.rpc as rpc
from muster.futures import Future, collect_all
from workers import TestCase, check, equal, has, raised, wait_until


def echo(value):
    return value


async def leave():
    sys.exit(3)


async def stay(value):
    return value


at_once = threading.Barrier(4)


def known_threads():
    return len(sys._current_exceptions())


def known_threads_at_once():
    at_once.wait()
    return known_threads()


class Interrupts:
    """Interrupts whoever unpickles it, the first time."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return (interrupt_once, (self.value,))


interrupted = []


def interrupt_once(value):
    if not interrupted:
        interrupted.append(value)
        raise KeyboardInterrupt
    return value


def make_interrupting(value):
    return Interrupts(value)


class Pickler:
    """One whose buffers are no list."""

    def __init__(self, buffers):
        self.buffers = buffers

    def serialize(self, obj):
        return pickle.dumps(obj), self.buffers

    def deserialize(self, data, buffers):
        return pickle.loads(data)


class EdgesTest(TestCase):
    def test_a_coroutine_that_leaves_takes_no_other_with_it(self):
        def body(worker):
            has(raised(RuntimeError, rpc.rpc_sync, worker.next, leave), "SystemExit")
            equal(rpc.rpc_sync(worker.next, stay, (5,)), 5)

        self.run_workers(body, size=2)

    def test_an_interrupt_while_an_answer_is_unpickled_does_not_lose_it(self):
        def body(worker):
            future = rpc.rpc_async(worker.next, make_interrupting, (7,))
            raised(KeyboardInterrupt, future.wait)
            equal(future.wait(), 7)

        self.run_workers(body, size=2)

    def test_a_pickler_may_give_any_row_of_buffers_and_nothing_else(self):
        def body(worker):
            with rpc.api._use_rpc_pickler(Pickler(())):
                equal(rpc.rpc_sync(worker.name, echo, (5,)), 5)
            with rpc.api._use_rpc_pickler(Pickler(None)):
                has(raised(TypeError, rpc.rpc_async, worker.name, echo, (5,)), "list of buffers")
            with rpc.api._use_rpc_pickler(object()):
                equal(rpc.rpc_sync(worker.name, echo, (5,)), 5)

        self.run_workers(body, size=1)

    def test_timeouts_that_cannot_be_counted(self):
        def body(worker):
            for endless in (math.inf, 1e300):
                rpc._set_rpc_timeout(endless)
                equal(rpc.rpc_sync(worker.name, echo, (5,)), 5)
            for wrong in (math.nan, -2):
                raised(ValueError, rpc._set_rpc_timeout, wrong)
            equal(rpc.rpc_sync(worker.name, echo, (5,)), 5)

        self.run_workers(body, size=1)

    def test_a_child_that_was_forked_ends_by_itself(self):
        self.assertIn(
            "7 5",
            self.run_script(
                """
import os, sys
import muster.rpc as rpc
options = rpc.TensorPipeRpcBackendOptions(init_method=sys.argv[1])
rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=options)
child = os.fork()
if child == 0:
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, rpc.rpc_sync("worker0", max, (4, 5)))
rpc.shutdown()
"""
            ),
        )

    def test_a_program_with_stores_alone_ends_while_threads_use_them(self):
        self.run_script(
            """
import threading
from muster.store import HashStore
store = HashStore()
begun = threading.Event()
def poll():
    while True:
        store.try_get("key")
        begun.set()
for _ in range(3):
    threading.Thread(target=poll, daemon=True).start()
begun.wait()
"""
        )

    @unittest.skipIf(sys.version_info < (3, 10), "this interpreter does not tell which threads it knows")
    def test_the_interpreter_forgets_threads_that_have_ended(self):
        def body(worker):
            before = known_threads()
            for turn in range(3):
                worker.start(init_method=f"{worker.meeting}{turn}")
                calls = [rpc.rpc_async(worker.name, known_threads_at_once) for _ in range(4)]
                check(min(call.wait() for call in calls) >= before + 4)
                rpc.shutdown()
                wait_until(lambda: known_threads() == before, "they are forgotten")

        self.run_workers(body, starts=False)

    def test_backends_can_be_pickled(self):
        backend = rpc.BackendType.TENSORPIPE
        self.assertIs(pickle.loads(pickle.dumps(backend)), backend)


class FutureTest(unittest.TestCase):
    def test_a_chain_may_be_longer_than_the_stack_is_deep(self):
        first = last = Future()
        for _ in range(30_000):
            last = last.then(lambda future: future.wait() + 1)
        first.set_result(0)
        self.assertEqual(last.wait(), 30_000)

    def test_a_collection_ends_whatever_its_futures_hold(self):
        one, other = Future(), Future()
        both = collect_all([one, other])
        one.set_exception(KeyboardInterrupt())
        self.assertTrue(both.done())
        self.assertRaises(KeyboardInterrupt, both.wait)

    def test_one_that_is_in_its_own_exception_is_collected(self):
        class Thing:
            pass

        def fail():
            thing, future = Thing(), Future()
            try:
                raise KeyError
            except KeyError as error:
                future.set_exception(error)
            self.assertRaises(KeyError, future.wait)
            return weakref.ref(thing)

        thing = fail()
        gc.collect()
        self.assertIsNone(thing())


if __name__ == "__main__":
    unittest.main()
