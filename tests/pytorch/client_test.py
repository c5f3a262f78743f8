"""Our client, as the `muster store` commands, on stores that PyTorch processes host."""

import inspect
import json
import unittest

import muster

dist = muster.import_distributed()
import peers  # noqa: E402  (needs PyTorch)

HAS_LIBUV = hasattr(dist.TCPStore, "libuvBackend")
LISTS_KEYS = hasattr(dist.TCPStore, "list_keys")
TIMED_OUT = 3
# Long enough to connect on a busy machine (or it is "unreachable"), short enough to wait for.
BRIEF = "3s"


class HostedStore:
    """The tests; the classes below run them on each kind of server that this PyTorch has."""

    options = {}

    def setUp(self):
        super().setUp()
        self.store = self.keep(dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=muster.PATIENCE,
            **self.options))
        self.endpoint = f"127.0.0.1:{self.store.port}"

    def tearDown(self):
        # Whatever our client did, the server goes on for the others.
        self.assertEqual(self.store.add("after all", 1), 1)
        self.assertEqual(self.connect().add("after all", 1), 2)

    def connect(self, **options):
        return self.keep(peers.connect("127.0.0.1", self.store.port, **options))

    def succeed(self, *words, **options):
        """Runs `muster store WORD...`; answers its output without the last line end."""
        done = self.command(self.endpoint, *words, **options)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return done.stdout.removesuffix(b"\n")

    def fail_with(self, *words, wordless=False, **options):
        """Runs `muster store WORD...`, which is to fail, or to say no; answers its exit status."""
        done = self.command(self.endpoint, *words, **options)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertGreater(done.returncode, 0, f"ended by a signal: {done.stderr}")
        self.assertTrue(wordless or done.stderr.strip(), "it failed without a word")
        return done.returncode

    # ---- each command

    def test_ping_answers(self):
        self.succeed("ping")
        self.assertEqual(self.store.num_keys(), 0)

    def test_set_is_seen_by_pytorch(self):
        self.succeed("set", "key", "value")
        self.assertEqual(self.store.get("key"), b"value")
        self.succeed("set", "key", "other")
        self.assertEqual(self.store.get("key"), b"other")
        self.succeed("set", "schlüssel", "wört")
        self.assertEqual(self.store.get("schlüssel").decode(), "wört")
        self.succeed("set", "empty", "")
        self.assertEqual(self.store.get("empty"), b"")
        self.assertEqual(self.store.num_keys(), 3)

    def test_set_has_reached_the_server_when_it_returns(self):
        for index in range(10):
            self.succeed("set", f"key/{index}", "value")
            self.assertTrue(self.store.delete_key(f"key/{index}"))

    def test_get_sees_what_pytorch_set(self):
        self.store.set("key", "value")
        self.assertEqual(self.succeed("get", "key"), b"value")
        self.store.set("empty", "")
        self.assertEqual(self.succeed("get", "empty"), b"")
        self.store.set("a/b//c", "nested")
        self.assertEqual(self.succeed("get", "a/b//c"), b"nested")
        dist.PrefixStore("pre/fix", self.store).set("key", "prefixed")
        self.assertEqual(self.succeed("get", "pre/fix/key"), b"prefixed")

    def test_get_of_the_largest_value_is_whole(self):
        value = b"0123456789abcde\n" * (8 * 1024 * 1024 // 16)
        self.store.set("large", value[:-1] + b"!")
        self.assertEqual(self.succeed("get", "large"), value[:-1] + b"!")

    def test_set_of_a_large_value_is_whole(self):
        value = "0123456789" * 10_000
        self.succeed("set", "large", value)
        self.assertEqual(self.store.get("large").decode(), value)

    def test_get_waits_for_a_key_that_pytorch_sets(self):
        getting = self.start_command(self.endpoint, "get", "late")
        self.store.set("late", "arrival")
        done = muster.finish(getting)
        self.assertEqual((done.returncode, done.stdout.rstrip(b"\n")), (0, b"arrival"), done.stderr)

    def test_get_of_an_absent_key_fails_after_its_timeout(self):
        self.fail_with("get", "absent", timeout="200ms")
        self.assertEqual(self.store.num_keys(), 0)

    def test_add_counts_together_with_pytorch(self):
        self.assertEqual(self.succeed("add", "counter", "5"), b"5")
        self.assertEqual(self.store.add("counter", 2), 7)
        self.assertEqual(self.succeed("add", "counter", "-10"), b"-3")
        self.assertEqual(self.store.get("counter"), b"-3")
        self.assertEqual(self.succeed("get", "counter"), b"-3")

    def test_add_to_text_fails_and_changes_nothing(self):
        self.store.set("text", "text")
        self.fail_with("add", "text", "1")
        self.assertEqual(self.store.get("text"), b"text")

    def test_wait_ends_when_all_keys_are_there(self):
        self.store.set("a", "")
        self.store.set("b", "")
        self.succeed("wait", "a", "b")
        waiting = self.start_command(self.endpoint, "wait", "a", "c", "d")
        self.store.add("c", 1)
        self.succeed("set", "d", "")
        done = muster.finish(waiting)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_wait_times_out(self):
        self.assertEqual(self.fail_with("wait", "never", timeout=BRIEF), TIMED_OUT)
        # A server that still had the wait would answer to a connection that is gone.
        self.store.set("never", "")
        self.succeed("wait", "never")

    def test_releases_pytorch_clients_that_wait(self):
        other = self.connect()
        for round_ in range(5):
            waiting = self.start(other.get, f"key/{round_}")
            self.succeed("set", f"key/{round_}", str(round_))
            self.assertEqual(waiting.result(muster.PATIENCE_SECONDS), str(round_).encode())

    def test_delete_says_whether_there_was_something(self):
        self.store.set("key", "value")
        self.store.wait(["key"])
        self.assertEqual(self.succeed("delete", "key"), b"true")
        self.assertEqual(self.succeed("delete", "key"), b"false")
        self.assertEqual(self.store.num_keys(), 0)

    def test_compare_set_stores_only_on_a_match(self):
        self.assertEqual(self.succeed("compare-set", "key", "", "first"), b"first")
        self.assertEqual(self.store.compare_set("key", "first", "second"), b"second")
        self.fail_with("compare-set", "key", "first", "third", wordless=True)
        self.assertEqual(self.store.get("key"), b"second")
        self.fail_with("compare-set", "absent", "something", "new", wordless=True)
        self.assertEqual(self.store.num_keys(), 1)

    def test_check_says_whether_all_keys_are_there(self):
        self.store.set("a", "")
        self.store.wait(["a"])
        self.assertEqual(self.succeed("check", "a"), b"true")
        self.fail_with("check", "a", "b", wordless=True)

    def test_append_extends_what_pytorch_set(self):
        # A server of PyTorch 1.13 has no such operation; the client makes it from what there is.
        self.store.set("log", "po")
        self.store.wait(["log"])
        self.succeed("append", "log", "ta")
        self.succeed("append", "log", "to")
        self.assertEqual(self.store.get("log"), b"potato")
        self.succeed("append", "new", "x")
        self.assertEqual(self.store.get("new"), b"x")

    def test_queues_are_shared_with_pytorch(self):
        if not getattr(self.store, "libuvBackend", False):
            self.fail_with("push", "queue", "item")
            return
        self.store.queue_push("queue", "from PyTorch")
        self.succeed("push", "queue", "from Muster")
        self.assertEqual(self.succeed("pop", "queue"), b"from PyTorch")
        self.assertEqual(self.store.queue_pop("queue"), b"from Muster")
        self.fail_with("pop", "queue", "--no-wait")
        self.assertEqual(self.fail_with("pop", "queue", timeout=BRIEF), TIMED_OUT)

    @unittest.skipUnless(LISTS_KEYS, "this PyTorch's server cannot list keys")
    def test_keys_lists_what_pytorch_set(self):
        self.assertEqual(self.succeed("keys"), b"")
        for key in ("a/1", "a/2", "b", "schlüssel"):
            self.store.set(key, "")
        self.store.wait(["schlüssel"])
        self.assertEqual(sorted(self.succeed("keys").decode().split("\n")),
                         ["a/1", "a/2", "b", "schlüssel"])
        self.assertEqual(sorted(self.succeed("keys", "a/").split(b"\n")), [b"a/1", b"a/2"])
        self.assertEqual(self.succeed("keys", "none"), b"")

    @unittest.skipIf(LISTS_KEYS, "this PyTorch's server can list keys")
    def test_keys_says_that_the_server_is_too_old(self):
        self.fail_with("keys")

    def test_output_can_be_json(self):
        self.store.set("key", "value")
        for words in (("get", "key"), ("add", "counter", "1"), ("delete", "key"), ("ping",)):
            with self.subTest(words=words):
                json.loads(self.succeed(*words, "--json"))

    # ---- beside others

    def test_leaves_a_pytorch_client_undisturbed(self):
        other = self.connect()
        stop = []

        def work():
            rounds = 0
            while not stop:
                rounds += 1
                if other.add("busy", 1) != rounds:
                    raise AssertionError("a wrong sum")
                other.set("echo", str(rounds))
                if other.get("echo") != str(rounds).encode():
                    raise AssertionError("a wrong value")
            return rounds

        working = self.start(work)
        try:
            for index in range(5):
                self.succeed("ping")
                self.succeed("set", f"key/{index}", "value")
                self.succeed("get", f"key/{index}")
                self.fail_with("wait", "never", timeout="50ms")
        finally:
            stop.append(True)
        rounds = working.result(muster.PATIENCE_SECONDS)
        self.assertGreater(rounds, 0)
        self.assertEqual(self.succeed("get", "busy"), str(rounds).encode())

    def test_many_at_once_are_all_served(self):
        processes = [self.start_command(self.endpoint, "add", "counter", "1") for _ in range(20)]
        sums = []
        for process in processes:
            done = muster.finish(process)
            self.assertEqual(done.returncode, 0, done.stderr)
            sums.append(int(done.stdout))
        self.assertEqual(sorted(sums), list(range(1, 21)))

    def test_killed_while_it_waits_does_no_harm(self):
        for _ in range(3):
            waiting = self.start_command(self.endpoint, "wait", "never")
            self.succeed("ping")
            waiting.kill()
            muster.finish(waiting)
        self.assertEqual(self.store.num_keys(), 0)


class OnTheDefaultServer(HostedStore, muster.TestCase):
    """PyTorch 1.13: the only server it has. Later: the one on libuv."""

    def test_is_the_expected_one(self):
        if HAS_LIBUV:
            self.assertTrue(self.store.libuvBackend)
        else:
            self.assertNotIn("use_libuv", inspect.getdoc(dist.TCPStore.__init__))


@unittest.skipUnless(HAS_LIBUV, "this PyTorch has only one server")
class OnTheServerWithoutLibuv(HostedStore, muster.TestCase):

    options = {"use_libuv": False}

    def test_is_the_expected_one(self):
        self.assertFalse(self.store.libuvBackend)


class WorkerCounting(muster.TestCase):

    def test_is_not_disturbed_by_commands(self):
        # The port has to be known before the host has its workers and its constructor returns.
        port = muster.free_port()
        host = self.peer(peers.host_store, port, 2)
        self.assertEqual(host.receive(), "hosting")
        endpoint = f"127.0.0.1:{port}"

        # The commands are no workers: they retry until there is a server, and the host waits on.
        for words in (("ping",), ("set", "report", "from a command"), ("add", "counter", "1")):
            done = self.command(endpoint, *words, timeout="60s")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(host.has_message(), "a command was taken for a worker")

        worker = self.keep(peers.connect("127.0.0.1", port, world_size=2))
        self.assertEqual(host.receive(), "complete")
        self.assertEqual(worker.add("counter", 1), 2)
        done = self.command(endpoint, "get", "report")
        self.assertEqual(done.stdout.rstrip(b"\n"), b"from a command", done.stderr)
        self._stores.clear()
        del worker
        host.send("done")
        self.assertEqual(host.receive(), "from a command")
        host.join()


class WithoutAServer(muster.TestCase):

    def test_commands_fail_with_a_reason(self):
        done = self.command(f"127.0.0.1:{muster.free_port()}", "get", "key", timeout="200ms")
        self.assertGreater(done.returncode, 0)
        self.assertTrue(done.stderr.strip())


if __name__ == "__main__":
    muster.main()
