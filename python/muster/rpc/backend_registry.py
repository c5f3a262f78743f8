"""The backends that `init_rpc` can start. The default one is TENSORPIPE, after the one it replaces."""

from __future__ import annotations

from collections import namedtuple

from . import constants
from .options import TensorPipeRpcBackendOptions

TYPE_CHECKING = False  # as the checkers of types know it; typing itself takes long to load
if TYPE_CHECKING:
    from typing import Any, Callable, ClassVar, Dict

    from .options import RpcBackendOptions

__all__ = [
    "backend_registered",
    "register_backend",
    "construct_rpc_backend_options",
    "init_backend",
]

BackendValue = namedtuple(
    "BackendValue", ["construct_rpc_backend_options_handler", "init_backend_handler"]
)


class _Members(type):
    """Lets BackendType be used like an enumeration, to which members can be added."""

    def __getitem__(cls, name):
        return cls.__members__[name]

    def __iter__(cls):
        return iter(cls.__members__.values())

    def __len__(cls):
        return len(cls.__members__)

    def __contains__(cls, member):
        return member in cls.__members__.values()


class BackendType(metaclass=_Members):
    """A backend of RPC."""

    __members__: ClassVar[Dict[str, BackendType]] = {}
    TENSORPIPE: ClassVar[BackendType]
    FAULTY_TENSORPIPE: ClassVar[BackendType]  # once muster.rpc._testing is imported

    def __init__(self, name: str, value: BackendValue) -> None:
        self.name = name
        self.value = value

    def __repr__(self):
        return f"BackendType.{self.name}"

    def __reduce__(self):
        return (_member, (self.name,))


def _member(name):
    return BackendType[name]


def backend_registered(backend_name: str) -> bool:
    """Whether there is a backend of that name."""
    return backend_name in BackendType.__members__


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., RpcBackendOptions],
    init_backend_handler: Callable[..., Any],
) -> BackendType:
    """Adds a backend: one function that makes its options, and one that starts it."""
    if backend_registered(backend_name):
        raise RuntimeError(f"RPC backend {backend_name}: already registered")
    member = BackendType(
        backend_name,
        BackendValue(construct_rpc_backend_options_handler, init_backend_handler),
    )
    BackendType.__members__[backend_name] = member
    setattr(BackendType, backend_name, member)
    return member


def construct_rpc_backend_options(
    backend: BackendType,
    rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
    init_method: str = constants.DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> RpcBackendOptions:
    """The options of a backend; `kwargs` are those that only it has."""
    return backend.value.construct_rpc_backend_options_handler(
        rpc_timeout, init_method, **kwargs
    )


def init_backend(backend: BackendType, *args: Any, **kwargs: Any) -> Any:
    """Starts a backend; its agent."""
    return backend.value.init_backend_handler(*args, **kwargs)


def _construct_default_options(rpc_timeout, init_method, **kwargs):
    return TensorPipeRpcBackendOptions(
        rpc_timeout=rpc_timeout, init_method=init_method, **kwargs
    )


def _init_default_backend(store, name, rank, world_size, rpc_backend_options):
    from .agent import start_agent

    if not isinstance(rpc_backend_options, TensorPipeRpcBackendOptions):
        raise TypeError(
            "`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`"
        )
    return start_agent(store, name, rank, world_size, rpc_backend_options)


register_backend("TENSORPIPE", _construct_default_options, _init_default_backend)
