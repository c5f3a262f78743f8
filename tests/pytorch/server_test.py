"""Unmodified PyTorch clients on our store server: every Store method that this version has."""

import datetime
import json
import os
import random
import subprocess
import threading
import unittest

import muster

dist = muster.import_distributed()
import peers  # noqa: E402  (needs PyTorch)

VALUE_BYTES_MAX = 8 * 1024 * 1024
KEY_BYTES_MAX = 8192

# PyTorch 1.13 has one connection for requests and one that stays silent, and no way to tell the
# server that it stopped waiting. Later versions have one connection and can cancel.
CANCELS_WAITS = hasattr(dist.TCPStore, "check")


def needs(*methods):
    missing = [name for name in methods if not hasattr(dist.TCPStore, name)]
    return unittest.skipIf(missing, f"this PyTorch has no TCPStore.{', '.join(missing)}")


class StoreTestCase(muster.TestCase):
    """Each test has a server of its own."""

    host = "127.0.0.1"

    def setUp(self):
        super().setUp()
        self.server = self.serve(host=self.host)

    def connect(self, **options):
        return self.keep(peers.connect(self.host, self.server.port, **options))

    def assert_times_out(self, function, *arguments):
        with self.assertRaisesRegex(RuntimeError, "(?i)time"):
            function(*arguments)


class Values(StoreTestCase):

    def test_come_back_as_they_were_set(self):
        store, other = self.connect(), self.connect()
        store.set("key", "first")
        self.assertEqual(store.get("key"), b"first")
        store.set("key", "second")
        self.assertEqual(store.get("key"), b"second")
        self.assertEqual(other.get("key"), b"second")

    def test_may_be_empty(self):
        store = self.connect()
        store.set("empty", "")
        store.set("full", "x")
        store.wait(["empty"])
        self.assertEqual(store.get("empty"), b"")
        self.assertEqual(store.num_keys(), 2)
        store.set("full", "")
        self.assertEqual(store.get("full"), b"")

    def test_may_hold_any_byte(self):
        store = self.connect()
        value = bytes(range(256)) * 17
        store.set("bytes", value)
        self.assertEqual(store.get("bytes"), value)

    def test_may_be_as_long_as_a_pytorch_server_allows(self):
        store, other = self.connect(), self.connect()
        value = random.Random(1).randbytes(VALUE_BYTES_MAX)
        store.set("long", value)
        self.assertEqual(other.get("long"), value)
        self.assertEqual(store.compare_set("long", value, "short"), b"short")
        self.assertEqual(other.get("long"), b"short")

    def test_of_all_lengths_around_the_sizes_of_buffers_arrive_whole(self):
        store = self.connect()
        lengths = [base + offset for base in (1440, 4096, 16384, 65536) for offset in range(-20, 3)]
        for length in lengths:
            store.set(f"value/{length}", b"v" * length)
        for length in lengths:
            self.assertEqual(store.get(f"value/{length}"), b"v" * length)

    def test_many_are_kept_and_counted(self):
        store = self.connect()
        for index in range(3000):
            store.set(f"key/{index}", f"value {index}")
        self.assertEqual(store.num_keys(), 3000)
        for index in range(0, 3000, 97):
            self.assertEqual(store.get(f"key/{index}"), f"value {index}".encode())
        store.wait([f"key/{index}" for index in range(3000)])


