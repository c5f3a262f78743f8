"""Stores of this package in the hands of PyTorch, and the other way round.

Run as a program, by whichever interpreter has the PyTorch version to test.
"""

import faulthandler
import os
import subprocess
import sys
import tempfile
import unittest
from datetime import timedelta

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import muster.errors as errors  # noqa: E402
import muster.store as stores  # noqa: E402

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"SKIPPED: {sys.executable} has no PyTorch ({error})")
    sys.exit(77)

PATIENCE = timedelta(seconds=240)
HAS_EXTENDED_API = hasattr(dist.Store, "has_extended_api")

WORKER = """
import sys
from datetime import timedelta
import muster.store as stores, torch, torch.distributed as dist
kind, where, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "tcp":
    host, port = where.split(":")
    store = stores.TCPStore(host, int(port), timeout=timedelta(seconds=240))
else:
    store = stores.FileStore(where)
dist.init_process_group("gloo", store=stores.as_torch_store(stores.PrefixStore("job", store)),
                        rank=rank, world_size=2, timeout=timedelta(seconds=240))
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
store.barrier("done", 2)
print(total.item())
dist.destroy_process_group()
"""


class ForPyTorchTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def all_reduce(self, kind, where):
        """What two processes print, that meet in the store and add up their tensors."""
        workers = [subprocess.Popen([sys.executable, "-c", WORKER, kind, where, str(rank)],
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for rank in range(2)]
        outputs = [worker.communicate(timeout=PATIENCE.total_seconds())[0] for worker in workers]
        self.assertEqual([worker.returncode for worker in workers], [0, 0], outputs)
        return [output.splitlines()[-1] for output in outputs]

    def test_a_process_group_meets_in_a_tcp_store(self):
        host = stores.TCPStore("localhost", 0, is_master=True)
        self.assertEqual(self.all_reduce("tcp", f"localhost:{host.port}"), ["3.0", "3.0"])
        self.assertTrue(host.list_keys("job/"))

    def test_a_process_group_meets_in_a_file_store(self):
        path = os.path.join(self.folder, "store")
        self.assertEqual(self.all_reduce("file", path), ["3.0", "3.0"])
        self.assertTrue(stores.FileStore(path).list_keys("job/"))

    def test_a_process_group_meets_in_a_store_that_pytorch_has_not(self):
        store = stores.HashStore()
        dist.init_process_group("gloo", store=stores.as_torch_store(store), rank=0, world_size=1)
        try:
            total = torch.tensor([2.0])
            dist.all_reduce(total)
            self.assertEqual(total.item(), 2.0)
        finally:
            dist.destroy_process_group()
        self.assertTrue(store.list_keys())

    def test_every_operation_gets_through_to_a_store_that_pytorch_has_not(self):
        store = stores.HashStore()
        theirs = dist.PrefixStore("view", stores.as_torch_store(store))
        theirs.set("key", "value")
        self.assertEqual(store.get("view/key"), b"value")
        self.assertEqual(theirs.get("key"), b"value")
        self.assertEqual(theirs.add("count", 2), 2)
        self.assertEqual(theirs.compare_set("key", "value", "other"), b"other")
        self.assertEqual(theirs.compare_set("key", "value", "third"), b"other")
        theirs.wait(["key"])
        with self.assertRaises(RuntimeError):
            theirs.wait(["none"], timedelta(milliseconds=10))
        self.assertEqual(theirs.num_keys(), 2)
        self.assertTrue(theirs.delete_key("key"))
        self.assertFalse(store.check(["view/key"]))
        if HAS_EXTENDED_API:
            self.assertTrue(theirs.has_extended_api())
            theirs.multi_set(["a", "b"], ["1", "2"])
            theirs.append("a", "1")
            self.assertEqual(theirs.multi_get(["a", "b"]), [b"11", b"2"])
            self.assertTrue(theirs.check(["a"]))

    def test_a_server_stays_while_pytorch_uses_it(self):
        theirs = stores.as_torch_store(stores.TCPStore("localhost", 0, is_master=True))
        theirs.set("key", "value")
        self.assertEqual(theirs.get("key"), b"value")

    def test_other_things_are_refused(self):
        with self.assertRaises(TypeError):
            stores.as_torch_store({})


class FromPyTorchTest(unittest.TestCase):

    def setUp(self):
        self.server = dist.TCPStore("localhost", 0, is_master=True, timeout=PATIENCE)

    def test_a_tcp_store(self):
        ours = stores.from_torch_store(self.server)
        ours.set("key", "value")
        self.assertEqual(self.server.get("key"), b"value")
        self.assertEqual(ours.timeout, PATIENCE)
        self.assertEqual(ours.port, self.server.port)

    def test_a_file_store(self):
        with tempfile.TemporaryDirectory() as folder:
            theirs = dist.FileStore(os.path.join(folder, "store"), 2)
            ours = stores.from_torch_store(theirs)
            theirs.set("key", "value")
            self.assertEqual(ours.get("key"), b"value")
            view = stores.from_torch_store(dist.PrefixStore("a", dist.PrefixStore("b/c", theirs)))
            self.assertEqual((view.prefix, view.underlying_store.prefix), ("a", "b/c"))
            view.set("key", "viewed")
            self.assertEqual(theirs.get("b/c/a/key"), b"viewed")

    @unittest.skipUnless(HAS_EXTENDED_API, "this PyTorch's server cannot list its keys")
    def test_the_prefix_of_a_view_is_found_out(self):
        ours = stores.from_torch_store(dist.PrefixStore("job/1", self.server))
        ours.set("key", "value")
        self.assertEqual(self.server.get("job/1/key"), b"value")
        self.assertEqual([key for key in ours.list_keys()], ["key"])

    def test_the_prefix_of_a_view_can_be_given(self):
        ours = stores.from_torch_store(dist.PrefixStore("job", self.server), prefix="job")
        ours.set("key", "value")
        self.assertEqual(self.server.get("job/key"), b"value")
        if not HAS_EXTENDED_API:
            with self.assertRaisesRegex(ValueError, "give it as"):
                stores.from_torch_store(dist.PrefixStore("job", self.server))

    def test_what_was_made_for_pytorch_comes_back_as_it_was(self):
        store = stores.HashStore()
        self.assertIs(stores.from_torch_store(stores.as_torch_store(store)), store)

    def test_a_store_of_one_process_is_refused(self):
        with self.assertRaises(TypeError):
            stores.from_torch_store(dist.HashStore())


class ExceptionsTest(unittest.TestCase):

    def test_programs_catch_what_they_catch_from_pytorch(self):
        store = stores.HashStore()
        store.set_timeout(0.01)
        with self.assertRaises(getattr(dist, "DistStoreError", RuntimeError)) as caught:
            store.get("none")
        self.assertIsInstance(caught.exception, stores.StoreTimeoutError)
        with self.assertRaises(getattr(dist, "QueueEmptyError", RuntimeError)) as caught:
            store.queue_pop("none", block=False)
        self.assertIsInstance(caught.exception, stores.QueueEmptyError)
        with self.assertRaises(getattr(dist, "DistNetworkError", RuntimeError)) as caught:
            stores.TCPStore("localhost", 1, timeout=0.05)
        self.assertIsInstance(caught.exception, errors.UnavailableError)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(540, exit=True)
    unittest.main()
