"""Numbers that a program tells, and who takes them.

    from muster.elastic import metrics

    metrics.configure(metrics.ConsoleMetricHandler())
    metrics.put_metric("batches", 1, "my_job")

    @metrics.prof
    def step(): ...      # MODULE.step.success or .failure, and MODULE.step.duration.ms
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Callable, NamedTuple, Optional

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "NullMetricHandler",
    "configure",
    "prof",
    "put_metric",
]

DEFAULT_GROUP = "torchelastic"


class MetricData(NamedTuple):
    """One number at one time."""

    timestamp: float
    group_name: str
    name: str
    value: int


class MetricHandler(ABC):
    """Takes numbers."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Called for each of them, by whichever thread tells it."""


class NullMetricHandler(MetricHandler):
    """Forgets them."""

    def emit(self, metric_data: MetricData) -> None:
        pass


class ConsoleMetricHandler(MetricHandler):
    """Prints them on standard output."""

    def emit(self, metric_data: MetricData) -> None:
        print(
            f"[{metric_data.timestamp}][{metric_data.group_name}]: "
            f"{metric_data.name}={metric_data.value}",
            file=sys.stdout,
            flush=True,
        )


_lock = threading.Lock()
_handlers: dict[str, MetricHandler] = {}
_default: MetricHandler = NullMetricHandler()


def configure(handler: MetricHandler, group: Optional[str] = None) -> None:
    """Who takes the numbers of a group; without one, of all groups that have nobody."""
    global _default
    with _lock:
        if group is None:
            _default = handler
        else:
            _handlers[group] = handler


def put_metric(metric_name: str, metric_value: int, metric_group: str = DEFAULT_GROUP) -> None:
    """Tells a number."""
    handler = _handlers.get(metric_group, _default)
    handler.emit(MetricData(time.time(), metric_group, metric_name, metric_value))


def prof(
    function: Optional[Callable[..., Any]] = None, group: str = DEFAULT_GROUP
) -> Callable[..., Any]:
    """Decorates a function: tells of each call how it ended, and how long it took."""
    if function is None:
        return functools.partial(prof, group=group)
    name = function.__qualname__
    if "." not in name:
        name = f"{function.__module__.rpartition('.')[2]}.{name}"

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        outcome = "failure"
        try:
            result = function(*args, **kwargs)
            outcome = "success"
            return result
        finally:
            put_metric(f"{name}.{outcome}", 1, group)
            put_metric(f"{name}.duration.ms", int((time.monotonic() - began) * 1000), group)

    return timed
