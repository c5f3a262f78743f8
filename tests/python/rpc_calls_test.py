"""Calls between workers: whom, what, with which arguments, for how long."""

import functools
import os
import pickle
import threading
import unittest

import muster.rpc as rpc
from workers import TestCase, check, equal, has, raised, wait_until


def whoami():
    return rpc.get_worker_info()


def describe(*args, **kwargs):
    return args, kwargs


def read(path):
    """Waits until another process has made that file."""
    wait_until(lambda: os.path.exists(path), f"there is {path}")
    return os.getpid()


def touch(path):
    open(path, "x").close()


class Counter:
    made = 0

    def __init__(self, start=0, *, step=1):
        self.value = start
        self.step = step

    def add(self):
        self.value += self.step
        return self.value

    def __call__(self, times):
        return self.value * times

    @classmethod
    def name(cls):
        return cls.__name__

    @staticmethod
    def double(value):
        return 2 * value


class WorkerInfoTest(unittest.TestCase):
    def test_names_are_checked(self):
        for name in ("abc*", "a b", "", "x" * 128, "é", "a\n", "a/b"):
            with self.subTest(name=name[:10]):
                with self.assertRaises(RuntimeError) as caught:
                    rpc.WorkerInfo(name, 0)
                for part in ("Worker name must match", "must be non-empty", "shorter than 128"):
                    self.assertIn(part, str(caught.exception))
        self.assertEqual(rpc.WorkerInfo("a-1_b:C", 3).name, "a-1_b:C")
        self.assertEqual(rpc.WorkerInfo("x" * 127, 3).id, 3)

    def test_ids_have_sixteen_bits(self):
        for bad in (32768, -32769, 1 << 40):
            self.assertRaises(TypeError, rpc.WorkerInfo, "a", bad)
        self.assertRaises(TypeError, rpc.WorkerInfo, "a", 1.5)

    def test_is_a_value(self):
        one = rpc.WorkerInfo(name="a", id=3)
        self.assertEqual(one, rpc.WorkerInfo("a", 3))
        self.assertNotEqual(one, rpc.WorkerInfo("b", 3))
        self.assertNotEqual(one, rpc.WorkerInfo("a", 4))
        self.assertNotEqual(one, 23)
        self.assertEqual(hash(one), hash(rpc.WorkerInfo("b", 3)))
        self.assertEqual(repr(one), "WorkerInfo(id=3, name=a)")
        self.assertEqual(str(one), repr(one))
        self.assertEqual(pickle.loads(pickle.dumps(one)), one)
        for field in ("name", "id"):
            with self.assertRaises(AttributeError):
                setattr(one, field, 1)

    def test_refuses_a_state_that_is_not_one(self):
        empty = rpc.WorkerInfo.__new__(rpc.WorkerInfo)
        with self.assertRaisesRegex(RuntimeError, "Invalid WorkerInfo state"):
            empty.__setstate__(("a", 1, 2))


