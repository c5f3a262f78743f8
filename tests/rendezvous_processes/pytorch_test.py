"""Nodes as processes that meet over stores that PyTorch hosts, and PyTorch on what nodes host.

Run by whichever interpreter has the PyTorch version to test.
"""

import os
import signal
import subprocess
import sys
import unittest

import nodes
from nodes import conf
import muster  # from tests/pytorch, by way of nodes

dist = muster.import_distributed()
import peers  # noqa: E402  (needs PyTorch)
import workers  # noqa: E402
from torch.distributed.elastic.rendezvous import RendezvousParameters  # noqa: E402
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (  # noqa: E402
    C10dRendezvousBackend)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler  # noqa: E402

HAS_LIBUV = hasattr(dist.TCPStore, "libuvBackend")

# What hosts the store: a process that can be stopped and killed.
HOSTING = """
import sys
import torch.distributed as dist
options = {"use_libuv": sys.argv[1] == "libuv"} if sys.argv[1] != "default" else {}
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, **options)
print(store.port, flush=True)
sys.stdin.readline()
"""


class PytorchTestCase(nodes.TestCase):
    backend = "c10d"
    options = conf(is_host=0, last_call_timeout=2, keep_alive_interval=1, keep_alive_max_attempt=3)

    def node(self, name, *sizes, **options):
        # An address at which the workers' store can be reached; the ranks then follow the pids.
        options.setdefault("local_addr", "127.0.0.1")
        return super().node(name, *sizes, **options)

    def nodes(self, names, *sizes, **options):
        """Nodes that are ready one after the other, with rising pids."""
        group = super().nodes(names, *sizes, **options)
        return sorted(group, key=lambda node: node.pid)

    def connect(self, port):
        return self.keep(peers.connect("127.0.0.1", port))

    def pytorchs_handler(self, store):
        """PyTorch's own rendezvous over that store, for one node, with the run id of the test."""
        parameters = RendezvousParameters("c10d", self.endpoint, self.run_id, 1, 1)
        return create_handler(store, C10dRendezvousBackend(store, self.run_id), parameters)

    def gloo(self, group):
        """Runs a process group of one worker a node through the store of the workers."""
        started = [self.peer(workers.add_up, node.last_round()) for node in group]
        for worker in started:
            self.assertEqual(worker.receive(), sum(range(len(group))))
            worker.join()


