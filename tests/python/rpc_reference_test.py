"""References: to whom they belong, what can be done through them, and when their values go."""

import gc
import os
import signal
import threading
import unittest
import weakref

import muster.rpc as rpc
from workers import TestCase, Worker, check, equal, has, raised, references, wait_until


def echo(value):
    return value


def throw(kind):
    raise kind("for a reason")


def read(path):
    wait_until(lambda: os.path.exists(path), f"there is {path}")
    return path


class Counter:
    alive = 0

    def __new__(cls, *args):
        Counter.alive += 1
        return super().__new__(cls)

    def __init__(self, value=0):
        self.value = value

    def __del__(self):
        Counter.alive -= 1

    def add(self, more, times=1):
        self.value += more * times
        return self.value

    def get(self):
        return self.value

    def fail(self):
        raise KeyError("of the method")

    @staticmethod
    def name():
        return "static"

    @classmethod
    def of(cls):
        return cls.__name__


def counters_alive():
    gc.collect()
    return Counter.alive


def nothing_held(to):
    wait_until(lambda: rpc.rpc_sync(to, references) == (0, 0), f"nothing is held on {to}")


class MakingTest(TestCase):
    def test_a_local_value(self):
        def body(worker):
            value = object()
            rref = rpc.RRef(value)
            check(rref.local_value() is value and rref.to_here() is value)
            check(rref.is_owner() and rref.confirmed_by_owner())
            equal((rref.owner(), rref.owner_name()), (rpc.get_worker_info(), worker.name))
            equal(references(), (0, 0))
            rref._get_future().wait()
            check(isinstance(rref, rpc.PyRRef))
            has(raised(NotImplementedError, rref.backward), "not supported")
            check(weakref.ref(rref)() is rref)
            check(rpc.RRef[int] is not None)  # for annotations

        self.run_workers(body, size=1)

    def test_a_value_elsewhere(self):
        def body(worker):
            rref = rpc.remote(worker.next, echo, ([1],))
            equal((rref.is_owner(), rref.owner_name()), (False, worker.next))
            equal((rref.to_here(), rref.to_here()), ([1], [1]))
            check(rref.to_here() is not rref.to_here())
            check(rref.confirmed_by_owner())
            error = raised(RuntimeError, rref.local_value)
            has(error, "can't call localValue() on user", "Call it on owner", worker.next)
            has(str(rref), "UserRRef(", "RRefId", "ForkId")
            has(str(rpc.RRef(1)), "OwnerRRef(")
            own = rpc.remote(worker.name, echo, ([2],))
            check(own.is_owner() and own.to_here() is own.local_value())

        self.run_workers(body, size=2)

    def test_what_the_function_raised_is_raised_by_every_use(self):
        def body(worker):
            for to in (worker.next, worker.name):
                rref = rpc.remote(to, throw, (KeyError,))
                for _ in range(2):
                    raised(KeyError, rref.to_here)
                    raised(KeyError, rref._get_type)
                    raised(KeyError, rref._get_type(blocking=False).wait)
                    raised(KeyError, rref.rpc_sync().get)
                    raised(KeyError, rref.rpc_async().get().wait)
                    raised(KeyError, rref.remote().get)

        self.run_workers(body, size=2)

    def test_owners_are_told_apart(self):
        def body(worker):
            mine, theirs, more = rpc.RRef(1), *(rpc.remote(worker.next, echo, (n,)) for n in "ab")
            equal(theirs.owner(), more.owner())
            check(mine.owner() != theirs.owner() and mine.owner() != 23)
            equal(len({one.owner(): one for one in (mine, theirs, more)}), 2)

        self.run_workers(body, size=2)


