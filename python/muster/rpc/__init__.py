"""Calls between the workers of a job, with the names and the behaviour of torch.distributed.rpc.

    import muster.rpc as rpc

    rpc.init_rpc("worker0", rank=0, world_size=2)
    total = rpc.rpc_sync("worker1", sum, args=([1, 2, 3],))
    later = rpc.rpc_async("worker1", sum, args=([4, 5],))
    model = rpc.remote("worker1", Model, args=("small",))     # stays there
    model.rpc_sync().train(later.wait())
    rpc.shutdown()
"""

from __future__ import annotations

import numbers

from muster._native import WorkerInfo

from . import api, backend_registry, constants, functions
from .agent import RpcAgent
from .api import (
    RRef,
    _all_gather,
    _barrier,
    _delete_all_user_and_unforked_owner_rrefs,
    _get_current_rpc_agent,
    _get_debug_info,
    _is_current_rpc_agent_set,
    _reset_current_rpc_agent,
    _rref_context_get_debug_info,
    _set_rpc_timeout,
    _wait_all,
    _wait_all_workers,
    enable_gil_profiling,
    get_rpc_timeout,
    get_worker_info,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
)
from .backend_registry import (
    BackendType,
    backend_registered,
    construct_rpc_backend_options,
    init_backend,
    register_backend,
)
from .options import RpcBackendOptions, TensorPipeRpcBackendOptions
from .procedures import Alternative, Procedure, define
from .rref import PyRRef

TYPE_CHECKING = False  # as the checkers of types know it; typing itself takes long to load
if TYPE_CHECKING:
    from typing import Optional

# For programs that ask for the class of the agent.
TensorPipeAgent = RpcAgent

__all__ = [
    "Alternative",
    "BackendType",
    "Procedure",
    "PyRRef",
    "RRef",
    "RpcBackendOptions",
    "TensorPipeRpcBackendOptions",
    "WorkerInfo",
    "backend_registered",
    "construct_rpc_backend_options",
    "define",
    "enable_gil_profiling",
    "functions",
    "get_rpc_timeout",
    "get_worker_info",
    "init_backend",
    "init_rpc",
    "is_available",
    "register_backend",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
]


def is_available() -> bool:
    """Whether there is RPC, which there always is."""
    return True


def init_rpc(
    name: str,
    backend: Optional[BackendType] = None,
    rank: int = -1,
    world_size: Optional[int] = None,
    rpc_backend_options: Optional[RpcBackendOptions] = None,
) -> None:
    """Joins the group; from then on this worker can call the others, and they can call it.

    name: of this worker; nobody else has it. Letters, digits, `-`, `_` and `:`, at most 127.
    rank: its number; nobody else has it. Under `muster run`, RANK if it is not given.
    world_size: how many workers there are; without it they come and go.
    """
    if backend is not None and not isinstance(backend, BackendType):
        raise TypeError("Argument backend must be a member of BackendType")
    if rpc_backend_options is not None and not isinstance(
        rpc_backend_options, RpcBackendOptions
    ):
        raise TypeError(
            "Argument rpc_backend_options must be an instance of RpcBackendOptions"
        )
    if backend is None and rpc_backend_options is not None:
        backend = _backend_of(rpc_backend_options)
    if backend is None:
        backend = BackendType.TENSORPIPE
    if rpc_backend_options is None:
        rpc_backend_options = construct_rpc_backend_options(backend)
    if _is_current_rpc_agent_set():
        raise RuntimeError("RPC is already initialized")
    from .meeting import meet

    place, rank, world_size = meet(rpc_backend_options.init_method, rank, world_size)
    _init_rpc_backend(backend, place, name, rank, world_size, rpc_backend_options)


def _backend_of(options):
    """The first backend whose options are of that class."""
    for candidate in BackendType:
        if type(construct_rpc_backend_options(candidate)) is type(options):
            break
    else:
        raise TypeError(f"Could not infer backend for options {options}")
    if candidate is not BackendType.TENSORPIPE:
        import logging

        logging.getLogger(__name__).warning(
            "RPC is initialized without a backend but with options of %s, so that is used; "
            "give backend=%s to say so",
            candidate,
            candidate,
        )
    return candidate


def _init_rpc_backend(
    backend=BackendType.TENSORPIPE,
    store=None,
    name=None,
    rank=-1,
    world_size=None,
    rpc_backend_options=None,
):
    for value, kind in (
        (backend, BackendType),
        (store, object),
        (name, str),
        (rank, numbers.Integral),
        (world_size, (numbers.Integral, type(None))),
        (rpc_backend_options, RpcBackendOptions),
    ):
        if not isinstance(value, kind) or value is None and kind is object:
            raise RuntimeError(
                f"Argument {value} must be of type {kind} but got type {type(value)}"
            )
    if _is_current_rpc_agent_set():
        raise RuntimeError("RPC is already initialized")
    agent = init_backend(
        backend,
        store=store,
        name=name,
        rank=rank,
        world_size=world_size,
        rpc_backend_options=rpc_backend_options,
    )
    api._init_rpc_states(agent)


class _server_process_global_profile:
    """There is no profiler of calls here; for programs that name it."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError(
            "profiling of calls is not supported by muster.rpc: see docs/python.md"
        )
