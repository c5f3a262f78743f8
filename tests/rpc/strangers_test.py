"""Many who connect to a worker and never say who they are.

Environment, besides that of tests/pytorch/muster.py:
  MUSTER_RPC_WORKER   rpc_worker; without it, build/bin/rpc_worker of this source tree
"""

import contextlib
import os
import pathlib
import re
import resource
import socket

import groups_test
import launch
import muster

DESCRIPTORS_MAX = 256
KNOCK_COUNT = 300


def port_of(pid):
    """The one at which that process listens."""
    sockets = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.update(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in sockets:
            return int(words[1].split(":")[1], 16)
    raise AssertionError(f"process {pid} listens nowhere")


def descriptor_count(pid):
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


class Strangers(groups_test.Case):

    def group(self, **environment):
        """Two workers that may open few files."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS_MAX, before[1]))
        workers = [self.worker(f"worker{rank}", environment=environment) for rank in range(2)]
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        self.init_static(workers)
        return workers

    def knock(self, worker):
        """Many connect to it and say nothing; they stay until the test ends."""
        port = port_of(worker.process.pid)
        before = descriptor_count(worker.process.pid)
        for _ in range(KNOCK_COUNT):
            stranger = socket.create_connection(("127.0.0.1", port), launch.PATIENCE_SECONDS)
            self.addCleanup(stranger.close)
        launch.wait_until(lambda: descriptor_count(worker.process.pid) > before,
                          "some of them are taken in")

    def test_leave_descriptors_to_the_program_and_do_not_disturb_this_machine(self):
        first, second = self.group()
        self.knock(first)
        self.assertEqual(first.ask("open 100"), "ok")
        # The first connections of both, within this machine and to themselves.
        self.assert_all_reach_all([first, second])

    def test_do_not_keep_workers_out_who_come_by_the_network(self):
        first, second = self.group(RPC_WORKER_TCP="1")
        self.knock(first)
        self.assertEqual(first.ask("open 100"), "ok")
        self.assertEqual(second.ask("add worker0 1 2"), "ok 3")
        self.assertEqual(first.ask("add worker1 1 2"), "ok 3")


if __name__ == "__main__":
    muster.main()
