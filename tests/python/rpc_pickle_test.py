"""How objects travel: what is copied, what is refused, and what is given back then."""

import copyreg
import gc
import pickle
import sys
import threading
import unittest
import weakref

import muster.rpc as rpc
from muster.rpc import internal
from workers import TestCase, check, equal, has, raised, references, wait_until

try:
    import numpy
except ImportError:
    numpy = None
try:
    import cloudpickle
except ImportError:
    cloudpickle = None

# Of pickles of arrays, whatever their size.
ENVELOPE_BYTES_MAX = 400


def echo(value):
    return value


def call(function, *args):
    return function(*args)


def make_lock():
    return threading.Lock()


def lock_and_reference():
    return rpc.RRef("kept"), threading.Lock()


class Registered:
    def __init__(self, value):
        self.value = value


def restore(value):
    return Registered(value + 1)


class OwnReducer:
    def __init__(self, value):
        self.value = value


class Nested:
    """Uses the pickler of RPC inside of a pickle of RPC."""

    def __init__(self, value, rref=None):
        self.value = value
        self.rref = rref

    def __getstate__(self):
        return internal.serialize((self.value, self.rref))

    def __setstate__(self, state):
        self.value, self.rref = internal.deserialize(*state)


class Refuses:
    def __reduce__(self):
        raise ZeroDivisionError("does not want to travel")


class FunctionTest(TestCase):
    @unittest.skipUnless(cloudpickle, "needs cloudpickle")
    def test_functions_without_a_name_travel(self):
        def body(worker):
            outer = 5

            def closure(value):
                return value + outer

            class Local:
                def __init__(self):
                    self.value = outer

                def __eq__(self, other):
                    return self.value == other.value

            equal(rpc.rpc_sync(worker.next, lambda value: value * outer, (3,)), 15)
            equal(rpc.rpc_sync(worker.next, closure, (3,)), 8)
            equal(rpc.rpc_sync(worker.next, call, (closure, 4)), 9)
            equal(rpc.rpc_async(worker.next, closure, (3,)).wait(), 8)
            equal(rpc.remote(worker.next, closure, (3,)).to_here(), 8)
            equal(rpc.rpc_sync(worker.next, echo, (Local(),)).value, 5)
            back = rpc.rpc_sync(worker.next, make_closure, (7,))
            equal(back(1), 8)

        self.run_workers(body, size=2)

    @unittest.skipUnless(cloudpickle, "needs cloudpickle")
    def test_functions_without_a_name_take_references_with_them(self):
        def body(worker):
            rref = rpc.RRef(40)
            remote = rpc.remote(worker.next, echo, (2,))
            got = rpc.rpc_sync(worker.next, lambda: rref.to_here() + remote.to_here())
            equal(got, 42)

        self.run_workers(body, size=2)

    def test_without_cloudpickle_the_error_says_what_is_missing(self):
        def body(worker):
            sys.modules["cloudpickle"] = None  # as if it were not installed
            for way in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                try:
                    way(worker.next, lambda: 1)
                except (AttributeError, pickle.PicklingError) as error:
                    has(error, "lambda", "cloudpickle", "not installed")
                else:
                    raise AssertionError("it was sent")
            equal(rpc.rpc_sync(worker.next, echo, (1,)), 1)

        self.run_workers(body, size=2)


def make_closure(value):
    return lambda more: value + more


