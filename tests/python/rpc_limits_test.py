"""What is very long, or cannot be read, on its way between workers."""

import unittest

import muster.rpc as rpc
from muster.futures import Future
from functions import echo, throw
from workers import TestCase, equal, has, raised, wait_until

# From here on bytes travel beside a message; and longer texts of native errors are cut.
OUT_OF_BAND = 8192
TEXT_MAX = 65536


@rpc.define("limits.throw", "(str)->void")
def throw_text(text):
    raise ValueError(text)


class Odd:
    """What the pickler below makes nonsense of."""


class OddPickler:
    @staticmethod
    def serialize(obj):
        made = rpc.internal.serialize(obj)
        return (*made, "odd") if type(obj) is Odd else made

    deserialize = staticmethod(rpc.internal.deserialize)


def use_odd_pickler():
    rpc.internal._install(OddPickler)


class Unloadable:
    """Can be pickled, and not unpickled."""

    def __reduce__(self):
        return (throw, (ImportError, "no such module"))


@rpc.define("limits.later", "(i64)->i64")
@rpc.functions.async_execution
def later(value):
    return hold()


held = []
seen = []


def pending_count():
    return int(rpc.api._get_current_rpc_agent().get_metrics()["agent.server_active_async_calls"])


def hold():
    seen.append(pending_count())
    held.append(Future())
    return held[-1]


@rpc.functions.async_execution
def hold_later():
    return hold()


def let_go():
    while held:
        held.pop().set_result(7)


class LongTexts(TestCase):
    def test_what_a_function_raises_comes_whole(self):
        def body(worker):
            for size in (OUT_OF_BAND - 1, OUT_OF_BAND, TEXT_MAX, 1_000_000):
                text = "x" * size
                for call in (
                    lambda: rpc.rpc_sync(worker.next, throw, (ValueError, text)),
                    lambda: rpc.remote(worker.next, throw, (ValueError, text)).to_here(),
                    lambda: rpc.remote(worker.name, throw, (ValueError, text)).to_here(),
                ):
                    has(raised(ValueError, call), f"ValueError('{text}')")

        self.run_workers(body, size=2)

    def test_what_a_procedure_raises_comes_up_to_the_limit(self):
        procedure = rpc.Procedure("limits.throw", "(str)->void")

        def body(worker):
            for size in (OUT_OF_BAND - 1, OUT_OF_BAND, TEXT_MAX, 1_000_000):
                text = "x" * size
                told = f"ValueError: {text}"
                if len(told) > TEXT_MAX:
                    told = told[:TEXT_MAX] + "…"
                for call in (
                    lambda: rpc.rpc_sync(worker.next, procedure, (text,)),
                    lambda: rpc.remote(worker.next, procedure, (text,)).to_here(),
                ):
                    equal(str(raised(RuntimeError, call)), told)

        self.run_workers(body, size=2)


class Pickles(TestCase):
    def test_a_pickler_that_answers_with_nonsense_fails_the_call_and_nobody_else(self):
        def body(worker):
            rpc.rpc_sync(worker.next, use_odd_pickler)
            raised(RuntimeError, rpc.rpc_sync, worker.next, Odd)
            kept = rpc.remote(worker.next, Odd)
            for _ in range(2):
                raised(RuntimeError, kept.to_here)
            equal(rpc.rpc_sync(worker.next, echo, (5,)), 5)

        self.run_workers(body, size=2)


class Arguments(TestCase):
    def test_those_that_cannot_be_read_say_where(self):
        def body(worker):
            has(
                raised(RuntimeError, rpc.rpc_sync, worker.next, echo, (Unloadable(),)),
                "Error on Node 1: ImportError: no such module",
            )
            kept = rpc.remote(worker.next, echo, (Unloadable(),))
            has(raised(RuntimeError, kept.to_here), "Error on Node 1: ImportError: no such module")

        self.run_workers(body, size=2)


class Counts(TestCase):
    def test_functions_that_answer_later_count_from_their_return_to_their_answer(self):
        procedure = rpc.Procedure("limits.later", "(i64)->i64")

        def body(worker):
            first = rpc.rpc_async(worker.name, hold_later)
            wait_until(lambda: pending_count() == 1, "the first has returned")
            second = rpc.rpc_async(worker.name, procedure, (1,))
            wait_until(lambda: pending_count() == 2, "the second has returned")
            equal(seen, [0, 1])
            let_go()
            equal((first.wait(), second.wait()), (7, 7))
            equal(pending_count(), 0)

        self.run_workers(body)


if __name__ == "__main__":
    unittest.main()
