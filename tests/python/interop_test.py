"""Python and C++ functions that call each other: interop_server.cpp, this process, and others.

Environment:
  MUSTER_INTEROP_SERVER   the C++ worker; without it, build/bin/interop_server of this source tree
"""

import collections
import dataclasses
import faulthandler
import gc
import importlib.util
import math
import os
import pathlib
import pickle
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy

import interop_peer
import muster.rpc as rpc
from interop_peer import echo

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = os.environ.get("MUSTER_INTEROP_SERVER") or str(ROOT / "build" / "bin" / "interop_server")
PATIENCE_SECONDS = 60
TEST_SECONDS_MAX = 300
HAS_TORCH = importlib.util.find_spec("torch") is not None

processes = []
signatures = {}


# ---- what C++ calls ----------------------------------------------------------------------------


@rpc.define("python.scale", "(f64, f64) -> f64")
def scale(value, by):
    if by == 0:
        raise ZeroDivisionError("by nothing")
    if by < 0:
        return "nothing"
    return value * by


@rpc.define("python.range", "(i64)->vec<f64>")
def make_range(count):
    return numpy.arange(count, dtype=float)


@rpc.define("python.total", "(rref<vec<f64>>)->f64")
def total(reference):
    return float(sum(reference.to_here()))


@dataclasses.dataclass
class Point:
    x: float
    y: float


forest = rpc.Procedure(
    "python.forest",
    "(vec<{f64,f64}>,opt<str>)->map<str,{i64,vec<^1>}>",
    structures={"{f64,f64}": Point, "{i64,vec<^1>}": ("value", "children")},
)


@rpc.define(forest)
@rpc.functions.async_execution
def make_forest(points, name):
    assert all(type(point) is Point for point in points), points
    answer = rpc.rpc_async("plain", max, args=(len(points), 1))

    def grow(future):
        leaves = [{"value": int(point.x), "children": []} for point in points]
        return {name or "none": {"value": future.wait(), "children": leaves}}

    return answer.then(grow)


@rpc.define("python.raise_later", "()->void")
@rpc.functions.async_execution
def raise_later():
    return rpc.rpc_async("plain", int, args=("no number",))


@rpc.define("python.coroutine", "(i64)->i64")
async def coroutine(value):
    return value + 1


@rpc.define("python.own", "(rref<python>)->i64")
def own(reference):
    return len(reference.to_here())


def setUpModule():
    faulthandler.dump_traceback_later(TEST_SECONDS_MAX, exit=True)
    folder = tempfile.mkdtemp(prefix="mi-")
    store = f"file://{folder}/store"
    names = ["plain"] + (["torch"] if HAS_TORCH else [])
    world_size = str(2 + len(names))
    processes.append(subprocess.Popen([SERVER, store, world_size]))
    for rank, name in enumerate(names, 2):
        words = [sys.executable, interop_peer.__file__, name, str(rank), world_size, store]
        processes.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
    rpc.init_rpc("test", rank=1, world_size=int(world_size),
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=store))
    signatures.update(rpc.rpc_sync("server", rpc.Procedure("signatures", "()->map<str,str>")))


def tearDownModule():
    gc.collect()
    rpc.shutdown()
    for process in processes:
        if process.wait(PATIENCE_SECONDS) != 0:
            raise AssertionError(f"{process.args} ended with {process.returncode}")
    faulthandler.cancel_dump_traceback_later()


def procedure(name, **options):
    """A procedure of the server, with the signature that its compiler has made."""
    return rpc.Procedure(name, signatures[name], **options)


def call(name, *args, **options):
    return rpc.rpc_sync("server", procedure(name, **options), args=args)


