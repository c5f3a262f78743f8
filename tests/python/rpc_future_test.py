"""Futures, without PyTorch: by themselves, and those of calls."""

import gc
import pickle
import signal
import threading
import unittest
import weakref

import muster.rpc as rpc
from muster.futures import Future, collect_all, wait_all
from functions import done, echo, failed, read, throw
from workers import TestCase, check, equal, has, raised


class FutureTest(unittest.TestCase):
    def test_is_completed_once(self):
        future = Future()
        self.assertFalse(future.done())
        with self.assertRaisesRegex(RuntimeError, "not done"):
            future.value()
        future.set_result([1])
        self.assertTrue(future.done())
        self.assertIs(future.wait(), future.value())
        for again in (lambda: future.set_result(2), lambda: future.set_exception(KeyError())):
            with self.assertRaisesRegex(RuntimeError, "Future can only be marked completed once"):
                again()
        self.assertEqual(future.wait(), [1])

    def test_raises_the_exception_that_was_set(self):
        error = KeyError("k")
        future = failed(error)
        self.assertTrue(future.done())
        for _ in range(2):
            with self.assertRaises(KeyError) as caught:
                future.wait()
            self.assertEqual(caught.exception.args, error.args)
        for wrong in ("text", KeyError, None):
            with self.assertRaises(TypeError):
                Future().set_exception(wrong)

    def test_waits_for_another_thread(self):
        future = Future()
        thread = threading.Thread(target=lambda: future.set_result(5))
        thread.start()
        self.assertEqual(future.wait(), 5)
        thread.join()

    def test_callbacks_run_in_order_before_and_after(self):
        future, seen = Future(), []
        future.add_done_callback(lambda f: seen.append((1, f is future)))
        chained = future.then(lambda f: f.wait() + 1).then(lambda f: f.value() * 2)
        future.add_done_callback(lambda f: seen.append((2, f is future)))
        self.assertEqual(seen, [])
        future.set_result(1)
        self.assertEqual(chained.wait(), 4)
        future.add_done_callback(lambda f: seen.append((3, f is future)))
        self.assertEqual(seen, [(1, True), (2, True), (3, True)])
        for wrong in (None, 5):
            with self.assertRaises(TypeError):
                future.then(wrong)
            with self.assertRaises(TypeError):
                future.add_done_callback(wrong)

    def test_what_a_callback_raises_is_raised_by_what_follows(self):
        future = done(1)
        other = failed(KeyError("first"))
        for following, kind, part in (
            (future.then(lambda f: 1 / 0), ZeroDivisionError, "division by zero"),
            (future.then(lambda: None), TypeError, "takes 0 positional arguments"),
            (future.then(lambda f: throw(SystemExit)), SystemExit, "for a reason"),
            (other.then(lambda f: f.wait()), KeyError, "first"),
            (other.then(lambda f: throw(ValueError, "second")), ValueError, "second"),
        ):
            with self.subTest(kind), self.assertRaisesRegex(RuntimeError, part) as caught:
                following.wait()
            self.assertIn(kind.__name__, str(caught.exception))
            self.assertIsInstance(caught.exception.__cause__, kind)
        self.assertEqual(future.wait(), 1)

    def test_the_error_of_a_done_callback_goes_to_the_hook(self):
        import sys

        seen = []
        hook, sys.unraisablehook = sys.unraisablehook, lambda what: seen.append(what.exc_type)
        try:
            future = Future()
            future.add_done_callback(lambda f: 1 / 0)
            future.set_result(1)
        finally:
            sys.unraisablehook = hook
        self.assertEqual(seen, [ZeroDivisionError])
        self.assertEqual(future.wait(), 1)

    def test_a_chain_is_as_long_as_one_likes(self):
        for first in (Future(), done(0)):
            last = first
            for _ in range(200):
                last = last.then(lambda f: f.wait() + 1)
            if not first.done():
                first.set_result(0)
            self.assertEqual(last.wait(), 200)

    def test_is_not_pickled(self):
        for future in (Future(), done(1)):
            with self.assertRaisesRegex(RuntimeError, "Can not pickle torch.futures.Future"):
                pickle.dumps(future)

    def test_nothing_is_kept(self):
        class Thing:
            pass

        thing, value = Thing(), Thing()
        witnesses = [weakref.ref(thing), weakref.ref(value)]
        future = Future()
        later = future.then(lambda f, kept=thing: kept)
        future.set_result(value)
        later.wait()
        del thing, value, future, later
        gc.collect()
        self.assertEqual([witness() for witness in witnesses], [None, None])

    def test_a_failed_wait_keeps_nothing(self):
        class Thing:
            pass

        def wait(future, kind):
            local = Thing()
            with self.assertRaises(kind):
                future.wait()
            return weakref.ref(local)

        for future, kind in (
            (failed(KeyError("k")), KeyError),
            (done(1).then(lambda f: 1 / 0), RuntimeError),
        ):
            witness = wait(future, kind)
            del future
            gc.collect()
            self.assertIsNone(witness(), "the frame of the one who waited is still there")

    def test_one_that_is_never_completed_takes_its_callbacks_with_it(self):
        class Thing:
            pass

        thing = Thing()
        witness = weakref.ref(thing)
        future = Future()
        later = future.then(lambda f, kept=thing: kept)
        del thing, future
        gc.collect()
        self.assertFalse(later.done())
        del later
        gc.collect()
        self.assertIsNone(witness())

    def test_all_are_waited_for(self):
        futures = [Future() for _ in range(5)]
        both = collect_all(futures)
        for number, future in reversed(list(enumerate(futures))):
            self.assertFalse(both.done())
            future.set_result(number)
        self.assertEqual(both.wait(), futures)
        self.assertEqual(wait_all(futures), [0, 1, 2, 3, 4])
        self.assertEqual(wait_all([]), [])
        self.assertEqual(collect_all(iter([])).wait(), [])
        self.assertEqual(wait_all([futures[1]] * 3), [1, 1, 1])

    def test_the_first_error_ends_the_wait_for_all(self):
        never = Future()
        with self.assertRaises(KeyError):
            wait_all([never, failed(KeyError("k")), failed(ValueError("v"))])
        with self.assertRaises(KeyError):
            collect_all([never, failed(KeyError("k"))]).wait()


