"""muster.store, through the public package only. Needs no PyTorch."""

import concurrent.futures
import contextlib
import faulthandler
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from datetime import timedelta

import muster.errors as errors
import muster.store as stores

PATIENCE = timedelta(seconds=120)  # for what happens at once on a machine that has nothing to do


class EveryStore:
    """What all stores have in common."""

    def make(self):
        raise NotImplementedError

    def setUp(self):
        super().setUp()
        self.store = self.make()
        self.store.set_timeout(PATIENCE)

    def test_values_are_text_or_bytes_and_come_back_as_bytes(self):
        for value, expected in [("text", b"text"), (b"\x00\xff", b"\x00\xff"), ("é", b"\xc3\xa9"),
                                (bytearray(b"array"), b"array"), (memoryview(b"view"), b"view"), ("", b"")]:
            self.store.set("key", value)
            self.assertEqual(self.store.get("key"), expected)
        for value in (1, None, ["text"]):
            with self.assertRaises(TypeError):
                self.store.set("key", value)

    def test_get_waits_until_another_thread_sets_the_key(self):
        asked, results = threading.Event(), []

        def get():
            asked.set()
            results.append(self.store.get("key"))

        with running(threading.Thread(target=get)):
            self.assertTrue(asked.wait(PATIENCE.total_seconds()))
            self.store.set("key", "value")
        self.assertEqual(results, [b"value"])

    def test_what_does_not_come_in_time_is_a_timeout_which_is_a_runtime_error(self):
        self.store.set_timeout(timedelta(milliseconds=20))
        self.assertEqual(self.store.timeout, timedelta(milliseconds=20))
        for attempt in (lambda: self.store.get("none"), lambda: self.store.wait(["none"]),
                        lambda: self.store.wait(["none"], timedelta(milliseconds=10)),
                        lambda: self.store.multi_get(["none"]), lambda: self.store.queue_pop("none"),
                        lambda: self.store.barrier("alone", 2)):
            with self.assertRaises(RuntimeError) as caught:
                attempt()
            self.assertIsInstance(caught.exception, stores.StoreTimeoutError)
            self.assertIsInstance(caught.exception, TimeoutError)

    def test_counters_add_up_and_refuse_what_is_no_number(self):
        self.assertEqual(self.store.add("count", 3), 3)
        self.assertEqual(self.store.add("count", -5), -2)
        self.assertEqual(self.store.get("count"), b"-2")
        self.store.set("word", "x")
        with self.assertRaises(ValueError) as caught:
            self.store.add("word", 1)
        self.assertIsInstance(caught.exception, RuntimeError)
        with self.assertRaises(TypeError):
            self.store.add("count", 1.5)

    def test_compare_set_answers_as_pytorchs(self):
        self.assertEqual(self.store.compare_set("key", "expected", "desired"), b"expected")
        self.assertIsNone(self.store.try_get("key"))
        self.assertEqual(self.store.compare_set("key", "", "first"), b"first")
        self.assertEqual(self.store.compare_set("key", "other", "second"), b"first")
        self.assertEqual(self.store.compare_set("key", b"first", b"second"), b"second")

    def test_keys_are_there_counted_listed_and_deleted(self):
        before = self.store.num_keys()
        self.assertFalse(self.store.check(["a", "b"]))
        self.store.multi_set(["a", "b"], ["1", b"2"])
        self.assertTrue(self.store.check(["a", "b"]))
        self.store.wait(["a", "b"])
        self.assertEqual(self.store.num_keys(), before + 2)
        self.assertEqual(self.store.multi_get(["b", "a"]), [b"2", b"1"])
        self.assertLessEqual({"a", "b"}, set(self.store.list_keys()))
        self.assertEqual(self.store.list_keys("a"), ["a"])
        self.assertTrue(self.store.delete_key("a"))
        self.assertFalse(self.store.delete_key("a"))
        self.assertFalse(self.store.check(["a"]))
        with self.assertRaises(ValueError):
            self.store.multi_set(["a", "b"], ["1"])
        with self.assertRaises(TypeError):
            self.store.check("a")

    def test_append_and_try_get(self):
        self.assertTrue(self.store.has_extended_api())
        self.assertIsNone(self.store.try_get("key"))
        self.store.append("key", "one")
        self.store.append("key", b" two")
        self.assertEqual(self.store.try_get("key"), b"one two")

    def test_queues_are_first_in_first_out(self):
        with self.assertRaises(stores.QueueEmptyError):
            self.store.queue_pop("queue", block=False)
        self.store.queue_push("queue", "1")
        self.store.queue_push("queue", b"2")
        self.assertEqual(self.store.queue_len("queue"), 2)
        self.assertEqual(self.store.queue_pop("queue"), b"1")
        self.assertEqual(self.store.queue_pop("queue", False), b"2")
        self.assertEqual(self.store.queue_len("queue"), 0)

    def test_a_barrier_lets_go_when_all_have_come(self):
        others = [threading.Thread(target=self.store.barrier, args=("all", 3, PATIENCE)) for _ in range(2)]
        for other in others:
            other.start()
        self.store.barrier("all", 3, PATIENCE)
        for other in others:
            other.join()

    def test_a_watch_tells_of_every_change_until_it_is_closed(self):
        with self.store.watch("key") as watch:
            self.assertEqual(watch.next(PATIENCE), ("absent", "key", b""))
            self.store.set("key", "1")
            self.assertEqual(next(watch), stores.Change("created", "key", b"1"))
            with self.assertRaises(stores.StoreTimeoutError):
                watch.next(0.01)
            self.store.delete_key("key")
            change = watch.next(PATIENCE)
            self.assertEqual((change.kind, change.key, change.value), ("deleted", "key", b""))
        self.assertEqual(list(watch), [])

    def test_a_watch_of_a_prefix_tells_of_all_its_keys(self):
        self.store.set("job/a", "1")
        with self.store.watch("job/", prefix=True) as watch:
            self.assertEqual(watch.next(PATIENCE), ("present", "job/a", b"1"))
            self.store.set("other", "2")
            self.store.set("job/b", "3")
            self.assertEqual(watch.next(PATIENCE), ("created", "job/b", b"3"))

    def test_closing_a_watch_ends_the_iteration_of_whoever_waits(self):
        watch = self.store.watch("key")
        seen = []
        first = threading.Event()

        def follow():
            for change in watch:
                seen.append(change.kind)
                first.set()

        follower = threading.Thread(target=follow)
        follower.start()
        self.assertTrue(first.wait(PATIENCE.total_seconds()))
        watch.close()
        follower.join()
        watch.close()
        self.assertEqual(seen, ["absent"])

    def test_several_threads_use_it_at_once(self):
        def count():
            for _ in range(50):
                self.store.add("count", 1)

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.store.get("count"), b"400")

    def test_a_clone_is_the_same_store_with_its_own_timeout(self):
        clone = self.store.clone()
        self.store.set("key", "value")
        self.assertEqual(clone.get("key"), b"value")
        self.assertIs(type(clone), type(self.store))

    def test_a_forked_child_is_told_to_make_its_own(self):
        self.store.set("key", "value")

        def child():
            try:
                self.store.get("key")
            except errors.ClosedError as error:
                return 0 if str(os.getppid()) in str(error) else 2
            return 1

        self.assertEqual(in_child(child), 0)
        self.assertEqual(self.store.get("key"), b"value")