class DestinationTest(TestCase):
    def test_a_worker_is_called_by_name_id_and_info_also_oneself(self):
        def body(worker):
            for rank in range(2):
                info = rpc.get_worker_info(f"worker{rank}")
                for to in (info.name, info.id, info):
                    equal(rpc.rpc_sync(to, whoami), info)
                    equal(rpc.rpc_async(to, whoami).wait(), info)
                    equal(rpc.remote(to, whoami).to_here(), info)
            equal(rpc.get_worker_info(), rpc.get_worker_info(worker.name))

        self.run_workers(body, body)

    def test_a_destination_that_is_none_is_refused_at_the_call(self):
        def body(worker):
            for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                for to in ("nobody", -1, 2, 1 << 20):
                    has(raised(RuntimeError, call, to, whoami), "could not find destination")
                for to in (0.5, None, ("worker1",), b"worker1"):
                    raised(ValueError, call, to, whoami)
            has(raised(RuntimeError, rpc.get_worker_info, "nobody"), "could not find destination")
            equal(rpc._get_debug_info()["agent.client_active_calls"], "0")

        self.run_workers(body, size=2)

    def test_what_is_not_callable_is_refused(self):
        def body(worker):
            for call in (rpc.rpc_sync, rpc.rpc_async):
                has(raised(TypeError, call, worker.next, "text"), "should be callable")
            raised(TypeError, rpc.remote(worker.next, 5).to_here)

        self.run_workers(body, size=2)

    def test_without_rpc_everything_says_so(self):
        for call in (
            lambda: rpc.rpc_sync("a", whoami),
            lambda: rpc.rpc_async("a", whoami),
            lambda: rpc.remote("a", whoami),
            lambda: rpc.get_worker_info(),
            lambda: rpc.get_rpc_timeout(),
            lambda: rpc.shutdown(),
            lambda: rpc._get_debug_info(),
            lambda: rpc.api._all_gather(1),
        ):
            with self.assertRaisesRegex(RuntimeError, "^RPC has not been initialized"):
                call()
        with self.assertRaisesRegex(RuntimeError, "Current RPC agent is not set"):
            rpc.RRef(1)


class CallTest(TestCase):
    def test_arguments_arrive_as_they_were_given(self):
        def body(worker):
            args = (1, -1 << 100, 1.5, "é🙂\0", b"\xff\0", None, [{"a": (1,)}], {2, 3}, Ellipsis)
            kwargs = {"é": 1, "to": 2, "func": 3, "args": 4, "timeout": 5, "self": 6}
            equal(rpc.rpc_sync(worker.next, describe, args, kwargs), (args, kwargs))
            equal(rpc.rpc_sync(worker.next, describe, args=list(args)), (args, {}))
            equal(rpc.rpc_async(worker.next, describe, kwargs=kwargs).wait(), ((), kwargs))
            equal(rpc.remote(worker.next, describe, args, kwargs).to_here(), (args, kwargs))
            equal(rpc.rpc_sync(worker.next, describe), ((), {}))

        self.run_workers(body, size=2)

    def test_every_kind_of_callable_can_be_called(self):
        def body(worker):
            def call(*given, **named):
                return rpc.rpc_sync(worker.next, *given, **named)

            counter = call(Counter, (5,), {"step": 2})
            equal((type(counter), counter.value, counter.step), (Counter, 5, 2))
            equal(call(counter.add), 7)
            equal(counter.value, 5)  # a copy of it has counted
            equal(call(counter, (3,)), 15)
            equal(call(Counter.name), "Counter")
            equal(call(Counter.double, (4,)), 8)
            equal(call(functools.partial(describe, 1, a=2), (3,)), ((1, 3), {"a": 2}))
            equal(call(min, (3, 1, 2)), 1)
            equal(call("a b".split), ["a", "b"])
            equal(call(len, ([1, 2],)), 2)
            # These also are names of operators of PyTorch.
            equal(call(dict, (), {"a": 1}), {"a": 1})
            equal(call(print), None)

        self.run_workers(body, size=2)

    def test_a_worker_with_one_thread_serves_nested_calls(self):
        # More levels than threads, back and forth.
        self.run_workers(
            lambda worker: equal(rpc.rpc_sync(worker.next, bounce, (12, worker.name)), 12),
            size=2,
            num_worker_threads=1,
        )

    def test_a_worker_with_one_thread_calls_itself_from_a_call(self):
        self.run_workers(
            lambda worker: equal(rpc.rpc_sync(worker.name, bounce, (6, worker.name)), 6),
            size=1,
            num_worker_threads=1,
        )

    def test_calls_of_one_worker_run_beside_each_other(self):
        def body(worker):
            path = str(self.folder / "made")
            waits = rpc.rpc_async(worker.next, read, (path,))
            rpc.rpc_sync(worker.next, touch, (path,))
            check(waits.wait() != os.getpid())

        self.run_workers(body, size=2)

    def test_graceful_shutdown_waits_for_calls_that_make_calls(self):
        path = self.folder / "chain"

        def body(worker):
            if worker.rank == 0:
                rpc.rpc_async(worker.next, chain, (20, str(path)))

        self.run_workers(body, size=3)
        self.assertEqual(path.read_text(), "20")

    def test_many_large_calls_at_once_all_succeed(self):
        def body(worker):
            # More than may wait for a worker: whoever calls waits until there is room.
            large = bytearray(32 << 20)
            calls = [rpc.rpc_async(worker.next, len, (large,)) for _ in range(16)]
            equal([call.wait() for call in calls], [len(large)] * 16)
            echoes = [rpc.rpc_async(worker.next, bytearray, (large,)) for _ in range(16)]
            check(all(echo.wait() == large for echo in echoes))

        self.run_workers(body, size=2)

    def test_threads_of_a_program_call_at_once(self):
        def body(worker):
            results = {}

            def call(number):
                results[number] = [
                    rpc.rpc_sync(worker.next, describe, (number, n))[0] for n in range(20)
                ]

            threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            equal(results, {n: [(n, m) for m in range(20)] for n in range(8)})

        self.run_workers(body, body)


