"""What `init_rpc` takes: the options of the backends."""

from __future__ import annotations

import numbers

from . import constants

TYPE_CHECKING = False  # as the checkers of types know it; typing itself takes long to load
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Sequence, Union

    import torch

    Device = Union[int, str, torch.device]
    DeviceMap = Dict[Device, Device]

__all__ = ["RpcBackendOptions", "TensorPipeRpcBackendOptions"]


def _seconds(value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            "__init__(): incompatible constructor arguments: rpc_timeout is a number of seconds, "
            f"not {value!r}"
        )
    if value < 0:
        raise RuntimeError(f"RPC Timeout must be non-negative, got {value}")
    return float(value)


class RpcBackendOptions:
    """The options of every backend.

    rpc_timeout: seconds that a call may take unless it says otherwise; 0: any.
    init_method: where the workers meet: "env://", "tcp://host:port" or "file:///path".
    """

    def __init__(
        self,
        rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = constants.DEFAULT_INIT_METHOD,
    ):
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method

    @property
    def rpc_timeout(self) -> float:
        """Seconds that a call may take unless it says otherwise; 0: any."""
        return self._rpc_timeout

    @rpc_timeout.setter
    def rpc_timeout(self, value: float) -> None:
        self._rpc_timeout = _seconds(value)


# A device is ("cpu", 0) or (kind, index) inside; programs give numbers, texts or torch.device.
def _to_pair(device):
    if isinstance(device, numbers.Integral):
        kind, index = "cuda", int(device)
    elif hasattr(device, "type"):
        kind, index = device.type, device.index or 0
    else:
        kind, colon, number = str(device).partition(":")
        if not kind.isidentifier() or (colon and not number.removeprefix("-").isdecimal()):
            raise RuntimeError(f"Invalid device string: '{device}'")
        index = int(number or 0)
    if index < 0:
        raise RuntimeError(f"Device index must not be negative, and {kind}:{index} is")
    return (kind, index)


def _to_device(device):
    """The device as programs see it: torch.device where there is PyTorch."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None:
        kind, index = _to_pair(device)
        return kind if kind == "cpu" else f"{kind}:{index}"
    if isinstance(device, numbers.Integral):
        # Of a number alone, PyTorch 2 makes no device where there is no accelerator.
        return torch.device(*_to_pair(device))
    return torch.device(device)


def _to_device_map(device_map):
    seen = {}
    made = {}
    for source, target in device_map.items():
        source, target = _to_device(source), _to_device(target)
        if target in seen:
            raise ValueError(
                "`device_map` only supports 1-to-1 mapping, trying to map "
                f"{source} and {seen[target]} to {target}"
            )
        seen[target] = source
        made[source] = target
    return made


# By the names that PyTorch's backend has for them.
_TRANSPORTS = ("ibv", "shm", "uv")
_CHANNELS = (
    "basic",
    "cma",
    "cuda_basic",
    "cuda_gdr",
    "cuda_ipc",
    "cuda_xth",
    "mpt_uv",
    "xth",
)


def _check_known(what, names, known):
    for name in names or ():
        if name not in known:
            raise RuntimeError(f"Unknown {what}: {name}; there are: {', '.join(known)}")


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """The options of the default backend; it has the name of the one that it stands in for.

    num_worker_threads: threads that run functions for others.
    device_maps: for each worker, to which device there a tensor goes, by its device here.
    devices: the accelerators that tensors may be on; those of the device maps, if not given.
    shared_memory: whether workers of one machine talk through shared memory.
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = constants.DEFAULT_INIT_METHOD,
        device_maps: Optional[Dict[str, DeviceMap]] = None,
        devices: Optional[Sequence[Device]] = None,
        shared_memory: bool = True,
        _transports: Optional[Sequence[str]] = None,
        _channels: Optional[Sequence[str]] = None,
    ):
        super().__init__(rpc_timeout, init_method)
        if num_worker_threads <= 0:
            raise RuntimeError(
                f"num_worker_threads must be positive, got {num_worker_threads}"
            )
        self.num_worker_threads = num_worker_threads
        # How workers talk is found out for each pair; of those that PyTorch has, only shared memory
        # can be left out.
        _check_known("transport", _transports, _TRANSPORTS)
        _check_known("channel", _channels, _CHANNELS)
        self.shared_memory = shared_memory and (_transports is None or "shm" in _transports)
        self._transports = _transports
        self._channels = _channels
        self.device_maps = {}
        for to, device_map in (device_maps or {}).items():
            self.device_maps[to] = _to_device_map(device_map)
        self.devices: list[Any] = []
        if devices is not None:
            self.set_devices(devices)

    def set_device_map(self, to: str, device_map: DeviceMap) -> None:
        """Adds to the device map for worker `to`."""
        added = _to_device_map(device_map)
        current = self.device_maps.setdefault(to, {})
        for source, target in added.items():
            if source in current and current[source] != target:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {source} to "
                    f"{target} and {current[source]}"
                )
        current.update(added)

    def set_devices(self, devices: Sequence[Device]) -> None:
        """The accelerators that tensors may be on."""
        chosen = [_to_device(device) for device in devices]
        for device in chosen:
            if _to_pair(device)[0] == "cpu":
                raise ValueError(
                    f"`set_devices` expect a list of CUDA devices, but got device {device}"
                )
        self.devices = chosen