class Keys(StoreTestCase):

    def test_may_be_any_text(self):
        store, other = self.connect(), self.connect()
        keys = ["", "/", "//", "a/b", " ", "schlüssel", "ключ", "鍵", "🔑", "line\nbreak",
                "nul\0byte"]
        for key in keys:
            store.set(key, f"value of {key}")
        self.assertEqual(store.num_keys(), len(keys))
        for key in keys:
            self.assertEqual(other.get(key), f"value of {key}".encode())

    def test_may_be_as_long_as_a_pytorch_server_allows(self):
        store = self.connect()
        key = "k" * (KEY_BYTES_MAX - 1)  # The client puts one "/" in front.
        store.set(key, "value")
        self.assertEqual(store.get(key), b"value")
        self.assertEqual(store.add(key[:-1], 3), 3)
        store.wait([key, key[:-1]])

    def test_are_counted(self):
        store = self.connect()
        self.assertEqual(store.num_keys(), 0)
        store.set("a", "1")
        store.add("b", 1)
        store.compare_set("c", "", "1")
        store.compare_set("never stored", "something", "1")
        self.assertEqual(store.num_keys(), 3)
        store.delete_key("a")
        self.assertEqual(store.num_keys(), 2)

    def test_are_deleted_once(self):
        store, other = self.connect(), self.connect()
        store.set("key", "value")
        store.wait(["key"])
        self.assertTrue(other.delete_key("key"))
        self.assertFalse(other.delete_key("key"))
        self.assertFalse(store.delete_key("never there"))
        self.assertEqual(store.add("key", 1), 1)

    @needs("list_keys")
    def test_are_listed_without_those_of_the_protocol(self):
        store = self.connect(world_size=1)
        self.assertEqual(store.list_keys(), [])
        self.assertEqual(store.num_keys(), 1)  # The count of workers.
        keys = {f"key/{index}" for index in range(500)} | {"", "/", "schlüssel"}
        for key in keys:
            store.set(key, "")
        listed = store.list_keys()
        self.assertEqual(len(listed), len(keys))
        self.assertEqual(set(listed), keys)

    @needs("list_keys")
    def test_are_listed_through_a_prefix(self):
        store = self.connect()
        inner = dist.PrefixStore("inner", store)
        store.set("outer", "1")
        inner.set("one", "1")
        inner.set("two", "2")
        self.assertEqual(set(inner.list_keys()), {"one", "two"})


class Counters(StoreTestCase):

    def test_sum_what_everyone_adds(self):
        store, other = self.connect(), self.connect()
        self.assertEqual(store.add("counter", 5), 5)
        self.assertEqual(other.add("counter", -7), -2)
        self.assertEqual(store.get("counter"), b"-2")
        self.assertEqual(store.add("counter", 0), -2)

    def test_are_created_by_adding_nothing(self):
        store = self.connect()
        self.assertEqual(store.add("counter", 0), 0)
        store.wait(["counter"])
        self.assertEqual(store.get("counter"), b"0")

    def test_continue_from_a_number_that_was_set(self):
        store = self.connect()
        for text, total in (("41", 42), ("-1", 0), ("+7", 8), ("  7", 8), ("12abc", 13)):
            store.set("counter", text)
            self.assertEqual(store.add("counter", 1), total, text)
            self.assertEqual(store.get("counter"), str(total).encode())

    def test_wrap_around_at_64_bits(self):
        store = self.connect()
        largest = 2**63 - 1
        self.assertEqual(store.add("counter", largest), largest)
        self.assertEqual(store.add("counter", 1), -2**63)
        self.assertEqual(store.add("counter", -1), largest)

    def test_refuse_text_at_the_cost_of_that_connection_only(self):
        for text in ("text", "", "-", "9223372036854775808"):
            with self.subTest(text=text):
                store, other = self.connect(), self.connect()
                store.set("text", text)
                self.assertEqual(store.get("text"), text.encode())
                with self.assertRaises(RuntimeError):
                    store.add("text", 1)
                self.assertEqual(other.get("text"), text.encode())
                self.assertEqual(self.connect().get("text"), text.encode())


class CompareSet(StoreTestCase):

    def test_follows_its_four_rows(self):
        store = self.connect()
        self.assertEqual(store.compare_set("key", "", "first"), b"first")
        self.assertEqual(store.get("key"), b"first")
        self.assertEqual(store.compare_set("key", "first", "second"), b"second")
        self.assertEqual(store.get("key"), b"second")
        self.assertEqual(store.compare_set("key", "wrong", "third"), b"second")
        self.assertEqual(store.get("key"), b"second")
        self.assertEqual(store.compare_set("absent", "expected", "third"), b"expected")
        self.assertFalse(store.delete_key("absent"))

    def test_takes_an_empty_value_for_what_it_is(self):
        store = self.connect()
        store.set("key", "")
        self.assertEqual(store.compare_set("key", "x", "y"), b"")
        self.assertEqual(store.compare_set("key", "", "now"), b"now")
        self.assertEqual(store.compare_set("key", "", "again"), b"now")
        self.assertEqual(store.compare_set("key", "now", ""), b"")
        self.assertEqual(store.get("key"), b"")

    # The compare_set of PyTorch 1.13 makes a Python object without holding the interpreter lock,
    # which crashes when another thread runs: here, those who compete and those who wait are processes.

    def test_lets_exactly_one_of_many_win(self):
        names = [f"candidate {index}" for index in range(4)]
        workers = [self.peer(peers.compete, self.host, self.server.port, name, names, 50)
                   for name in names]
        winners = [worker.receive() for worker in workers]
        self.assertEqual(winners, [winners[0]] * 4)
        self.assertLessEqual(set(winners[0]), set(names))
        for worker in workers:
            worker.join()

    def test_releases_those_who_wait_for_the_key(self):
        store = self.connect()
        keys = [f"key/{index}" for index in range(20)]
        worker = self.peer(peers.get_each, self.host, self.server.port, keys)
        for key in keys:
            self.assertEqual(worker.receive(), key)
            store.compare_set(key, "", "value of " + key)
        self.assertEqual(worker.receive(), [("value of " + key).encode() for key in keys])
        worker.join()