def interrupt(wait):
    """Calls `wait`, and has the user interrupt it; once, though the signal is sent until it works."""
    over = threading.Event()

    def on_signal(*_):
        if not over.is_set():
            over.set()
            raise KeyboardInterrupt

    def send():
        while not over.wait(0.02):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    signal.signal(signal.SIGINT, on_signal)
    threading.Thread(target=send).start()
    wait()


class CallFutureTest(TestCase):
    def test_the_future_of_a_call(self):
        def body(worker):
            future = rpc.rpc_async(worker.next, echo, ([1, 2],))
            check(future.wait() is future.wait(), "it is unpickled once")
            check(future.done() and future.value() == [1, 2])
            raised(RuntimeError, future.set_result, 1)
            raised(RuntimeError, future.set_exception, KeyError())
            equal([future.then(lambda f: f.wait() + [3]).wait() for _ in range(10)], [[1, 2, 3]] * 10)
            bad = rpc.rpc_async(worker.next, throw, (KeyError,))
            raised(KeyError, bad.wait)
            check(bad.done())
            raised(KeyError, bad.value)
            has(raised(RuntimeError, bad.then(lambda f: f.value()).wait), "KeyError", "for a reason")
            equal(bad.then(lambda f: 5).wait(), 5)

        self.run_workers(body, size=2)

    def test_callbacks_make_calls_and_wait_for_them(self):
        def body(worker):
            def call_again(future):
                return rpc.rpc_sync(worker.next, echo, (future.wait() + 1,))

            path = str(self.folder / "made")
            future = rpc.rpc_async(worker.next, read, (path,)).then(lambda f: 0)
            # More than there are threads, and each waits for another call.
            for _ in range(20):
                future = future.then(call_again)
            many = [rpc.rpc_async(worker.next, echo, (n,)).then(call_again) for n in range(50)]
            open(path, "x").close()
            equal(future.wait(), 20)
            equal(wait_all(many), list(range(1, 51)))

        self.run_workers(body, size=2, num_worker_threads=1)

    def test_wait_all_does_not_wait_for_the_rest_after_an_error(self):
        def body(worker):
            path = str(self.folder / "made")
            blocked = rpc.rpc_async(worker.next, read, (path,))
            raised(ValueError, wait_all, [blocked, rpc.rpc_async(worker.next, throw, (ValueError,))])
            check(not blocked.done())
            open(path, "x").close()
            blocked.wait()
            # A future by hand among them.
            own = Future()
            both = collect_all([own, rpc.rpc_async(worker.next, echo, (1,))])
            own.set_result(0)
            equal([one.wait() for one in both.wait()], [0, 1])

        self.run_workers(body, size=2)

    def test_a_block_waits_for_the_calls_of_its_thread(self):
        def body(worker):
            path = str(self.folder / "made")
            with rpc.api._wait_all():
                futures = [rpc.rpc_async(worker.next, echo, (n,)) for n in range(20)]
                rpc.rpc_sync(worker.next, echo, (1,))
            check(all(future.done() for future in futures))
            for kind, raiser in (
                (KeyError, lambda: rpc.rpc_async(worker.next, throw, (KeyError,))),
                (ZeroDivisionError, lambda: 1 / 0),
                (RuntimeError, lambda: rpc.rpc_async(worker.next, read, (path,), timeout=0.01)),
            ):
                try:
                    with rpc.api._wait_all():
                        raiser()
                except Exception as error:
                    equal(type(error), kind)
                else:
                    raise AssertionError("nothing was raised")
                check(not hasattr(rpc.api._thread_local_var, "future_list"))
            open(path, "x").close()

        self.run_workers(body, size=2)

    def test_a_wait_is_interrupted_by_the_user(self):
        def body(worker):
            path = str(self.folder / "made")
            blocked = rpc.rpc_async(worker.next, read, (path,))
            slow = rpc.remote(worker.next, read, (path,))
            own = rpc.remote(worker.name, read, (path,))
            for wait in (
                blocked.wait,
                slow.to_here,
                own.local_value,
                Future().wait,
                lambda: rpc.rpc_sync(worker.next, read, (path,)),
            ):
                raised(KeyboardInterrupt, interrupt, wait)
            open(path, "x").close()
            equal((blocked.wait(), slow.to_here(), own.local_value()), (path, path, path))

        self.run_workers(body, size=2)

    def test_signal_handlers_run_while_one_waits(self):
        def body(worker):
            path = str(self.folder / "made")
            signal.signal(signal.SIGUSR1, lambda *_: open(path, "x").close())
            me = threading.main_thread().ident
            timer = threading.Timer(0.05, lambda: signal.pthread_kill(me, signal.SIGUSR1))
            timer.start()
            equal(rpc.rpc_sync(worker.next, read, (path,)), path)
            timer.join()

        self.run_workers(body, size=2)

    def test_other_threads_run_while_one_waits(self):
        def body(worker):
            path = str(self.folder / "made")
            thread = threading.Thread(target=lambda: open(path, "x").close())
            blocked = rpc.rpc_async(worker.next, read, (path,))
            waiting = threading.Thread(target=blocked.wait)
            waiting.start()
            thread.start()
            blocked.wait()
            waiting.join()

        self.run_workers(body, size=2)

if __name__ == "__main__":
    unittest.main()
