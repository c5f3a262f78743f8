"""Pickling, and running functions for others. The native module calls what is at the end of this file.

Objects travel by pickle protocol 5 with the memory of NumPy arrays and tensors beside the pickle,
never inside it. Functions travel by name; those without one that others could
find (lambdas, closures) need cloudpickle.
"""

# What few programs need is imported where it is used: the import of this package is to be quick.
import copyreg
import io
import pickle
import sys
import types
from collections import namedtuple
from enum import Enum

from muster import _native

# One call of a Python function, as programs that pickle one by hand have it; a plain tuple does, too.
PythonUDF = namedtuple("PythonUDF", ["func", "args", "kwargs"])
# What a function raised: the text with its traceback, and the name of the class.
RemoteException = namedtuple("RemoteException", ["msg", "module", "qualname", "traceback"])


class RPCExecMode(Enum):
    SYNC = "sync"
    ASYNC = "async"
    ASYNC_JIT = "async_jit"
    REMOTE = "remote"


# ---- pickling ----------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Knows how classes are pickled that travel in a way of their own."""

    dispatch_table = dict(copyreg.dispatch_table)


_reducers = {}
_copyreg_size = len(copyreg.dispatch_table)


def _refresh_reducers():
    # Programs may add to copyreg at any time; only a plain dict is quick to look things up in.
    global _copyreg_size
    _copyreg_size = len(copyreg.dispatch_table)
    _Pickler.dispatch_table = {**copyreg.dispatch_table, **_reducers}


_cloud_pickler = None


def _find_cloud_pickler():
    """The pickler of cloudpickle with our reducers; False if it is not installed."""
    global _cloud_pickler
    if _cloud_pickler is None:
        try:
            import cloudpickle
        except ImportError:
            _cloud_pickler = False
        else:

            class CloudPickler(cloudpickle.Pickler):
                def reducer_override(self, obj):
                    reducer = _reducers.get(type(obj))
                    if reducer is not None:
                        return reducer(obj)
                    return super().reducer_override(obj)

            _cloud_pickler = CloudPickler
    return _cloud_pickler


class _InternalRPCPickler:
    """Pickles what travels between workers."""

    def _register_reducer(self, obj_class, reducer):
        """Instances of exactly this class are pickled as `reducer` says, as in copyreg."""
        if obj_class not in _reducers:
            _reducers[obj_class] = reducer
            _refresh_reducers()

    def serialize(self, obj):
        """(bytes, buffers)"""
        if _copyreg_size != len(copyreg.dispatch_table):
            _refresh_reducers()
        if _needs_torch:
            _load_torch()
        file = io.BytesIO()
        buffers = []
        try:
            _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(obj)
            return file.getvalue(), buffers
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            cloud_pickler = _find_cloud_pickler()
            if not cloud_pickler:
                error.args = (
                    f"{error}; functions and classes without a name that other workers can find "
                    "need cloudpickle, which is not installed",
                )
                raise
            first = error.with_traceback(None)
        # What was given away with the first attempt is not.
        _native.take_back_references()
        file = io.BytesIO()
        buffers = []
        try:
            cloud_pickler(file, protocol=5, buffer_callback=buffers.append).dump(obj)
        except Exception as error:
            # The first error says more: the second one is about how cloudpickle works. Neither is
            # kept here: its traceback would keep this frame, and so all that was to be sent.
            try:
                raise first from error.with_traceback(None)
            finally:
                del first, error
        return file.getvalue(), buffers

    def deserialize(self, binary_data, buffers):
        if _needs_torch:
            _load_torch()
        return pickle.loads(binary_data, buffers=buffers)


_internal_rpc_pickler = _InternalRPCPickler()

# Whether PyTorch is to be looked for: until it has been seen.
_needs_torch = True


def _load_torch():
    global _needs_torch
    if "torch" not in sys.modules or not hasattr(sys.modules["torch"], "Tensor"):
        return
    from . import _torch

    _torch.register(_internal_rpc_pickler)
    _needs_torch = False


def serialize(obj):
    return _internal_rpc_pickler.serialize(obj)


def deserialize(binary_data, buffers):
    return _internal_rpc_pickler.deserialize(binary_data, buffers)


def _install(pickler):
    """Has the native module pickle with this one: see api._use_rpc_pickler."""
    global _serialize, _deserialize
    _serialize = getattr(pickler, "serialize", serialize)
    _deserialize = getattr(pickler, "deserialize", deserialize)
    _native.set_hooks(
        dumps=_serialize,
        dumps_result=_dumps_result,
        loads=_deserialize,
        load_call=_load_call,
        run=_run_function,
        run_async=_run_async_function,
        raise_error=_raise_error,
        error_class=RemoteException,
        await_future=_await,
    )


# ---- errors ------------------------------------------------------------------------------------


