"""Functions that answer later, and coroutines: who waits for whom, and on which thread."""

import asyncio
import threading
import unittest

import muster.rpc as rpc
from muster.futures import Future, wait_all
from functions import done, echo, failed, read, throw
from workers import TestCase, check, equal, has, raised, wait_until


@rpc.functions.async_execution
def forward(to, value):
    return rpc.rpc_async(to, echo, (value,))


@rpc.functions.async_execution
def add_chained(to, one, two, three):
    return rpc.rpc_async(to, echo, (one + two,)).then(lambda f: f.wait() + three)


@rpc.functions.async_execution
def by_hand(value):
    future = Future()
    threading.Thread(target=lambda: future.set_result(value)).start()
    return future


@rpc.functions.async_execution
def nested(to, value):
    return rpc.rpc_async(to, by_hand, (value,))


@rpc.functions.async_execution
def fails(kind):
    return failed(kind("later"))


@rpc.functions.async_execution
def raises(kind):
    raise kind("at once")


@rpc.functions.async_execution
def no_future():
    return 5


@rpc.functions.async_execution
def future_of_lock():
    return done(threading.Lock())


@rpc.functions.async_execution
def forgotten():
    return Future()


class Methods:
    def __init__(self, value):
        self.value = value

    @staticmethod
    @rpc.functions.async_execution
    def static(to, value):
        return rpc.rpc_async(to, echo, (value,))

    @classmethod
    @rpc.functions.async_execution
    def of_class(cls, to, value):
        return rpc.rpc_async(to, echo, (cls.__name__ + value,))

    @rpc.functions.async_execution
    def bound(self, to, value):
        return rpc.rpc_async(to, echo, (self.value + value,)).then(lambda f: f.wait())


def three_ways(to, function, *args):
    yield lambda: rpc.rpc_sync(to, function, args)
    yield lambda: rpc.rpc_async(to, function, args).wait()
    yield lambda: rpc.remote(to, function, args).to_here()


class AsyncFunctionTest(TestCase):
    def test_answers_come_when_the_future_is_done(self):
        def body(worker):
            for to in (worker.next, worker.name):
                for function, args, expected in (
                    (forward, (worker.name, 1), 1),
                    (add_chained, (worker.name, 1, 2, 3), 6),
                    (by_hand, ([5],), [5]),
                    (nested, (worker.next, 7), 7),
                    (Methods.static, (worker.next, "s"), "s"),
                    (Methods.of_class, (worker.next, "c"), "Methodsc"),
                    (Methods("b").bound, (worker.next, "c"), "bc"),
                ):
                    for call in three_ways(to, function, *args):
                        equal(call(), expected)
                rref = rpc.remote(to, Methods, ("r",))
                for proxy in (rref.rpc_sync(), rref.rpc_async(), rref.remote()):
                    for name, expected in (("static", "x"), ("of_class", "Methodsx"), ("bound", "rx")):
                        got = getattr(proxy, name)(worker.next, "x")
                        got = got.wait() if hasattr(got, "wait") else got
                        equal(got.to_here() if isinstance(got, rpc.RRef) else got, expected)

        self.run_workers(body, size=2)

    def test_errors_come_by_all_ways(self):
        def body(worker):
            for function, args, kind, part in (
                (raises, (KeyError,), KeyError, "at once"),
                (fails, (KeyError,), KeyError, "later"),
                (no_future, (), RuntimeError, "must return a torch.futures.Future object"),
                (no_future, (), RuntimeError, "but got builtins.int"),
                (raises, (1, 2), TypeError, "argument"),
            ):
                for call in three_ways(worker.next, function, *args):
                    has(raised(kind, call), part)
            has(raised(TypeError, rpc.rpc_sync, worker.next, future_of_lock), "lock")
            equal(rpc.rpc_sync(worker.next, echo, (1,)), 1)

        self.run_workers(body, size=2)

    def test_a_thread_is_free_while_the_answer_is_awaited(self):
        def body(worker):
            if worker.rank == 0:
                futures = [rpc.rpc_async("worker1", wait_for_release) for _ in range(20)]
                equal(rpc.rpc_sync("worker1", count_waiting), 20)
                rpc.rpc_sync("worker1", release)
                equal(wait_all(futures), ["free"] * 20)

        self.run_workers(body, size=2, num_worker_threads=1)

    def test_a_future_that_nobody_can_complete_any_more_fails_the_call(self):
        def body(worker):
            # Its owner is told, and does not wait until its own time is over.
            raised(RuntimeError, rpc.rpc_sync, worker.next, forgotten, timeout=0)

        self.run_workers(body, size=2)