def bounce(levels, back):
    if levels == 0:
        return 0
    me = rpc.get_worker_info().name
    return 1 + rpc.rpc_sync(back, bounce, (levels - 1, me))


def chain(left, path, made=0):
    if made == left:
        with open(path, "x") as file:
            file.write(str(made))
        return
    to = (rpc.get_worker_info().id + 1) % 3
    rpc.rpc_async(to, chain, (left, path, made + 1))


class TimeoutTest(TestCase):
    T = "RPC ran for more than set timeout"

    def test_calls_end_when_their_time_is_over(self):
        def body(worker):
            path = str(self.folder / "made")
            # Even one of less than a millisecond is one.
            for seconds in (0.0005, 0.05):
                for call in (
                    lambda s: rpc.rpc_sync(worker.next, read, (path,), timeout=s),
                    lambda s: rpc.rpc_async(worker.next, read, (path,), timeout=s).wait(),
                    lambda s: rpc.remote(worker.next, read, (path,), timeout=s)._get_future().wait(),
                    lambda s: rpc.rpc_sync(worker.name, read, (path,), timeout=s),
                ):
                    has(raised(RuntimeError, call, seconds), self.T, "RPCErr:1:")
            touch(path)

        self.run_workers(body, size=2)

    def test_a_negative_time_is_refused(self):
        def body(worker):
            for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                raised(ValueError, call, worker.next, whoami, timeout=-5)

        self.run_workers(body, size=2)

    def test_the_default_is_read_at_the_call(self):
        def body(worker):
            path = str(self.folder / "made")
            equal(rpc.get_rpc_timeout(), 60)
            early = rpc.rpc_async(worker.next, read, (path,))
            rpc._set_rpc_timeout(0.02)
            equal(rpc.get_rpc_timeout(), 0.02)
            has(raised(RuntimeError, rpc.rpc_sync, worker.next, read, (path,)), self.T)
            unlimited = rpc.rpc_async(worker.next, read, (path,), timeout=0)
            rpc._set_rpc_timeout(0)
            by_default = rpc.rpc_async(worker.next, read, (path,))
            touch(path)
            for future in (early, unlimited, by_default):
                future.wait()

        self.run_workers(body, size=2)

    def test_a_timeout_needs_no_free_thread(self):
        def body(worker):
            path = str(self.folder / "made")
            blocked = [rpc.rpc_async(worker.name, read, (path,), timeout=0) for _ in range(4)]
            # All threads of this worker wait; those of the other do, too.
            error = raised(RuntimeError, rpc.rpc_sync, worker.next, read, (path,), timeout=0.2)
            has(error, self.T)
            touch(path)
            for future in blocked:
                future.wait()

        self.run_workers(body, size=2, num_worker_threads=2)


if __name__ == "__main__":
    unittest.main()
