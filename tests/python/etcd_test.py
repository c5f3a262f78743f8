"""Nodes in Python that meet over real etcd.

Each is a process of its own: this one has the helper of the other tests, whose name is that of the
package.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
for folder in ("pytorch", "rendezvous_processes"):
    sys.path.insert(0, str(TESTS / folder))
import etcd_cluster  # noqa: E402

PACKAGE = os.environ.get("PYTHONPATH") or str(TESTS.parent / "build" / "python")
PATIENCE_SECONDS = 120

NODE = """
import json, sys
from muster.elastic import rendezvous

backend, endpoint, run_id = sys.argv[1:]
handler = rendezvous.get_rendezvous_handler(rendezvous.RendezvousParameters(
    backend, endpoint, run_id, 2, 2, "localhost", read_timeout=20))
info = handler.next_rendezvous()
info.store.set(f"from {info.rank}", str(info.rank))
other = info.store.get(f"from {1 - info.rank}")
print(json.dumps([info.rank, info.world_size, other.decode(), handler.get_backend(), handler.is_closed()]))
info.store.set(f"done {info.rank}", "yes")
info.store.get(f"done {1 - info.rank}")
handler.shutdown()
"""


class EtcdTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = etcd_cluster.Cluster()
        cls.addClassCleanup(cls.cluster.end)

    def meet(self, backend):
        command = [sys.executable, "-c", NODE, backend, self.cluster.endpoint, f"run-{backend}"]
        nodes = [subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PACKAGE}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        for node in nodes:
            self.addCleanup(node.wait)
            self.addCleanup(node.kill)
        said = [node.communicate(timeout=PATIENCE_SECONDS) for node in nodes]
        self.assertEqual([node.returncode for node in nodes], [0, 0], said)
        return sorted(json.loads(out) for out, _ in said)

    def test_two_nodes_come_together_and_share_a_store(self):
        for backend in ("etcd", "etcd-v2"):
            with self.subTest(backend):
                self.assertEqual(self.meet(backend), [[0, 2, "1", backend, False],
                                                      [1, 2, "0", backend, False]])


if __name__ == "__main__":
    etcd_cluster.skip_if_missing()
    unittest.main()
