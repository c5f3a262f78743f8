"""What a worker failed with gets to its agent, and what a job failed with to its launcher.

    from muster.elastic.errors import record

    @record
    def main():
        ...

An exception that leaves `main` is written to the file that the agent, be it `muster run` or
torchrun, names in TORCHELASTIC_ERROR_FILE, and becomes part of its report.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import signal
import socket
import time
import traceback
from typing import Any, Callable, Optional, TypeVar

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record"]

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
NOT_AVAILABLE = "<N/A>"
REPORT_WIDTH_MAX = 60

Function = TypeVar("Function", bound=Callable[..., Any])


class ProcessFailure:
    """How one worker failed.

    exitcode is negative for a signal. message is a text, or what the worker recorded: a dict with
    "message" and, in "extraInfo", "py_callstack" and "timestamp".
    """

    def __init__(
        self,
        local_rank: int,
        pid: int,
        exitcode: int,
        error_file: str = NOT_AVAILABLE,
        error_file_data: Optional[dict[str, Any]] = None,
        timestamp: Optional[float] = None,
    ) -> None:
        self.local_rank = local_rank
        self.pid = pid
        self.exitcode = exitcode
        self.error_file = error_file if os.path.isfile(error_file) else NOT_AVAILABLE
        if error_file_data is None and self.error_file != NOT_AVAILABLE:
            with contextlib.suppress(OSError, ValueError), open(error_file) as file:
                error_file_data = json.load(file)
        self.error_file_data = error_file_data or {"message": "<NONE>"}
        self.message: Any = self.error_file_data.get("message", "")
        if self.message in ("", "<NONE>"):
            self.message = self._describe()
        self.timestamp = self._recorded_time() if timestamp is None else timestamp

    def _describe(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        return f"it ended with status {self.exitcode} and recorded no error; see muster.elastic.errors.record"

    def _recorded_time(self) -> float:
        data = self.error_file_data
        if isinstance(self.message, dict):
            data = self.message.get("extraInfo", {})
        try:
            return float(data["timestamp"])
        except (KeyError, TypeError, ValueError):
            return time.time()

    def signal_name(self) -> str:
        """Of the signal that ended it."""
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """When it failed, for people."""
        return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(self.timestamp))

    def text(self) -> str:
        """The traceback if there is one, else the message."""
        if not isinstance(self.message, dict):
            return str(self.message)
        recorded = self.message.get("extraInfo", {}).get("py_callstack")
        return str(recorded or self.message.get("message", NOT_AVAILABLE))


class ChildFailedError(Exception):
    """Workers failed. `failures` maps global ranks to what happened to them."""

    def __init__(self, name: str, failures: dict[int, ProcessFailure]) -> None:
        if not failures:
            raise ValueError("there are no failures")
        self.name = name
        self.failures = failures
        super().__init__(self.format_msg())

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """The rank that failed first, and how."""
        rank = min(self.failures, key=lambda rank: self.failures[rank].timestamp)
        return rank, self.failures[rank]

    def format_msg(self) -> str:
        """The report, as `muster run` prints it."""
        host = socket.getfqdn()
        root, _ = self.get_first_failure()
        entries = {
            rank: _entry(index, host, rank, failure)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        title = f"{self.name} FAILED"
        lines = [title, *(line for entry in entries.values() for line in entry.splitlines())]
        width = min(max(map(len, lines)), REPORT_WIDTH_MAX)
        others = [entry for rank, entry in entries.items() if rank != root]
        return "\n".join(
            [
                "",
                "=" * width,
                title,
                "-" * width,
                "Failures:",
                *(others or ["  <NO_OTHER_FAILURES>"]),
                "-" * width,
                "Root Cause (first observed failure):",
                entries[root],
                "=" * width,
            ]
        )


def _entry(index: int, host: str, rank: int, failure: ProcessFailure) -> str:
    name = failure.signal_name()
    text = failure.text().replace("\n", "\n  ")
    return (
        f"[{index}]:\n"
        f"  time      : {failure.timestamp_isoformat()}\n"
        f"  host      : {host}\n"
        f"  rank      : {rank} (local_rank: {failure.local_rank})\n"
        f"  exitcode  : {failure.exitcode} (pid: {failure.pid})"
        f"{'' if name == NOT_AVAILABLE else f'  ({name})'}\n"
        f"  error_file: {failure.error_file}\n"
        f"  traceback : {text}"
    )


class ErrorHandler:
    """Writes the error file. May be subclassed, and given to `record`."""

    def error_file(self) -> Optional[str]:
        """Where to write; nothing, if nobody asked for it."""
        return os.environ.get(ERROR_FILE_VARIABLE) or None

    def initialize(self) -> None:
        """Called before the function: makes fatal signals print a traceback."""
        with contextlib.suppress(Exception):  # e.g. standard error is no file
            faulthandler.enable(all_threads=True)

    def record_exception(self, error: BaseException) -> None:
        """Writes what was raised."""
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self._write(
            {
                "message": {
                    "message": f"{type(error).__name__}: {error}",
                    "extraInfo": {"py_callstack": stack, "timestamp": str(int(time.time()))},
                }
            }
        )

    def record_failure(self, failure: ProcessFailure) -> None:
        """Passes on what a worker recorded, with the exit code that it cannot know itself."""
        data = json.loads(json.dumps(failure.error_file_data))
        if isinstance(data.get("message"), dict):
            data["message"]["errorCode"] = failure.exitcode
        elif data.get("message") == "<NONE>":
            data = {"message": failure.text(), "timestamp": int(failure.timestamp)}
        self._write(data)

    def _write(self, data: dict[str, Any]) -> None:
        path = self.error_file()
        if path is None:
            return
        # Renamed, so that nobody reads half of it.
        unfinished = f"{path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            with open(unfinished, "w") as file:
                json.dump(data, file)
            os.replace(unfinished, path)


def get_error_handler() -> ErrorHandler:
    """What `record` uses unless told otherwise."""
    return ErrorHandler()


def record(function: Function, error_handler: Optional[ErrorHandler] = None) -> Function:
    """Decorates the main function of a worker: an exception that leaves it is written to the error
    file, and raised further. Exits are no errors; that of status 0 just returns. A
    ChildFailedError passes on what its first failure recorded."""
    handler = error_handler or get_error_handler()

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        handler.initialize()
        try:
            return function(*args, **kwargs)
        except SystemExit as exit:
            if exit.code in (0, None):
                return None
            raise
        except ChildFailedError as error:
            handler.record_failure(error.get_first_failure()[1])
            raise
        except Exception as error:
            handler.record_exception(error)
            raise

    return recorded  # type: ignore[return-value]
