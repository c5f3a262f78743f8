"""Deadlines that the agent keeps for a worker, and signs of life.

    import muster.elastic.timer as timer

    with timer.expires(after=60):
        step()                      # a worker that is still here after a minute is killed

Under `muster run` nothing has to be set up: the agent's socket is in the environment, and so is
the pipe of PyTorch's file timers where those are enabled. Otherwise `configure` says who keeps the
deadlines.

`alive`, `ready` and `status` tell the agent how this worker is: see --hang-timeout and
--start-timeout of `muster run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal as signals
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Iterator, Optional, Union

__all__ = [
    "AgentTimerClient",
    "FileTimerClient",
    "RefusedError",
    "TimerClient",
    "alive",
    "configure",
    "expires",
    "ready",
    "status",
]

AGENT_SOCKET_VARIABLE = "MUSTER_AGENT_SOCKET"
TIMER_FILE_VARIABLE = "TORCHELASTIC_TIMER_FILE"
ANSWER_SECONDS_MAX = 30.0
_ATTEMPTS = 10
_ATTEMPT_SECONDS = 0.1


class TimerClient(ABC):
    """Who keeps the deadlines."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """From now on there is a deadline: a time as of time.time()."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """It was kept."""


class RefusedError(RuntimeError):
    """The agent did not take what it was told."""


class AgentTimerClient(TimerClient):
    """The agent of `muster run`, by its socket.

    signal: what a worker that misses a deadline gets; None: it is only reported.
    """

    def __init__(
        self, path: Optional[str] = None, signal: Optional[int] = signals.SIGKILL
    ) -> None:
        found = path or os.environ.get(AGENT_SOCKET_VARIABLE)
        if not found:
            raise RuntimeError(f"{AGENT_SOCKET_VARIABLE} is not set: no `muster run` started this")
        self._path = found
        self._signal = signal
        self._lock = threading.Lock()

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        seconds = max(expiration_time - time.time(), 0.0)
        name = "none" if not self._signal or self._signal < 0 else str(int(self._signal))
        self.tell(f"expires {_word(scope_id)} {seconds:.6f} {name}")

    def release(self, scope_id: str) -> None:
        # The agent has forgotten a deadline that was only reported when it was missed.
        with contextlib.suppress(RefusedError):
            self.tell(f"release {_word(scope_id)}")

    def tell(self, line: str) -> None:
        """Sends one line, and raises a RefusedError in the words of the agent if it refuses it."""
        with self._lock, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.settimeout(ANSWER_SECONDS_MAX)
            agent.connect(self._path)
            agent.sendall(line.encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                piece = agent.recv(4096)
                if not piece:
                    break
                answer += piece
        text = answer.decode(errors="replace").strip()
        if text != "ok":
            raise RefusedError(text[len("error ") :] if text.startswith("error ") else text)


class FileTimerClient(TimerClient):
    """The named pipe of PyTorch's file timers, which `muster run` and torchrun serve.

    signal: what a worker that misses a deadline gets; 0 or less: it is only reported.
    """

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        self._path = file_path
        self._signal = int(signal)

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._send(scope_id, expiration_time, self._signal)

    def release(self, scope_id: str) -> None:
        self._send(scope_id, -1, 0)

    def _send(self, scope_id: str, expiration_time: float, signal: int) -> None:
        message = {
            "version": 1,
            "pid": os.getpid(),
            "scope_id": scope_id,
            "expiration_time": expiration_time,
            "signal": signal,
        }
        line = json.dumps(message).encode() + b"\n"
        # Up to that size, the lines of several workers do not get into one another.
        if len(line) > select.PIPE_BUF:
            raise ValueError(f"the name of the scope is too long: {len(scope_id)} characters")
        pipe = self._open()
        try:
            os.write(pipe, line)
        finally:
            os.close(pipe)

    def _open(self) -> int:
        for attempt in range(_ATTEMPTS):
            try:
                return os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody reads yet
                if attempt + 1 < _ATTEMPTS:
                    time.sleep(_ATTEMPT_SECONDS)
        raise BrokenPipeError(f"nobody keeps deadlines at {self._path}")


_configured: Optional[TimerClient] = None


def configure(client: Optional[TimerClient]) -> None:
    """Who keeps the deadlines of this process from now on; None: whoever the environment names."""
    global _configured
    _configured = client


def _client() -> TimerClient:
    if _configured is not None:
        return _configured
    if os.environ.get(AGENT_SOCKET_VARIABLE):
        return AgentTimerClient()
    if os.environ.get(TIMER_FILE_VARIABLE):
        return FileTimerClient(os.environ[TIMER_FILE_VARIABLE])
    raise RuntimeError("nobody keeps deadlines here: call muster.elastic.timer.configure")


@contextlib.contextmanager
def expires(
    after: Union[float, timedelta],
    scope: Optional[str] = None,
    client: Optional[TimerClient] = None,
) -> Iterator[None]:
    """What is done inside must be done after so many seconds.

    scope: what it is called in reports; otherwise the place in the program.
    """
    seconds = after.total_seconds() if isinstance(after, timedelta) else float(after)
    if scope is None:
        caller = sys._getframe(2)
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    keeper = client or _client()
    keeper.acquire(scope, time.time() + seconds)
    try:
        yield
    finally:
        keeper.release(scope)


def alive() -> None:
    """Tells the agent that this worker makes progress."""
    AgentTimerClient().tell("alive")


def ready() -> None:
    """Tells the agent that this worker has started."""
    AgentTimerClient().tell("ready")


def status(text: str) -> None:
    """Tells the agent what this worker is doing, for people to read."""
    AgentTimerClient().tell(f"status {' '.join(text.split())}")


def _word(scope: str) -> str:
    return "_".join(scope.split()) or "_"