class HostedByPytorch:
    """The tests; the classes below run them on each kind of server that this PyTorch has."""

    kind = "default"

    def setUp(self):
        super().setUp()
        self.host = subprocess.Popen([sys.executable, "-c", HOSTING, self.kind],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     preexec_fn=muster._die_with_parent)
        self.addCleanup(self.end_host)
        line = self.host.stdout.readline()
        self.assertTrue(line, "the host of the store has ended")
        self.port = int(line)
        self.endpoint = f"127.0.0.1:{self.port}"

    def end_host(self):
        self._stores.clear()
        self.host.kill()
        self.host.wait()
        self.host.stdin.close()
        self.host.stdout.close()

    def round_store(self, number):
        return dist.PrefixStore(f"torch.rendezvous.{self.run_id}.{number}",
                                self.connect(self.port))

    def test_nodes_meet_by_compare_and_set(self):
        group = self.nodes("abc", 3)
        rounds = self.join(group)
        self.assertEqual([line["rank"] for line in rounds], [0, 1, 2])
        for node in group:
            self.assertTrue([line for line in node.all("record") if "pending sync" in
                             line["message"]])

    def test_a_killed_member_is_missed_and_the_rest_meet_again(self):
        group = self.nodes("abc", 2, 3)
        first = self.meet(group)[0]["round"]
        group[0].kill()
        for node in group[1:]:
            self.assertTrue(node.next("status", lambda line: line["lost"]))
        self.meet(group[1:], after=first)

    def test_a_late_joiner_makes_a_new_round(self):
        a = self.node("a", 1, 2)
        a.joined()
        b = self.node("b", 1, 2)
        self.assertEqual(a.next("status")["waiting"], 1)
        self.join([a, b])

    def test_a_spare_takes_the_place_of_a_killed_member(self):
        a, b = self.nodes("ab", 2)
        self.join([a, b])
        spare = self.node("c", 2)
        self.wait_until_shown(lambda shown: len(shown["nodes"]) == 3)
        self.assertEqual([a.waiting(), b.waiting()], [0, 0])
        b.kill()
        self.meet([a, spare])

    def test_closing_ends_joins_and_nothing_else(self):
        group = self.nodes("ab", 2)
        self.join(group)
        spare = self.node("c", 2)
        self.wait_until_shown(lambda shown: len(shown["nodes"]) == 3)
        group[0].close_run()
        self.assertEqual(spare.failed()["kind"], "finished")
        self.assertEqual(self.node("d", 2).failed()["kind"], "closed")
        group[1].wait_until_closed()
        for node in group:
            self.assertEqual(node.all("status"), [])

    def test_pytorch_and_the_nodes_share_the_store_of_a_round(self):
        group = self.nodes("abc", 3)
        number = self.join(group)[0]["round"]
        store = self.round_store(number)
        group[0].ask("set ours from a node", "set")
        self.assertEqual(store.get("ours"), b"from a node")
        store.set("theirs", "from PyTorch")
        for node in group:
            self.assertEqual(node.ask("get theirs", "value")["value"], "from PyTorch")
        # One that waits is told.
        group[1].say("get later")
        store.set("later", "now")
        self.assertEqual(group[1].next("value")["value"], "now")

    def test_workers_begin_with_the_store_of_rank_0(self):
        group = self.nodes("abc", 3)
        line = self.join(group)[0]
        self.assertEqual(line["master_addr"], "127.0.0.1")
        self.assertNotEqual(line["master_port"], self.port)
        self.assertEqual(self.connect(line["master_port"]).add("count", 5), 5)
        self.gloo(group)

    def test_pytorch_can_meet_over_the_same_store_with_the_same_run_id(self):
        store = self.connect(self.port)
        theirs = self.pytorchs_handler(store)
        theirs.next_rendezvous()
        state = store.get(f"torch.rendezvous.{self.run_id}")
        group = self.nodes("ab", 2)
        self.assertEqual([node.joined()["rank"] for node in group], [0, 1])
        group[0].close_run()
        # They have not seen one another, and nobody has written to what the other keeps.
        self.assertFalse(theirs.is_closed())
        self.assertEqual(theirs.num_nodes_waiting(), 0)
        theirs.next_rendezvous()
        self.assertTrue(theirs.shutdown())
        self.assertNotEqual(store.get(f"torch.rendezvous.{self.run_id}"), state)
        self.assertEqual([entry["rank"] for entry in self.shown()["nodes"]], [0, 1])

    def test_the_key_of_pytorchs_own_rendezvous_is_never_touched(self):
        store = self.connect(self.port)
        key = f"torch.rendezvous.{self.run_id}"
        store.set(key, "theirs")
        group = self.nodes("ab", 2, 3)
        first = self.meet(group)[0]["round"]
        group[0].kill()
        newcomer = self.node("c", 2, 3)
        self.meet([group[1], newcomer], after=first)
        newcomer.close_run()
        self.assertEqual(store.get(key), b"theirs")

    def test_what_is_no_state_of_ours_is_said_to_be_and_left_alone(self):
        store = self.connect(self.port)
        store.set(f"muster.rendezvous.{self.run_id}", "junk")
        error = self.node("a", 1).failed()
        self.assertEqual(error["kind"], "corrupt", error)
        self.assertIn(f"muster.rendezvous.{self.run_id}", error["message"])
        self.rendezvous("show", status=nodes.FAILED)
        self.assertEqual(store.get(f"muster.rendezvous.{self.run_id}"), b"junk")

    def test_a_store_that_stood_still_finds_the_group_as_it_was(self):
        group = self.nodes("abc", 3)
        self.join(group)
        # As much time as makes a silent node a lost one, at a store of their own.
        server = nodes.Server(host="127.0.0.1")
        self.addCleanup(server.stop)
        os.kill(self.host.pid, signal.SIGSTOP)
        observer, silent = super().nodes("xy", 1, 2, backend="muster", endpoint=server.endpoint,
                                         options=self.options.replace("is_host=0,", ""))
        self.meet([observer, silent])
        silent.stop()
        observer.next("status", lambda line: line["lost"])
        os.kill(self.host.pid, signal.SIGCONT)
        # The same again over the store: then whoever has been given up has been missed.
        observer, silent = self.nodes("xy", 1, 2, run_id="another")
        self.meet([observer, silent])
        silent.kill()
        observer.next("status", lambda line: line["lost"])
        self.meet(group)
        for node in group:
            self.assertEqual(node.all("status"), [])

    def test_the_end_of_the_host_is_an_error_and_nothing_worse(self):
        options = self.options + "," + conf(read_timeout=1, close_timeout=1, heartbeat_timeout=1)
        group = self.nodes("ab", 2, 3, options=options)
        self.meet(group)
        self.host.kill()
        self.host.wait()
        node = group[0]
        node.say("close")
        self.assertEqual(node.failed(of="close")["kind"], "unavailable")
        self.assertFalse(node.ask("shutdown", "shutdown")["ok"])
        for node in group:
            self.assertEqual(node.exit(), 0)

    def test_people_can_look_at_the_run(self):
        self.rendezvous("show", status=nodes.NO)
        group = self.nodes("ab", 2)
        self.join(group)
        shown = self.shown()
        self.assertEqual([(entry["pid"], entry["rank"]) for entry in shown["nodes"]],
                         [(group[0].pid, 0), (group[1].pid, 1)])
        self.rendezvous("close")
        self.wait_until_shown(lambda shown: shown["closed"])

    def test_the_backend_that_wants_our_server_says_so(self):
        error = self.node("a", 1, backend="muster",
                          options=conf(read_timeout=10)).failed(of="create")
        self.assertEqual(error["kind"], "invalid", error)
        self.assertIn("c10d", error["message"])