def _record_of(error) -> RemoteException:
    """What another worker needs to raise `error` there."""
    import re
    import traceback

    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    # Line breaks in the text are to be seen as such; a backslash before an n is not one.
    shown = re.sub(r"(?<!\\)((?:\\\\)*)\\n", "\\1\n", repr(error))
    text = f"On {_native.self_info()}:\n{shown}\n{lines}"
    kind = type(error)
    if (kind.__module__, kind.__name__) == ("torch.jit", "Error"):
        kind = RuntimeError  # what TorchScript raises, in the process where it is called
    return RemoteException(text, kind.__module__, kind.__qualname__, lines)


def _class_of(record):
    import importlib

    found = importlib.import_module(record.module)
    for name in record.qualname.split("."):
        found = getattr(found, name)
    return found


def _copy_of(error):
    """An exception like this one, without the frames that it has been through.

    A future keeps its exception. If that was raised itself, it would keep the frames of all who have
    waited for it, and what they refer to: often the future.
    """
    import copy

    try:
        copied = copy.copy(error)
    except Exception:
        return error  # its class takes other arguments
    if type(copied) is not type(error):
        return error
    return copied.with_traceback(error.__traceback__)


def _raise_error(error):
    """Raises an exception, or what a function raised on another worker."""
    if not isinstance(error, RemoteException):
        raise _copy_of(error) from error.__cause__
    try:
        kind = _class_of(error)
        exception = kind(error.msg)
        if not isinstance(exception, Exception):
            raise TypeError(f"{kind} is no exception")
    except Exception as problem:
        exception = RuntimeError(
            f"Failed to create original exception type {error.module}.{error.qualname}: "
            f"{problem!r}. Original exception on remote side was {error.msg}"
        )
    try:
        exception.remote_traceback = error.traceback
    except AttributeError:
        pass  # a class with slots
    raise exception from None


def _handle_exception(result):
    if isinstance(result, RemoteException):
        _raise_error(result)


# ---- running functions for others --------------------------------------------------------------


def _load_call(data, buffers):
    try:
        return _deserialize(data, buffers)
    except AttributeError as error:
        problem = RuntimeError(
            f"{error}. The default RPC pickler does not serialize function code: it must be there "
            "on the callee, under the same name."
        )
        return _record_of(problem)


def _report(error) -> RemoteException:
    record = _record_of(error)
    print(record.msg, file=sys.stderr)
    return record


def _run_function(call):
    """The result of a call, or what it raised."""
    if type(call) is RemoteException:
        return call
    try:
        function, args, kwargs = call
        result = function(*args, **kwargs)
        if type(result) is types.CoroutineType:
            import asyncio

            result = asyncio.run(result)
        return result
    except Exception as error:
        return _report(error)


def _is_future(value):
    if isinstance(value, _native.Future):
        return True
    torch = sys.modules.get("torch")
    # What `then` of a torch.futures.Future gives is of the class below it.
    return torch is not None and isinstance(value, torch._C.Future)


def _run_async_function(call, complete):
    """Runs a function that answers with a future; `complete` gets the value of that."""
    if type(call) is RemoteException:
        return complete(call)

    def on_done(done):
        try:
            result = done.wait()
        except Exception as error:
            result = _record_of(error)
        complete(result)

    try:
        function, args, kwargs = call
        future = function(*args, **kwargs)
        if type(future) is types.CoroutineType:
            from .coroutines import run_later

            return run_later(future, complete, lambda error: complete(_report(error)))
        if not _is_future(future):
            kind = type(future)
            raise RuntimeError(
                "Functions decorated with @rpc.async_function must return a "
                f"torch.futures.Future object, but got {kind.__module__}.{kind.__qualname__}"
            )
    except Exception as error:
        return complete(_report(error))
    future.add_done_callback(on_done)


# The result of many functions.
_NOTHING = (pickle.dumps(None, 5), [], False)


def _dumps_result(result):
    """(bytes, buffers, whether it is an error); a result that cannot be pickled is one."""
    if result is None:
        return _NOTHING
    if type(result) is not RemoteException:
        try:
            return (*_serialize(result), False)
        except Exception as error:
            _native.take_back_references()
            result = _report(error)
    return (*_internal_rpc_pickler.serialize(result), True)


def _await(future):
    """Lets a coroutine wait for a future."""
    import asyncio

    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake():
        if not waiter.done():
            waiter.set_result(None)

    def on_done(_):
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            pass  # the loop has been closed meanwhile

    future.add_done_callback(on_done)
    yield from waiter
    return future.value()


_install(_internal_rpc_pickler)


# ---- what profilers ask for; there is none here ------------------------------------------------


def _build_rpc_profiling_key(
    exec_type, func_name, current_worker_name, dst_worker_name
):
    return f"rpc_{exec_type.value}#{func_name}({current_worker_name} -> {dst_worker_name})"