class SharingTest(TestCase):
    def test_references_are_passed_on(self):
        def body(worker):
            if worker.rank != 0:
                return
            mine = rpc.RRef(40)
            second = rpc.remote("worker1", echo, (1,))
            for to in ("worker0", "worker1", "worker2"):
                for rref, value in ((mine, 40), (second, 1)):
                    equal(rpc.rpc_sync(to, fetch, (rref,)), (value, True))
                    equal(rpc.rpc_async(to, fetch, ([rref],)).wait(), (value, True))
                    equal(rpc.remote(to, fetch, ({"a": rref},)).to_here(), (value, True))
            equal(rpc.rpc_sync("worker1", forward, (mine, "worker2")), (40, True))
            got = rpc.rpc_sync("worker1", make_elsewhere, ("worker2", "x"))
            equal((got.to_here(), got.owner_name()), ("x", "worker2"))
            equal(rpc.rpc_sync("worker1", echo, (mine,)).local_value(), 40)
            several = rpc.rpc_sync("worker1", make_several, (3,))
            equal([one.rpc_sync().add(10) for one in several], [10, 11, 12])
            nested = rpc.remote("worker1", make_elsewhere, ("worker2", "y"))
            equal(nested.to_here().to_here(), "y")
            equal(rpc.rpc_sync("worker1", relay, (second, 8)), (1, True))

        self.run_workers(body, body, body)

    def test_all_that_was_shared_is_released(self):
        def body(worker):
            if worker.rank == 0:
                kept = [rpc.remote(f"worker{n % 3}", Counter, (n,)) for n in range(12)]
                equal(sum(rpc.rpc_sync("worker1", values, (kept,))), 66)
                equal(sum(rpc.rpc_sync("worker2", values, (kept,))), 66)
                del kept
                for to in ("worker0", "worker1", "worker2"):
                    nothing_held(to)
                    wait_until(lambda: rpc.rpc_sync(to, counters_alive) == 0, "all are destroyed")

        self.run_workers(body, body, body)

    def test_a_value_lives_as_long_as_anybody_refers_to_it(self):
        def body(worker):
            rref = rpc.RRef(Counter(5))
            witness = weakref.ref(rref.local_value())
            rpc.rpc_sync(worker.next, hold, (rref,))
            equal(references(), (1, 1))
            del rref
            gc.collect()
            check(witness() is not None)
            equal(rpc.rpc_sync(worker.next, use_held), 5)
            rpc.rpc_sync(worker.next, let_go)
            wait_until(lambda: references() == (0, 0) and witness() is None, "it is released")

        self.run_workers(body, size=2)

    def test_references_in_cycles_are_found_by_the_collector(self):
        def body(worker):
            ring = [rpc.remote(worker.next, Counter)]
            ring.append(ring)
            equal(ring[0].rpc_sync().get(), 0)
            del ring
            gc.collect()
            nothing_held(worker.next)

        self.run_workers(body, size=2)

    def test_references_are_dropped_by_any_thread(self):
        def body(worker):
            held = [[rpc.remote(worker.next, Counter, (n,)) for n in range(20)] for _ in range(4)]
            threads = [threading.Thread(target=one.clear) for one in held]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            nothing_held(worker.next)

        self.run_workers(body, size=2)

    def test_a_destructor_may_call(self):
        def body(worker):
            rpc.rpc_sync(worker.next, clear_calls)
            rref = rpc.RRef(CallsAtEnd(worker.next))
            rpc.rpc_sync(worker.next, fetch_type, (rref,))
            del rref
            wait_until(lambda: rpc.rpc_sync(worker.next, calls_made) == 1, "the destructor has called")

        self.run_workers(body, size=2)


class CallsAtEnd:
    def __init__(self, to):
        self.to = to

    def __del__(self):
        rpc.rpc_sync(self.to, note_call)


_calls = []


def clear_calls():
    _calls.clear()


def note_call():
    _calls.append(1)


def calls_made():
    return len(_calls)


def fetch_type(rref):
    return rref._get_type().__name__


def fetch(what):
    rref = what[0] if isinstance(what, list) else what["a"] if isinstance(what, dict) else what
    return rref.to_here(), rref.confirmed_by_owner()


def forward(rref, to):
    return rpc.rpc_sync(to, fetch, (rref,))


def relay(rref, hops):
    if hops == 0:
        return fetch(rref)
    to = (rpc.get_worker_info().id + 1) % 3
    return rpc.rpc_sync(to, relay, (rref, hops - 1))


def make_elsewhere(to, value):
    return rpc.remote(to, echo, (value,))


def make_several(count):
    return [rpc.RRef(Counter(n)) for n in range(count)]


def values(rrefs):
    return [rref.rpc_sync().get() for rref in rrefs]


_held = []


def hold(rref):
    _held.append(rref)


def use_held():
    return _held[0].rpc_sync().get()


def let_go():
    _held.clear()


