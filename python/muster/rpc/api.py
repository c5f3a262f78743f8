"""Calling functions of other workers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time

from muster import _native

from . import internal
from .agent import _stop
from .constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from .functions import is_async
from .internal import _internal_rpc_pickler
from .procedures import Procedure
from .rref import RRef, _timeout

TYPE_CHECKING = False  # as the checkers of types know it; typing itself takes long to load
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Sequence, TypeVar, Union

    from muster._native import Future, WorkerInfo

    Worker = Union[str, int, WorkerInfo]
    AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])

__all__ = [
    "shutdown",
    "get_worker_info",
    "remote",
    "rpc_sync",
    "rpc_async",
    "RRef",
]


def _log():
    import logging  # here, since most programs never come by

    return logging.getLogger(__name__)

# Whether references that other workers still have to values of this one are no error at the end.
_ignore_rref_leak = True
_default_pickler = _internal_rpc_pickler
_thread_local_var = threading.local()
_collecting = False  # whether any thread has ever used _wait_all
_current_agent = None
_process = None  # in which it runs


@contextlib.contextmanager
def _use_rpc_pickler(rpc_pickler):
    """Pickles with another pickler: one with `serialize` and `deserialize`."""
    global _default_pickler
    _default_pickler = rpc_pickler
    internal._install(rpc_pickler)
    try:
        yield
    finally:
        _default_pickler = _internal_rpc_pickler
        internal._install(_internal_rpc_pickler)


# ---- the agent ---------------------------------------------------------------------------------


def _is_current_rpc_agent_set() -> bool:
    return _native.is_running()


def _get_current_rpc_agent():
    _require_agent()
    return _current_agent


def _set_and_start_rpc_agent(agent):
    global _current_agent, _process
    _current_agent = agent
    _process = os.getpid()


def _init_rpc_states(agent):
    _set_and_start_rpc_agent(agent)


def _reset_current_rpc_agent():
    global _current_agent
    _current_agent = None


def _require_agent():
    if not _native.is_running():
        raise RuntimeError("RPC has not been initialized. Call muster.rpc.init_rpc first.")


def _require_initialized(function: AnyCallable) -> AnyCallable:
    @functools.wraps(function)
    def checked(*args, **kwargs):
        _require_agent()
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


@_require_initialized
def get_worker_info(worker_name: Optional[str] = None) -> WorkerInfo:
    """The WorkerInfo of the worker of that name; of this one, if none is given."""
    if worker_name is None:
        return _native.self_info()
    return _native.find_worker(worker_name)


def get_rpc_timeout() -> float:
    """The seconds that calls may take which do not say so themselves."""
    _require_agent()
    return _native.timeout()


def _set_rpc_timeout(seconds: float) -> None:
    _require_agent()
    _native.set_timeout(seconds)


def _get_debug_info() -> Dict[str, Any]:
    _require_agent()
    info: Dict[str, Any] = dict(_native.debug_info())
    info["num_current_backward_passes"] = 0
    info["num_autograd_contexts"] = 0
    return info


def _rref_context_get_debug_info() -> Dict[str, str]:
    _require_agent()
    return _native.reference_info()


def enable_gil_profiling(flag: bool) -> None:
    """Measures how long threads wait for the interpreter: agent.gil_average_wait_time_us."""
    _native.set_measures_waits(flag)


# ---- calls -------------------------------------------------------------------------------------


_NO_ARGS = ()
_NO_KWARGS: Dict[str, Any] = {}
# What makes the futures that programs get, once PyTorch has been seen.
_torch = None


def _look_for_torch():
    global _torch
    if "torch" in sys.modules and hasattr(sys.modules["torch"], "Tensor"):
        from . import _torch as found

        _torch = found


def _future_of(call):
    """The native future as programs get it."""
    if _torch is None:
        _look_for_torch()
        if _torch is None:
            return call
    return _torch.torch_future(call)


def _is_native_call(func, args, kwargs):
    """Whether PyTorch's own function is called; raises if it cannot be called like this."""
    if _torch is None:
        _look_for_torch()
        if _torch is None:
            return False
    if not _torch.is_native(func):
        return False
    _torch.check_arguments(func, args, kwargs)
    return True


