"""muster.elastic with PyTorch: torchrun meets by it, and PyTorch's agents read what workers record.

Run as a program, by whichever interpreter has the PyTorch version to test.
"""

import faulthandler
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import threading
import unittest

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import muster.store as stores  # noqa: E402

try:
    import torch.distributed.elastic.rendezvous as torch_rendezvous
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    from torch.distributed.elastic.rendezvous import registry
except ImportError as error:
    print(f"SKIPPED: {sys.executable} has no PyTorch ({error})")
    sys.exit(77)

SECONDS_MAX = 240
# As `python -m torch.distributed.run`, but for a fault of 1.13 with Python 3.11.
TORCHRUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "run_torch", "torchrun.py")
LOADS_PLUGINS = hasattr(registry, "_register_out_of_tree_handlers")

WORKER = """
import os, torch, torch.distributed as dist
from muster.elastic.errors import record

@record
def main():
    dist.init_process_group("gloo")
    total = torch.tensor([float(os.environ["RANK"]) + 1])
    dist.all_reduce(total)
    with open(os.path.join({folder!r}, os.environ["RANK"]), "w") as file:
        file.write(str(total.item()))
    dist.barrier()
    dist.destroy_process_group()

main()
"""

FAILS = """
from muster.elastic.errors import record

@record
def main():
    raise ValueError("the loss is not a number")

main()
"""


class TorchrunTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.server = stores.TCPStore("localhost", 0, is_master=True)

    def script(self, text):
        path = os.path.join(self.folder, "script.py")
        with open(path, "w") as file:
            file.write(text.format(folder=self.folder) if "{folder" in text else text)
        return path

    def torchrun(self, *arguments):
        return subprocess.Popen(
            [sys.executable, TORCHRUN, f"--rdzv-endpoint=localhost:{self.server.port}",
             "--rdzv-id=job", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def finish(self, launchers):
        outputs = [launcher.communicate(timeout=SECONDS_MAX)[0] for launcher in launchers]
        return [launcher.returncode for launcher in launchers], "\n".join(outputs)

    @unittest.skipUnless(LOADS_PLUGINS, "this PyTorch loads no plug-ins")
    def test_two_torchruns_meet_by_the_backend_muster(self):
        script = self.script(WORKER)
        launchers = [self.torchrun("--rdzv-backend=muster", "--nnodes=2", "--nproc-per-node=2",
                                   "--local-addr=localhost", script) for _ in range(2)]
        statuses, output = self.finish(launchers)
        self.assertEqual(statuses, [0, 0], output)
        sums = {rank: open_and_read(os.path.join(self.folder, rank)) for rank in "0123"}
        self.assertEqual(sums, dict.fromkeys("0123", "10.0"), output)
        self.assertNotIn(" warn ", output)

    @unittest.skipUnless(LOADS_PLUGINS, "this PyTorch loads no plug-ins")
    def test_a_server_that_is_not_there_ends_torchrun_with_pytorchs_error(self):
        port, self.server = self.server.port, None
        launcher = subprocess.Popen(
            [sys.executable, TORCHRUN, "--rdzv-backend=muster", "--rdzv-id=job",
             f"--rdzv-endpoint=localhost:{port}", "--rdzv-conf=read_timeout=1", self.script("")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        statuses, output = self.finish([launcher])
        self.assertEqual(statuses, [1])
        self.assertIn("RendezvousConnectionError", output)

    def test_the_plug_in_is_found_by_its_entry_point(self):
        found = [entry for entry in importlib.metadata.distribution("muster").entry_points
                 if entry.group == "torchrun.handlers"]
        self.assertEqual([entry.name for entry in found], ["muster"])
        self.assertTrue(issubclass(found[0].load()(), torch_rendezvous.RendezvousHandler))

    def test_programs_can_register_it_in_every_version(self):
        from muster.elastic import _torch_plugin

        _torch_plugin.register()
        infos = []

        def join():
            handler = torch_rendezvous.rendezvous_handler_registry.create_handler(
                torch_rendezvous.RendezvousParameters(
                    "muster", f"localhost:{self.server.port}", "registered", 2, 2, timeout=900))
            info = handler.next_rendezvous()
            infos.append(info if isinstance(info, tuple) else (info.store, info.rank, info.world_size))
            self.assertEqual(handler.num_nodes_waiting(), 0)
            handler.set_closed()
            try:
                handler.next_rendezvous()
            except torch_rendezvous.RendezvousClosedError:
                infos.append("closed")

        threads = [threading.Thread(target=join) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(infos.count("closed"), 2)
        (store, *_), (other, *_) = [info for info in infos if info != "closed"]
        self.assertEqual(sorted(info[1:] for info in infos if info != "closed"), [(0, 2), (1, 2)])
        store.set("key", "value")
        self.assertEqual(other.get("key"), b"value")

    def test_torchrun_reports_what_our_recorder_wrote(self):
        launcher = subprocess.Popen(
            [sys.executable, TORCHRUN, "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0",
             "--nproc_per_node=1", self.script(FAILS)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        statuses, output = self.finish([launcher])
        self.assertEqual(statuses, [1])
        self.assertIn("ValueError: the loss is not a number", output[output.index("FAILED"):])

    def test_pytorch_reads_our_error_file(self):
        path = os.path.join(self.folder, "error.json")
        subprocess.run([sys.executable, self.script(FAILS)], stderr=subprocess.PIPE, timeout=SECONDS_MAX,
                       env={**os.environ, "TORCHELASTIC_ERROR_FILE": path})
        failure = ProcessFailure(0, 1, 1, path)
        self.assertEqual(failure.message["message"], "ValueError: the loss is not a number")


def open_and_read(path):
    with open(path) as file:
        return file.read()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(540, exit=True)
    unittest.main()