class Signatures(unittest.TestCase):

    def test_every_text_that_a_compiler_has_made_is_understood_and_stays_as_it_is(self):
        self.assertGreater(len(signatures), 80)
        for name, text in signatures.items():
            with self.subTest(name):
                self.assertEqual(rpc.Procedure(name, text).signature, text)

    def test_spaces_between_the_parts_do_not_count(self):
        made = rpc.Procedure("f", " ( vec< f64 > , arr<i8> * 3 ,{ str, ^1} ) -> rref< object  4Game >")
        self.assertEqual(made.signature, "(vec<f64>,arr<i8>*3,{str,^1})->rref<object 4Game>")

    def test_what_is_no_signature_is_refused_with_the_place(self):
        for text, place, why in [
            ("", 1, "begins with ("),
            ("i64", 1, "begins with ("),
            ("(", 2, "a type is expected"),
            ("()", 3, "the type of the result follow"),
            ("()->", 5, "a type is expected"),
            ("()->i64x", 5, "no type i64x"),
            ("()->i64 i64", 9, "nothing may follow"),
            ("(int)->void", 2, "no type int"),
            ("(i64,)->void", 6, "a type is expected"),
            ("(i64 i64)->void", 6, ") or a comma"),
            ("(void)->void", 2, "void is only"),
            ("(vec<f64)->void", 9, "> or a comma"),
            ("(vec)->void", 5, "< is expected"),
            ("(vec<>)->void", 7, "too few"),
            ("(vec<i8,i8>)->void", 9, "too many"),
            ("(map<i8>)->void", 9, "too few"),
            ("(vec<byte>)->void", 2, "spelt bytes"),
            ("(arr<i8>)->void", 9, "* and the number"),
            ("(arr<i8>*)->void", 10, "number of elements"),
            ("(arr<i8>*01)->void", 10, "number of elements"),
            ("(arr<i8>*-1)->void", 10, "number of elements"),
            ("(arr<i8>*99999999999999999999999)->void", 10, "number of elements"),
            ("(arr<arr<none>*100000>*100000)->void", 2, "parts"),
            ("(tup<arr<none>*9000000,arr<none>*9000000>)->void", 2, "parts"),
            ("(^1)->void", 3, "fewer structures"),
            ("({^0})->void", 3, "^1 is the structure"),
            ("({^2})->void", 4, "fewer structures"),
            ("({rref<^1>})->void", 9, "fewer structures"),
            ("({i64)->void", 6, "} or a comma"),
            ("(object 4Game)->void", 2, "never sent"),
            ("()->object", 11, "name of the object's type"),
            ("(python)->void", 2, "only referred to"),
            ("()->python", 5, "only referred to"),
            ("(var<>)->void", 7, "too few"),
            ("(\n)->void", 2, "a type is expected"),
            ("(\xff)->void", 2, "a type is expected"),
            ("(" + "vec<" * 65 + "i8" + ">" * 65 + ")->void", 258, "deeper than 64"),
            ("(" + ",".join(["i8"] * 30000) + ")->void", 1, "longer than 64 KiB"),
        ]:
            with self.subTest(text[:60]):
                with self.assertRaises(ValueError) as caught:
                    rpc.Procedure("f", text)
                self.assertIn(f"at character {place} ", str(caught.exception))
                self.assertIn(why, str(caught.exception))
                self.assertLess(len(str(caught.exception)), 300)

    def test_a_procedure_can_be_printed_compared_pickled_and_not_called(self):
        made = rpc.Procedure("f", "({f64,f64})->void", structures={"{f64,f64}": Point})
        self.assertEqual(repr(made), "Procedure('f', '({f64,f64})->void')")
        again = pickle.loads(pickle.dumps(made))
        self.assertEqual(again, made)
        self.assertEqual(hash(again), hash(made))
        self.assertNotEqual(made, rpc.Procedure("g", "({f64,f64})->void"))
        with self.assertRaisesRegex(TypeError, "rpc_sync"):
            made(1)

    def test_structures_must_fit_the_signature(self):
        for structures, why in [({"{f64}": Point}, "no structure {f64}"),
                                ({"{i64,i64}": ("x",)}, "has 2 fields, not 1")]:
            with self.assertRaisesRegex(ValueError, why):
                rpc.Procedure("f", "({i64,i64})->void", structures=structures)
        with self.assertRaisesRegex(TypeError, "which fields"):
            rpc.Procedure("f", "({i64,i64})->void", structures={"{i64,i64}": dict})
        for name in ("", "x" * 256):
            with self.assertRaisesRegex(ValueError, "255"):
                rpc.Procedure(name, "()->void")