class Waits(StoreTestCase):

    def test_end_at_once_when_all_keys_are_there(self):
        store = self.connect()
        store.set("a", "")
        store.set("b", "")
        store.wait(["a", "b"])
        store.wait(["a", "a", "b"], muster.PATIENCE)
        store.wait([])
        self.assertEqual(store.num_keys(), 2)

    def test_end_when_the_last_key_is_written(self):
        waiter = self.connect()
        writers = [self.connect() for _ in range(3)]
        waiting = self.start(waiter.wait, ["a", "b", "c", "a"])
        writers[0].set("a", "")
        writers[1].add("b", 1)
        writers[2].set("c", "")
        waiting.result(muster.PATIENCE_SECONDS)
        self.assertEqual(waiter.num_keys(), 3)

    def test_of_many_clients_end_together(self):
        stores = [self.connect() for _ in range(16)]
        futures = [self.start(store.get, "gate") for store in stores]
        self.connect().set("gate", "open")
        self.assertEqual(self.finish_all(futures), [b"open"] * 16)

    def test_end_for_each_of_many_messages_back_and_forth(self):
        arguments = (self.host, self.server.port)
        futures = [self.start(peers.ping_pong, None, *arguments, own, other, 200)
                   for own, other in (("ping", "pong"), ("pong", "ping"))]
        self.assertEqual(self.finish_all(futures), [200, 200])

    def test_time_out_and_leave_the_connection_in_order(self):
        store, other = self.connect(), self.connect()
        store.set("present", "value")
        for round_ in range(3):
            key = f"late/{round_}"
            self.assert_times_out(store.wait, ["present", key], muster.BRIEF)
            # PyTorch 1.13 says nothing when it gives up: its next request has to tell the server.
            store.set(f"gave up/{round_}", "")
            other.wait([f"gave up/{round_}"])
            other.set(key, str(round_))
            other.wait([key])
            # Its time-out also stays in force for every answer until the next wait sets another.
            store.wait(["present"], muster.PATIENCE)
            self.assertEqual(store.add("counter", 1), round_ + 1)
            self.assertEqual(store.num_keys(), 2 * round_ + 4)
            self.assertEqual(store.get("present"), b"value")
            self.assertEqual(store.get(key), str(round_).encode())

    @unittest.skipUnless(CANCELS_WAITS, "this PyTorch cannot cancel a wait")
    def test_time_out_and_leave_the_connection_in_order_although_the_key_comes_next(self):
        store, other = self.connect(), self.connect()
        for round_ in range(3):
            key = f"late/{round_}"
            self.assert_times_out(store.wait, [key], muster.BRIEF)
            other.set(key, str(round_))
            other.wait([key])
            self.assertEqual(store.num_keys(), round_ + 1)

    @unittest.skipUnless(CANCELS_WAITS, "this PyTorch cannot cancel a wait")
    def test_that_end_while_they_time_out_leave_the_connection_in_order(self):
        store, other = self.connect(), self.connect()
        ready = threading.Barrier(2)

        def write():
            for round_ in range(200):
                ready.wait(muster.PATIENCE_SECONDS)
                other.set(f"race/{round_}", "")

        writing = self.start(write)
        for round_ in range(200):
            ready.wait(muster.PATIENCE_SECONDS)
            try:
                store.wait([f"race/{round_}"], datetime.timedelta(milliseconds=round_ % 3))
            except RuntimeError:
                pass
            self.assertEqual(store.add("counter", 1), round_ + 1)
        writing.result(muster.PATIENCE_SECONDS)
        store.wait(["race/199"])
        self.assertEqual(store.num_keys(), 201)

    def test_inside_get_use_the_timeout_of_the_store(self):
        store = self.connect()
        self.assertEqual(store.timeout, muster.PATIENCE)
        store.set_timeout(muster.BRIEF)
        self.assertEqual(store.timeout, muster.BRIEF)
        self.assert_times_out(store.get, "absent")
        store.set_timeout(muster.PATIENCE)
        store.set("present", "value")
        self.assertEqual(store.get("present"), b"value")

    def test_for_a_deleted_key_time_out(self):
        store = self.connect()
        store.set("key", "value")
        self.assertTrue(store.delete_key("key"))
        self.assert_times_out(store.wait, ["key"], muster.BRIEF)


