"""Records of what happens, one JSON object each, as `muster run` and PyTorch write them.

    from muster.elastic import events

    events.record(events.Event("epoch", metadata={"number": 3}), "file:/var/log/job.jsonl")

Destinations: null, console (standard error), file:PATH (appended), unix:PATH (a stream or a
datagram socket), and whatever is registered.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import socket
import sys
import threading
import time
from typing import Callable, Optional, Union

__all__ = ["Event", "EventSource", "record", "register_destination"]

MetadataValue = Union[str, int, float, bool, None]
SOCKET_SECONDS_MAX = 5.0


class EventSource(str, enum.Enum):
    """Who tells of it."""

    AGENT = "AGENT"
    WORKER = "WORKER"


class Event:
    """One thing that happened.

    timestamp: milliseconds since 1970; now, if it is not given.
    metadata: a flat map of texts and numbers.
    """

    def __init__(
        self,
        name: str,
        source: Union[EventSource, str] = EventSource.WORKER,
        timestamp: Optional[int] = None,
        metadata: Optional[dict[str, MetadataValue]] = None,
    ) -> None:
        self.name = name
        self.source = EventSource(source)
        self.timestamp = int(time.time() * 1000) if timestamp is None else timestamp
        self.metadata = dict(metadata or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"Event({self.serialize()})"

    def serialize(self) -> str:
        """As one line of JSON."""
        return json.dumps(
            {
                "name": self.name,
                "source": self.source.value,
                "timestamp": self.timestamp,
                "metadata": self.metadata,
            }
        )

    @staticmethod
    def deserialize(data: Union[str, Event]) -> Event:
        """From that line."""
        if isinstance(data, Event):
            return data
        fields = json.loads(data)
        return Event(fields["name"], fields["source"], fields["timestamp"], fields["metadata"])


_lock = threading.Lock()
_registered: dict[str, Callable[[Event], None]] = {}


def register_destination(name: str, write: Callable[[Event], None]) -> None:
    """Lets `record` give events for `name` to a function."""
    with _lock:
        _registered[name] = write


def record(event: Event, destination: str = "null") -> None:
    """Writes the event to the destination. Raises an OSError if that cannot be done."""
    write = _registered.get(destination)
    if write is not None:
        write(event)
        return
    kind, _, path = destination.partition(":")
    line = event.serialize().encode() + b"\n"
    if kind == "file" and path:
        # One write, so that the lines of several processes do not get into one another.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(file, line)
        finally:
            os.close(file)
    elif kind == "unix" and path:
        _send(path, line)
    elif destination == "console":
        sys.stderr.write(line.decode())
        sys.stderr.flush()
    elif destination not in ("null", "dynamic_rendezvous"):
        raise ValueError(
            f"events cannot go to {destination!r}: only to null, console, file:PATH, unix:PATH, "
            "or to what is registered"
        )


def _send(path: str, line: bytes) -> None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.settimeout(SOCKET_SECONDS_MAX)
            receiver.connect(path)
            receiver.send(line)
            return
    except OSError as error:
        if error.errno != errno.EPROTOTYPE:  # it is a stream
            raise
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as receiver:
        receiver.settimeout(SOCKET_SECONDS_MAX)
        receiver.connect(path)
        receiver.sendall(line)
