"""Functions that are coroutines: all of them run on one event loop, in a thread of its own.

So any number of them can wait at once, and none takes a thread from other functions while it does.
"""

import asyncio
import threading

_lock = threading.Lock()
_loop = None  # guarded by _lock
_tasks = set()  # the loop itself does not keep them


def _event_loop():
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="rpc-coroutines", daemon=True).start()
        return _loop


def run_later(coroutine, succeed, fail):
    """Runs it, and calls one of the two with its result or with what it raised."""

    async def run():
        try:
            result = await coroutine
        except asyncio.CancelledError:
            fail(RuntimeError("the coroutine was cancelled"))
            raise
        except BaseException as error:
            # Whatever it is: the loop is not only this one's.
            fail(error)
        else:
            succeed(result)

    loop = _event_loop()

    def start():
        task = loop.create_task(run())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    loop.call_soon_threadsafe(start)