class Extended(StoreTestCase):

    @needs("check")
    def test_check_says_whether_all_keys_are_there(self):
        store = self.connect()
        self.assertTrue(store.check([]))
        self.assertFalse(store.check(["a"]))
        store.set("a", "")
        self.assertTrue(store.check(["a"]))
        self.assertFalse(store.check(["a", "b"]))
        self.assertFalse(store.check(["b", "a"]))
        store.add("b", 0)
        self.assertTrue(store.check(["a", "b", "a"]))

    @needs("append")
    def test_append_creates_and_extends(self):
        store, other = self.connect(), self.connect()
        waiting = self.start(other.get, "log")
        store.append("log", "po")
        self.assertIn(waiting.result(muster.PATIENCE_SECONDS), (b"po", b"potato"))
        store.append("log", "ta")
        store.append("log", "")
        store.append("log", "to")
        self.assertEqual(store.get("log"), b"potato")

    @needs("append")
    def test_append_of_many_loses_nothing(self):
        stores = [self.connect() for _ in range(4)]

        def write(store, letter):
            for _ in range(100):
                store.append("log", letter)
            store.add("sent", 1)

        self.finish_all([self.start(write, store, letter)
                         for store, letter in zip(stores, "abcd")])
        self.assertEqual(sorted(stores[0].get("log")), sorted(b"abcd" * 100))

    @needs("has_extended_api")
    def test_is_offered(self):
        self.assertTrue(self.connect().has_extended_api())

    @needs("multi_get", "multi_set")
    def test_multi_set_and_multi_get_agree(self):
        store, other = self.connect(), self.connect()
        keys = [f"key/{index}" for index in range(1000)]
        values = [b"" if index % 7 == 0 else b"%d" % index * index for index in range(1000)]
        store.multi_set(keys, values)
        self.assertEqual(store.multi_get(keys), values)
        self.assertEqual(other.multi_get(keys[::-3]), values[::-3])
        self.assertEqual(other.multi_get([]), [])
        self.assertEqual(store.num_keys(), 1000)
        store.multi_set([], [])
        store.multi_set(["key/0", "key/0"], ["first", "last"])
        self.assertEqual(store.get("key/0"), b"last")

    @needs("multi_get", "multi_set")
    def test_multi_get_waits_for_all_keys(self):
        store, other = self.connect(), self.connect()
        waiting = self.start(other.multi_get, ["a", "b", "c"])
        store.set("b", "2")
        store.multi_set(["a", "c"], ["1", "3"])
        self.assertEqual(waiting.result(muster.PATIENCE_SECONDS), [b"1", b"2", b"3"])
        store.set_timeout(muster.BRIEF)
        self.assert_times_out(store.multi_get, ["a", "never"])
        self.assertEqual(store.multi_get(["a"]), [b"1"])

    @needs("clone")
    def test_clone_is_a_connection_of_its_own(self):
        store = self.connect()
        clone = self.keep(store.clone())
        waiting = self.start(store.get, "key")
        clone.set("key", "value")
        self.assertEqual(waiting.result(muster.PATIENCE_SECONDS), b"value")
        self.assertEqual(clone.timeout, store.timeout)
        clone.set_timeout(muster.BRIEF)
        self.assert_times_out(clone.get, "absent")
        self.assertEqual(store.get("key"), b"value")


