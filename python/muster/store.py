"""Key-value stores that the processes of a job share.

    from muster.store import TCPStore

    store = TCPStore("10.0.0.1", 29500, world_size=2, is_master=True)    # the first process
    store = TCPStore("10.0.0.1", 29500, world_size=2)                    # the second
    store.set("key", "value")
    store.get("key")                                                     # b'value'

The classes have the names, arguments and results of those of torch.distributed, and talk to them:
a TCPStore of this module may be the client of a server that a PyTorch process hosts, and the other
way round; a FileStore may share its file with them. Beyond those, there are `try_get`, which never
waits, and `watch`, which tells of every change of a key.

Keys are str. Values are str or bytes, and come back as bytes. A timeout is a timedelta, or a
number of seconds; a negative one waits for ever. Stores may be used by several threads at once.
All waiting lets other Python threads run and can be interrupted from the keyboard. A store cannot
be used in a forked child of the process that made it; the child makes its own.
"""

from __future__ import annotations

import operator
import os
from collections import namedtuple
from datetime import timedelta

from muster import _native
from muster.errors import MusterError as StoreError
from muster.errors import QueueEmptyError
from muster.errors import TimedOutError as StoreTimeoutError

TYPE_CHECKING = False  # as the checkers of types know it; typing itself takes long to load
if TYPE_CHECKING:
    from typing import Iterator, Optional, Sequence, Union

    import torch.distributed

    Value = Union[str, bytes, bytearray, memoryview]
    Timeout = Union[timedelta, float, int]

__all__ = [
    "Change",
    "FileStore",
    "HashStore",
    "PrefixStore",
    "QueueEmptyError",
    "Store",
    "StoreError",
    "StoreTimeoutError",
    "TCPStore",
    "Watch",
    "as_torch_store",
    "from_torch_store",
]

DEFAULT_TIMEOUT = timedelta(seconds=300)


def _seconds(timeout: Timeout) -> float:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


def _timedelta(timeout: Timeout) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


def _value(value: Value) -> str | bytes:
    return value if isinstance(value, (str, bytes)) else bytes(memoryview(value))


class Change(namedtuple("Change", ["kind", "key", "value"])):
    """What a watch reports.

    kind: "present" or "absent" for what was there when the watch began, or began again after a
    lost connection; "created", "updated" or "deleted" from then on. The value is empty for
    "absent" and "deleted".
    """

    __slots__ = ()
    kind: str
    key: str
    value: bytes


class Watch:
    """The changes of a key, or of all keys with a prefix, in order: an iterator that waits.

    with store.watch("key") as watch:
        for change in watch:
            ...

    Closing it ends the iteration of whoever waits. A watcher that falls too far behind gets an
    UnavailableError and should begin again.
    """

    def __init__(self, handle: _native.WatchHandle) -> None:
        self._handle = handle
        self._closed = False

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        try:
            return Change(*self._handle.next(-1.0))
        except StoreError:
            if self._closed:
                raise StopIteration from None
            raise

    def next(self, timeout: Timeout = -1) -> Change:
        """The next change. A StoreTimeoutError leaves the watch usable."""
        return Change(*self._handle.next(_seconds(timeout)))

    def close(self) -> None:
        """Ends the watch. May be repeated."""
        self._closed = True
        self._handle.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Store:
    """What all stores have in common. Make one of its subclasses."""

    _handle: _native.StoreHandle
    _timeout: timedelta = DEFAULT_TIMEOUT

    def set(self, key: str, value: Value) -> None:
        """Creates or overwrites the key."""
        self._handle.set(key, _value(value))

    def get(self, key: str) -> bytes:
        """The value, once there is one: waits for it, up to the timeout of the store."""
        return self._handle.get(key, _seconds(self.timeout))

    def try_get(self, key: str) -> Optional[bytes]:
        """The value, or None if there is no such key now."""
        return self._handle.try_get(key)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, and returns the sum. An absent key counts as 0."""
        return self._handle.add(key, operator.index(amount))

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        """Stores the desired value if the present one is the expected one, and returns the value
        that the key then has. An empty expected value also stands for an absent key; for an absent
        key that was expected to have a value, the expected value is returned."""
        return self._handle.compare_set(key, _value(expected_value), _value(desired_value))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether every key exists now."""
        return self._handle.check(keys)

    def wait(self, keys: Sequence[str], timeout: Optional[Timeout] = None) -> None:
        """Waits until every key exists, up to the timeout: the store's, if none is given."""
        self._handle.wait(keys, self._limit(timeout))

    def delete_key(self, key: str) -> bool:
        """Whether there was such a key."""
        return self._handle.delete_key(key)

    def num_keys(self) -> int:
        """How many keys the whole store has, also when it is seen through a PrefixStore."""
        return self._handle.num_keys()

    def list_keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with the prefix, sorted."""
        return self._handle.list_keys(prefix)

    def append(self, key: str, value: Value) -> None:
        """Appends to the value of the key, which is created if need be."""
        self._handle.append(key, _value(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all keys, once there are all: waits up to the timeout of the store."""
        return self._handle.multi_get(keys, _seconds(self.timeout))

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Sets several keys at once."""
        self._handle.multi_set(keys, [_value(value) for value in values])

    def queue_push(self, key: str, value: Value) -> None:
        """Puts an item at the end of a queue."""
        self._handle.queue_push(key, _value(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first item of a queue. Waits for one, up to the timeout of the store; with
        block=False, an empty queue is a QueueEmptyError."""
        if block:
            return self._handle.queue_pop(key, _seconds(self.timeout))
        item = self._handle.try_queue_pop(key)
        if item is None:
            from muster.errors import exception_of

            raise exception_of("queue-empty", f"the queue {key!r} is empty")
        return item

    def queue_len(self, key: str) -> int:
        """How many items a queue has; 0 if there is no such queue."""
        return self._handle.queue_len(key)

    def barrier(self, key: str, world_size: int, timeout: Optional[Timeout] = None) -> None:
        """Waits until `world_size` callers have come to the barrier of that name, which is for one
        use: later callers pass at once."""
        self._handle.barrier(key, operator.index(world_size), self._limit(timeout))

    def watch(self, key: str, *, prefix: bool = False) -> Watch:
        """Tells what the key has now, and then of every change. With prefix=True: of every key
        that begins with `key`."""
        return Watch(self._handle.watch(key, prefix))

    def has_extended_api(self) -> bool:
        """Whether there are append, multi_get and multi_set: always, here."""
        return True

    @property
    def timeout(self) -> timedelta:
        """How long `get`, `wait` and whatever else waits does so, if not told otherwise."""
        return self._timeout

    def set_timeout(self, timeout: Timeout) -> None:
        """Changes `timeout`."""
        self._timeout = _timedelta(timeout)

    def clone(self) -> Store:
        """Another object for the same store, with a timeout of its own."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def _limit(self, timeout: Optional[Timeout]) -> float:
        return _seconds(self.timeout if timeout is None else timeout)


class TCPStore(Store):
    """A store on a server, which one of the processes hosts.

    host_name, port: where the server is. For the process that hosts it, port 0 is chosen by the
        system; see `port`.
    world_size: how many processes will use it, if that is known.
    is_master: whether this process hosts the server, on all its addresses, as long as the object
        lives. PyTorch's clients can use it, as can Muster's.
    timeout: how long to try to reach the server, and what `get` and `wait` wait.
    wait_for_workers: whether the process that hosts the server waits here until `world_size`
        processes, itself included, have come.
    multi_tenant: lets several TCPStore objects of one process host the same port: they share one
        server.

    The others are accepted because PyTorch has them.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: Optional[int] = None,
        is_master: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: Optional[int] = None,
        use_libuv: bool = True,
    ) -> None:
        if master_listen_fd is not None:
            raise NotImplementedError("a socket that listens already cannot be taken over")
        if world_size is not None and world_size < 0:
            world_size = None
        if world_size == 0:
            raise ValueError("the world size cannot be 0")
        self._host = host_name
        self._is_master = bool(is_master)
        self._timeout = _timedelta(timeout)
        self._handle = _native.open_tcp_store(
            host_name,
            operator.index(port),
            self._is_master,
            bool(multi_tenant),
            world_size if wait_for_workers else None,
            _seconds(timeout),
        )

    @property
    def host(self) -> str:
        """The host name it was given."""
        return self._host

    @property
    def port(self) -> int:
        """Where the server listens."""
        return self._handle.port

    @property
    def is_master(self) -> bool:
        """Whether this process hosts the server."""
        return self._is_master

    def __repr__(self) -> str:
        return f"<muster.store.TCPStore {self.host}:{self.port}>"


