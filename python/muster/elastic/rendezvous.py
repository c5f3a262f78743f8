"""How the nodes of a job come together.

    from muster.elastic.rendezvous import RendezvousParameters, get_rendezvous_handler

    handler = get_rendezvous_handler(RendezvousParameters(
        backend="c10d", endpoint="10.0.0.1:29400", run_id="job1", min_nodes=2, max_nodes=4))
    info = handler.next_rendezvous()
    info.rank, info.world_size, info.store

Names, arguments and results are those of torch.distributed.elastic.rendezvous; the stores are
those of muster.store. Backends: c10d, muster (a `muster store serve`, or a process that hosts a
muster.store.TCPStore), etcd, file, static, and whatever is registered.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Any, Callable, Iterator, NamedTuple, Optional

from muster import _native, errors
from muster.store import Store

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "get_rendezvous_handler",
    "parse_config",
    "rendezvous_handler_registry",
]


class RendezvousError(Exception):
    """What all of them are."""


class RendezvousClosedError(RendezvousError):
    """The run is closed, for everybody and for good."""


class RendezvousTimeoutError(RendezvousError):
    """No round was complete in time."""


class RendezvousConnectionError(RendezvousError):
    """The store cannot be reached."""


class RendezvousStateError(RendezvousError):
    """What the store holds cannot be read."""


class RendezvousGracefulExitError(RendezvousError):
    """This node was a spare of a run that is over: it ends, and with success."""


_BY_KIND = {
    "closed": RendezvousClosedError,
    "timeout": RendezvousTimeoutError,
    "unavailable": RendezvousConnectionError,
    "corrupt": RendezvousStateError,
    "finished": RendezvousGracefulExitError,
}


@contextlib.contextmanager
def _rendezvous_errors() -> Iterator[None]:
    try:
        yield
    except errors.MusterError as error:
        raise _BY_KIND.get(error.kind, RendezvousError)(str(error)) from None


class RendezvousStoreInfo(NamedTuple):
    """Where workers find the store that they begin with."""

    master_addr: str
    master_port: int


class RendezvousInfo:
    """What a complete round means for one of its nodes."""

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        bootstrap_store_info: Optional[RendezvousStoreInfo],
        round: int = 0,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info
        self._round = round

    @property
    def store(self) -> Store:
        """A store of this round; other rounds have their own."""
        return self._store

    @property
    def rank(self) -> int:
        """Of this node."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many nodes there are."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> Optional[RendezvousStoreInfo]:
        """Where workers find the store that they begin with."""
        return self._bootstrap_store_info

    @property
    def round(self) -> int:
        """The rounds of a run are counted from 0."""
        return self._round


class RendezvousParameters:
    """What a rendezvous is asked for.

    backend: the name of the backend.
    endpoint: where the nodes meet: usually HOST[:PORT].
    run_id: the name of the run, the same on all nodes.
    min_nodes, max_nodes: how many nodes make a round.
    local_addr: the address by which others reach this node; otherwise the name of the machine.
    Everything else is an option of the backend, as in `muster run --rdzv-conf`.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: Optional[str] = None,
        **kwargs: Any,
    ) -> None:
        if not backend:
            raise ValueError("the name of the rendezvous backend is empty")
        if min_nodes < 1:
            raise ValueError(f"a rendezvous needs at least 1 node, not {min_nodes}")
        if max_nodes < min_nodes:
            raise ValueError(f"at most {max_nodes} nodes are fewer than at least {min_nodes}")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = kwargs

    def get(self, key: str, default: Any = None) -> Any:
        """The option, or the default if it is not given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: Optional[bool] = None) -> Optional[bool]:
        """Likewise, as a bool: also from 0, 1, and words like yes and no."""
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).lower() if isinstance(value, (int, str)) else ""
        if word in ("1", "true", "t", "yes", "y"):
            return True
        if word in ("0", "false", "f", "no", "n"):
            return False
        raise ValueError(f"the rendezvous option {key!r} is {value!r}, which is neither yes nor no")

    def get_as_int(self, key: str, default: Optional[int] = None) -> Optional[int]:
        """Likewise, as a whole number."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            message = f"the rendezvous option {key!r} is {value!r}, which is no whole number"
            raise ValueError(message) from None


class RendezvousHandler(ABC):
    """The seat of one node in a rendezvous."""

    @abstractmethod
    def get_backend(self) -> str:
        """The name of the backend."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the store that workers begin with is hosted by the agents, and outlives them."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Leaves the present round, if any, and waits until a new one is complete with this node
        in it. Raises a RendezvousError if there will be none."""

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the run is closed."""

    @abstractmethod
    def set_closed(self) -> None:
        """Closes the run for everybody. May be repeated."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes wait for a new round. If there are any: stop the workers, and call
        `next_rendezvous`."""

    @abstractmethod
    def get_run_id(self) -> str:
        """The name of the run."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Closes the run and stops all that goes on in the background. False if that could not be
        done. May be repeated."""