@needs("queue_push", "queue_pop", "queue_len")
class Queues(StoreTestCase):

    def test_give_back_in_order(self):
        store, other = self.connect(), self.connect()
        self.assertEqual(store.queue_len("queue"), 0)
        for value in ("one", "", "three"):
            store.queue_push("queue", value)
        self.assertEqual(store.queue_len("queue"), 3)
        self.assertEqual(other.queue_pop("queue"), b"one")
        self.assertEqual(other.queue_pop("queue", False), b"")
        self.assertEqual(store.queue_pop("queue"), b"three")
        self.assertEqual(other.queue_len("queue"), 0)

    def test_say_that_they_are_empty(self):
        store = self.connect()
        with self.assertRaises(dist.QueueEmptyError):
            store.queue_pop("queue", False)
        store.queue_push("queue", "x")
        self.assertEqual(store.queue_pop("queue", False), b"x")
        with self.assertRaises(dist.QueueEmptyError):
            store.queue_pop("queue", False)

    def test_are_not_keys(self):
        store = self.connect()
        store.queue_push("name", "item")
        self.assertEqual(store.queue_len("name"), 1)
        self.assertEqual(store.num_keys(), 0)
        self.assertTrue(store.check(["name"]))
        self.assertFalse(store.delete_key("name"))
        store.set("name", "value")
        self.assertEqual(store.get("name"), b"value")
        self.assertEqual(store.queue_pop("name"), b"item")
        self.assertTrue(store.delete_key("name"))
        self.assertFalse(store.check(["name"]))

    def test_hand_each_item_out_once(self):
        consumers = [self.connect() for _ in range(4)]
        producer = self.connect()

        def consume(store):
            items = []
            while True:
                try:
                    item = store.queue_pop("work")
                except dist.QueueEmptyError:
                    # A blocking pop is a wait and a pop; who comes in between may be faster.
                    continue
                if item == b"end":
                    return items
                items.append(int(item))
                store.queue_push("taken", item)

        futures = [self.start(consume, store) for store in consumers]
        for item in range(100):
            # One at a time, so that most consumers wait when the next item comes.
            producer.queue_push("work", str(item))
            self.assertEqual(producer.queue_pop("taken"), str(item).encode())
        for item in range(100, 200):
            producer.queue_push("work", str(item))
        for _ in consumers:
            producer.queue_push("work", "end")
        taken = self.finish_all(futures)
        self.assertEqual(sorted(item for items in taken for item in items), list(range(200)))
        self.assertTrue(all(items == sorted(items) for items in taken))
        self.assertEqual(producer.queue_len("work"), 0)
        self.assertEqual(producer.queue_len("taken"), 100)

    def test_pass_over_clients_that_gave_up_or_vanished(self):
        consumer, producer = self.connect(), self.connect()
        impatient = self.connect(timeout=muster.BRIEF)
        for round_ in range(3):
            self.assert_times_out(impatient.queue_pop, "work")
            peer = self.peer(peers.pop, self.host, self.server.port, "work")
            self.assertEqual(peer.receive(), "popping")
            peer.end()
            waiting = self.start(consumer.queue_pop, "work")
            producer.queue_push("work", str(round_))
            self.assertEqual(waiting.result(muster.PATIENCE_SECONDS), str(round_).encode())

    def test_time_out_and_keep_what_comes_later(self):
        store, other = self.connect(), self.connect()
        store.set_timeout(muster.BRIEF)
        self.assert_times_out(store.queue_pop, "queue")
        other.queue_push("queue", "late")
        self.assertEqual(other.queue_len("queue"), 1)
        self.assertEqual(store.queue_pop("queue", False), b"late")