class ProxyTest(TestCase):
    def test_methods_are_called_where_the_value_is(self):
        def body(worker):
            for to in (worker.next, worker.name):
                rref = rpc.remote(to, Counter, (1,))
                sync, later, remote = rref.rpc_sync(), rref.rpc_async(), rref.remote()
                equal(later.add(1).wait(), 2)  # the type is not known yet
                equal(sync.add(1, times=3), 5)
                equal(remote.add(5).to_here(), 10)
                equal((sync.get(), later.get().wait(), rref.to_here().value), (10, 10, 10))
                equal((sync.name(), sync.of()), ("static", "Counter"))
                raised(KeyError, sync.fail)
                raised(KeyError, later.fail().wait)
                raised(KeyError, remote.fail().to_here)
                for call in (sync.missing, remote.missing, lambda: later.missing().wait()):
                    has(raised(AttributeError, call), "has no attribute 'missing'")
                raised(TypeError, sync.add)

        self.run_workers(body, size=2)

    def test_a_missing_method_comes_by_the_future_even_if_the_type_is_known(self):
        def body(worker):
            rref = rpc.remote(worker.next, Counter)
            rref.rpc_sync().get()
            future = rref.rpc_async().missing()
            has(raised(AttributeError, future.wait), "has no attribute 'missing'")

        self.run_workers(body, size=2)

    def test_the_type_is_asked_for_once(self):
        def body(worker):
            for blocking_first in (True, False):
                rref = rpc.remote(worker.next, Counter, (3,))
                if blocking_first:
                    equal(rref._get_type(), Counter)
                    equal(rref._get_type(blocking=False).wait(), Counter)
                else:
                    equal(rref._get_type(blocking=False).wait(), Counter)
                    equal(rref._get_type(), Counter)
                # Signs of life and what becomes of other references are sent meanwhile, but not always.
                check(any(sends_nothing(lambda: ask_for_type(rref)) for _ in range(20)))
                equal(rref.rpc_sync().get(), 3)
                equal(rref.rpc_async().get().wait(), 3)
                equal(rref.remote().get().to_here(), 3)

        self.run_workers(body, size=2)

    # S145
    def test_who_does_not_wait_for_the_type_asks_for_it_once_too(self):
        def body(worker):
            path = str(self.folder / f"made {worker.rank}")
            rref = rpc.remote(worker.next, read, (path,))
            before = calls_under_way()
            futures = [rref._get_type(blocking=False) for _ in range(11)]
            # None of them is answered before the value is made.
            equal(calls_under_way(), before + 1)
            check(all(future is futures[0] for future in futures))
            later = rref.rpc_async().upper()
            equal(calls_under_way(), before + 1)
            open(path, "x").close()
            equal((futures[0].wait(), later.wait()), (str, path.upper()))
            check(rref._get_type(blocking=False) is futures[0])
            equal(rref._get_type(), str)

        self.run_workers(body, size=2)

    def test_the_type_is_asked_for_again_if_there_was_less_time_for_it(self):
        def body(worker):
            path = str(self.folder / f"made {worker.rank}")
            rref = rpc.remote(worker.next, read, (path,))
            for hasty in (rref._get_type(0.01, blocking=False), rref._get_type(0.02, blocking=False)):
                has(raised(RuntimeError, hasty.wait), "RPC ran for more than")
            patient = rref._get_type(blocking=False)
            has(raised(RuntimeError, rref._get_type, 0.01), "RPC ran for more than")
            check(not patient.done() and rref._get_type(blocking=False) is patient)
            open(path, "x").close()
            equal((patient.wait(), rref._get_type()), (str, str))

        self.run_workers(body, size=2)

    def test_a_slow_value_ends_the_time_of_its_users(self):
        def body(worker):
            path = str(self.folder / "made")
            rref = rpc.remote(worker.next, read, (path,))
            text = "RPC ran for more than"
            has(raised(RuntimeError, rref.to_here, 0.01), text)
            has(raised(RuntimeError, rref._get_type, 0.01), text)
            has(raised(RuntimeError, rref._get_type(0.01, blocking=False).wait), text)
            has(raised(RuntimeError, rref.rpc_sync(0.01).upper), text)
            has(raised(RuntimeError, rref.rpc_async(0.01).upper().wait), text)
            has(raised(RuntimeError, rref.remote(0.01).upper), text)
            open(path, "x").close()
            equal((rref.to_here(), rref.rpc_sync().upper()), (path, path.upper()))

        self.run_workers(body, size=2)


def ask_for_type(rref):
    for _ in range(10):
        equal(rref._get_type(), Counter)
        equal(rref._get_type(blocking=False).wait(), Counter)


def calls_under_way():
    return int(rpc._get_debug_info()["agent.client_active_calls"])


def sends_nothing(work):
    """Whether no worker was sent anything by this one while it ran."""

    def sent():
        metrics = rpc._get_current_rpc_agent().get_metrics()
        return {key: value for key, value in metrics.items() if key.endswith("sent_bytes")}

    before = sent()
    work()
    return sent() == before