_waiting = []


@rpc.functions.async_execution
def wait_for_release():
    _waiting.append(Future())
    return _waiting[-1]


def count_waiting():
    wait_until(lambda: len(_waiting) == 20, "all are there")
    return len(_waiting)


def release():
    for future in _waiting:
        future.set_result("free")


async def coroutine(value):
    await asyncio.sleep(0)
    return value + 1


async def coroutine_that_calls(to, value):
    one = await rpc.rpc_async(to, echo, (value,))
    return one + await rpc.rpc_async(to, coroutine, (value,))


async def coroutine_that_raises():
    await asyncio.sleep(0)
    raise KeyError("k")


async def call_this_worker(depth):
    me = rpc.get_worker_info()
    if depth == 0:
        return 0
    return 1 + await rpc.rpc_async(me, call_this_worker, (depth - 1,))


class AsyncioTest(TestCase):
    def test_coroutine_functions_need_no_thread_while_they_wait(self):
        def body(worker):
            futures = [rpc.rpc_async(worker.next, call_this_worker, (5,)) for _ in range(20)]
            equal(wait_all(futures), [5] * 20)

        self.run_workers(body, size=2, num_worker_threads=1)

    def test_futures_are_awaited(self):
        async def main(worker, path):
            equal(await rpc.rpc_async(worker.next, echo, (1,)), 1)
            ready = rpc.rpc_async(worker.next, echo, (2,))
            ready.wait()
            equal(await ready, 2)
            equal(await done(3), 3)
            try:
                await rpc.rpc_async(worker.next, throw, (KeyError,))
            except KeyError:
                pass
            else:
                raise AssertionError("nothing was raised")
            slow = rpc.rpc_async(worker.next, read, (path,))

            async def wait(future):
                return await future

            task = asyncio.ensure_future(wait(slow))
            await asyncio.sleep(0)
            others = await asyncio.gather(
                *(wait(rpc.rpc_async(worker.next, echo, (n,))) for n in range(50))
            )
            equal(others, list(range(50)))
            check(not task.done())
            given_up = asyncio.ensure_future(wait(slow))
            await asyncio.sleep(0)
            given_up.cancel()
            open(path, "x").close()
            equal(await task, path)
            check(given_up.cancelled() or (await asyncio.wait([given_up])) and given_up.cancelled())
            never = asyncio.ensure_future(wait(Future()))
            await asyncio.sleep(0)
            never.cancel()

        def body(worker):
            asyncio.run(main(worker, str(self.folder / "made")))
            # A loop that is gone when the answer comes.
            path = str(self.folder / "made later")
            slow = rpc.rpc_async(worker.next, read, (path,))

            async def give_up():
                await asyncio.wait([asyncio.ensure_future(hold(slow))], timeout=0)

            asyncio.run(give_up())
            open(path, "x").close()
            equal(slow.wait(), path)

        self.run_workers(body, size=2)

    def test_coroutine_functions_are_called(self):
        def body(worker):
            for call in three_ways(worker.next, coroutine, 1):
                equal(call(), 2)
            for call in three_ways(worker.next, coroutine_that_calls, worker.name, 1):
                equal(call(), 3)
            for call in three_ways(worker.next, coroutine_that_raises):
                raised(KeyError, call)

        self.run_workers(body, size=2)


async def hold(future):
    return await future

if __name__ == "__main__":
    unittest.main()