@needs("barrier")
class Barriers(StoreTestCase):

    def run_barrier(self, stores, key):
        self.finish_all([self.start(store.barrier, key, len(stores)) for store in stores])

    def test_release_everyone_when_the_last_arrives(self):
        stores = [self.connect() for _ in range(6)]
        for round_ in range(20):
            self.run_barrier(stores, f"barrier/{round_}")

    def test_hold_everyone_until_the_last_arrives(self):
        stores = [self.connect() for _ in range(4)]
        last = self.connect()

        def pass_through(store):
            store.add("arrived", 1)
            store.barrier("barrier", 4)
            return store.check(["last is coming"])

        futures = [self.start(pass_through, store) for store in stores[:3]]
        while last.add("arrived", 0) < 3:
            pass
        last.set("last is coming", "")
        self.assertTrue(last.check(["last is coming"]))
        stores[3].barrier("barrier", 4, muster.PATIENCE)
        self.assertEqual(self.finish_all(futures), [True] * 3)

    def test_time_out_and_leave_the_connection_in_order(self):
        store, other = self.connect(), self.connect()
        self.assert_times_out(store.barrier, "barrier", 2, muster.BRIEF)
        other.barrier("barrier", 2)  # The one that gave up has been counted.
        self.assertEqual(store.get("barrier"), b"2")
        self.assertEqual(store.num_keys(), 1)

    def test_work_through_a_prefix(self):
        stores = [dist.PrefixStore("prefix", self.connect()) for _ in range(4)]
        self.run_barrier(stores, "barrier")
        self.assertEqual(stores[0].num_keys(), 2)


class Prefixes(StoreTestCase):

    def test_nest_from_the_outside_in(self):
        store = self.connect()
        outer = dist.PrefixStore("outer", store)
        inner = dist.PrefixStore("inner", outer)
        empty = dist.PrefixStore("", outer)
        inner.set("key", "1")
        empty.set("key", "2")
        outer.set("key", "3")
        self.assertEqual(store.get("outer/inner/key"), b"1")
        self.assertEqual(store.get("outer//key"), b"2")
        self.assertEqual(store.get("outer/key"), b"3")
        self.assertEqual(inner.num_keys(), 3)

    def test_offer_the_same_operations(self):
        store = dist.PrefixStore("p", dist.PrefixStore("q/r", self.connect()))
        bare = self.connect()
        self.assertEqual(store.add("counter", 2), 2)
        self.assertEqual(store.compare_set("cs", "", "x"), b"x")
        store.wait(["counter", "cs"], muster.PATIENCE)
        self.assertEqual(bare.get("q/r/p/counter"), b"2")
        self.assertTrue(store.delete_key("counter"))
        self.assertEqual(store.num_keys(), 1)
        self.assert_times_out(store.wait, ["absent"], muster.BRIEF)

    @needs("append", "multi_get", "multi_set", "check")
    def test_offer_the_same_extended_operations(self):
        store = dist.PrefixStore("p", self.connect())
        bare = self.connect()
        store.append("log", "a")
        store.append("log", "b")
        store.multi_set(["x", "y"], ["1", "2"])
        self.assertEqual(store.multi_get(["x", "y", "log"]), [b"1", b"2", b"ab"])
        self.assertTrue(bare.check(["p/x", "p/y", "p/log"]))
        self.assertTrue(store.check(["x"]))
        self.assertTrue(store.has_extended_api())

    @needs("queue_push")
    def test_offer_queues(self):
        store = dist.PrefixStore("p", self.connect())
        store.queue_push("queue", "item")
        self.assertEqual(store.queue_len("queue"), 1)
        self.assertEqual(self.connect().queue_pop("p/queue"), b"item")


class Construction(StoreTestCase):

    def test_counts_the_workers(self):
        stores = [self.connect(world_size=3) for _ in range(3)]
        self.assertEqual([store.num_keys() for store in stores], [1, 1, 1])
        stores[0].set("init/", "a user's key of that name is another key")
        self.assertEqual(stores[2].get("init/"), b"a user's key of that name is another key")
        self.assertEqual(stores[1].num_keys(), 2)

    def test_counts_no_one_who_does_not_wait_for_workers(self):
        self.assertEqual(self.connect(world_size=3, wait_for_workers=False).num_keys(), 0)
        self.assertEqual(self.connect().num_keys(), 0)

    def test_succeeds_before_there_is_a_server(self):
        # In a process of its own: the constructor of PyTorch 1.13 stops all threads of Python.
        port = muster.free_port()
        peer = self.peer(peers.connect_and_set, self.host, port)
        self.assertEqual(peer.receive(), "connecting")
        server = self.serve(host=self.host, port=port)
        self.assertEqual(server.port, port)
        self.assertEqual(peer.receive(), 1)
        peer.join()
        self.assertEqual(self.keep(peers.connect(self.host, port)).get("early"), b"bird")

    def test_and_destruction_leave_no_threads_behind(self):
        def thread_count():
            return len(os.listdir("/proc/self/task"))

        peers.connect(self.host, self.server.port).set("key", "value")
        before = thread_count()
        store = peers.connect(self.host, self.server.port)
        during = thread_count()
        for index in range(200):
            store.add("counter", 1)
        self.assertEqual(thread_count(), during)
        stores = [peers.connect(self.host, self.server.port) for _ in range(10)]
        for index, each in enumerate(stores):
            self.assertEqual(each.add("counter", 1), 201 + index)
        del store, each, stores
        self.assertEqual(thread_count(), before)


