"""RRef: a reference to a value that lives on one worker."""

from __future__ import annotations

import types

from muster import _native

from .constants import UNSET_RPC_TIMEOUT
from .rref_proxy import RRefProxy

TYPE_CHECKING = False  # as the checkers of types know it; typing itself takes long to load
if TYPE_CHECKING:
    from typing import Any, NoReturn, Optional

    from muster._native import WorkerInfo

__all__ = ["RRef", "PyRRef"]


def _timeout(seconds):
    return None if seconds == UNSET_RPC_TIMEOUT else seconds


def _has_failed(future):
    try:
        future.wait()
    except BaseException:  # whatever was raised where it was made
        return True
    return False


class RRef:
    """A reference to a value that lives on one worker, and that others can hold, pass on and use.

    RRef(value) makes one to a value of this worker; rpc.remote makes one to what a function makes
    on another. The value is released when the last reference to it, on whatever worker, is gone.
    """

    __slots__ = ("_reference", "_type", "_type_asked", "__weakref__")
    __class_getitem__: Any = classmethod(types.GenericAlias)

    def __init__(self, value: Any, type_hint: Optional[type] = None) -> None:
        self._reference = _native.Reference.make_local(value)
        self._type = None
        self._type_asked = None  # the future of it, and its timeout

    @classmethod
    def _of(cls, reference):
        made = cls.__new__(cls)
        made._reference = reference
        made._type = None
        made._type_asked = None
        return made

    def is_owner(self) -> bool:
        """Whether the value is on this worker."""
        return self._reference.is_owner()

    def owner(self) -> WorkerInfo:
        """The WorkerInfo of the worker that has the value."""
        return self._reference.owner()

    def owner_name(self) -> str:
        """The name of that worker."""
        return self._reference.owner().name

    def confirmed_by_owner(self) -> bool:
        """Whether the owner knows of this reference."""
        return self._reference.is_confirmed()

    def local_value(self) -> Any:
        """The value itself, on its owner only; waits until it is made."""
        return self._reference.local_value()

    def to_here(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A copy of the value, or on its owner the value itself; waits until it is made."""
        if self._reference.is_owner():
            return self._reference.local_value()
        return self._reference.fetch(_timeout(timeout)).wait()

    def rpc_sync(self, timeout: float = UNSET_RPC_TIMEOUT) -> RRefProxy:
        """`rref.rpc_sync().name(…)` calls the method `name` of the value, where it is."""
        from .api import rpc_sync

        return RRefProxy(self, rpc_sync, timeout)

    def rpc_async(self, timeout: float = UNSET_RPC_TIMEOUT) -> RRefProxy:
        """Likewise; gives a future of the result."""
        from .api import rpc_async

        return RRefProxy(self, rpc_async, timeout)

    def remote(self, timeout: float = UNSET_RPC_TIMEOUT) -> RRefProxy:
        """Likewise; leaves the result there, and gives a reference to it."""
        from .api import remote

        return RRefProxy(self, remote, timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> NoReturn:
        """Not there: distributed autograd is not supported."""
        raise NotImplementedError(
            "distributed autograd is not supported by muster.rpc: see docs/python.md"
        )

    def _get_future(self):
        """A future of how the call went that makes the value."""
        from .api import _future_of

        return _future_of(self._reference.creation())

    def _get_type(self, timeout=UNSET_RPC_TIMEOUT, blocking=True):
        """The class of the value, or with `blocking=False` a future of it, which is always the same.

        The owner is asked once; again only if that has failed, or has another time to end.
        """
        if not blocking:
            return self._ask_type(timeout)
        if self._type is None:
            self._type = self._ask_type(timeout).wait()
        return self._type

    def _ask_type(self, timeout):
        from .api import _type_future

        if self._type_asked is not None:
            asked, until = self._type_asked
            if not asked.done():
                return asked if until == timeout else _type_future(self, timeout)
            if not _has_failed(asked):
                return asked
        future = _type_future(self, timeout)
        self._type_asked = future, timeout
        return future

    def _serialize(self):
        """What another worker needs to have this reference; only while a call is pickled."""
        return self._reference.give()

    @classmethod
    def _deserialize(cls, data):
        return cls._of(_native.Reference.take(data))

    def __reduce_ex__(self, protocol):
        return (_take, (self._reference.give(),))

    def __str__(self):
        return self._reference.text()

    __repr__ = __str__


def _take(data):
    return RRef._of(_native.Reference.take(data))


PyRRef = RRef
