"""Procedures: functions with a name and the types of C++, for jobs with programs in both languages.

    scaled_norm = rpc.Procedure("scaled_norm", "(vec<f64>,f64)->f64")

    rpc.rpc_sync("server", scaled_norm, args=([3.0, 4.0], 2.0))     # served by C++, or by Python

    @rpc.define(scaled_norm)                                        # called by C++, or by Python
    def _(values, scale):
        return scale * math.sqrt(sum(value * value for value in values))

docs/python-cpp.md says which type of Python is which type of C++.
"""

from __future__ import annotations

import array
import struct
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence

from muster import _native

from .functions import is_async
from .internal import _is_future
from .rref import RRef

__all__ = ["Alternative", "Procedure", "define"]


class Alternative(namedtuple("Alternative", ["index", "value"])):
    """A value of a variant together with the place of its type, where the value alone is not enough:
    Alternative(1, 3) is an f64 for `var<i64,f64>`.
    """

    __slots__ = ()


def _field_names(kind):
    names = (
        getattr(kind, "__dataclass_fields__", None)
        or getattr(kind, "_fields", None)
        or getattr(kind, "__match_args__", None)
    )
    if names is None:
        raise TypeError(
            f"{kind.__qualname__} does not say which fields it has; a dataclass, a named tuple and a "
            "class with __match_args__ do"
        )
    return tuple(names)


class Procedure:
    """The name and the types of a function, as C++ programs of the job have them.

    signature: what muster::rpc::signature_of gives there, such as "(i64,vec<f64>)->f64".
    structures: what Python has for structures, by their text: a class that is made of the fields in
        their order (a dataclass, a named tuple), or the names of the fields for a dict. Tuples, if
        nothing is said.
    """

    __slots__ = ("_declared", "_structures")

    def __init__(
        self,
        name: str,
        signature: str,
        structures: Mapping[str, type | Sequence[str]] | None = None,
    ):
        forms = {}
        for text, form in (structures or {}).items():
            if isinstance(form, type):
                forms[text] = (_field_names(form), form)
            else:
                forms[text] = (tuple(form), None)
        self._declared = _native.DeclaredProcedure(name, signature, forms)
        self._structures = structures

    @property
    def name(self) -> str:
        """Under which workers know it."""
        return self._declared.name

    @property
    def signature(self) -> str:
        """The text of its types, without spaces."""
        return self._declared.signature

    def _call(self, to, args, kwargs, timeout):
        if kwargs:
            raise TypeError(f"the arguments of {self.name} have no names")
        return self._declared.call(to, tuple(args or ()), timeout)

    def _call_remote(self, to, args, kwargs, timeout):
        if kwargs:
            raise TypeError(f"the arguments of {self.name} have no names")
        return RRef._of(self._declared.call_remote(to, tuple(args or ()), timeout))

    def __call__(self, *args):
        raise TypeError(f"{self!r} is called with rpc_sync, rpc_async or remote")

    def __eq__(self, other):
        if type(other) is not Procedure:
            return NotImplemented
        return (self.name, self.signature) == (other.name, other.signature)

    def __hash__(self):
        return hash((self.name, self.signature))

    def __reduce__(self):
        return (Procedure, (self.name, self.signature, self._structures))

    def __repr__(self):
        return f"Procedure({self.name!r}, {self.signature!r})"


def define(
    procedure: Procedure | str,
    signature: str | None = None,
    structures: Mapping[str, type | Sequence[str]] | None = None,
) -> Callable[[Callable], Callable]:
    """Makes a function what workers get that call `procedure` here; a decorator.

    It is there for others as soon as it is defined, so that is best done before init_rpc. The
    function may be marked with functions.async_execution, or be a coroutine function.
    """
    if not isinstance(procedure, Procedure):
        procedure = Procedure(procedure, signature, structures)

    def decorate(function):
        if not callable(function):
            raise TypeError("a procedure is defined by a function")
        procedure._declared.define(function, is_async(function))
        return function

    return decorate


# ---- running them for others -------------------------------------------------------------------