class HashStoreTest(EveryStore, unittest.TestCase):
    def make(self):
        return stores.HashStore()


class FileStoreTest(EveryStore, unittest.TestCase):
    def make(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return stores.FileStore(os.path.join(folder.name, "store"))

    def test_it_is_a_file_that_others_share(self):
        other = stores.FileStore(self.store.path, 2)
        self.store.set("key", "value")
        self.assertEqual(other.get("key"), b"value")


class TCPStoreTest(EveryStore, unittest.TestCase):
    def make(self):
        self.host = stores.TCPStore("localhost", 0, is_master=True, timeout=PATIENCE)
        return stores.TCPStore("localhost", self.host.port, timeout=PATIENCE)

    def test_the_host_sees_what_clients_do(self):
        self.assertEqual((self.store.host, self.store.port), ("localhost", self.host.port))
        self.assertTrue(self.host.is_master)
        self.assertFalse(self.store.is_master)
        self.store.set("key", "value")
        self.assertEqual(self.host.get("key"), b"value")

    def test_the_port_of_a_host_that_is_gone_can_be_had_again(self):
        port = self.host.port
        with self.assertRaisesRegex(RuntimeError, "in use"):
            stores.TCPStore("localhost", port, is_master=True)
        del self.host, self.store
        self.assertEqual(stores.TCPStore("localhost", port, is_master=True).port, port)

    def test_tenants_of_one_process_share_a_server(self):
        first = stores.TCPStore("localhost", 0, is_master=True, multi_tenant=True)
        second = stores.TCPStore("localhost", first.port, is_master=True, multi_tenant=True)
        first.set("key", "value")
        del first
        self.assertEqual(second.get("key"), b"value")

    def test_a_host_waits_for_all_workers(self):
        made = []
        announced = stores.HashStore()

        def host():
            # The port is known only afterwards, so one is found first.
            with_port = stores.TCPStore("localhost", 0, is_master=True)
            port = with_port.port
            del with_port
            announced.set("port", str(port))
            made.append(stores.TCPStore("localhost", port, 2, True, PATIENCE))

        with running(threading.Thread(target=host)) as thread:
            client = stores.TCPStore("localhost", int(announced.get("port")), 2, timeout=PATIENCE)
            thread.join()
        made[0].set("key", "value")
        self.assertEqual(client.get("key"), b"value")

    def test_a_host_that_waits_in_vain_says_how_many_came(self):
        with self.assertRaisesRegex(stores.StoreTimeoutError, "1 of 2 workers"):
            stores.TCPStore("localhost", 0, 2, True, timedelta(milliseconds=50))
        host = stores.TCPStore("localhost", 0, 2, True, timedelta(milliseconds=50), wait_for_workers=False)
        self.assertEqual(host.list_keys(), [])

    def test_a_server_that_is_not_there_is_an_error_that_names_it(self):
        port = self.host.port
        del self.host, self.store
        with self.assertRaisesRegex(ConnectionError, f"localhost:{port}") as caught:
            stores.TCPStore("localhost", port, timeout=timedelta(milliseconds=200))
        self.assertIsInstance(caught.exception, RuntimeError)

    def test_what_pytorch_takes_is_taken(self):
        store = stores.TCPStore(host_name="localhost", port=self.host.port, world_size=-1, is_master=False,
                                timeout=PATIENCE, wait_for_workers=True, multi_tenant=False,
                                master_listen_fd=None, use_libuv=True)
        store.set("key", "value")
        with self.assertRaises(ValueError):
            stores.TCPStore("localhost", 0, 0, True)

    def test_a_forked_child_can_make_its_own(self):
        self.store.set("key", "value")
        port = self.host.port
        self.assertEqual(in_child(lambda: int(stores.TCPStore("localhost", port).get("key") != b"value")), 0)


class PrefixStoreTest(EveryStore, unittest.TestCase):
    def make(self):
        self.inner = stores.HashStore()
        return stores.PrefixStore("prefix", self.inner)

    def test_keys_of_the_inner_store_have_the_prefix(self):
        self.store.set("key", "value")
        self.assertEqual(self.inner.get("prefix/key"), b"value")
        self.assertIs(self.store.underlying_store, self.inner)
        self.assertEqual(self.store.prefix, "prefix")
        self.assertEqual(stores.PrefixStore("outer", self.store).underlying_store, self.store)

    def test_the_timeout_is_that_of_the_inner_store(self):
        self.store.set_timeout(timedelta(seconds=7))
        self.assertEqual(self.inner.timeout, timedelta(seconds=7))

    def test_it_is_a_view_of_stores_of_this_package_only(self):
        with self.assertRaises(TypeError):
            stores.PrefixStore("prefix", {})


class WaitingTest(unittest.TestCase):

    def test_a_wait_ends_when_a_signal_handler_raises(self):
        store = stores.TCPStore("localhost", 0, is_master=True)
        watch = store.watch("key")
        watch.next(PATIENCE)
        waits = [lambda: store.get("none"), lambda: store.wait(["none"]), lambda: store.queue_pop("none"),
                 lambda: next(watch), lambda: store.barrier("none", 2)]
        for wait in waits:
            sender = subprocess.Popen(["/bin/sh", "-c", f"read go; kill -INT {os.getpid()}"],
                                      stdin=subprocess.PIPE)
            with self.assertRaises(KeyboardInterrupt):
                os.write(sender.stdin.fileno(), b"go\n")
                wait()
            sender.communicate()
        store.set("key", "value")
        self.assertEqual(watch.next(PATIENCE).value, b"value")

    def test_signal_handlers_that_do_not_raise_do_not_end_a_wait(self):
        store = stores.HashStore()
        before = signal.signal(signal.SIGUSR1, lambda *_: store.set("key", "from the handler"))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        sender = subprocess.Popen(["/bin/kill", "-USR1", str(os.getpid())])
        self.assertEqual(store.get("key"), b"from the handler")
        sender.wait()

    def test_a_process_ends_while_threads_of_it_wait(self):
        code = ("import threading, muster.store as s\n"
                "store = s.TCPStore('localhost', 0, is_master=True)\n"
                "store.set('begun', '')\n"
                "for wait in (store.get, store.queue_pop):\n"
                "    threading.Thread(target=wait, args=('none',), daemon=True).start()\n"
                "print(store.get('begun'))\n")
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=PATIENCE.total_seconds())
        self.assertEqual((done.returncode, done.stdout), (0, b"b''\n"))


