"""Futures: what `rpc_async` returns, and what asynchronous functions answer with.

With PyTorch in the process, `rpc_async` returns futures that are also `torch.futures.Future`; without
it they are of the class here. Both have the same methods, and both can be awaited.
"""

from __future__ import annotations

import threading

from muster._native import Future

TYPE_CHECKING = False  # as the checkers of types know it; typing itself takes long to load
if TYPE_CHECKING:
    from typing import Any, Iterable, List

__all__ = ["Future", "collect_all", "wait_all"]


def collect_all(futures: Iterable[Future[Any]]) -> Future[List[Future[Any]]]:
    """A future of the list of `futures` that is done when all are, or with the first error."""
    futures = list(futures)
    collected: Future[List[Future[Any]]] = Future()
    if not futures:
        collected.set_result(futures)
        return collected
    lock = threading.Lock()
    missing = len(futures)
    over = False

    def on_done(future):
        nonlocal missing, over
        error = None
        try:
            future.wait()  # it is done
        except BaseException as caught:  # whatever it holds, it is done
            error = caught
        with lock:
            missing -= 1
            if over or (error is None and missing > 0):
                return
            over = True
        if error is not None:
            collected.set_exception(error)
        else:
            collected.set_result(futures)

    for future in futures:
        future.add_done_callback(on_done)
    return collected


def wait_all(futures: Iterable[Future[Any]]) -> List[Any]:
    """The values of `futures`; raises the first error that occurs, without waiting for the rest."""
    return [future.wait() for future in collect_all(futures).wait()]