class Values(unittest.TestCase):

    def assert_echoes(self, signature, *values):
        for value in values:
            with self.subTest(signature, value=value):
                back = echo(signature, value)
                self.assertEqual(back, value)
                self.assertIs(type(back), type(value))

    def assert_refused(self, error, text, signature, value):
        with self.subTest(signature, value=repr(value)[:80]):
            with self.assertRaises(error) as caught:
                echo(signature, value)
            self.assertIn(text, str(caught.exception))

    def test_numbers_of_every_width_come_back_up_to_their_limits(self):
        for bits in (8, 16, 32, 64):
            most = 2 ** (bits - 1) - 1
            self.assert_echoes(f"i{bits}", 0, 1, -1, most, -most - 1)
            self.assert_echoes(f"u{bits}", 0, 1, 2 * most + 1)
        self.assert_echoes("f64", 0.0, 0.1, -1e308, math.inf)
        self.assert_echoes("f32", 0.5, -1.25, math.inf)
        self.assertTrue(math.isnan(echo("f64", math.nan)))
        self.assert_echoes("c128", 0.1 + 2e300j)
        self.assert_echoes("c64", 0.5 - 2j)
        self.assert_echoes("bool", True, False)
        self.assert_echoes("byte", 0, 255)
        self.assert_echoes("none", None)

    def test_numbers_that_do_not_fit_are_refused_by_name(self):
        for bits in (8, 16, 32, 64):
            most = 2 ** (bits - 1) - 1
            for value in (most + 1, -most - 2, 10**30):
                self.assert_refused(OverflowError, f"{value} is no i{bits}", f"i{bits}", value)
            for value in (-1, 2 * most + 2, 10**30):
                self.assert_refused(OverflowError, f"{value} is no u{bits}", f"u{bits}", value)
        self.assert_refused(OverflowError, "is no f32", "f32", 1e300)
        self.assert_refused(OverflowError, "is no f64", "f64", 10**400)
        self.assert_refused(OverflowError, "is no c64", "c64", 1e300j)
        self.assert_refused(TypeError, "i64 is expected, not float", "i64", 1.0)
        self.assert_refused(TypeError, "f64 is expected, not str", "f64", "1")
        self.assert_refused(TypeError, "f64 is expected, not complex", "f64", 1j)
        self.assert_refused(TypeError, "bool is expected, not int", "bool", 1)
        self.assert_refused(TypeError, "none is expected, not int", "none", 0)

    def test_what_stands_for_a_number_is_taken_as_one(self):
        self.assertEqual(echo("f64", 3), 3.0)
        self.assertEqual(echo("c128", 3), 3 + 0j)
        self.assertEqual(echo("i16", numpy.int64(-3)), -3)
        self.assertEqual(echo("f32", numpy.float32(0.1)), numpy.float32(0.1))
        self.assertIs(echo("bool", numpy.bool_(True)), True)

    def test_texts_and_bytes_of_any_length_come_back(self):
        self.assert_echoes("str", "", "text", "é\0☃𝄞", "x" * 8191, "é" * 100_000)
        self.assert_echoes("bytes", b"", b"\0\xff", b"x" * 8192, os.urandom(1_000_000))
        for given in (bytearray(b"ab"), memoryview(b"ab"), numpy.array([97, 98], numpy.uint8)):
            self.assertEqual(echo("bytes", given), b"ab")
        self.assertEqual(echo("str", b"bytes"), "bytes")
        self.assert_refused(TypeError, "str is expected, not int", "str", 1)
        self.assert_refused(TypeError, "bytes is expected, not str", "bytes", "text")

    def test_bytes_that_are_no_text_survive_in_a_str(self):
        odd = call("not_utf8", "é")
        self.assertEqual(odd, "é\udcff\udcfe")
        self.assertEqual(echo("str", odd), odd)
        self.assertEqual(odd.encode(errors="surrogateescape"), b"\xc3\xa9\xff\xfe")

    def test_rows_of_numbers_are_arrays_of_numpy(self):
        for kind, dtype in [("i8", "i1"), ("i16", "i2"), ("i32", "i4"), ("i64", "i8"),
                            ("u8", "u1"), ("u16", "u2"), ("u32", "u4"), ("u64", "u8"),
                            ("f32", "f4"), ("f64", "f8"), ("c64", "c8"), ("c128", "c16")]:
            row = numpy.array([1, 2, 100], dtype)
            for given in ([1, 2, 100], (1, 2, 100), row, range(1, 3), iter([1, 2]), row[::2],
                          row[:0], [], numpy.arange(100_000).astype(dtype),
                          numpy.arange(10_000).astype(dtype)[::-3]):
                expected = numpy.array(list(given), dtype)
                given = iter(expected.tolist()) if hasattr(given, "__next__") else given
                with self.subTest(kind, given=type(given)):
                    back = echo(f"vec<{kind}>", given)
                    self.assertIs(type(back), numpy.ndarray)
                    self.assertEqual(back.dtype, numpy.dtype(dtype))
                    numpy.testing.assert_array_equal(back, expected)
        back = echo("vec<f64>", numpy.arange(100_000.0))
        back[0] = 7  # it is ours
        # Other types are converted number by number, or refused.
        self.assertEqual(echo("vec<f64>", numpy.array([1, 2])).tolist(), [1, 2])
        self.assert_refused(TypeError, "argument 1 of echo vec<i8>[1]: i8 is expected, not float",
                            "vec<i8>", [1, 2.5])
        self.assert_refused(OverflowError, "[2]: 300 is no i8", "vec<i8>", [1, 2, 300])
        self.assert_refused(OverflowError, "300", "vec<i8>", numpy.array([300]))
        self.assert_refused(TypeError, "vec<f64> is expected, not int", "vec<f64>", 3)
        self.assert_refused(TypeError, "vec<f64> is expected, not str", "vec<f64>", "abc")
        self.assert_refused(TypeError, "", "vec<f64>", numpy.ones((2, 2)))

    def test_containers_come_back_as_those_of_python(self):
        self.assert_echoes("vec<bool>", [], [True, False])
        self.assert_echoes("vec<str>", [], ["a", "", "é" * 10_000])
        self.assert_echoes("vec<none>", [], [None] * 3)
        self.assert_echoes("vec<{}>", [], [()] * 1000)
        self.assert_echoes("arr<str>*2", ["a", "b"])
        self.assert_echoes("arr<bool>*0", [])
        self.assert_echoes("arr<byte>*4", b"\0ab\xff")
        self.assertEqual(echo("arr<f64>*3", [1, 2, 3]).tolist(), [1, 2, 3])
        self.assertEqual(
            [row.tolist() for row in echo("arr<arr<i32>*2>*2", numpy.arange(4).reshape(2, 2))],
            [[0, 1], [2, 3]])
        self.assertEqual([row.tolist() for row in echo("vec<vec<f64>>", [[1], [], [2, 3]])],
                         [[1], [], [2, 3]])
        self.assert_echoes("set<i64>", set(), {3, 1, 2})
        self.assert_echoes("set<str>", {"a", "b"})
        self.assert_echoes("set<vec<f64>>", {(1.0,), (), (1.0, 2.0)})
        self.assert_echoes("set<set<str>>", {frozenset({"a"}), frozenset()})
        self.assert_echoes("map<str,i64>", {}, {"a": 1, "b": -1})
        self.assert_echoes("map<i32,vec<str>>", {1: ["a"], 2: []})
        self.assertEqual(echo("map<tup<str,bool>,vec<f64>>", {("a", True): [1]})["a", True].tolist(), [1])
        self.assert_echoes("map<vec<f64>,none>", {(1.0, 2.0): None})
        self.assertEqual(echo("map<str,i64>", [("a", 1)]), {"a": 1})
        self.assertEqual(echo("map<str,i64>", collections.OrderedDict(a=1)), {"a": 1})
        self.assertEqual(echo("set<i64>", [1, 2]), {1, 2})

    def test_containers_that_do_not_fit_are_refused_with_the_place(self):
        self.assert_refused(TypeError, "[1]: str is expected, not int", "vec<str>", ["a", 1])
        self.assert_refused(TypeError, "map<str,i64> is expected, not int", "map<str,i64>", 1)
        self.assert_refused(TypeError, "map<str,i64> is expected, not list", "map<str,i64>", [1])
        self.assert_refused(TypeError, ".value 1: i64 is expected, not str", "map<str,i64>",
                            {"a": 1, "b": "c"})
        self.assert_refused(TypeError, ".key 0: str is expected, not int", "map<str,i64>", {1: 1})
        self.assert_refused(ValueError, "has not 1 elements", "arr<str>*2", ["a"])
        self.assert_refused(ValueError, "has not 4 elements", "arr<f64>*3", [1, 2, 3, 4])
        self.assert_refused(ValueError, "has not 3 parts", "tup<i64,str>", (1, "a", 2))
        self.assert_refused(TypeError, "tup<i64,str> is expected, not int", "tup<i64,str>", 1)
        self.assert_refused(TypeError, "[1]: str is expected", "tup<i64,str>", (1, 2))

    def test_what_is_there_or_one_of_several(self):
        self.assert_echoes("opt<str>", None, "", "a")
        self.assert_echoes("opt<opt<i64>>", None, 1)
        self.assert_echoes("vec<opt<f64>>", [None, 1.0])
        self.assert_echoes("tup<i64,str>", (1, "a"))
        self.assert_echoes("tup<>", ())
        flag, (number,), row = echo("tup<bool,tup<f32>,vec<f64>>", [True, [0.5], [1, 2]])
        self.assertEqual((flag, number, row.tolist()), (True, 0.5, [1, 2]))
        self.assert_echoes("var<i64,f64,str>", 1, 1.0, "a")
        self.assert_echoes("var<f64,i64>", 1, 1.0)
        self.assert_echoes("var<bool,vec<f64>>", True)
        self.assertEqual(echo("var<bool,vec<f64>>", [1]).tolist(), [1])
        self.assertEqual(echo("var<bool,vec<f64>>", numpy.ones(2)).tolist(), [1, 1])
        self.assert_echoes("var<none,{f64,f64},str>", None, (1.0, 2.0), "a")
        self.assert_echoes("map<var<i64,str>,vec<var<bool,{i64,vec<^1>}>>>",
                           {1: [True], "a": [(1, [(2, [])]), False]})
        self.assert_echoes("var<vec<str>,set<str>,map<str,str>>", ["a"], {"a"}, {"a": "b"})
        self.assert_refused(TypeError, "is expected, not bytes", "var<i64,f64,str>", b"a")
        contains_itself = []
        contains_itself.append(contains_itself)
        self.assert_refused(TypeError, "is expected, not list", "var<vec<str>,set<str>,map<str,str>>",
                            contains_itself)

    def test_the_alternative_of_a_variant_can_be_chosen(self):
        chosen = {1: 0, 1.0: 1}
        self.assertEqual([call("alternative", value) for value in (7, 7.5, True)], [0, 1, 2])
        self.assertEqual(call("alternative", rpc.Alternative(1, 7)), 1)
        self.assertEqual(call("alternative", 2**70), 1)  # no i64, but an f64
        self.assertEqual(chosen, {1: 1})
        with self.assertRaisesRegex(ValueError, "no alternative 3"):
            call("alternative", rpc.Alternative(3, 7))
        with self.assertRaisesRegex(TypeError, "i64 is expected, not float"):
            call("alternative", rpc.Alternative(0, 7.5))

    def test_an_enumeration_is_its_number(self):
        self.assertEqual([call("next_color", color) for color in range(3)], [1, 2, 0])
        self.assertEqual(call("count_blue", [2, 1, 2]), 2)
        self.assertEqual(call("count_blue", numpy.full(100_000, 2, "u2")), 100_000)