def _invoke(to, func, args, kwargs, timeout):
    if type(func) is Procedure:
        return func._call(to, args, kwargs, _timeout(timeout))
    if not callable(func):
        raise TypeError("function should be callable.")
    return _native.invoke(
        to,
        (func, args or _NO_ARGS, kwargs or _NO_KWARGS),
        None if timeout == UNSET_RPC_TIMEOUT else timeout,
        _is_native_call(func, args, kwargs),
        is_async(func),
    )


def rpc_sync(
    to: Worker,
    func: Callable[..., Any],
    args: Optional[Sequence[Any]] = None,
    kwargs: Optional[Dict[str, Any]] = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Any:
    """Runs `func(*args, **kwargs)` on worker `to`, and waits for its result.

    to: the name, the id or the WorkerInfo of a worker, which may be this one.
    func: a function that is there under the same name; an operator of PyTorch; a class.
    timeout: seconds that it may take; 0: any; not given: what `init_rpc` was told.

    Raises what the function raised there, or RuntimeError if the call could not be made.
    """
    return _invoke(to, func, args, kwargs, timeout).wait()


def rpc_async(
    to: Worker,
    func: Callable[..., Any],
    args: Optional[Sequence[Any]] = None,
    kwargs: Optional[Dict[str, Any]] = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[Any]:
    """As rpc_sync, but goes on, and gives a future of the result, which can also be awaited."""
    future = _future_of(_invoke(to, func, args, kwargs, timeout))
    if _collecting and hasattr(_thread_local_var, "future_list"):
        _thread_local_var.future_list.append(future)
    return future


def remote(
    to: Worker,
    func: Callable[..., Any],
    args: Optional[Sequence[Any]] = None,
    kwargs: Optional[Dict[str, Any]] = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> RRef:
    """Runs `func` on worker `to` and leaves the result there; gives a reference to it, at once."""
    if type(func) is Procedure:
        return func._call_remote(to, args, kwargs, _timeout(timeout))
    return RRef._of(
        _native.invoke_remote(
            to,
            (func, args or _NO_ARGS, kwargs or _NO_KWARGS),
            _timeout(timeout),
            _is_native_call(func, args, kwargs),
            is_async(func),
        )
    )


def _typeof_on_owner(rref):
    return type(rref.local_value())


def _type_future(rref, timeout):
    if rref.is_owner():
        known = _native.Future()
        try:
            known.set_result(type(rref.local_value()))
        except Exception as error:
            known.set_exception(error)
        return _future_of(known)
    return _future_of(_invoke(rref.owner(), _typeof_on_owner, (rref,), None, timeout))


@contextlib.contextmanager
def _wait_all():
    """Waits, at its end, for all that this thread has called with rpc_async inside it."""
    global _collecting
    _collecting = True  # for good: to ask each time costs every call
    _thread_local_var.future_list = []
    try:
        yield
        from muster.futures import wait_all

        wait_all(_thread_local_var.future_list)
    finally:
        del _thread_local_var.future_list


# ---- waiting for each other --------------------------------------------------------------------


def _worker_names():
    return sorted(info.name for info in _native.worker_infos())


@_require_initialized
def _all_gather(
    obj: Any, worker_names: Optional[Sequence[str]] = None, timeout: float = UNSET_RPC_TIMEOUT
) -> Dict[str, Any]:
    """What each of the workers brought, by name; this one brings `obj`."""
    import pickle

    names = sorted(worker_names) if worker_names is not None else _worker_names()
    if not names:
        raise RuntimeError("_all_gather: no workers were given")
    # With the timeout of calls, as long as all are alive; but what is to be sent must be ready.
    limit = timeout if timeout > 0 else None
    ready_within = limit
    if timeout == UNSET_RPC_TIMEOUT:
        ready_within = _native.timeout() or None
    began = time.monotonic()
    data = pickle.dumps(obj)
    taken = time.monotonic() - began
    if ready_within is not None and taken > ready_within:
        if _native.self_info().name == names[0]:
            raise RuntimeError(
                f"{names[0]} timed out in _all_gather after {ready_within:.2f} seconds: its object "
                f"took {taken:.2f} to be pickled"
            )
        raise RuntimeError(
            f"RPC ran for more than set timeout ({ready_within * 1000:.0f} ms): the object took "
            f"{taken:.2f} s to be pickled"
        )
    # Without names, who has come when the last one does: workers of a dynamic group come and go.
    gathered = _native.gather(names if worker_names is not None else [], data, limit)
    return {name: pickle.loads(data) for name, data in gathered.items()}


@_require_initialized
def _barrier(worker_names):
    """Waits until all of those workers have come here. Errors are only logged."""
    try:
        _all_gather(None, set(worker_names))
    except RuntimeError as error:
        _log().error("Failed to complete barrier, got error %s", error)


@_require_initialized
def _wait_all_workers(timeout=DEFAULT_SHUTDOWN_TIMEOUT):
    """Waits until all workers have come here."""
    try:
        _all_gather(None, timeout=timeout)
    except RuntimeError as error:
        _log().error(
            "Failed to respond to 'Shutdown Proceed' in time, got error %s", error
        )
        raise


_own_wait_all_workers = _wait_all_workers


# ---- the end -----------------------------------------------------------------------------------


def _delete_all_user_and_unforked_owner_rrefs(timeout=100):
    _native.end_references(timeout)


def shutdown(graceful: bool = True, timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Ends RPC on this worker.

    graceful: waits until all workers call it and nothing is left to do; else this one just goes.
    timeout: seconds that this may take; 0: as long as all workers are alive.
    """
    _require_agent()
    if _current_agent is not None and not hasattr(_current_agent, "is_static_group"):
        return _current_agent.shutdown()  # of a backend that a program has registered
    try:
        # Only if a program has put another in its place: _stop waits for all by itself, together with
        # workers in C++, which know nothing of this.
        is_replaced = _wait_all_workers is not _own_wait_all_workers
        if is_replaced and graceful and getattr(_current_agent, "is_static_group", False):
            began = time.monotonic()
            try:
                _wait_all_workers(timeout)
            except BaseException:
                _stop(graceful=False)
                raise
            if timeout > 0:  # what is left of it; 0 would be any time
                timeout = max(timeout - (time.monotonic() - began), 0.001)
        _stop(
            graceful,
            timeout,
            _ignore_rref_leak,
            lambda: _delete_all_user_and_unforked_owner_rrefs(),
        )
    finally:
        _reset_current_rpc_agent()


def _record_what_ends_it():
    # The others fail as soon as they lose this worker, which takes its time to end: a report that
    # goes by the ends of processes would name one of them as the first to fail.
    error = getattr(sys, "last_value", None)  # what the interpreter has just printed
    if not isinstance(error, Exception) or not os.environ.get("TORCHELASTIC_ERROR_FILE"):
        return
    from muster.elastic.errors import get_error_handler

    handler = get_error_handler()
    if not os.path.exists(handler.error_file()):  # `record` has seen it before
        handler.record_exception(error)


def _stop_at_exit():
    # Threads that go on while the interpreter ends would take it down. A child that was forked has
    # none of them.
    if not _native.is_running() or os.getpid() != _process:
        return
    _log().warning(
        "the program ends without rpc.shutdown(); calls of other workers to this one fail"
    )
    try:
        _record_what_ends_it()
    except Exception as error:  # of the error's own, when it is asked for its text
        _log().warning("what ends the program was not recorded: %r", error)
    try:
        _stop(graceful=False)
    except RuntimeError as error:
        _log().warning("RPC did not end well: %s", error)


atexit.register(_stop_at_exit)
