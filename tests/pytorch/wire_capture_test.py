"""What real PyTorch clients send and our server answers, byte for byte.

The clients' bytes are the assumption on which the server's decoder and its golden tests rest: these
tests fail when a PyTorch version sends something else. A proxy between the two records both ways.
"""

import contextlib
import socket
import struct
import threading
import unittest

import muster

dist = muster.import_distributed()
import peers  # noqa: E402  (needs PyTorch)

# The two protocols have other numbers for the operations. PyTorch 2.1, in between, is unsupported.
IS_LEGACY = not hasattr(dist.TCPStore, "check")

INIT = "05 00 00 00 00 00 00 00  69 6e 69 74 2f"
KEY_K = "02 00 00 00 00 00 00 00  2f 6b"
ONE_KEY_K = "01 00 00 00 00 00 00 00 " + KEY_K
KEYS_A_B = ("02 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  2f 61"
            "  02 00 00 00 00 00 00 00  2f 62")


class Conversation:
    """Both directions of one connection."""

    def __init__(self):
        self._changed = threading.Condition()
        self._recorded = {"client": bytearray(), "server": bytearray()}

    def record(self, speaker, data):
        with self._changed:
            self._recorded[speaker] += data
            self._changed.notify_all()

    def take(self, speaker, byte_count):
        """Removes and answers all that was recorded, once it is `byte_count` long."""
        with self._changed:
            recorded = self._recorded[speaker]
            self._changed.wait_for(lambda: len(recorded) >= byte_count, muster.PATIENCE_SECONDS)
            taken = bytes(recorded)
            recorded.clear()
            return taken