class RefusedTest(TestCase):
    def test_an_argument_that_cannot_be_pickled_is_refused_at_the_call(self):
        def body(worker):
            for way in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                for to in (worker.next, worker.name):
                    has(raised(TypeError, way, to, echo, (threading.Lock(),)), "lock")
                    raised(ZeroDivisionError, way, to, echo, (Refuses(),))
                    raised(TypeError, way, to, echo, ((n for n in ()),))
                    has(
                        raised(RuntimeError, way, to, echo, (rpc.rpc_async(to, echo, (1,)),)),
                        "Can not pickle torch.futures.Future",
                    )
            info = rpc._get_debug_info()
            equal((info["num_owner_rrefs"], info["num_pending_users"]), ("0", "0"))
            # Those that were made to be arguments come to their end by themselves.
            wait_until(lambda: rpc._get_debug_info()["agent.client_active_calls"] == "0")

        self.run_workers(body, size=2)

    def test_references_that_were_pickled_before_it_are_given_back(self):
        def body(worker):
            mine = rpc.RRef("mine")
            theirs = rpc.remote(worker.next, echo, ("theirs",))
            equal(theirs.to_here(), "theirs")
            for way in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                for _ in range(5):
                    raised(TypeError, way, worker.next, echo, ([mine, theirs, mine, threading.Lock()],))
            wait_until(lambda: references() == (0, 0), "nobody else refers to what is here")
            equal(rpc._get_debug_info().get("num_pending_children", "0"), "0")
            # It can still be shared, and the other one is still there.
            equal(rpc.rpc_sync(worker.next, fetch, (mine,)), "mine")
            equal(theirs.to_here(), "theirs")
            del theirs
            wait_until(lambda: rpc.rpc_sync(worker.next, references) == (0, 0), "it is gone there")

        self.run_workers(body, size=2)

    def test_a_result_that_cannot_be_pickled_is_an_error_of_the_call(self):
        def body(worker):
            for to in (worker.next, worker.name):
                has(raised(TypeError, rpc.rpc_sync, to, make_lock), "lock")
                has(raised(TypeError, rpc.rpc_async(to, make_lock).wait), "lock")
                raised(TypeError, rpc.rpc_sync, to, lock_and_reference)
            has(
                raised(RuntimeError, rpc.rpc_sync, worker.next, rpc.rpc_async, (worker.name, echo, (1,))),
                "Can not pickle torch.futures.Future",
            )
            for who in (worker.next, worker.name):
                wait_until(lambda: rpc.rpc_sync(who, references) == (0, 0), "nothing is held")

        self.run_workers(body, size=2)

    def test_what_cannot_be_pickled_can_be_owned(self):
        def body(worker):
            lock = rpc.remote(worker.next, make_lock)
            for _ in range(2):
                has(raised(TypeError, lock.to_here), "lock")
            equal(rpc.rpc_sync(worker.next, use_lock, (lock,)), True)
            own = rpc.remote(worker.name, make_lock)
            check(own.to_here() is own.local_value())

        self.run_workers(body, size=2)

    def test_a_reference_is_pickled_by_rpc_only(self):
        def body(worker):
            rref = rpc.RRef(1)
            has(raised(RuntimeError, pickle.dumps, rref), "Can not pickle rref in python pickler")
            has(raised(RuntimeError, internal.serialize, rref), "Can not pickle rref")
            has(raised(RuntimeError, rpc.RRef._deserialize, b""), "Can not unpickle rref")

        self.run_workers(body, size=1)


def fetch(rref):
    return rref.to_here()


def use_lock(rref):
    with rref.local_value():
        return rref.local_value().locked()


class ReducerTest(TestCase):
    def test_reducers_are_used(self):
        def body(worker):
            equal(rpc.rpc_sync(worker.next, echo, (1,)), 1)
            # Added after the first call, as programs do.
            copyreg.pickle(Registered, lambda thing: (restore, (thing.value,)))
            internal._internal_rpc_pickler._register_reducer(
                OwnReducer, lambda thing: (complex, (thing.value, 1))
            )
            equal(rpc.rpc_sync(worker.next, value_of, (Registered(1),)), 2)
            equal(rpc.rpc_sync(worker.next, echo, (OwnReducer(3),)), 3 + 1j)
            if cloudpickle:
                own, registered = OwnReducer(4), Registered(4)
                equal(rpc.rpc_sync(worker.next, lambda: own), 4 + 1j)
                equal(rpc.rpc_sync(worker.next, lambda: registered.value), 5)

        self.run_workers(body, size=2)

    def test_the_pickler_is_used_inside_of_itself(self):
        def body(worker):
            value = bytearray(b"x" * 10000)
            sent = Nested([1, Nested(value)], rpc.RRef("there"))
            got = rpc.rpc_sync(worker.next, echo, (sent,))
            equal(got.value[1].value, value)
            equal(got.rref.to_here(), "there")

        self.run_workers(body, size=2)

    def test_a_program_may_bring_its_own_pickler(self):
        class Own:
            used = 0

            def serialize(self, obj):
                Own.used += 1
                return internal.serialize(obj)

            def deserialize(self, data, buffers):
                Own.used += 1
                return internal.deserialize(data, buffers)

        def body(worker):
            with rpc.api._use_rpc_pickler(Own()):
                equal(rpc.rpc_sync(worker.next, echo, (1,)), 1)
            equal(Own.used, 2)
            with self.assertRaises(KeyError), rpc.api._use_rpc_pickler(Own()):
                raise KeyError
            equal(rpc.rpc_sync(worker.next, echo, (1,)), 1)
            equal(Own.used, 2)

        self.run_workers(body, size=2)