class FailureTest(TestCase):
    C = "RRef creation"

    def test_each_reference_knows_that_it_could_not_be_made(self):
        def body(worker):
            path = str(self.folder / "made")
            for to in (worker.next, worker.name):
                rrefs = [rpc.remote(to, read, (path,), timeout=0.005) for _ in range(3)]
                for rref in rrefs:
                    has(raised(RuntimeError, rref._get_future().wait), "RPC ran for more than")
                for rref in rrefs:
                    has(raised(RuntimeError, rref.to_here), self.C)
                    has(raised(RuntimeError, rpc.rpc_async, worker.next, echo, (rref,)), self.C)
                    rref.confirmed_by_owner(), rref.owner(), str(rref)
            open(path, "x").close()
            nothing_held(worker.next)

        self.run_workers(body, size=2)

    def test_references_to_a_dead_worker_settle(self):
        def body(worker):
            pid = rpc.rpc_sync(worker.next, os.getpid)
            path = str(self.folder / "never")
            waiting = rpc.remote(worker.next, read, (path,))
            fetching = threading.Thread(target=lambda: raised(RuntimeError, waiting.to_here))
            fetching.start()
            future = rpc.rpc_async(worker.next, read, (path,), timeout=0)
            os.kill(pid, signal.SIGKILL)
            has(raised(RuntimeError, future.wait), worker.next)
            fetching.join()
            has(raised(RuntimeError, waiting._get_future().wait), worker.next)
            try:
                new = rpc.remote(worker.next, echo, (1,))
            except RuntimeError as error:
                has(error, worker.next)
            else:
                raised(RuntimeError, new._get_future().wait)
                has(raised(RuntimeError, new.to_here), self.C)
            wait_until(lambda: rpc._get_debug_info()["agent.client_active_calls"] == "0", "all settle")
            equal(rpc._get_debug_info()["num_pending_users"], "0")
            has(raised(RuntimeError, rpc.shutdown), worker.next)
            check(not rpc._is_current_rpc_agent_set())
            return "survived"

        def start_and(body):
            def run(worker):
                worker.start()
                return body(worker)

            return run

        def victim(worker):
            worker.start()
            rpc.shutdown()

        results = self.run_workers(start_and(body), victim, starts=False, expects={1})
        self.assertEqual(results[0], "survived")

    def test_references_of_a_group_that_has_ended_say_so(self):
        def body(worker):
            worker.start()
            rref, own = rpc.remote(worker.next, echo, (1,)), rpc.RRef(2)
            rref.to_here()
            rpc.shutdown()
            raised(RuntimeError, rref.to_here)
            raised(RuntimeError, rref.rpc_sync().get)
            str(rref), rref.is_owner()
            del rref, own
            gc.collect()

        self.run_workers(body, body, starts=False)

    def test_a_second_group_has_references_too(self):
        def body(worker):
            for turn in range(3):
                worker = Worker(worker.rank, worker.size, f"{self.meeting}.{turn}")
                worker.start()
                mine = rpc.RRef(Counter(turn))
                theirs = rpc.remote(worker.next, Counter, (turn,))
                equal(theirs.rpc_sync().add(1), turn + 1)
                equal(rpc.rpc_sync(worker.next, forward, (theirs, worker.name))[0].value, turn + 1)
                equal(rpc.rpc_sync(worker.next, values, ([mine],)), [turn])
                rpc.shutdown()
            equal(counters_alive(), 1)  # `mine` of the last turn

        self.run_workers(body, body, starts=False)

    # S155, S156
    def test_leaks_are_told_at_the_end(self):
        def owner(worker):
            worker.start()
            rpc.api._delete_all_user_and_unforked_owner_rrefs = lambda timeout=0: None
            has(raised(RuntimeError, rpc.shutdown), "Leaking RRef")
            check(not rpc._is_current_rpc_agent_set())

        def user(worker):
            worker.start()
            rpc.api._delete_all_user_and_unforked_owner_rrefs = lambda timeout=0: None
            kept = rpc.remote("worker0", echo, (1,))
            kept.to_here()
            rpc.shutdown()

        self.run_workers(owner, user, starts=False)
        self.run_workers(user, user, starts=False, ignores_leaks=True, meeting=self.meeting + "2")
        # Where they are ignored, the owner only warns of them.
        warning = "other workers still refer to values of this one"
        has((self.folder / "log.2").read_text(), " warn ", warning, "Leaking RRef", "with fork Id")
        self.assertNotIn(warning, (self.folder / "log.3").read_text())


if __name__ == "__main__":
    unittest.main()