class Proxy:
    """Listens on a port of its own and passes everything on to `port`."""

    def __init__(self, port):
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._conversations = []
        self._sockets = []
        self._threads = []
        self._start(self._accept)

    def _start(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):  # close() ends the accepting.
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target, muster.PATIENCE_SECONDS)
                server.settimeout(None)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                conversation = Conversation()
                self._start(self._pump, client, server, conversation, "client")
                self._start(self._pump, server, client, conversation, "server")
                with self._changed:
                    self._sockets += [client, server]
                    self._conversations.append(conversation)
                    self._changed.notify_all()

    @staticmethod
    def _pump(source, target, conversation, speaker):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                conversation.record(speaker, data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def conversation(self, index):
        """The `index`-th connection, once it is there."""
        with self._changed:
            there = self._changed.wait_for(lambda: len(self._conversations) > index,
                                           muster.PATIENCE_SECONDS)
            if not there:
                raise AssertionError(f"connection {index} was never opened")
            return self._conversations[index]

    def connection_count(self):
        with self._changed:
            return len(self._conversations)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(muster.PATIENCE_SECONDS)
        for end in self._sockets:
            end.close()


class RemoteStore:
    """A store in a process of its own, with the record of its first connection.

    Of its own, because the constructor of PyTorch 1.13 holds the interpreter lock: the proxy would
    stand still.
    """

    def __init__(self, test, proxy, **options):
        self._test = test
        first = proxy.connection_count()
        self._peer = test.peer(peers.obey, "127.0.0.1", proxy.port, options)
        self.pid = self._peer.receive()
        self.conversation = proxy.conversation(first)
        if IS_LEGACY:
            self.silent_conversation = proxy.conversation(first + 1)

    def start(self, method, *arguments):
        self._peer.send((method, arguments))

    def finish(self):
        return self._peer.receive()

    def call(self, method, *arguments):
        self.start(method, *arguments)
        how, result = self.finish()
        self._test.assertEqual(how, "returned", result)
        return result

    def expect(self, sent="", answered=""):
        """Checks all that passed since the last check: hexadecimal, blanks do not count."""
        sent, answered = bytes.fromhex(sent), bytes.fromhex(answered)
        actual = self.conversation.take("client", len(sent))
        self._test.assertEqual(actual.hex(" "), sent.hex(" "), "sent by the client")
        actual = self.conversation.take("server", len(answered))
        self._test.assertEqual(actual.hex(" "), answered.hex(" "), "answered by the server")

    def close(self):
        self._peer.send(None)
        self._test.assertIsNone(self._peer.receive())
        self._peer.join()
        # Nothing was left over, neither a request nor an answer.
        self.expect()
        if IS_LEGACY:
            self._test.assertEqual(self.silent_conversation.take("client", 0), b"")
            self._test.assertEqual(self.silent_conversation.take("server", 0), b"")


class WireTestCase(muster.TestCase):

    def setUp(self):
        super().setUp()
        self.server = self.serve(host="127.0.0.1")
        self.proxy = Proxy(self.server.port)
        self.addCleanup(self.proxy.close)

    def connect(self, **options):
        """A store through the proxy, its greeting checked already."""
        store = RemoteStore(self, self.proxy, **options)
        if not IS_LEGACY:
            nonce = struct.pack("<I", store.pid).hex()
            store.expect("00 ce f7 85 3c  0d" + nonce, nonce)
        return store

    def bystander(self, **options):
        """A store that is not recorded."""
        return self.keep(peers.connect("127.0.0.1", self.server.port, **options))


@unittest.skipUnless(IS_LEGACY, "this PyTorch speaks the later protocol")
class Legacy(WireTestCase):
    """PyTorch 1.13."""

    def test_constructor_without_world_size_is_silent(self):
        store = self.connect()
        store.expect()
        store.close()

    def test_constructor_counts_the_worker(self):
        self.bystander(world_size=2)
        store = self.connect(world_size=2)
        store.expect("03" + INIT + "01 00 00 00 00 00 00 00", "02 00 00 00 00 00 00 00")
        store.close()

    def test_set_and_get(self):
        store = self.connect()
        store.call("set", "k", "v1")
        store.expect("00" + KEY_K + "02 00 00 00 00 00 00 00  76 31")
        self.assertEqual(store.call("get", "k"), b"v1")
        store.expect("05" + ONE_KEY_K + "02" + KEY_K, "00" + "02 00 00 00 00 00 00 00  76 31")
        store.close()

    def test_add(self):
        key = "04 00 00 00 00 00 00 00  2f 63 6e 74"
        store = self.connect()
        self.assertEqual(store.call("add", "cnt", 5), 5)
        store.expect("03" + key + "05 00 00 00 00 00 00 00", "05 00 00 00 00 00 00 00")
        self.assertEqual(store.call("add", "cnt", -7), -2)
        store.expect("03" + key + "f9 ff ff ff ff ff ff ff", "fe ff ff ff ff ff ff ff")
        self.assertEqual(store.call("get", "cnt"), b"-2")
        store.expect("05 01 00 00 00 00 00 00 00" + key + "02" + key,
                     "00 02 00 00 00 00 00 00 00  2d 32")
        store.close()

    def test_compare_set(self):
        key = "03 00 00 00 00 00 00 00  2f 63 73"
        first = "05 00 00 00 00 00 00 00  66 69 72 73 74"
        second = "06 00 00 00 00 00 00 00  73 65 63 6f 6e 64"
        third = "05 00 00 00 00 00 00 00  74 68 69 72 64"
        store = self.connect()
        self.assertEqual(store.call("compare_set", "cs", "", "first"), b"first")
        store.expect("01" + key + "00 00 00 00 00 00 00 00" + first, first)
        self.assertEqual(store.call("compare_set", "cs", "first", "second"), b"second")
        store.expect("01" + key + first + second, second)
        self.assertEqual(store.call("compare_set", "cs", "nope", "third"), b"second")
        store.expect("01" + key + "04 00 00 00 00 00 00 00  6e 6f 70 65" + third, second)
        self.assertEqual(store.call("compare_set", "cs2", "xx", "yy"), b"xx")
        store.expect("01  04 00 00 00 00 00 00 00  2f 63 73 32  02 00 00 00 00 00 00 00  78 78"
                     "02 00 00 00 00 00 00 00  79 79", "02 00 00 00 00 00 00 00  78 78")
        store.close()

    def test_wait(self):
        self.bystander().set("k", "")
        self.bystander().add("cnt", 1)
        store = self.connect()
        store.call("wait", ["k", "cnt"])
        store.expect("05  02 00 00 00 00 00 00 00" + KEY_K + "04 00 00 00 00 00 00 00  2f 63 6e 74",
                     "00")
        store.call("wait", [])
        store.expect("05  00 00 00 00 00 00 00 00", "00")
        store.close()

    def test_num_keys_and_delete_key(self):
        other = self.bystander()
        for key in ("a", "b", "k"):
            other.set(key, "")
        other.wait(["a", "b", "k"])
        store = self.connect()
        self.assertEqual(store.call("num_keys"), 3)
        store.expect("06", "03 00 00 00 00 00 00 00")
        self.assertTrue(store.call("delete_key", "k"))
        store.expect("08" + KEY_K, "01 00 00 00 00 00 00 00")
        self.assertFalse(store.call("delete_key", "k"))
        store.expect("08" + KEY_K, "00 00 00 00 00 00 00 00")
        store.close()

    def test_wait_that_timed_out_is_not_answered_after_the_next_request(self):
        store = self.connect()
        store.start("wait", ["never"], muster.BRIEF)
        self.assertEqual(store.finish()[0], "raised")
        store.expect("05  01 00 00 00 00 00 00 00  06 00 00 00 00 00 00 00  2f 6e 65 76 65 72")
        # Anything tells the server that this client waits no more.
        store.call("set", "k", "")
        store.expect("00" + KEY_K + "00 00 00 00 00 00 00 00")
        other = self.bystander()
        other.wait(["k"])
        other.set("never", "")
        other.wait(["never"])
        # The time-out of the client's socket stays; a wait sets another.
        store.call("wait", [], muster.PATIENCE)
        store.expect("05  00 00 00 00 00 00 00 00", "00")
        self.assertEqual(store.call("num_keys"), 2)
        store.expect("06", "02 00 00 00 00 00 00 00")
        store.close()

    def test_wait_that_timed_out_is_answered_before_the_next_request(self):
        # The server cannot know better; this is the client's flaw, and here to be seen.
        store = self.connect()
        store.start("wait", ["never"], muster.BRIEF)
        self.assertEqual(store.finish()[0], "raised")
        store.expect("05  01 00 00 00 00 00 00 00  06 00 00 00 00 00 00 00  2f 6e 65 76 65 72")
        self.bystander().set("never", "")
        store.expect("", "00")
        store.close()


@unittest.skipIf(IS_LEGACY, "this PyTorch speaks the earlier protocol")
class Modern(WireTestCase):
    """PyTorch 2.5 and later."""

    def test_constructor_greets_and_counts_the_worker(self):
        self.bystander(world_size=2)
        store = RemoteStore(self, self.proxy, world_size=2)
        nonce = struct.pack("<I", store.pid).hex()
        store.expect("00 ce f7 85 3c  0d" + nonce + "04" + INIT + "01 00 00 00 00 00 00 00",
                     nonce + "02 00 00 00 00 00 00 00")
        store.close()

    def test_constructor_opens_one_connection(self):
        store = self.connect()
        store.call("num_keys")
        store.expect("07", "00 00 00 00 00 00 00 00")
        self.assertEqual(self.proxy.connection_count(), 1)
        store.close()

    def test_set_and_get(self):
        store = self.connect()
        store.call("set", "k", "v1")
        store.expect("01" + KEY_K + "02 00 00 00 00 00 00 00  76 31")
        self.assertEqual(store.call("get", "k"), b"v1")
        store.expect("06" + ONE_KEY_K + "03" + KEY_K, "00" + "02 00 00 00 00 00 00 00  76 31")
        store.close()

    def test_add(self):
        key = "04 00 00 00 00 00 00 00  2f 63 6e 74"
        store = self.connect()
        self.assertEqual(store.call("add", "cnt", 5), 5)
        store.expect("04" + key + "05 00 00 00 00 00 00 00", "05 00 00 00 00 00 00 00")
        self.assertEqual(store.call("add", "cnt", -7), -2)
        store.expect("04" + key + "f9 ff ff ff ff ff ff ff", "fe ff ff ff ff ff ff ff")
        store.close()

    def test_compare_set(self):
        first = "05 00 00 00 00 00 00 00  66 69 72 73 74"
        store = self.connect()
        self.assertEqual(store.call("compare_set", "cs", "", "first"), b"first")
        store.expect("02  03 00 00 00 00 00 00 00  2f 63 73  00 00 00 00 00 00 00 00" + first,
                     first)
        store.close()

    def test_check_num_keys_and_delete_key(self):
        other = self.bystander()
        store = self.connect()
        self.assertFalse(store.call("check", ["a", "b"]))
        store.expect("05" + KEYS_A_B, "01")
        for key in ("a", "b", "k"):
            other.set(key, "")
        other.wait(["a", "b", "k"])
        self.assertTrue(store.call("check", ["a", "b"]))
        store.expect("05" + KEYS_A_B, "00")
        self.assertEqual(store.call("num_keys"), 3)
        store.expect("07", "03 00 00 00 00 00 00 00")
        self.assertTrue(store.call("delete_key", "k"))
        store.expect("08" + KEY_K, "01 00 00 00 00 00 00 00")
        self.assertFalse(store.call("delete_key", "k"))
        store.expect("08" + KEY_K, "00 00 00 00 00 00 00 00")
        store.close()

    def test_wait_that_times_out_is_cancelled(self):
        store = self.connect()
        store.start("wait", ["k"], muster.BRIEF)
        self.assertEqual(store.finish()[0], "raised")
        store.expect("06" + ONE_KEY_K + "0c", "01")
        self.bystander().set("k", "")
        store.call("wait", ["k"])
        store.expect("06" + ONE_KEY_K, "00")
        store.close()

    def test_append(self):
        store = self.connect()
        store.call("append", "k", "po")
        store.expect("09" + KEY_K + "02 00 00 00 00 00 00 00  70 6f")
        store.close()

    def test_multi_set_and_multi_get(self):
        store = self.connect()
        store.call("multi_set", ["a", "b"], ["1", "22"])
        store.expect("0b  02 00 00 00 00 00 00 00"
                     "02 00 00 00 00 00 00 00  2f 61  01 00 00 00 00 00 00 00  31"
                     "02 00 00 00 00 00 00 00  2f 62  02 00 00 00 00 00 00 00  32 32")
        self.assertEqual(store.call("multi_get", ["a", "b"]), [b"1", b"22"])
        store.expect("06" + KEYS_A_B + "0a" + KEYS_A_B,
                     "00  01 00 00 00 00 00 00 00  31  02 00 00 00 00 00 00 00  32 32")
        store.close()

    @unittest.skipUnless(hasattr(dist.TCPStore, "queue_push"), "this PyTorch has no queues")
    def test_queues(self):
        queue = "02 00 00 00 00 00 00 00  2f 71"
        store = self.connect()
        store.call("queue_push", "q", "xy")
        store.expect("0e" + queue + "02 00 00 00 00 00 00 00  78 79")
        self.assertEqual(store.call("queue_len", "q"), 1)
        store.expect("10" + queue, "01 00 00 00 00 00 00 00")
        self.assertEqual(store.call("queue_pop", "q", False), b"xy")
        store.expect("0f" + queue, "01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  78 79")
        store.start("queue_pop", "q", False)
        self.assertEqual(store.finish()[0], "raised")
        store.expect("0f" + queue, "00 00 00 00 00 00 00 00")
        store.call("queue_push", "q", "xy")
        store.call("queue_pop", "q")
        store.expect("0e" + queue + "02 00 00 00 00 00 00 00  78 79"
                     "06 01 00 00 00 00 00 00 00" + queue + "0f" + queue,
                     "00  01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  78 79")
        store.close()

    @unittest.skipUnless(hasattr(dist.TCPStore, "queue_push"), "this PyTorch has no queues")
    def test_queues_wake_one_waiter_in_the_order_of_arrival(self):
        queue = "02 00 00 00 00 00 00 00  2f 71"
        producer = self.bystander()
        stores = [self.connect() for _ in range(3)]
        for store in stores:
            store.start("queue_pop", "q")
            store.expect("06 01 00 00 00 00 00 00 00" + queue)
            # The request is on its way to the server. When the server has answered two later ones
            # of another connection, one after the other, it has seen this one.
            producer.num_keys()
            producer.num_keys()
        for index, store in enumerate(stores):
            producer.queue_push("q", str(index))
            self.assertEqual(store.finish(), ("returned", str(index).encode()))
            store.expect("0f" + queue,
                         "00  01 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00" + f"3{index}")
        for store in stores:
            store.close()

    @unittest.skipUnless(hasattr(dist.TCPStore, "list_keys"), "this PyTorch cannot list keys")
    def test_list_keys(self):
        other = self.bystander(world_size=1)
        other.set("k", "")
        other.wait(["k"])
        store = self.connect()
        self.assertEqual(store.call("list_keys"), ["k"])
        self.assertEqual(store.conversation.take("client", 1), b"\x11")
        answer = store.conversation.take("server", 31)
        self.assertIn(answer.hex(), [bytes.fromhex("02 00 00 00 00 00 00 00" + keys).hex()
                                     for keys in (INIT + KEY_K, KEY_K + INIT)])
        store.close()

    @unittest.skipUnless(hasattr(dist.TCPStore, "barrier"), "this PyTorch has no barrier operation")
    def test_barrier(self):
        request = "12  02 00 00 00 00 00 00 00  2f 62  02 00 00 00 00 00 00 00"
        first, second = self.connect(), self.connect()
        first.start("barrier", "b", 2)
        first.expect(request)
        second.call("barrier", "b", 2)
        second.expect(request, "00")
        self.assertEqual(first.finish(), ("returned", None))
        first.expect("", "00")
        first.close()
        second.close()


if __name__ == "__main__":
    muster.main()