def value_of(thing):
    return thing.value


class BytearrayTest(TestCase):
    def test_large_buffers_are_beside_the_pickle(self):
        data = bytearray(1 << 20)
        packed, buffers = internal.serialize({"a": pickle.PickleBuffer(data)})
        self.assertLess(len(packed), ENVELOPE_BYTES_MAX)
        self.assertEqual(len(buffers), 1)
        self.assertIs(memoryview(buffers[0]).obj, data)

    def test_objects_that_were_sent_are_let_go_of(self):
        def body(worker):
            for function in (echo, throw):
                data = Thing(bytes(3 << 20))
                witness = weakref.ref(data)
                future = rpc.rpc_async(worker.next, function, (data,))
                del data
                try:
                    future.wait()
                except ValueError:
                    pass
                del future
                gc.collect()
                wait_until(lambda: witness() is None, "the argument is released")

        self.run_workers(body, size=2)


class Thing:
    def __init__(self, data):
        self.data = data


def throw(thing):
    raise ValueError(len(thing.data))


@unittest.skipUnless(numpy, "needs NumPy")
class ArrayTest(TestCase):
    def test_arrays_are_never_copied_into_the_pickle(self):
        base = numpy.arange(1 << 20, dtype="float64")
        for array in (base, base[:10], base.reshape(1024, 1024).T, numpy.zeros((0, 5)), base[5:500]):
            with self.subTest(array.shape):
                packed, buffers = internal.serialize([array, {"again": array}])
                self.assertLess(len(packed), ENVELOPE_BYTES_MAX)
                self.assertEqual(len(buffers), 1)
                if array.size:
                    # It is the memory of the array itself.
                    seen = numpy.frombuffer(buffers[0].raw(), dtype="uint8")
                    self.assertTrue(numpy.shares_memory(seen, array))
                    self.assertEqual(seen.nbytes, array.nbytes)

    def test_arrays_of_all_forms_arrive(self):
        def body(worker):
            base = numpy.arange(60.0).reshape(3, 4, 5)
            for array in (
                base,
                base.T,
                base[::2, ::-1],
                numpy.asfortranarray(base[0]),
                numpy.zeros((0, 3), "int8"),
                numpy.array(5),
                numpy.array(["a", "bé"]),
                numpy.array([1, "x", None], dtype=object),
                numpy.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
                numpy.array(["2020-01-01"], dtype="datetime64[D]"),
                numpy.arange(1 << 18),
                numpy.ma.masked_array([1, 2], [True, False]),
            ):
                for to in (worker.next, worker.name):
                    got = rpc.rpc_sync(to, echo, (array,))
                    equal((type(got), got.dtype, got.shape), (type(array), array.dtype, array.shape))
                    check((got == array).all() or type(got) is numpy.ma.MaskedArray)
            equal(rpc.rpc_sync(worker.next, echo, (numpy.float32(1.5),)), numpy.float32(1.5))

        self.run_workers(body, size=2)

    def test_what_arrives_is_writable_and_belongs_to_the_receiver(self):
        def body(worker):
            for size in (1, 100, 1 << 12, 1 << 20):
                for to in (worker.next, worker.name):
                    array = numpy.ones(size)
                    got = rpc.rpc_sync(to, fill, (array, 2))
                    check((got == 2).all() and got.size == size)
                    check((array == 1).all(), "the memory of the caller was changed")
                    got[:] = 3
                    kept = rpc.remote(to, echo, (array,))
                    copy = kept.to_here()
                    if to == worker.next:
                        copy[:] = 4
                        check((kept.to_here() == 1).all())
                    else:
                        check(copy is kept.local_value())
                    check((array == 1).all())

        self.run_workers(body, size=2)

    def test_arrays_that_were_sent_are_let_go_of(self):
        def body(worker):
            for to in (worker.next, worker.name):
                array = numpy.ones(1 << 20)
                witness = weakref.ref(array)
                rpc.rpc_sync(to, len, (array,))
                del array
                wait_until(lambda: witness() is None, "the array is released")

        self.run_workers(body, size=2)

    def test_arrays_outlive_the_group_that_they_came_with(self):
        def body(worker):
            worker.start()
            got = rpc.rpc_sync(worker.next, echo, (numpy.arange(1 << 20),))
            rpc.shutdown()
            check((got == numpy.arange(1 << 20)).all())
            got[:] = 0

        self.run_workers(body, body, starts=False)


def fill(array, value):
    array[...] = value
    return array


if __name__ == "__main__":
    unittest.main()