class Structures(unittest.TestCase):

    def test_a_structure_is_a_tuple_unless_something_else_is_asked_for(self):
        self.assertEqual(echo("{f64,f64}", (1, 2)), (1.0, 2.0))
        self.assertEqual(echo("{f64,f64}", [1, 2]), (1.0, 2.0))
        self.assertEqual(echo("{f64,f64}", Point(1, 2)), (1.0, 2.0))
        self.assertEqual(echo("{}", ()), ())
        for value, why in [((1,), "has not 1 parts"), (3, "{f64,f64} is expected, not int"),
                           ({"x": 1, "y": 2}, "{f64,f64} is expected, not dict")]:
            with self.assertRaises((TypeError, ValueError)) as caught:
                echo("{f64,f64}", value)
            self.assertIn(why, str(caught.exception))

    def test_a_structure_is_of_the_class_that_was_given(self):
        Named = collections.namedtuple("Named", ["x", "y"])

        class Matched:
            __match_args__ = ("x", "y")

            def __init__(self, x, y):
                self.x, self.y = x, y

            def __eq__(self, other):
                return (self.x, self.y) == (other.x, other.y)

        for kind in (Point, Named, Matched):
            back = call("echo {f64,f64}", kind(1.0, 2.0), structures={"{ f64, f64 }": kind})
            self.assertIs(type(back), kind)
            self.assertEqual(back, kind(1.0, 2.0))
        point = {"{f64,f64}": Point}
        self.assertEqual(call("echo {f64,f64}", {"y": 2, "x": 1}, structures=point), Point(1.0, 2.0))
        self.assertEqual(call("echo map<str,{f64,f64}>", {"a": (1, 2)}, structures=point),
                         {"a": Point(1.0, 2.0)})
        names = {"{f64,f64}": ["x", "y"]}
        self.assertEqual(call("echo {f64,f64}", (1, 2), structures=names), {"x": 1.0, "y": 2.0})
        self.assertEqual(call("echo {f64,f64}", {"x": 1, "y": 2, "z": 3}, structures=names),
                         {"x": 1.0, "y": 2.0})
        with self.assertRaises(KeyError):
            call("echo {f64,f64}", {"x": 1}, structures=names)
        with self.assertRaisesRegex(TypeError, r"echo {f64,f64}\.y: f64 is expected, not str"):
            call("echo {f64,f64}", Point(1, "2"), structures=point)
        with self.assertRaisesRegex(TypeError, "is expected, not WorkerInfo|not muster"):
            call("echo {f64,f64}", rpc.get_worker_info(), structures=point)

    def test_structures_contain_themselves(self):
        tree = (1, [(2, []), (3, [(4, [])])])
        self.assertEqual(echo("{i64,vec<^1>}", tree), tree)
        chain = ("a", [((1.0, 2.0), ("b", None)), ((3.0, 4.0), ("c", []))])
        signature = signatures["echo {str,opt<vec<tup<{f64,f64},^1>>>}"]
        self.assertEqual(signature.count("^1"), 2)
        self.assertEqual(echo("{str,opt<vec<tup<{f64,f64},^1>>>}", chain), chain)

    def test_a_value_without_an_end_is_refused(self):
        tree = (1, [])
        tree[1].append(tree)
        with self.assertRaisesRegex(ValueError, "nested deeper than 100"):
            echo("{i64,vec<^1>}", tree)
        deep = (0, [])
        for _ in range(99):
            deep = (0, [deep])
        self.assertEqual(echo("{i64,vec<^1>}", deep), deep)

    def test_what_a_class_raises_when_it_is_made_reaches_the_caller(self):
        @dataclasses.dataclass
        class Positive:
            x: float
            y: float

            def __post_init__(self):
                if self.x < 0:
                    raise ValueError("negative")

        with self.assertRaisesRegex(ValueError, "^negative$"):
            call("echo {f64,f64}", (-1, 0), structures={"{f64,f64}": Positive})


