"""Many calls from many threads, with everything that can go wrong; and nothing that is left over.

STRESS_SCALE, a number, makes it that many times as long.
"""

import asyncio
import gc
import os
import random
import sys
import threading
import unittest
import weakref

import muster.rpc as rpc
from muster.futures import Future, collect_all
from workers import TestCase, check, equal, raised, references, wait_until

SCALE = float(os.environ.get("STRESS_SCALE", "1"))
THREADS = 6
CALLS_PER_THREAD = int(300 * SCALE)
# What a process may grow by while it makes thousands of calls, for each of them. What a call
# leaves behind, if anything, is an object of Python or of C++: of 48 bytes, and mostly far more.
GROWTH_BYTES_PER_CALL_MAX = 40
ROUNDS_MAX = 4


class Tracked:
    """Counts how many of it there are in this process."""

    alive = 0
    lock = threading.Lock()

    def __new__(cls, *args):
        with Tracked.lock:
            Tracked.alive += 1
        return super().__new__(cls)

    def __init__(self, value=None):
        self.value = value

    def __del__(self):
        with Tracked.lock:
            Tracked.alive -= 1

    def get(self):
        return self.value


class Unpicklable(Tracked):
    def __reduce__(self):
        raise ZeroDivisionError("does not travel")


class Bomb(Tracked):
    """Travels, but cannot be unpacked."""

    def __reduce__(self):
        return (explode, ())


def explode():
    raise ZeroDivisionError("boom")


def echo(value):
    return value


def throw(value):
    raise KeyError("for a reason")


def make_unpicklable():
    return Unpicklable()


def make_bomb():
    return Bomb(1)


def call_back(to, value):
    return rpc.rpc_sync(to, echo, (value,))


def give_reference(value):
    return rpc.RRef(Tracked(value))


def use_reference(rref):
    return rref.rpc_sync().get() if not rref.is_owner() else rref.local_value().get()


@rpc.functions.async_execution
def later(to, value):
    return rpc.rpc_async(to, echo, (value,)).then(lambda f: f.wait())


@rpc.functions.async_execution
def fail_later(value):
    future = Future()
    threading.Thread(target=future.set_exception, args=(KeyError("later"),)).start()
    return future


async def coroutine(to, value):
    return await rpc.rpc_async(to, echo, (value,))


def tracked_alive():
    gc.collect()
    return Tracked.alive


# ---- what a thread does --------------------------------------------------------------------------
# Each takes the name of this worker, that of the one to call, and a number.


def plain(me, to, number):
    equal(rpc.rpc_sync(to, echo, ((number, Tracked(number)),))[0], number)


def pipelined(me, to, number):
    futures = [rpc.rpc_async(to, echo, (n,)) for n in range(5)]
    both = collect_all(futures)
    equal([one.wait() for one in both.wait()], list(range(5)))


def with_large_arguments(me, to, number):
    data = bytearray(random.randrange(1 << 17))
    equal(len(rpc.rpc_sync(to, echo, (data,))), len(data))


def raising(me, to, number):
    raised(KeyError, rpc.rpc_sync, to, throw, (Tracked(),))
    rpc.rpc_async(to, throw, (Tracked(),))  # nobody asks


def refused(me, to, number):
    mine = rpc.RRef(Tracked(number))
    for call in (rpc.rpc_sync, rpc.remote):
        raised(ZeroDivisionError, call, to, echo, ((mine, Unpicklable()),))
    raised(ZeroDivisionError, rpc.rpc_sync, to, make_unpicklable)
    raised(ZeroDivisionError, rpc.rpc_sync, to, make_bomb)
    raised(RuntimeError, rpc.rpc_sync, to, echo, ((mine, Bomb()),))


def nested(me, to, number):
    equal(rpc.rpc_sync(to, call_back, (me, number)), number)
    equal(rpc.rpc_sync(to, later, (me, number)), number)
    equal(rpc.rpc_sync(to, coroutine, (me, number)), number)
    raised(KeyError, rpc.rpc_sync, to, fail_later, (number,))


def with_callbacks(me, to, number):
    # The callback calls, and the one behind it raises.
    first = rpc.rpc_async(to, echo, (number,))
    second = first.then(lambda f: rpc.rpc_sync(me, echo, (f.wait() + 1,)))
    third = second.then(lambda f: 1 / 0)
    equal(second.wait(), number + 1)
    raised(RuntimeError, third.wait)
    # A ring of a future, its callback and an object.
    ring = [first, Tracked()]
    first.add_done_callback(lambda f: ring.append(f))


