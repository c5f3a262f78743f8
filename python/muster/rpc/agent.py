"""The agent of this worker, as programs and tests reach it through `_get_current_rpc_agent`."""

import os

from muster import _native

from .options import _to_pair


class RpcAgent:
    """Sends calls to other workers and serves theirs."""

    def __init__(self, meeting, is_static_group):
        self.store = meeting
        self.is_static_group = is_static_group

    def get_worker_info(self, worker=None):
        """This worker, or the one of that name or id."""
        return _native.self_info() if worker is None else _native.find_worker(worker)

    def get_worker_infos(self):
        return _native.worker_infos()

    def get_debug_info(self):
        return {
            key: value
            for key, value in _native.debug_info().items()
            if key.startswith("agent.")
        }

    def get_metrics(self):
        return _native.metrics()

    def join(self, shutdown=False, timeout=0):
        """Waits until all workers have nothing left to do."""
        from . import api

        api._wait_all_workers(timeout)

    def sync(self):
        from . import api

        api._wait_all_workers()

    def shutdown(self):
        _stop(graceful=False)


def _stop(graceful, timeout=0, ignores_leaks=True, clean_up=None):
    _native.shutdown(graceful, timeout, ignores_leaks, clean_up or (lambda: None))


def _device_count():
    import sys

    torch = sys.modules.get("torch")
    return torch.cuda.device_count() if torch is not None else 0


def start_agent(meeting, name, rank, world_size, options, faults=None):
    """Joins the group that meets at `meeting`; see meeting.py."""
    from .meeting import as_meeting

    meeting = as_meeting(meeting)
    # For what there may be to say at the end of the program, when it is too late to import anything.
    import logging  # noqa: F401

    maps = {
        to: [(_to_pair(source), _to_pair(target)) for source, target in device_map.items()]
        for to, device_map in options.device_maps.items()
    }
    uses_shared_memory = options.shared_memory and not os.environ.get(
        "MUSTER_RPC_NO_SHARED_MEMORY"
    )
    _native.init(
        name=name,
        rank=rank,
        world_size=world_size or None,
        store=meeting.address,
        group=meeting.group,
        timeout=options.rpc_timeout,
        thread_count=options.num_worker_threads,
        shared_memory=uses_shared_memory,
        device_maps=maps,
        devices=[_to_pair(device) for device in options.devices],
        device_count=_device_count(),
        faults=faults,
    )
    return RpcAgent(meeting, world_size is not None)