def _failure_of(error) -> tuple[str, str]:
    """The class and the text, as programs of other languages get them."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return name, f"{name}: {error}"


def _report(error):
    import traceback

    print(f"On {_native.self_info()}:", file=sys.stderr)
    traceback.print_exception(type(error), error, error.__traceback__)


def _run(function, args):
    try:
        result = function(*args)
        if type(result) is types.CoroutineType:
            import asyncio

            result = asyncio.run(result)
        return True, result
    except Exception as error:
        _report(error)
        return (False, *_failure_of(error))


def _run_async(function, args, completion):
    def fail(error):
        _report(error)
        completion.fail(*_failure_of(error))

    def on_done(done):
        try:
            result = done.wait()
        except Exception as error:
            completion.fail(*_failure_of(error))
        else:
            completion(result)

    try:
        future = function(*args)
        if type(future) is types.CoroutineType:
            from .coroutines import run_later

            return run_later(future, completion, fail)
        if not _is_future(future):
            raise TypeError(
                f"a function with async_execution answers with a future, not {type(future).__name__}"
            )
    except Exception as error:
        return fail(error)
    future.add_done_callback(on_done)


# ---- numbers and tensors -----------------------------------------------------------------------

# The letters of the array module, and of NumPy's types.
_ARRAY_CODES = {
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f32": "f",
    "f64": "d",
}
_NUMPY_CODES = {
    **{name: f"{name[0]}{int(name[1:]) // 8}" for name in _ARRAY_CODES},
    "f16": "f2",
    "c64": "c8",
    "c128": "c16",
}
_TORCH_NAMES = {
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
    "bool": "bool",
}


def _loaded(name, attribute):
    """A module that the program has imported, as far as it can be used already."""
    module = sys.modules.get(name)
    return module if hasattr(module, attribute) else None


def _numbers(memory, kind):
    numpy = _loaded("numpy", "frombuffer")
    if numpy is not None:
        if len(memory) == 0:
            return numpy.empty(0, _NUMPY_CODES[kind])
        return numpy.frombuffer(memory, _NUMPY_CODES[kind])
    if kind in _ARRAY_CODES:
        numbers = array.array(_ARRAY_CODES[kind])
        numbers.frombytes(memory)
        return numbers
    pairs = struct.iter_unpack("ff" if kind == "c64" else "dd", memory)
    return [complex(*pair) for pair in pairs]


def _array_of(value):
    torch = _loaded("torch", "Tensor")
    if torch is not None and isinstance(value, torch.Tensor):
        plain = value.detach()
        return plain.resolve_conj().resolve_neg().numpy() if plain.device.type == "cpu" else None
    return _from_dlpack(value)


def _from_dlpack(value):
    try:
        import numpy
    except ImportError:
        return None
    return numpy.from_dlpack(value)


def _dtype_of(memory):
    """The name of the type of a memoryview's elements; None: it has none here."""
    letter = memory.format.lstrip("@=<")
    bits = 8 * memory.itemsize
    if letter == "?":
        return "bool"
    if letter in ("Zf", "Zd", "F", "D"):
        return f"c{bits}"
    if letter in ("e", "f", "d"):
        return f"f{bits}"
    if len(letter) == 1 and letter in "bhilqn":
        return f"i{bits}"
    if len(letter) == 1 and letter in "BHILQN":
        return f"u{bits}"
    return None


def _describe_tensor(value):
    """(memory, type, shape, strides in elements, offset in bytes); None: it is no tensor."""
    torch = _loaded("torch", "Tensor")
    if torch is not None and isinstance(value, torch.Tensor):
        return _describe_torch(torch, value)
    try:
        memory = memoryview(value)
    except TypeError:
        if not hasattr(value, "__dlpack__"):
            return None
        found = _from_dlpack(value)
        return None if found is None else _describe_tensor(found)
    dtype = _dtype_of(memory)
    if dtype is None:
        return None
    shape = list(memory.shape)
    if not memory.contiguous:
        return memory.tobytes(), dtype, shape, [], 0
    strides = [stride // memory.itemsize for stride in memory.strides]
    return memory, dtype, shape, strides, 0


def _describe_torch(torch, tensor):
    from ._torch import _untyped

    plain = tensor.detach()
    name = str(plain.dtype).rpartition(".")[2]
    dtypes = {there: here for here, there in _TORCH_NAMES.items()}
    if plain.device.type != "cpu" or plain.layout != torch.strided or name not in dtypes:
        what = f"{name} on {plain.device}, {plain.layout}"
        raise TypeError(f"only dense tensors of the CPU are sent to procedures, not {what}")
    plain = plain.resolve_conj().resolve_neg()
    offset = plain.storage_offset() * plain.element_size()
    shape, strides = list(plain.shape), list(plain.stride())
    return _untyped(plain).numpy(), dtypes[name], shape, strides, offset


def _make_tensor(memory, dtype, shape, strides):
    # A bool is a byte that others have written: it may be anything.
    plain = "u8" if dtype == "bool" else dtype
    torch = _loaded("torch", "Tensor")
    torch_dtype = getattr(torch, _TORCH_NAMES[plain], None)
    if torch_dtype is not None:
        from ._torch import _rebuild_dense

        if dtype != "bool":
            return _rebuild_dense(memory, torch_dtype, shape, strides, 0, False)
        # The memory is looked at, not the elements, of which there may be many more.
        flat = _rebuild_dense(memory, torch_dtype, (len(memory),), (1,), 0, False).ne(0)
        return flat.as_strided(shape, strides)
    if plain not in _NUMPY_CODES:
        raise TypeError(f"a tensor of type {dtype} has come, which only PyTorch knows: import torch")
    import numpy

    kind = numpy.dtype(bool if dtype == "bool" else _NUMPY_CODES[plain])
    if len(memory) == 0:
        return numpy.empty(shape, kind)
    if dtype == "bool":
        memory = numpy.frombuffer(memory, numpy.uint8) != 0  # not the elements: see above
    steps = tuple(stride * kind.itemsize for stride in strides)
    return numpy.ndarray(shape, kind, memory, 0, steps)


_native.set_procedure_hooks(
    rref_class=RRef,
    rref_of=RRef._of,
    alternative_class=Alternative,
    numbers=_numbers,
    array_of=_array_of,
    describe_tensor=_describe_tensor,
    make_tensor=_make_tensor,
    run=_run,
    run_async=_run_async,
)
