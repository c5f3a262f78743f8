"""Stores of this package for torch.distributed, and the other way round. Imports torch."""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from typing import Any, Optional

import torch.distributed as dist

from muster import store as muster_store

# PyTorch holds only the C++ half of a store that is written in Python, and of one whose server
# this process hosts nothing at all; so what they need stays until the process ends.
_kept: list[object] = []


class _Adapter(dist.Store):
    """Calls a store of this package. The names are those that PyTorch looks for."""

    def __init__(self, store: muster_store.Store) -> None:
        super().__init__()
        self._store = store
        super().set_timeout(store.timeout)

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)

    def compare_set(self, key: str, expected_value: Any, desired_value: Any) -> bytes:
        # PyTorch 1.13 gives lists of numbers.
        if isinstance(expected_value, list):
            expected_value, desired_value = bytes(expected_value), bytes(desired_value)
        return self._store.compare_set(key, expected_value, desired_value)

    def wait(self, keys: list[str], timeout: Optional[timedelta] = None) -> None:
        self._store.wait(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def getNumKeys(self) -> int:
        return self._store.num_keys()

    num_keys = getNumKeys

    def deleteKey(self, key: str) -> bool:
        return self._store.delete_key(key)

    delete_key = deleteKey

    def append(self, key: str, value: Any) -> None:
        self._store.append(key, value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._store.multi_get(keys)

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        self._store.multi_set(keys, values)

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._store.set_timeout(timeout)

    def clone(self) -> dist.Store:
        other = _Adapter(self._store.clone())
        _kept.append(other)
        return other


def as_torch_store(store: muster_store.Store) -> dist.Store:
    # Where PyTorch has the same store, its own is the better one: no call to it goes through the
    # interpreter, whose lock PyTorch's threads would have to wait for.
    if isinstance(store, muster_store.PrefixStore):
        return dist.PrefixStore(store.prefix, as_torch_store(store.underlying_store))
    if isinstance(store, muster_store.TCPStore):
        client = dist.TCPStore(store.host, store.port, is_master=False, timeout=store.timeout)
        if store.is_master:
            _kept.append(store)
        return client
    if isinstance(store, muster_store.FileStore):
        return dist.FileStore(store.path, -1)
    if not isinstance(store, muster_store.Store):
        raise TypeError(f"a muster.store.Store is needed, not a {type(store).__name__}")
    adapter = _Adapter(store)
    _kept.append(adapter)
    return adapter


def from_torch_store(store: dist.Store, prefix: Optional[str] = None) -> muster_store.Store:
    if isinstance(store, _Adapter):
        return store._store
    if isinstance(store, dist.TCPStore):
        return muster_store.TCPStore(store.host, store.port, timeout=store.timeout)
    if isinstance(store, dist.FileStore):
        made = muster_store.FileStore(os.fspath(store.path))
        made.set_timeout(store.timeout)
        return made
    if isinstance(store, dist.PrefixStore):
        underlying = from_torch_store(store.underlying_store)
        return muster_store.PrefixStore(
            _prefix_of(store, underlying) if prefix is None else prefix, underlying
        )
    raise TypeError(
        f"a {type(store).__name__} has neither a server nor a file that others could use; "
        "a TCPStore, a FileStore or a PrefixStore of one is needed"
    )


def _prefix_of(store: dist.PrefixStore, underlying: muster_store.Store) -> str:
    """PyTorch does not tell it; so a key is put there, and looked for."""
    mark = f"muster-mark-{uuid.uuid4().hex}"
    store.set(mark, "")
    store.get(mark)  # which is answered, unlike the other: now it is there for others as well
    try:
        for key in underlying.list_keys():
            if key.endswith("/" + mark):
                return key[: -len(mark) - 1]
    except NotImplementedError:
        raise ValueError(
            "the prefix is not known: this server cannot list its keys; give it as `prefix`"
        ) from None
    finally:
        store.delete_key(mark)
    raise ValueError("the store and the one it is a view of are not the same any more")
