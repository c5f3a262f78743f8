"""Decorators of functions that other workers call."""

from __future__ import annotations

import functools

TYPE_CHECKING = False  # as the checkers of types know it; typing itself takes long to load
if TYPE_CHECKING:
    from typing import Any, Callable


def async_execution(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that answers with a future: its caller gets the value once that is done.

    The thread that runs it is free as soon as it returns. With `@staticmethod` and `@classmethod`
    this decorator stands inside.
    """

    @functools.wraps(function)
    def marked(*args, **kwargs):
        return function(*args, **kwargs)

    marked._wrapped_async_rpc_function = function  # type: ignore[attr-defined]
    return marked


_COROUTINE = 0x80  # inspect.CO_COROUTINE, whose module takes long to import


def is_async(function: object) -> bool:
    """Whether it answers later: it was marked with `async_execution`, or is a coroutine function."""
    if getattr(function, "_wrapped_async_rpc_function", None) is not None:
        return True
    code = getattr(function, "__code__", None)
    return code is not None and code.co_flags & _COROUTINE != 0
