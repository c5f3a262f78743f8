"""What PyTorch needs: tensors beside the pickle, its operators, and its futures.

Imported only when PyTorch is there already.
"""

import pickle
import weakref

import torch

import muster.futures
from muster import _native

# Storages of which less than half is used, and that are this large, are sent as compact copies.
_COMPACT_BYTES_MIN = 8192


# ---- tensors -----------------------------------------------------------------------------------


def _untyped(tensor):
    """The bytes of a tensor's storage, as a tensor."""
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _rebuild_dense(buffer, dtype, size, stride, offset, requires_grad):
    memory = memoryview(buffer)
    if memory.nbytes == 0:
        tensor = torch.empty(0, dtype=dtype).as_strided(size, stride)
    else:
        raw = torch.frombuffer(memory, dtype=torch.uint8)
        tensor = torch.empty(0, dtype=dtype)
        storage = raw.untyped_storage() if hasattr(raw, "untyped_storage") else raw.storage().untyped()
        tensor.set_(storage, offset, size, stride)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


def _rebuild_sparse(indices, values, size, is_coalesced, requires_grad):
    tensor = torch.sparse_coo_tensor(indices, values, size)
    tensor = tensor._coalesced_(is_coalesced)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


def _rebuild_sparse_csr(crow, col, values, size, requires_grad):
    tensor = torch.sparse_csr_tensor(crow, col, values, size)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


def _rebuild_view(build, args, name):
    return getattr(build(*args), name)()


def _refuse_device(tensor):
    raise RuntimeError(
        "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to "
        f"CPU before sending them over RPC, or call `set_device_map`: the tensor is on {tensor.device}. "
        "Request device mapping is not available for destination"
    )


def _reduce_tensor(tensor):
    plain = tensor.detach()
    if plain.device.type != "cpu":
        _refuse_device(plain)
    if plain.layout == torch.sparse_coo:
        coalesced = plain.is_coalesced()
        return (
            _rebuild_sparse,
            (plain._indices(), plain._values(), plain.size(), coalesced, tensor.requires_grad),
        )
    if plain.layout == torch.sparse_csr:
        return (
            _rebuild_sparse_csr,
            (
                plain.crow_indices(),
                plain.col_indices(),
                plain.values(),
                plain.size(),
                tensor.requires_grad,
            ),
        )
    if plain.is_quantized or plain.layout != torch.strided:
        return tensor.__reduce_ex__(5)
    # Pending conjugation and negation are bits of the tensor, not of its memory.
    if plain.is_conj():
        plain = plain.resolve_conj()
    if plain.is_neg():
        plain = plain.resolve_neg()
    raw = _untyped(plain)
    used = plain.numel() * plain.element_size()
    if raw.numel() >= _COMPACT_BYTES_MIN and raw.numel() >= 2 * used:
        plain = plain.clone(memory_format=torch.contiguous_format)
        raw = _untyped(plain)
    return (
        _rebuild_dense,
        (
            pickle.PickleBuffer(raw.numpy()),
            plain.dtype,
            tuple(plain.size()),
            plain.stride(),
            plain.storage_offset(),
            tensor.requires_grad,
        ),
    )


def _rebuild_parameter(data, requires_grad):
    return torch.nn.Parameter(data, requires_grad)


def _reduce_parameter(parameter):
    return (_rebuild_parameter, (parameter.detach(), parameter.requires_grad))


# ---- operators and TorchScript -----------------------------------------------------------------


def _load_script_function(name):
    function = torch.jit._state._python_cu.find_function(name)
    if function is None:
        import importlib

        # It is there once the module is that defines it.
        module = name.removeprefix("__torch__.").rpartition(".")[0]
        importlib.import_module(module)
        function = torch.jit._state._python_cu.find_function(name)
    if function is None:
        raise AttributeError(f"there is no TorchScript function {name}")
    return function


def _reduce_script_function(function):
    return (_load_script_function, (function.qualified_name,))


def _load_script_module(data):
    import io

    return torch.jit.load(io.BytesIO(data))


def _reduce_script_module(module):
    import io

    file = io.BytesIO()
    torch.jit.save(module, file)
    return (_load_script_module, (file.getvalue(),))


_NOT_OPERATORS = ("builtins", "math", "cmath", "operator")


def is_native(function) -> bool:
    """Whether it is an operator of PyTorch or a TorchScript function."""
    if isinstance(function, torch.jit.ScriptFunction):
        return True
    if getattr(function, "__module__", None) in _NOT_OPERATORS:
        return False
    try:
        return torch.jit._builtins._find_builtin(function) is not None
    except TypeError:
        return False


def check_arguments(function, args, kwargs):
    """Raises, in the words of this PyTorch, if an operator is called without the arguments it needs.

    Only if there are none at all: operators also take what their schemas do not say, `size` as
    several numbers and `out`, so nothing but the callee can tell for the others.
    """
    if args or kwargs or isinstance(function, torch.jit.ScriptFunction):
        return
    name = torch.jit._builtins._find_builtin(function)
    schemas = torch._C._jit_get_schemas_for_operator(name)
    if any(all(one.has_default_value() for one in schema.arguments) for schema in schemas):
        return
    operator, _ = torch._C._jit_get_operation(name)
    operator()


def register(pickler):
    pickler._register_reducer(torch.Tensor, _reduce_tensor)
    pickler._register_reducer(torch.nn.Parameter, _reduce_parameter)
    pickler._register_reducer(torch.jit.ScriptFunction, _reduce_script_function)
    pickler._register_reducer(torch.jit.RecursiveScriptModule, _reduce_script_module)


# ---- futures -----------------------------------------------------------------------------------


def _require_callable(callback):
    if not callable(callback):
        raise TypeError(f"incompatible function arguments: a callback is a function, not {callback!r}")


class TorchFuture(torch.futures.Future):
    """The future of a call, for programs that expect one of PyTorch.

    Its PyTorch half is never made: each would cost more than a call. PyTorch asks for it in one
    place only, and there it is given another: see _let_torch_collect.
    """

    def done(self):
        return self._call.done()

    def wait(self):
        return self._call.wait()

    def value(self):
        return self._call.value()

    def then(self, callback):
        _require_callable(callback)
        return torch_future(self._call.then(self._given_to(callback)))

    def add_done_callback(self, callback):
        _require_callable(callback)
        self._call.add_done_callback(self._given_to(callback))

    def _given_to(self, callback):
        # Weakly: until it is done, the future keeps the callback.
        me = weakref.ref(self)

        def call_back(call):
            future = me()
            return callback(torch_future(call) if future is None else future)

        return call_back

    def set_result(self, result):
        self._call.set_result(result)

    def set_exception(self, result):
        self._call.set_exception(result)

    def __await__(self):
        return self._call.__await__()

    def __reduce_ex__(self, protocol):
        return self._call.__reduce_ex__(protocol)


_new = TorchFuture.__new__


def torch_future(call):
    future = _new(TorchFuture)
    future._call = call
    return future


def _let_torch_collect():
    # torch.futures.collect_all and wait_all both end here.
    collect = torch._C._collect_all

    def collect_all(futures):
        if any(isinstance(one, (TorchFuture, _native.Future)) for one in futures):
            return torch_future(muster.futures.collect_all(futures))
        return collect(futures)

    torch._C._collect_all = collect_all


_let_torch_collect()