class Tensors(unittest.TestCase):

    def test_arrays_of_numpy_of_every_type_and_layout_come_back(self):
        self.assertNotIn("torch", sys.modules)
        for dtype in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"):
            array = numpy.array([[0, 1, 2], [3, 0, 5]], dtype)
            for each in (array, array.T, array[:, 1:], array[::-1], array[0], array[0, 0:1].reshape(()),
                         array[:0], numpy.tile(array, (100, 100)), numpy.tile(array, (100, 100)).T):
                with self.subTest(dtype, shape=each.shape):
                    back = echo("tensor", each)
                    self.assertIs(type(back), numpy.ndarray)
                    self.assertEqual((back.dtype, back.shape), (each.dtype, each.shape))
                    numpy.testing.assert_array_equal(back, each)

    def test_c_plus_plus_sees_shape_type_and_numbers(self):
        self.assertEqual(call("describe", numpy.zeros((2, 3), "f4")), "f32[2,3] on cpu")
        self.assertEqual(call("describe", numpy.asfortranarray(numpy.zeros((2, 3), "?"))), "bool[2,3] on cpu")
        self.assertEqual(call("describe", None), "none")
        self.assertEqual(call("first", numpy.arange(10.0)[3:]), 3)
        read_only = numpy.arange(3.0)
        read_only.flags.writeable = False
        self.assertEqual(call("first", read_only), 0)
        self.assertEqual(call("describe", memoryview(b"abc")), "u8[3] on cpu")
        self.assertIsNone(echo("tensor", None))
        first, second = echo("vec<tensor>", [numpy.ones(2), numpy.zeros((0, 4), "i4")])
        self.assertEqual((first.tolist(), second.shape), ([1, 1], (0, 4)))

    def test_a_bool_that_is_neither_0_nor_1_is_true(self):
        self.assertEqual(call("odd_bools").tolist(), [False, True, True, True])

    def test_bools_that_stand_for_many_are_not_made_many(self):
        many = call("expanded_bools")
        self.assertEqual((many.shape, many.strides), ((2**40, 2), (0, 1)))
        self.assertEqual(many[12345].tolist(), [True, False])

    @unittest.skipUnless(HAS_TORCH, "there is no PyTorch")
    def test_bools_that_stand_for_many_are_not_made_many_by_pytorch(self):
        self.assertEqual(rpc.rpc_sync("torch", interop_peer.torch_expanded_bools),
                         ((2**40, 2), (0, 1), [True, False]))

    def test_what_is_no_tensor_is_refused(self):
        for value, why in [("text", "tensor is expected, not str"), ([1, 2], "not list"),
                           (numpy.array(["a"]), "not numpy.ndarray"),
                           (numpy.array([object()]), "not numpy.ndarray"),
                           (numpy.array([1], ">i4"), "not numpy.ndarray")]:
            with self.subTest(why), self.assertRaises((TypeError, ValueError)) as caught:
                echo("tensor", value)
            self.assertIn(why, str(caught.exception))

    @unittest.skipUnless(HAS_TORCH, "there is no PyTorch")
    def test_tensors_of_pytorch_come_back_as_such(self):
        self.assertEqual(len(rpc.rpc_sync("torch", interop_peer.torch_round_trips)), 12)
        texts = rpc.rpc_sync("torch", interop_peer.torch_refusals)
        self.assertEqual(len(texts), 2)
        for text in texts:
            self.assertIn("only dense tensors of the CPU", text)

    def test_without_numpy_there_are_arrays_of_the_standard_library(self):
        arrays, numbers = rpc.rpc_sync("plain", interop_peer.plain_numbers)
        self.assertEqual({kind: code for kind, (code, _) in arrays.items()},
                         dict(zip(arrays, "bhiqBHIQfd")))
        for _, values in arrays.values():
            self.assertEqual(values, [1, 2, 100])
        self.assertEqual(numbers, [1 + 0j, 2j])


