"""What makes `torchrun --rdzv-backend=muster` work: a rendezvous handler of this package in the
shape that PyTorch's agent expects. Imports torch."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch.distributed.elastic.rendezvous as torch_rendezvous
from torch.distributed.elastic.rendezvous import api as torch_api

from muster._torch_store import _Adapter
from muster.elastic import rendezvous


def handler() -> Callable[[Any], torch_rendezvous.RendezvousHandler]:
    """The entry point of the group `torchrun.handlers`."""
    return TorchHandler


def register() -> None:
    """For programs, and for versions of PyTorch that load no plug-ins."""
    torch_rendezvous.rendezvous_handler_registry.register("muster", TorchHandler)


@contextlib.contextmanager
def _torch_errors() -> Iterator[None]:
    try:
        yield
    except rendezvous.RendezvousError as error:
        kind = getattr(torch_api, type(error).__name__, torch_api.RendezvousError)
        raise kind(str(error)) from error


class TorchHandler(torch_rendezvous.RendezvousHandler):
    def __init__(self, params: torch_rendezvous.RendezvousParameters) -> None:
        # PyTorch's launcher always gives a time limit, which is meant for its static backend.
        config = {name: value for name, value in params.config.items() if name != "timeout"}
        with _torch_errors():
            self._handler = rendezvous.NativeHandler(
                rendezvous.RendezvousParameters(
                    "muster",
                    params.endpoint,
                    params.run_id,
                    params.min_nodes,
                    params.max_nodes,
                    getattr(params, "local_addr", None),
                    **config,
                )
            )

    def get_backend(self) -> str:
        return "muster"

    @property
    def use_agent_store(self) -> bool:
        return self._handler.use_agent_store

    def next_rendezvous(self) -> Any:
        with _torch_errors():
            info = self._handler.next_rendezvous()
        store = _Adapter(info.store)
        if not hasattr(torch_api, "RendezvousInfo"):
            return store, info.rank, info.world_size
        where = info.bootstrap_store_info
        bootstrap = where and torch_api.RendezvousStoreInfo(where.master_addr, where.master_port)
        return torch_api.RendezvousInfo(store, info.rank, info.world_size, bootstrap)

    def is_closed(self) -> bool:
        with _torch_errors():
            return self._handler.is_closed()

    def set_closed(self) -> None:
        with _torch_errors():
            self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        with _torch_errors():
            return self._handler.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        with _torch_errors():
            return self._handler.shutdown()
