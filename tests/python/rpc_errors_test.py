"""What functions raise, and answers that cannot be read."""

import gc
import sys
import types
import unittest
import weakref

import muster.rpc as rpc
from workers import TestCase, check, equal, has, raised, references, wait_until


class Plain(Exception):
    pass


class Demanding(Exception):
    """Cannot be made from one text."""

    def __init__(self, code, reason):
        super().__init__(code, reason)
        self.code = code


class Slotted(ValueError):
    __slots__ = ("place",)


class Closed(Exception):
    """Has no room for anything else."""

    __slots__ = ()

    def __setattr__(self, name, value):
        raise AttributeError(name)


class Unruly(Exception):
    """Its text cannot be had."""

    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


class Outer:
    class Inner(Exception):
        pass


class Quits(BaseException):
    pass


def throw(kind, *args):
    raise kind(*args)


def throw_chain():
    try:
        raise KeyError("the first")
    except KeyError as first:
        raise Plain("the second") from first


def throw_local():
    class Local(Exception):
        pass

    raise Local("where is it?")


def alive():
    return "alive"


class ExceptionTest(TestCase):
    def check_all_ways(self, function, args, kind, *parts):
        """The same comes by all ways: of the future, of a reference, also on the owner."""

        def body(worker):
            for to in (worker.next, worker.name):
                for call in (
                    lambda: rpc.rpc_sync(to, function, args),
                    lambda: rpc.rpc_async(to, function, args).wait(),
                    lambda: rpc.remote(to, function, args).to_here(),
                ):
                    error = raised(kind, call)
                    has(error, *parts)
                equal(rpc.rpc_sync(to, alive), "alive")

        self.run_workers(body, size=2)

    def test_the_class_is_the_same_by_all_ways(self):
        for kind in (KeyError, ValueError, ZeroDivisionError, Plain, Slotted, Closed, Outer.Inner):
            with self.subTest(kind):
                self.check_all_ways(throw, (kind, "for a reason"), kind, "for a reason", "On WorkerInfo(")

    def test_a_class_that_takes_more_than_a_text_becomes_a_runtime_error(self):
        self.check_all_ways(
            throw,
            (Demanding, 5, "bad"),
            RuntimeError,
            "Failed to create original exception type",
            "Original exception on remote side was",
            "Demanding(5, 'bad')",
        )

    def test_a_class_that_only_the_callee_can_find_becomes_a_runtime_error(self):
        self.check_all_ways(throw_local, (), RuntimeError, "Local", "where is it?")

    def test_a_text_is_not_changed(self):
        text = "é 🙂\n\ttab \\n 'quoted' \\x41 \u0000 end"
        self.check_all_ways(throw, (ValueError, text), ValueError, "é 🙂", "\\\\n", "\\\\x41")

        def body(worker):
            error = raised(ValueError, rpc.rpc_sync, worker.next, throw, (ValueError, "é\n🙂"))
            has(error, "ValueError: é\n🙂")

        self.run_workers(body, size=2)

    def test_an_exception_whose_text_cannot_be_had_still_comes(self):
        def body(worker):
            for call in (
                lambda: rpc.rpc_sync(worker.next, throw, (Unruly,)),
                lambda: rpc.remote(worker.next, throw, (Unruly,)).to_here(),
            ):
                try:
                    call()
                except Exception as error:
                    check(type(error) in (Unruly, RuntimeError, ValueError), type(error))
                else:
                    raise AssertionError("nothing was raised")
            equal(rpc.rpc_sync(worker.next, alive), "alive")

        self.run_workers(body, size=2)

    def test_the_chain_and_the_place_are_told(self):
        def body(worker):
            error = raised(Plain, rpc.rpc_sync, worker.next, throw_chain)
            has(error.remote_traceback, "KeyError: 'the first'", "direct cause", "in throw_chain")
            has(error, f"On {rpc.get_worker_info(worker.next)}", "in throw_chain")
            check(error.__cause__ is None)

        self.run_workers(body, size=2)

    def test_the_end_of_the_program_that_a_function_asks_for_is_an_error_of_the_call(self):
        for kind in (SystemExit, KeyboardInterrupt, GeneratorExit, Quits):
            with self.subTest(kind):
                self.check_all_ways(throw, (kind, "enough"), RuntimeError, kind.__name__)

    def test_asynchronous_functions_may_ask_for_the_end_too(self):
        def body(worker):
            for kind in (SystemExit, KeyboardInterrupt):
                has(raised(RuntimeError, rpc.rpc_sync, worker.next, throw_async, (kind,)), kind.__name__)
            equal(rpc.rpc_sync(worker.next, alive), "alive")

        self.run_workers(body, size=2)

    def test_each_wait_raises_anew(self):
        def body(worker):
            future = rpc.rpc_async(worker.next, throw, (KeyError, "k"))
            depths = []
            for _ in range(3):
                error = raised(KeyError, future.wait)
                depth, trace = 0, error.__traceback__
                while trace is not None:
                    depth, trace = depth + 1, trace.tb_next
                depths.append(depth)
            # A traceback that grows from wait to wait would keep frames alive.
            equal(len(set(depths)), 1)

        self.run_workers(body, size=2)

    def test_a_raised_error_keeps_nothing_alive(self):
        def body(worker):
            witness = call_and_forget(worker.next)
            gc.collect()
            check(witness() is None, "the frames of a failed call are still there")

        self.run_workers(body, size=2)

    def test_the_wrong_number_of_arguments_is_a_type_error(self):
        self.check_all_ways(alive, (1, 2), TypeError, "alive() takes 0 positional arguments")

    def test_the_callee_prints_what_was_raised(self):
        def body(worker):
            raised(ValueError, rpc.rpc_sync, worker.next, throw, (ValueError, "seen there"))

        self.run_workers(body, size=2)
        self.assertIn("seen there", (self.folder / "log.1").read_text())