class Addresses(muster.TestCase):

    def check(self, server, host):
        store = self.keep(peers.connect(host, server.port))
        self.assertGreater(store.add("visits", 1), 0)
        store.set(f"host/{host}", host)
        self.assertEqual(store.get(f"host/{host}"), host.encode())
        self.assertEqual((store.host, store.port), (host, server.port))

    def test_of_both_families_reach_a_server_that_was_given_none(self):
        server = self.serve()
        hosts = ["127.0.0.1", "localhost"] + ["::1"] * muster.has_ipv6_loopback()
        for host in hosts:
            with self.subTest(host=host):
                self.check(server, host)

    def test_of_ipv4_reach_a_server_on_ipv4(self):
        server = self.serve(host="127.0.0.1")
        for host in ("127.0.0.1", "localhost"):
            with self.subTest(host=host):
                self.check(server, host)

    @unittest.skipUnless(muster.has_ipv6_loopback(), "this machine has no IPv6 loopback")
    def test_of_ipv6_reach_a_server_on_ipv6(self):
        self.check(self.serve(host="::1"), "::1")


class Concurrency(StoreTestCase):

    def test_of_threads_on_one_store(self):
        store = self.connect()

        def work(name):
            for index in range(100):
                store.add("total", 1)
                store.set(f"{name}/{index}", str(index))
                if store.get(f"{name}/{index}") != str(index).encode():
                    return False
            return True

        self.assertTrue(all(self.finish_all([self.start(work, name) for name in range(8)])))
        self.assertEqual(store.add("total", 0), 800)
        self.assertEqual(store.num_keys(), 801)

    def test_of_threads_with_a_store_each(self):
        names = [f"thread {index}" for index in range(12)]
        futures = [self.start(peers.count, None, self.host, self.server.port, name, 100, names)
                   for name in names]
        self.assertEqual(self.finish_all(futures), [1200] * 12)

    def test_of_processes(self):
        names = [f"process {index}" for index in range(4)]
        workers = [self.peer(peers.count, self.host, self.server.port, name, 250, names)
                   for name in names]
        self.assertEqual([worker.receive() for worker in workers], [1000] * 4)
        for worker in workers:
            worker.join()
        self.assertEqual(self.connect().num_keys(), 5)

    def test_of_processes_that_wait_for_each_other(self):
        workers = [self.peer(peers.ping_pong, self.host, self.server.port, own, other, 300)
                   for own, other in (("ping", "pong"), ("pong", "ping"))]
        self.assertEqual([worker.receive() for worker in workers], [300, 300])
        for worker in workers:
            worker.join()

    def test_of_a_forked_child_with_its_own_store(self):
        store = self.connect()
        self.assertEqual(store.add("counter", 1), 1)
        child = os.fork()
        if child == 0:
            # Nothing may run here that belongs to the parent: neither cleanups nor destructors.
            status = 1
            try:
                own = peers.connect(self.host, self.server.port)
                if own.get("go") == b"!" and own.add("counter", 1) == 3:
                    own.set("child", "was here")
                    status = 0 if own.num_keys() == 3 else 2
            finally:
                os._exit(status)
        try:
            self.assertEqual(store.add("counter", 1), 2)
            store.set("go", "!")
            self.assertEqual(store.get("child"), b"was here")
        finally:
            # Its store times out, so it ends in any case.
            _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        self.assertEqual(store.add("counter", 1), 4)

    def test_of_clients_that_vanish_with_the_others(self):
        store = self.connect()
        for round_ in range(3):
            peer = self.peer(peers.ping_pong, self.host, self.server.port, "ping",
                             f"never{round_}", 1)
            self.assertEqual(store.get("ping/0"), b"0")
            peer.end()  # While it waits.
            self.assertTrue(store.delete_key("ping/0"))
            store.set(f"never{round_}/0", "")
            self.assertEqual(store.num_keys(), round_ + 1)


