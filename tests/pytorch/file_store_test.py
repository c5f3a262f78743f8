"""PyTorch's FileStore and ours on one file at the same time, in both directions.

Environment:
  MUSTER_FILE_STORE_TOOL   the program built from file_store_tool.cpp

Run as a program, by whichever interpreter has the PyTorch version to test.
"""

import datetime
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import muster

dist = muster.import_distributed()

TOOL = os.environ.get("MUSTER_FILE_STORE_TOOL")

# Larger than the number of stores that any test opens, so that PyTorch never removes the file.
WORLD_SIZE = 1000

# What another process runs: one that can be killed, or that counts while we do.
COUNTING = """
import sys
import torch.distributed as dist
store = dist.FileStore(sys.argv[1], int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[3])):
    store.add("total", 1)
print("done", flush=True)
"""


def needs(*methods):
    missing = [name for name in methods if not hasattr(dist.FileStore, name)]
    return unittest.skipIf(missing, f"this PyTorch has no FileStore.{', '.join(missing)}")


class FileStoreTest(muster.TestCase):

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="muster-file-store-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "store")

    def pytorch(self):
        store = dist.FileStore(self.path, WORLD_SIZE)
        store.set_timeout(muster.PATIENCE)
        return store

    def start_tool(self, *words):
        process = subprocess.Popen([TOOL, self.path, *map(str, words)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self._end, process)
        return process

    def start_counting(self, rounds):
        process = subprocess.Popen(
            [sys.executable, "-c", COUNTING, self.path, str(WORLD_SIZE), str(rounds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.addCleanup(self._end, process)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    @staticmethod
    def _end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def tool(self, *words):
        """Runs the tool; the lines it printed, as bytes."""
        done = muster.finish(self.start_tool(*words))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def tool_fails(self, *words):
        done = muster.finish(self.start_tool(*words))
        self.assertEqual(done.returncode, 1, done.stdout)
        return done.stderr.decode()

    def records(self):
        """The file as (key, value) pairs."""
        data = pathlib.Path(self.path).read_bytes()
        found = []
        while data:
            strings = []
            for _ in range(2):
                size = struct.unpack_from("<I", data)[0]
                strings.append(data[4:4 + size])
                data = data[4 + size:]
            found.append(tuple(strings))
        return found

    def test_we_read_what_pytorch_wrote(self):
        store = self.pytorch()
        store.set("k", "v1")
        store.set("empty", "")
        store.add("counter", 5)
        store.add("counter", -7)
        store.set("deleted", "x")
        store.delete_key("deleted")
        self.assertEqual(self.tool("multi-get", "k", "empty", "counter"), [b"v1", b"", b"-2"])
        self.assertEqual(self.tool("try-get", "deleted"), [b"absent"])
        self.assertEqual(self.tool("list-keys", ""), [b"counter", b"empty", b"k"])
        self.assertEqual(self.tool("add", "empty", 4), [b"4"])

    def test_pytorch_reads_what_we_wrote(self):
        store = self.pytorch()
        self.tool("set", "k", "v1")
        self.tool("set", "empty", "")
        self.tool("add-many", "counter", -2, 3)
        self.tool("append", "text", "one,")
        self.tool("append", "text", "two")
        self.tool("set", "deleted", "x")
        self.assertEqual(self.tool("delete", "deleted"), [b"1"])
        self.assertEqual(self.tool("delete", "deleted"), [b"0"])
        self.assertEqual(store.get("k"), b"v1")
        self.assertEqual(store.get("empty"), b"")
        self.assertEqual(store.get("counter"), b"-6")
        self.assertEqual(store.get("text"), b"one,two")
        self.assertEqual(store.add("counter", 1), -5)
        with self.assertRaises(RuntimeError):
            store.wait(["deleted"], datetime.timedelta(seconds=1))

    def test_both_write_the_same_bytes(self):
        store = self.pytorch()
        store.set("k", "v1")
        store.add("c", 5)
        store.add("c", -7)
        store.delete_key("k")
        theirs = self.records()
        own = [pair for pair in theirs if not pair[0].startswith(b"refcount/")]
        os.rename(self.path, self.path + ".pytorch")
        self.tool("set", "k", "v1")
        self.tool("add", "c", 5)
        self.tool("add", "c", -7)
        self.tool("delete", "k")
        self.assertEqual(self.records(), own)
        os.rename(self.path + ".pytorch", self.path)

    def test_both_count_the_same_keys_and_queues_do_not_count(self):
        store = self.pytorch()
        store.set("a", "1")
        self.tool("set", "b", "2")
        self.tool("push", "q", "item")
        self.tool("push", "q", "another")
        self.assertEqual(self.tool("pop", "q"), [b"item"])
        self.assertEqual(self.tool("queue-length", "q"), [b"1"])
        self.assertEqual(self.tool("num-keys"), [str(store.num_keys()).encode()])
        self.assertLessEqual(store.num_keys(), 3)
        self.assertEqual(store.get("a"), b"1")

    def test_both_compare_and_set_the_same_way(self):
        store = self.pytorch()
        self.assertEqual(self.tool("compare-set", "k", "none", "1"), [b"none"])
        self.assertEqual(store.compare_set("k", "none", "1"), b"none")
        self.assertEqual(self.tool("compare-set", "k", "", "1"), [b"1"])
        self.assertEqual(store.compare_set("k", "", "2"), b"1")
        self.assertEqual(store.compare_set("k", "1", "2"), b"2")
        self.assertEqual(self.tool("compare-set", "k", "1", "3"), [b"2"])

    def test_our_wait_ends_when_pytorch_writes(self):
        store = self.pytorch()
        waiting = [self.start_tool("get", "k"), self.start_tool("wait", "k", "other")]
        self.assertIsNone(waiting[0].poll())
        store.set("k", "v")
        self.assertEqual(muster.finish(waiting[0]).stdout, b"v\n")
        self.assertIsNone(waiting[1].poll())
        store.add("other", 1)
        self.assertEqual(muster.finish(waiting[1]).returncode, 0)

    def test_pytorchs_wait_ends_when_we_write(self):
        store = self.pytorch()
        waiting = self.start(store.get, "k")
        self.assertFalse(waiting.done())
        self.tool("set", "k", "v")
        self.assertEqual(self.finish_all([waiting]), [b"v"])
        store.wait(["k"], muster.PATIENCE)

    def test_no_addition_is_lost_when_both_sides_count(self):
        rounds = 300
        peers = [self.start_counting(rounds) for _ in range(2)]
        ours = [self.start_tool("add-many", "total", 1, rounds) for _ in range(2)]
        for peer in peers:
            peer.stdin.write("go\n")
        for process in ours:
            done = muster.finish(process)
            self.assertEqual(done.returncode, 0, done.stderr)
        for peer in peers:
            self.assertEqual(peer.stdout.readline(), "done\n")
        total = 4 * rounds
        self.assertEqual(self.tool("get", "total"), [str(total).encode()])
        self.assertEqual(self.pytorch().add("total", 0), total)

    def test_killed_pytorch_writers_cost_nothing_that_was_there(self):
        self.tool("set", "k", "v")
        before = 0
        for extra in range(1, 4):
            peer = self.start_counting(1_000_000)
            peer.stdin.write("go\n")
            # While it counts: that many additions of ours, then the kill.
            self.tool("add-many", "ours", 1, 20 * extra)
            peer.send_signal(signal.SIGKILL)
            peer.wait()
            self.assertEqual(self.tool("get", "k"), [b"v"])
            total = int(self.tool("add", "total", 0)[0])
            self.assertGreaterEqual(total, before)
            before = total
        self.assertEqual(self.tool("get", "ours"), [str(20 * (1 + 2 + 3)).encode()])
        self.assertEqual(self.pytorch().add("total", 0), before)

    def test_pytorch_can_go_on_after_we_cut_off_an_unfinished_record(self):
        self.tool("set", "k", "v")
        whole = pathlib.Path(self.path).read_bytes()
        with open(self.path, "ab") as file:
            file.write(struct.pack("<I", 4) + b"/to")
        self.assertEqual(self.tool("get", "k"), [b"v"])
        self.assertEqual(pathlib.Path(self.path).read_bytes(), whole)
        store = self.pytorch()
        self.assertEqual(store.get("k"), b"v")
        store.set("k", "w")
        self.assertEqual(self.tool("get", "k"), [b"w"])

    def test_we_notice_that_pytorch_removed_the_file(self):
        store = dist.FileStore(self.path, 1)
        store.set_timeout(muster.PATIENCE)
        waiting = self.start_tool("set-and-wait", "begun", "never")
        store.wait(["begun"], muster.PATIENCE)
        self.assertIsNone(waiting.poll())
        del store
        self.assertFalse(os.path.exists(self.path))
        done = muster.finish(waiting)
        self.assertEqual(done.returncode, 1)
        self.assertIn("was removed", done.stderr.decode())

    @needs("barrier")
    def test_a_barrier_holds_for_both(self):
        store = self.pytorch()
        for last_is_ours in (True, False):
            key = f"barrier{last_is_ours}"
            if last_is_ours:
                waiting = self.start(store.barrier, key, 2, muster.PATIENCE)
                self.tool("wait", f"{key}/num_members")
                self.tool("barrier", key, 2)
                self.finish_all([waiting])
            else:
                waiting = self.start_tool("barrier", key, 2)
                store.wait([f"{key}/num_members"], muster.PATIENCE)
                store.barrier(key, 2, muster.PATIENCE)
                done = muster.finish(waiting)
                self.assertEqual(done.returncode, 0, done.stderr)

    @needs("multi_set", "append", "check")
    def test_the_extended_operations_meet(self):
        store = self.pytorch()
        store.multi_set(["a", "b"], ["1", "2"])
        store.append("a", "+")
        self.tool("append", "a", "3")
        self.assertEqual(store.multi_get(["a", "b"]), [b"1+3", b"2"])
        self.assertTrue(store.check(["a", "b"]))
        self.assertEqual(self.tool("check", "a", "b"), [b"1"])
        self.assertEqual(self.tool("check", "a", "c"), [b"0"])

    def test_another_file_is_left_alone(self):
        pathlib.Path(self.path).write_text("a shopping list\n")
        self.assertIn("is not a store file", self.tool_fails("set", "k", "v"))
        self.assertEqual(pathlib.Path(self.path).read_text(), "a shopping list\n")


if __name__ == "__main__":
    if not TOOL:
        print("SKIPPED: MUSTER_FILE_STORE_TOOL does not name the test's other side", flush=True)
        sys.exit(muster.SKIPPED)
    unittest.main(verbosity=2)