class Interrupted(Exception):
    pass


class AllAtOnceTest(unittest.TestCase):
    """Threads that make and drop stores and watches, while waits are interrupted and children are forked."""

    def setUp(self):
        self.host = stores.TCPStore("localhost", 0, is_master=True)

    def connect(self):
        return stores.TCPStore("localhost", self.host.port, timeout=PATIENCE)

    def work(self, seed):
        choice = random.Random(seed)
        store = self.connect()
        for _ in range(100):
            kind = choice.randrange(7)
            if kind == 0:
                store = self.connect()
            elif kind == 1:
                view = stores.PrefixStore("view", store)
                view.set("key", os.urandom(choice.randrange(5000)))
                view.get("key")
            elif kind == 2:
                watch = store.watch("view", prefix=True)
                follower = threading.Thread(target=lambda watch=watch: list(watch))
                with running(follower):
                    store.set("view", "value")
                    watch.close()
            elif kind == 3:
                store.watch("dropped")
            elif kind == 4:
                with contextlib.suppress(stores.StoreTimeoutError):
                    store.wait(["none"], timedelta(milliseconds=1))
            elif kind == 5:
                stores.TCPStore("localhost", 0, is_master=True).set("key", "value")
            else:
                store.add("count", 1)

    def interrupt(self):
        def handler(*_):
            raise Interrupted

        before = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(20):
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 0.01)
                    while True:
                        store = self.connect()
                        store.watch("key").next(PATIENCE)
                        with contextlib.suppress(stores.StoreTimeoutError):
                            store.wait(["none"], timedelta(milliseconds=1))
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_nothing_fails_and_nothing_hangs(self):
        with concurrent.futures.ThreadPoolExecutor(6) as threads:
            works = [threads.submit(self.work, seed) for seed in range(6)]
            self.interrupt()
            for _ in range(5):
                self.assertEqual(in_child(lambda: self.connect().add("forked", 1) and 0), 0)
            for work in works:
                work.result()
        self.assertEqual(self.host.get("forked"), b"5")


class ErrorsTest(unittest.TestCase):

    def test_exceptions_survive_pickling(self):
        for name in errors.__all__:
            error = getattr(errors, name)("what happened")
            again = pickle.loads(pickle.dumps(error))
            self.assertIs(type(again), type(error))
            self.assertEqual((str(again), again.kind), ("what happened", error.kind))

    def test_the_package_does_not_load_torch(self):
        code = "import sys, muster.store; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE,
                              timeout=PATIENCE.total_seconds(), check=True)
        self.assertEqual(done.stdout, b"False\n")


@contextlib.contextmanager
def running(thread):
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def in_child(work):
    """What `work` returns in a forked child, as its exit status."""
    child = os.fork()
    if child == 0:
        status = 3
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    faulthandler.dump_traceback_later(540, exit=True)
    unittest.main()