class FileStore(Store):
    """A store in a file that several processes share, of one machine or of several.

    The file is created if it is not there, and is not removed. `world_size` is accepted because
    PyTorch has it: there, the last of so many processes removes the file.
    """

    def __init__(self, file_name: Union[str, os.PathLike[str]], world_size: int = -1) -> None:
        self._path = os.fspath(file_name)
        self._handle = _native.open_file_store(self._path)

    @property
    def path(self) -> str:
        """The file."""
        return self._path

    def __repr__(self) -> str:
        return f"<muster.store.FileStore {self.path!r}>"


class HashStore(Store):
    """A store inside this process, for its threads and for tests."""

    def __init__(self) -> None:
        self._handle = _native.open_memory_store()


class PrefixStore(Store):
    """A view of another store in which every key begins with `prefix` and a slash."""

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"a muster.store.Store is needed, not a {type(store).__name__}")
        self._prefix = prefix
        self._store = store
        self._handle = _native.open_prefix_store(prefix, store._handle)

    @property
    def prefix(self) -> str:
        """What every key begins with."""
        return self._prefix

    @property
    def underlying_store(self) -> Store:
        """The store that this one is a view of."""
        return self._store

    @property
    def timeout(self) -> timedelta:
        """That of the underlying store."""
        return self._store.timeout

    def set_timeout(self, timeout: Timeout) -> None:
        """Changes that of the underlying store."""
        self._store.set_timeout(timeout)

    def __repr__(self) -> str:
        return f"<muster.store.PrefixStore {self.prefix!r} of {self.underlying_store!r}>"


def as_torch_store(store: Store) -> torch.distributed.Store:
    """An object for the same store that torch.distributed takes, as in
    `init_process_group(store=as_torch_store(store))`.

    A server that this process hosts, and a HashStore, are then kept until the process ends, since
    PyTorch does not tell when it has done with them.
    """
    from muster import _torch_store

    return _torch_store.as_torch_store(store)


def from_torch_store(store: torch.distributed.Store, prefix: Optional[str] = None) -> Store:
    """The store of this module that talks to the same server, or uses the same file, as one of
    torch.distributed: a TCPStore, a FileStore, or a PrefixStore of one.

    PyTorch does not tell the prefix of a PrefixStore. It is found out, unless it is given; on a
    server of PyTorch 1.13, which cannot list its keys, it must be.
    """
    from muster import _torch_store

    return _torch_store.from_torch_store(store, prefix)