class Ending(StoreTestCase):

    def test_of_the_server_fails_the_clients_but_does_not_take_them_along(self):
        workers = [self.peer(peers.outlive_server, self.host, self.server.port) for _ in range(2)]
        self.assertEqual(sorted(worker.receive() for worker in workers), [1, 2])
        self.server.stop()
        for worker in workers:
            worker.send("the server has ended")
        for worker in workers:
            self.assertTrue(worker.receive())
            worker.join()

    def test_of_the_server_while_clients_wait_fails_them(self):
        workers = [self.peer(peers.wait_in_vain, self.host, self.server.port) for _ in range(2)]
        for worker in workers:
            self.assertEqual(worker.receive(), "waiting")
        self.server.stop()
        for worker in workers:
            self.assertNotRegex(worker.receive(), "^$|(?i:timed? ?out)")
            worker.join()


@unittest.skipUnless(dist.is_gloo_available() if hasattr(dist, "is_gloo_available") else True,
                     "this PyTorch has no gloo")
class Gloo(StoreTestCase):

    WORLD_SIZE = 4

    def expected(self, rank):
        last = self.WORLD_SIZE - 1
        return {"sums": [sum(range(1, self.WORLD_SIZE + 1))], "objects": [{"from": 1}, "all of it"],
                "pair": last if rank in (0, last) else rank}

    def start_ranks(self, function, *arguments):
        return [self.peer(function, self.host, self.server.port, rank, self.WORLD_SIZE, *arguments)
                for rank in range(self.WORLD_SIZE)]

    def test_process_groups_form_on_fresh_prefixes_of_one_store(self):
        ranks = self.start_ranks(peers.gloo_with_store, 2)
        for rank, worker in enumerate(ranks):
            self.assertEqual(worker.receive(), [self.expected(rank)] * 2)
        for worker in ranks:
            worker.join()

    def test_a_process_group_forms_from_the_environment_of_a_launcher(self):
        ranks = self.start_ranks(peers.gloo_from_environment)
        for rank, worker in enumerate(ranks):
            self.assertEqual(worker.receive(), self.expected(rank))
        for worker in ranks:
            worker.join()


OTHER_PYTHON = os.environ.get("MUSTER_OTHER_PYTHON")


@unittest.skipUnless(OTHER_PYTHON, "MUSTER_OTHER_PYTHON names no second interpreter")
class BothVersions(StoreTestCase):

    def start_other(self, names, name):
        # Its settings must not leak into an interpreter with other packages.
        environment = {key: value for key, value in os.environ.items()
                       if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        process = subprocess.Popen(
            [OTHER_PYTHON, peers.__file__, "exchange", self.host, str(self.server.port), name,
             ",".join(names)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def test_exchange_keys_counters_and_waits_on_one_server(self):
        names = ["this a", "that a", "this b", "that b"]
        theirs = [self.start_other(names, name) for name in names if name.startswith("that")]
        ours = [self.peer(peers.exchange, self.host, self.server.port, name, names)
                for name in names if name.startswith("this")]
        reports = [worker.receive() for worker in ours]
        for process in theirs:
            done = muster.finish(process)
            self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
            reports.append(json.loads(done.stdout))
        for worker in ours:
            worker.join()

        self.assertNotEqual(reports[0]["version"], reports[-1]["version"],
                            "MUSTER_OTHER_PYTHON has the same PyTorch as this interpreter")
        self.assertEqual(len({report["leader"] for report in reports}), 1)
        self.assertIn(reports[0]["leader"], names)
        for report in reports:
            self.assertEqual(report["greetings"],
                             {name: f"hello from {name}\x00\xff" for name in names})
            self.assertEqual(report["total"], peers.EXCHANGE_ROUNDS * len(names))
            self.assertTrue(report["deleted"])


if __name__ == "__main__":
    muster.main()