class NativeHandler(RendezvousHandler):
    """A handler of one of Muster's own backends."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._backend = params.backend
        self._run_id = params.run_id
        with _rendezvous_errors():
            self._handle = _native.open_rendezvous(
                params.backend,
                params.endpoint,
                params.run_id,
                params.min_nodes,
                params.max_nodes,
                params.local_addr or "",
                params.config,
            )

    def get_backend(self) -> str:
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        return self._handle.use_agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        with _rendezvous_errors():
            try:
                handle, rank, world_size, round, host, port = self._handle.next()
            except errors.MusterError:
                raise
            except BaseException:
                # Interrupted: the others shall not wait for this node.
                with contextlib.suppress(errors.MusterError):
                    self._handle.leave()
                raise
        bootstrap = RendezvousStoreInfo(host, port) if host else None
        return RendezvousInfo(_RoundStore(handle), rank, world_size, bootstrap, round)

    def is_closed(self) -> bool:
        with _rendezvous_errors():
            return self._handle.is_closed()

    def set_closed(self) -> None:
        with _rendezvous_errors():
            self._handle.set_closed()

    def num_nodes_waiting(self) -> int:
        with _rendezvous_errors():
            return self._handle.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._run_id

    def leave(self) -> None:
        """Gives up the seat without closing the run, so that the others may go on."""
        with _rendezvous_errors():
            self._handle.leave()

    def shutdown(self) -> bool:
        with _rendezvous_errors():
            return self._handle.shutdown()


class _RoundStore(Store):
    """The store of a round."""

    def __init__(self, handle: _native.StoreHandle) -> None:
        self._handle = handle


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class RendezvousHandlerRegistry:
    """Which backends there are, and who makes their handlers."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Adds a backend. A name that has another creator already is refused."""
        if not backend:
            raise ValueError("the name of the rendezvous backend is empty")
        present = self._creators.get(backend, creator)
        if present != creator:
            raise ValueError(
                f"the rendezvous backend {backend!r} cannot be registered with {creator}: "
                f"{present} has registered it"
            )
        self._creators[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """A handler of the backend that the parameters name."""
        creator = self._creators.get(params.backend)
        if creator is None:
            known = ", ".join(sorted(self._creators))
            raise ValueError(
                f"there is no rendezvous backend {params.backend!r}, only {known}; "
                "others must be registered"
            )
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"a handler of the rendezvous backend {handler.get_backend()!r} was made where "
                f"{params.backend!r} was wanted"
            )
        return handler


rendezvous_handler_registry = RendezvousHandlerRegistry()
for _name in ("c10d", "etcd", "etcd-v2", "file", "muster", "static"):
    rendezvous_handler_registry.register(_name, NativeHandler)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler of the backend that the parameters name."""
    return rendezvous_handler_registry.create_handler(params)


def parse_config(text: str) -> dict[str, str]:
    """Reads what `--rdzv-conf` takes: KEY=VALUE,..."""
    return _native.parse_rendezvous_config(text)