class Calls(unittest.TestCase):

    def test_a_procedure_is_called_as_functions_are(self):
        scaled_norm = rpc.Procedure("scaled_norm", "(vec<f64>,f64)->f64")
        self.assertEqual(rpc.rpc_sync("server", scaled_norm, args=([3, 4], 2)), 10)
        self.assertEqual(rpc.rpc_sync(0, scaled_norm, ([3, 4], 2), timeout=30), 10)
        info = rpc.get_worker_info("server")
        self.assertEqual(rpc.rpc_async(info, scaled_norm, ([3, 4], 2)).wait(), 10)
        later = [rpc.rpc_async("server", scaled_norm, ([number], 1)) for number in range(200)]
        self.assertEqual([future.wait() for future in later], list(range(200)))
        self.assertIsNone(rpc.rpc_sync("server", procedure("nothing")))

    def test_what_cannot_be_called_is_refused_at_once(self):
        scaled_norm = rpc.Procedure("scaled_norm", "(vec<f64>,f64)->f64")
        with self.assertRaisesRegex(TypeError, r"scaled_norm\(vec<f64>,f64\)->f64 takes 2 arguments, not 1"):
            rpc.rpc_sync("server", scaled_norm, args=([3, 4],))
        with self.assertRaisesRegex(TypeError, "have no names"):
            rpc.rpc_sync("server", scaled_norm, kwargs={"scale": 1})
        with self.assertRaisesRegex(TypeError, "have no names"):
            rpc.remote("server", scaled_norm, kwargs={"scale": 1})
        with self.assertRaisesRegex(TypeError, "argument 2 of scaled_norm: f64 is expected, not str"):
            rpc.rpc_async("server", scaled_norm, args=([3, 4], "2"))
        with self.assertRaisesRegex(TypeError, "argument 2 of scaled_norm: f64 is expected, not str"):
            rpc.remote("server", scaled_norm, args=([3, 4], "2"))
        with self.assertRaises(RuntimeError):
            rpc.rpc_sync("nobody", scaled_norm, args=([3, 4], 2))
        with self.assertRaisesRegex(TypeError, "call it with rpc.remote"):
            call("counter.make", 1)

    def test_the_other_side_refuses_another_name_and_other_types(self):
        with self.assertRaisesRegex(RuntimeError, "no_such"):
            rpc.rpc_sync("server", rpc.Procedure("no_such", "()->void"))
        with self.assertRaisesRegex(RuntimeError, r"\(vec<f64>,f64\)->f64"):
            rpc.rpc_sync("server", rpc.Procedure("scaled_norm", "(vec<f32>,f64)->f64"), args=([], 1))

    def test_what_c_plus_plus_throws_is_raised(self):
        with self.assertRaisesRegex(RuntimeError, "the third wheel"):
            call("throw", "the third wheel")

    def test_c_plus_plus_calls_python(self):
        self.assertEqual(call("call.scale", "test", 3, 4), 12)
        self.assertEqual(call("call.range", "test", 5).tolist(), [0, 1, 2, 3, 4])
        self.assertEqual(call("call.range", "test", 50_000).tolist(), list(range(50_000)))
        self.assertEqual(call("call.forest", "test", [(1, 2), (3, 4)], "oak"),
                         {"oak": (2, [(1, []), (3, [])])})
        self.assertEqual(call("call.forest", "test", [], None), {"none": (1, [])})

    def test_what_python_raises_reaches_c_plus_plus_with_its_class(self):
        with self.assertRaisesRegex(RuntimeError, r"ZeroDivisionError\|ZeroDivisionError: by nothing"):
            call("call.scale", "test", 3, 0)
        with self.assertRaisesRegex(RuntimeError, "the result of python.scale: f64 is expected, not str"):
            call("call.scale", "test", 3, -1)
        with self.assertRaisesRegex(RuntimeError, "python.scale"):
            call("call.otherwise", "test")
        with self.assertRaisesRegex(RuntimeError, "python.scale"):
            call("call.scale", "plain", 1, 1)  # not defined there

    def test_python_calls_procedures_of_python(self):
        scaled = rpc.Procedure("python.scale", "(f64,f64)->f64")
        self.assertEqual(rpc.rpc_sync("test", scaled, args=(3, 4)), 12)
        self.assertEqual(rpc.rpc_sync("test", rpc.Procedure("python.coroutine", "(i64)->i64"), args=(1,)), 2)
        self.assertEqual(rpc.rpc_sync("test", forest, args=([Point(1, 2)], "elm")),
                         {"elm": {"value": 1, "children": [{"value": 1, "children": []}]}})
        with self.assertRaisesRegex(RuntimeError, "ValueError: .*no number"):
            rpc.rpc_sync("test", rpc.Procedure("python.raise_later", "()->void"))
        own_value = rpc.RRef([1, 2, 3])
        own_length = rpc.Procedure("python.own", "(rref<python>)->i64")
        self.assertEqual(rpc.rpc_sync("test", own_length, args=(own_value,)), 3)

    def test_a_name_is_defined_once(self):
        with self.assertRaisesRegex(RuntimeError, "python.scale"):
            rpc.define("python.scale", "()->void")(print)
        with self.assertRaisesRegex(TypeError, "by a function"):
            rpc.define("python.text", "()->void")("text")
        with self.assertRaises(ValueError):
            rpc.define("python.text", "()->text")

    def test_a_row_that_was_sent_is_not_copied_before(self):
        # What is lent is seen as it is when it is sent: a thousand rows of 8 MB take no 8 GB.
        row = numpy.ones(1_000_000)
        norm = rpc.Procedure("scaled_norm", "(vec<f64>,f64)->f64")
        futures = [rpc.rpc_async("server", norm, args=(row, 1)) for _ in range(20)]
        self.assertEqual({future.wait() for future in futures}, {1000.0})