def referring(me, to, number):
    rref = rpc.remote(to, Tracked, (number,))
    equal(rref.rpc_sync().get(), number)
    equal(rpc.rpc_sync(to, use_reference, (rref,)), number)
    theirs = rpc.rpc_sync(to, give_reference, (number,))
    equal(theirs.to_here().value, number)
    mine = rpc.RRef(Tracked(number))
    equal(rpc.rpc_sync(to, use_reference, (mine,)), number)
    raised(KeyError, rpc.remote(to, throw, (1,)).to_here)
    # Dropped by another thread, or by the collector, or before it was there.
    threading.Thread(target=[rref].clear).start()
    ring = [theirs]
    ring.append(ring)
    rpc.remote(to, Tracked, (number,))


def hasty(me, to, number):
    future = rpc.rpc_async(to, call_back, (me, Tracked(number)), timeout=0.001)
    try:
        future.wait()
    except RuntimeError as error:
        check("RPC ran for more than" in str(error), error)


def awaiting(me, to, number):
    async def main():
        async def one(value):
            return await rpc.rpc_async(to, echo, (value,))

        return await asyncio.gather(*(one(n) for n in range(3)))

    equal(asyncio.run(main()), [0, 1, 2])


DEEDS = (
    *(plain, pipelined, with_large_arguments, raising, refused, nested, with_callbacks),
    *(referring, hasty, awaiting),
)


class StressTest(TestCase):
    def check_clean(self, to):
        def is_clean():
            gc.collect()
            info = rpc._get_debug_info()
            return (
                tracked_alive() == 0
                and rpc.rpc_sync(to, tracked_alive) == 0
                and references() == (0, 0)
                and rpc.rpc_sync(to, references) == (0, 0)
                and info["num_pending_users"] == "0"
            )

        wait_until(is_clean, "nothing is left")

    def run_deeds(self, worker, seed):
        sys.stderr = open(os.devnull, "w")  # it is told of every error
        problems = []

        def work(number):
            chooser = random.Random(seed + number)
            try:
                for turn in range(CALLS_PER_THREAD):
                    chooser.choice(DEEDS)(worker.name, worker.next, turn)
                    if turn % 50 == number:
                        gc.collect()
            except BaseException as error:
                problems.append(repr(error))
                raise

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        equal(problems, [])
        rpc.api._barrier([f"worker{n}" for n in range(worker.size)])
        self.check_clean(worker.next)
        rpc.api._barrier([f"worker{n}" for n in range(worker.size)])

    def test_everything_at_once_in_both_directions(self):
        def body(worker):
            self.run_deeds(worker, 1000 * worker.rank)

        self.run_workers(body, body, num_worker_threads=4)

    def test_everything_at_once_with_oneself(self):
        self.run_workers(lambda worker: self.run_deeds(worker, 7), num_worker_threads=2)

    @unittest.skipIf(
        os.environ.get("MUSTER_TEST_SANITIZED"), "a sanitizer keeps what is given back for a while"
    )
    def test_memory_does_not_grow(self):
        def body(worker):
            sys.stderr = open(os.devnull, "w")  # it is told of every error
            if worker.rank == 1:
                return None
            grown = {}
            # Each with how many times, and how many calls it makes. Not with references: of those
            # that are over, workers remember the last ones on purpose.
            for deed, times, calls in ((plain, 10_000, 1), (raising, 5000, 2)):
                times = int(times * SCALE)

                def repeat(count):
                    for turn in range(count):
                        deed(worker.name, worker.next, turn)
                    self.check_clean(worker.next)
                    return resident(), rpc.rpc_sync(worker.next, resident)

                before = repeat(times // 2)  # whatever is made once is made now
                least = [float("inf")] * 2
                # What leaks grows every time. Calls that pile up while the machine is busy with
                # something else make both processes grow as well, but not again.
                for _ in range(ROUNDS_MAX):
                    after = repeat(times)
                    now = [(a - b) / (times * calls) for a, b in zip(after, before)]
                    least = [min(pair) for pair in zip(least, now)]
                    before = after
                    if max(least) < GROWTH_BYTES_PER_CALL_MAX:
                        break
                grown[deed.__name__] = least
            return grown

        grown = self.run_workers(body, body)[0]
        for deed, per_call in grown.items():
            for bytes_ in per_call:
                self.assertLess(bytes_, GROWTH_BYTES_PER_CALL_MAX, f"{deed} grows: {grown}")

    def test_objects_are_released_where_they_are(self):
        def body(worker):
            witnesses = []
            for _ in range(50):
                sent = Tracked()
                witnesses.append(weakref.ref(sent))
                got = rpc.rpc_sync(worker.next, echo, (sent,))
                witnesses.append(weakref.ref(got))
            del sent, got
            # By counting alone, without the collector.
            gc.disable()
            wait_until(lambda: not any(one() for one in witnesses), "all are released")
            wait_until(lambda: rpc.rpc_sync(worker.next, alive_without_gc) == 0, "there, too")

        self.run_workers(body, size=2)


def alive_without_gc():
    gc.disable()
    return Tracked.alive


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    unittest.main()
