"""What the stores and everything else that is not a call raise.

There is one class for each kind of error, which says what to do next. All are MusterError, which
is a RuntimeError as the exceptions of torch.distributed are, and the built-in exception that fits
as well. In a process that has loaded torch.distributed, those that it would raise too are also
its DistStoreError and DistNetworkError.
"""

from __future__ import annotations

import builtins
import sys

__all__ = [
    "MusterError",
    "InvalidError",
    "UnavailableError",
    "TimedOutError",
    "ConflictError",
    "ClosedError",
    "UnimplementedError",
    "CancelledError",
    "CorruptError",
    "FinishedError",
    "QueueEmptyError",
]


class MusterError(RuntimeError):
    """What all of them are."""

    kind = "error"

    def __reduce__(self):
        return exception_of, (self.kind, str(self))


class InvalidError(MusterError, ValueError):
    """The request is wrong; sending it again changes nothing."""

    kind = "invalid"


class UnavailableError(MusterError, ConnectionError):
    """Cannot be reached, or is overloaded; try again later."""

    kind = "unavailable"


class TimedOutError(MusterError, builtins.TimeoutError):
    """The deadline passed; whether it was done is not known."""

    kind = "timeout"


class ConflictError(MusterError):
    """Someone else was first; read again, then decide."""

    kind = "conflict"


class ClosedError(MusterError, ConnectionError):
    """The connection, or the round, is over; start from the beginning."""

    kind = "closed"


class UnimplementedError(MusterError, NotImplementedError):
    """The other side is older and cannot do this."""

    kind = "unimplemented"


class CancelledError(MusterError):
    """Nobody wants the answer any more."""

    kind = "cancelled"


class CorruptError(MusterError):
    """What is stored cannot be read; it was left as it is."""

    kind = "corrupt"


class FinishedError(MusterError):
    """Nothing is left to do here."""

    kind = "finished"


class QueueEmptyError(MusterError):
    """A queue has no item, and the caller does not wait for one."""

    kind = "queue-empty"


_CLASSES = {
    cls.kind: cls
    for cls in (
        MusterError,
        InvalidError,
        UnavailableError,
        TimedOutError,
        ConflictError,
        ClosedError,
        UnimplementedError,
        CancelledError,
        CorruptError,
        FinishedError,
        QueueEmptyError,
    )
}

# What torch.distributed raises in the same case.
_IN_TORCH = {
    "timeout": "DistStoreError",
    "unavailable": "DistNetworkError",
    "closed": "DistNetworkError",
    "queue-empty": "QueueEmptyError",
}
_twins: dict[str, type] = {}


def class_of(kind: str) -> type[MusterError]:
    """The class for a kind of error, by the name that logs spell."""
    own = _CLASSES[kind]
    name = _IN_TORCH.get(kind)
    torch = sys.modules.get("torch.distributed")
    theirs = getattr(torch, name, None) if name and torch else None
    if theirs is None:
        return own
    twin = _twins.get(kind)
    if twin is None:
        twin = _twins[kind] = type(own.__name__, (own, theirs), {"__module__": own.__module__})
    return twin


def exception_of(kind: str, message: str) -> MusterError:
    """The exception that the native module raises for an error."""
    return class_of(kind)(message)