class HostedByDefaultServer(HostedByPytorch, PytorchTestCase):
    pass


@unittest.skipUnless(HAS_LIBUV, "this PyTorch has only one kind of server")
class HostedByOtherServer(HostedByPytorch, PytorchTestCase):
    kind = "threaded"


class HostedByNodes(PytorchTestCase):
    options = conf(last_call_timeout=2, keep_alive_interval=5)

    def setUp(self):
        super().setUp()
        self.port = muster.free_port()
        self.endpoint = f"127.0.0.1:{self.port}"

    def test_the_store_serves_pytorch(self):
        group = self.nodes("abc", 3)
        number = self.join(group)[0]["round"]
        store = dist.PrefixStore(f"torch.rendezvous.{self.run_id}.{number}",
                                 self.connect(self.port))
        group[2].ask("set ours from a node", "set")
        self.assertEqual(store.get("ours"), b"from a node")
        store.set("theirs", "from PyTorch")
        self.assertEqual(group[1].ask("get theirs", "value")["value"], "from PyTorch")
        self.gloo(group)

    def test_pytorch_nodes_can_meet_at_it_too(self):
        group = self.nodes("ab", 2)
        self.join(group)
        store = self.connect(self.port)
        theirs = self.pytorchs_handler(store)
        theirs.next_rendezvous()
        self.assertTrue(theirs.shutdown())
        self.assertFalse(group[0].is_closed())

    def test_the_next_round_has_workers_again(self):
        group = self.nodes("abc", 2, 3)
        first = self.meet(group)[0]["round"]
        self.gloo(group)
        # Not the one that hosts the store.
        hosting = [node for node in group if any("hosts the store" in line["message"]
                                                 for line in node.all("record"))]
        lost = next(node for node in group if node not in hosting)
        lost.kill()
        rest = [node for node in group if node is not lost]
        self.meet(rest, after=first)
        self.gloo(rest)


class Static(PytorchTestCase):
    backend = "static"

    def setUp(self):
        super().setUp()
        self.port = muster.free_port()
        self.endpoint = f"127.0.0.1:{self.port}"

    def test_nodes_join_a_store_whose_host_waits_for_them(self):
        host = self.peer(peers.host_store, self.port, 3)
        self.assertEqual(host.receive(), "hosting")
        group = [self.node(f"node-{rank}", 3, options=conf(rank=rank), elastic=False)
                 for rank in (1, 2)]
        for node in group:
            node.say("join")
        self.assertEqual([node.joined()["rank"] for node in group], [1, 2])
        self.assertEqual(host.receive(), "complete")
        self.connect(self.port).set("report", "well")
        host.send("")
        self.assertEqual(host.receive(), "well")

    def test_workers_begin_with_the_store_of_rank_0(self):
        group = [self.node(f"node-{rank}", 2, options=conf(rank=rank), elastic=False)
                 for rank in (0, 1)]
        for node in group:
            node.say("join")
        self.join(group)
        self.gloo(group)


if __name__ == "__main__":
    nodes.main()