class References(unittest.TestCase):

    def test_objects_of_c_plus_plus_are_used_by_reference(self):
        counter = rpc.remote("server", procedure("counter.make"), args=(5,))
        self.assertFalse(counter.is_owner())
        self.assertEqual(counter.owner_name(), "server")
        add = procedure("counter.add")
        self.assertEqual(rpc.rpc_sync("server", add, args=(counter, 2)), 7)
        self.assertEqual(rpc.rpc_sync(counter.owner(), add, args=(counter, 2)), 9)
        with self.assertRaisesRegex(RuntimeError, "made by a C\\+\\+ function, of type object .*Counter"):
            counter.to_here()
        self.assertEqual(call("counter.add", call(f"echo {signatures['counter.add'][1:].split(',')[0]}",
                                                  counter), 1), 10)

    def test_values_of_c_plus_plus_come_here_as_what_they_are(self):
        numbers = rpc.remote("server", procedure("numbers.make"), args=(3,))
        self.assertEqual(numbers.to_here().tolist(), [0.5] * 3)
        self.assertEqual(numbers.to_here(timeout=30).tolist(), [0.5] * 3)
        self.assertEqual(call("numbers.sum", numbers), 1.5)
        self.assertIsNone(rpc.remote("server", procedure("nothing")).to_here())
        point = rpc.remote("server", procedure("point.make"), args=(1,))
        self.assertEqual(point.to_here(), (1.0, -1.0))
        form = {"{f64,f64}": Point}
        point = rpc.remote("server", procedure("point.make", structures=form), args=(1,))
        self.assertEqual(point.to_here(), Point(1.0, -1.0))

    def test_a_value_that_could_not_be_made_says_so_when_it_is_used(self):
        numbers = rpc.remote("server", procedure("numbers.make"), args=(-1,))
        with self.assertRaisesRegex(RuntimeError, "no numbers"):
            numbers.to_here()

    def test_references_travel_through_c_plus_plus_and_back(self):
        numbers = rpc.remote("server", procedure("numbers.make"), args=(4,))
        same = echo("rref<vec<f64>>", numbers)
        self.assertEqual(same.to_here().tolist(), [0.5] * 4)
        self.assertIsNone(echo("rref<vec<f64>>", None))
        first, none, last = echo("vec<rref<vec<f64>>>", [numbers, None, same])
        del numbers, same
        gc.collect()
        self.assertEqual(first.to_here().tolist(), last.to_here().tolist())
        self.assertIsNone(none)
        self.assertIsNone(call("keep", first))
        del first, last
        gc.collect()
        self.assertEqual(call("keep", None).to_here().tolist(), [0.5] * 4)

    def test_values_of_python_are_kept_for_c_plus_plus(self):
        made = rpc.remote("test", rpc.Procedure("python.range", "(i64)->vec<f64>"), args=(4,))
        self.assertTrue(made.is_owner())
        self.assertIs(type(made.local_value()), numpy.ndarray)
        self.assertEqual(call("numbers.sum", made), 6)
        self.assertEqual(call("call.total", "test", made), 6)
        self.assertEqual(call("call.total", "test", rpc.remote("server", procedure("numbers.make"), (4,))), 2)
        there = rpc.rpc_sync("plain", interop_peer.identity, args=(made,))
        self.assertEqual(there.to_here().tolist(), [0, 1, 2, 3])

    def test_references_go_on_to_other_workers_of_python(self):
        numbers = rpc.remote("server", procedure("numbers.make"), args=(4,))
        self.assertEqual(rpc.rpc_sync("plain", interop_peer.length_of, args=(numbers,)), 4)
        counter = rpc.remote("server", procedure("counter.make"), args=(1,))
        self.assertEqual(rpc.rpc_sync("plain", interop_peer.add_to, args=(signatures["counter.add"], counter)), 11)

    def test_a_reference_to_something_else_is_refused(self):
        numbers = rpc.remote("server", procedure("numbers.make"), args=(4,))
        with self.assertRaisesRegex(TypeError, "a value of type vec<f64>, not object"):
            call("counter.add", numbers, 1)
        with self.assertRaisesRegex(TypeError, "a value of type python, not vec<f64>"):
            call("numbers.sum", rpc.RRef([1.0]))
        with self.assertRaisesRegex(TypeError, "rref<vec<f64>> is expected, not list"):
            call("numbers.sum", [1.0])

    def owned_by_server(self):
        return int(call("debug_info")["num_owner_rrefs"])

    def assert_owned_by_server(self, count):
        """Those of other tests, and those that are ended, may take a moment to go."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (owned := self.owned_by_server()) != count:
            self.assertLess(time.monotonic(), deadline, f"{owned} are owned, not {count}")

    def test_values_end_with_the_last_reference_also_if_one_was_not_sent_after_all(self):
        gc.collect()
        call("keep", None)
        self.assert_owned_by_server(0)
        numbers = rpc.remote("server", procedure("numbers.make"), args=(4,))
        with self.assertRaises(TypeError):
            echo("vec<rref<vec<f64>>>", [numbers, 1])
        with self.assertRaises(TypeError):
            rpc.remote("server", procedure("echo vec<rref<vec<f64>>>"), args=([numbers, 1],))
        self.assertEqual(numbers.to_here().tolist(), [0.5] * 4)
        self.assert_owned_by_server(1)
        call("keep", numbers)
        del numbers
        # An answer that nobody looks at has a reference in it, too.
        came = threading.Event()
        answer = rpc.rpc_async("server", procedure("keep"), args=(None,))
        answer.add_done_callback(lambda _: came.set())
        self.assertTrue(came.wait(PATIENCE_SECONDS))
        self.assert_owned_by_server(1)
        del answer
        self.assert_owned_by_server(0)


class Lies(unittest.TestCase):
    """A callee that answers with other bytes than it has promised."""

    TYPES = [
        "i64", "bool", "c128", "none", "void", "str", "bytes", "tensor", "vec<f64>", "vec<str>",
        "vec<none>", "vec<{}>", "arr<f64>*3", "arr<bool>*3", "arr<{}>*1000", "set<i64>",
        "set<vec<u8>>", "map<str,i64>", "map<none,str>", "opt<bool>", "var<none,i64,str>",
        "tup<u8,str,f32>", "{i64,vec<^1>}", "{^1}", "{opt<{^2,^1}>,bool}", "rref<vec<f64>>",
        "vec<rref<python>>", "map<set<map<u8,bool>>,vec<tensor>>",
    ]

    def lie(self, signature, answer):
        liar = rpc.Procedure(f"lie {signature}", f"(bytes)->{signature}")
        return rpc.rpc_async("server", liar, args=(answer,))

    def test_answers_that_cannot_be_are_refused(self):
        count = struct.Struct("<I").pack
        for signature, answer, why in [
            ("i64", bytes(7), "ends too early"),
            ("i64", bytes(9), ""),
            ("void", b"x", ""),
            ("bool", b"\2", "neither 0 nor 1"),
            ("str", count(5) + b"abc", "ends too early"),
            ("vec<f64>", count(9) + bytes(9), "cut off"),
            ("vec<f64>", b"\xff\xff\xff\xff", "buffer is missing"),
            ("vec<str>", count(2**31), "more elements than there can be"),
            ("vec<none>", count(2) + b"\0\1", "padding"),
            ("arr<f64>*3", bytes(23), "ends too early"),
            ("set<i64>", count(2) + bytes(16), "same element twice"),
            ("map<none,str>", count(2) + bytes(8), "same key twice"),
            ("var<none,i64,str>", b"\3", "not known here"),
            ("{^1}", b"", "nested deeper than 100"),
            ("rref<vec<f64>>", count(4) + b"abcd", ""),
        ]:
            with self.subTest(signature, answer=answer):
                with self.assertRaises(RuntimeError) as caught:
                    self.lie(signature, answer).wait()
                self.assertIn("its answer cannot be read", str(caught.exception))
                self.assertIn(why, str(caught.exception))

    def test_no_bytes_at_all_can_do_harm(self):
        chance = random.Random(5)
        refused = 0
        for signature in self.TYPES:
            futures = []
            for size in range(150):
                answer = bytearray(chance.randbytes(size))
                # Small counts and lengths get further.
                for place in range(0, size - 4, chance.choice([4, 5, 7, 9])):
                    if chance.random() < 0.7:
                        answer[place:place + 4] = struct.pack("<I", chance.choice([0, 1, 2, 3, 8, size]))
                futures.append(self.lie(signature, answer))
            for future in futures:
                try:
                    future.wait()
                except (RuntimeError, ValueError) as error:
                    refused += 1
                    self.assertRegex(str(error), "cannot be|only PyTorch knows", signature)
        self.assertGreater(refused, 1000)


class Documentation(unittest.TestCase):

    def setUp(self):
        self.text = (ROOT / "docs" / "python-cpp.md").read_text()

    def blocks(self, language):
        return re.findall(rf"^```{language}\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE)

    def test_the_python_in_it_runs(self):
        blocks = self.blocks("python")
        self.assertGreater(len(blocks), 2)
        names = {}
        for block in blocks:
            exec(compile(block, "docs/python-cpp.md", "exec"), names)
        names.clear()  # a procedure that was defined there keeps it, and the references in it

    def test_the_c_plus_plus_in_it_is_compiled(self):
        source = (ROOT / "tests" / "python" / "interop_server.cpp").read_text()
        lines = {line.strip() for line in source.splitlines()}
        for block in self.blocks("cpp"):
            for line in block.splitlines():
                with self.subTest(line):
                    self.assertIn(line.strip(), lines | {""})


if __name__ == "__main__":
    unittest.main(verbosity=1)