@rpc.functions.async_execution
def throw_async(kind):
    raise kind("enough")


class Witness:
    pass


def call_and_forget(to):
    local = Witness()
    try:
        rpc.rpc_sync(to, throw, (KeyError, "k"))
    except KeyError:
        pass
    return weakref.ref(local)


def only_there(name):
    """An instance of a class that only this process has, but that could be anywhere."""
    kind = type(name, (), {"__module__": __name__})
    setattr(sys.modules[__name__], name, kind)
    return kind()


def raise_only_there(name):
    kind = type(name, (Exception,), {"__module__": __name__})
    setattr(sys.modules[__name__], name, kind)
    raise kind("from afar")


def of_a_module_that_is_only_there():
    module = types.ModuleType("only_there_module")
    sys.modules[module.__name__] = module
    module.Thing = type("Thing", (), {"__module__": module.__name__})
    return module.Thing()


class Bomb:
    """Pickles, but does not unpickle."""

    def __reduce__(self):
        return (explode, ())


def explode():
    raise ZeroDivisionError("boom")


def make_bomb():
    return Bomb()


def vanishing():
    return "was still here"


def forget_vanishing():
    del sys.modules[__name__].vanishing


class DecodingTest(TestCase):
    def test_a_result_that_the_caller_cannot_read_raises(self):
        def body(worker):
            for function, args, kind in (
                (only_there, ("Here",), AttributeError),
                (of_a_module_that_is_only_there, (), ModuleNotFoundError),
                (make_bomb, (), ZeroDivisionError),
            ):
                for call in (
                    lambda: rpc.rpc_sync(worker.next, function, args),
                    lambda: rpc.rpc_async(worker.next, function, args).wait(),
                    lambda: rpc.remote(worker.next, function, args).to_here(),
                ):
                    raised(kind, call)
                future = rpc.rpc_async(worker.next, function, args)
                raised(kind, future.wait)
                raised(kind, future.wait)  # and again
            has(
                raised(RuntimeError, rpc.rpc_sync, worker.next, raise_only_there, ("There",)),
                "There",
                "from afar",
            )
            equal(rpc.rpc_sync(worker.next, alive), "alive")

        self.run_workers(body, size=2)

    def test_arguments_that_the_callee_cannot_read_fail_the_call(self):
        def body(worker):
            for function in (rpc.rpc_sync, lambda *args: rpc.remote(*args).to_here()):
                error = raised(RuntimeError, function, worker.next, alive, (Bomb(),))
                has(error, "boom")
            equal(rpc.rpc_sync(worker.next, alive), "alive")

        self.run_workers(body, size=2)

    def test_a_function_that_the_callee_does_not_have_is_named(self):
        def body(worker):
            rpc.rpc_sync(worker.next, forget_vanishing)
            for call in (
                lambda: rpc.rpc_sync(worker.next, vanishing),
                lambda: rpc.rpc_async(worker.next, vanishing).wait(),
                lambda: rpc.remote(worker.next, vanishing).to_here(),
            ):
                error = raised(RuntimeError, call)
                equal(type(error), RuntimeError)
                has(error, "RPC pickler does not serialize", "'vanishing'")
            equal(rpc.rpc_sync(worker.next, alive), "alive")

        self.run_workers(body, size=2)

    def test_references_in_answers_that_cannot_be_read_are_given_back(self):
        def body(worker):
            raised(ZeroDivisionError, rpc.rpc_sync, worker.next, reference_and_bomb)
            gc.collect()
            wait_until(
                lambda: rpc.rpc_sync(worker.next, references) == (0, 0), "nothing is held there"
            )

        self.run_workers(body, size=2)

    def test_references_in_calls_that_cannot_be_read_are_given_back(self):
        def body(worker):
            rref = rpc.RRef("mine")
            raised(RuntimeError, rpc.rpc_sync, worker.next, alive, (rref, Bomb()))
            wait_until(lambda: references() == (0, 0), "nobody refers to it")
            equal(rref.local_value(), "mine")

        self.run_workers(body, size=2)


def reference_and_bomb():
    return rpc.RRef("kept there"), Bomb()


if __name__ == "__main__":
    unittest.main()
