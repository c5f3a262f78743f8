"""Nodes as processes that were told their ranks."""

import nodes
from nodes import conf
import muster  # from tests/pytorch, by way of nodes


class StaticTestCase(nodes.TestCase):
    backend = "static"

    def setUp(self):
        super().setUp()
        self.endpoint = f"127.0.0.1:{muster.free_port()}"

    def ranked(self, rank, size, **options):
        """A node that joins when it is told to."""
        more = options.pop("more", {})
        return self.node(f"node-{rank}", size, options=conf(rank=rank, **more), elastic=False,
                         **options)

    def join_all(self, group):
        for node in group:
            node.say("join")
        return self.join(group)


class Rounds(StaticTestCase):
    def test_have_the_ranks_that_were_given(self):
        # The host of the store may come last.
        group = [self.ranked(rank, 3) for rank in (2, 1, 0)]
        rounds = self.join_all(group)
        self.assertEqual([line["rank"] for line in rounds], [2, 1, 0])
        host, port = self.endpoint.split(":")
        for line in rounds:
            self.assertEqual((line["round"], line["master_addr"], line["master_port"]),
                             (0, host, int(port)))
            self.assertTrue(line["use_agent_store"])

    def test_of_one_node(self):
        node = self.ranked(0, 1)
        for number in (0, 1):
            line = self.join_all([node])[0]
            self.assertEqual((line["rank"], line["world_size"], line["round"]), (0, 1, number))
            node.ask("set key value", "set")
            self.assertEqual(node.ask("get key", "value")["value"], "value")

    def test_do_not_see_the_keys_of_earlier_ones(self):
        group = [self.ranked(rank, 2) for rank in (0, 1)]
        self.join_all(group)
        group[0].ask("set key of-round-0", "set")
        self.assertEqual(group[1].ask("get key", "value")["value"], "of-round-0")
        rounds = self.join_all(group)
        self.assertEqual({line["round"] for line in rounds}, {1})
        group[1].say("get key")
        group[0].ask("set key of-round-1", "set")
        self.assertEqual(group[1].next("value")["value"], "of-round-1")

    def test_of_the_first_kind_have_the_keys_that_pytorch_gives_them(self):
        node = self.ranked(0, 1)
        self.join_all([node])
        node.ask("set key value", "set")
        got = muster.finish(muster.start_command(self.endpoint, "get", f"{self.run_id}/key"))
        self.assertEqual(got.stdout, b"value\n")

    def test_are_found_by_a_node_that_is_started_anew(self):
        group = [self.ranked(rank, 2) for rank in (0, 1)]
        self.join_all(group)
        self.join_all(group)
        group[1].kill()
        self.assertEqual(self.join_all([group[0], self.ranked(1, 2)])[0]["round"], 2)

    def test_are_the_same_for_nodes_that_were_started_anew_differently_often(self):
        host = self.ranked(0, 2)
        node = self.ranked(1, 2)
        self.join_all([host, node])
        for _ in range(3):
            node.kill()
            node = self.ranked(1, 2)
            node.say("join")
            node.joined()
        host.say("join")
        self.assertEqual(host.joined()["round"], 3)
        self.assertEqual(self.join_all([host, node])[0]["round"], 4)

    def test_wait_for_the_host_until_it_comes(self):
        early = self.ranked(1, 2)
        early.say("join")
        early.next("joining")
        host = self.ranked(0, 2)
        host.say("join")
        self.join([host, early])


class Everything(StaticTestCase):
    def test_else_has_fixed_answers(self):
        node = self.ranked(0, 1)
        self.join_all([node])
        self.assertEqual(node.waiting(), 0)
        self.assertFalse(node.is_closed())
        node.close_run()
        self.assertFalse(node.is_closed())
        node.leave()
        self.assertTrue(node.ask("shutdown", "shutdown")["ok"])
        self.join_all([node])


class Mistakes(StaticTestCase):
    def refused(self, options, size=2, **others):
        error = self.node("a", size, options=options, **others).failed(of="create")
        self.assertEqual(error["kind"], "invalid", error)
        return error["message"]

    def test_no_rank(self):
        self.assertIn("rank", self.refused(""))

    def test_ranks_that_cannot_be(self):
        for rank in ("-1", "2", "first", "0.5"):
            with self.subTest(rank=rank):
                self.assertIn("rank", self.refused(conf(rank=rank)))

    def test_no_endpoint(self):
        for endpoint in ("", "  "):
            with self.subTest(endpoint=endpoint):
                self.assertIn("endpoint", self.refused(conf(rank=0), endpoint=endpoint))

    def test_no_port(self):
        for endpoint in ("localhost", "[::1]"):
            with self.subTest(endpoint=endpoint):
                self.assertIn("port", self.refused(conf(rank=0), endpoint=endpoint))

    def test_options_of_others(self):
        self.assertIn("is_host", self.refused(conf(rank=0, is_host=1)))
        self.assertIn("did you mean timeout?", self.refused(conf(rank=0, timeut=5)))


class Absence(StaticTestCase):
    def test_of_the_host_is_a_connection_error(self):
        node = self.ranked(1, 2, more=dict(timeout=1))
        node.say("join")
        error = node.failed()
        self.assertEqual(error["kind"], "unavailable", error)
        self.assertIn(self.endpoint, error["message"])

    def test_of_another_node_is_said_with_numbers(self):
        node = self.ranked(0, 3, more=dict(timeout=2))
        other = self.ranked(1, 3, more=dict(timeout=2))
        node.say("join")
        other.say("join")
        error = node.failed()
        self.assertEqual(error["kind"], "timeout", error)
        self.assertIn("of 3 nodes", error["message"])
        self.assertIn("2", error["message"].split("ranks")[1])

    def test_can_be_made_up_for_by_joining_again(self):
        node = self.ranked(0, 2, more=dict(timeout=2))
        node.say("join")
        self.assertEqual(node.failed()["kind"], "timeout")
        self.join_all([node, self.ranked(1, 2)])

    def test_of_a_free_port_is_said_by_the_host(self):
        with muster.socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            node = self.ranked(0, 1, endpoint=f"127.0.0.1:{port}", more=dict(timeout=1))
            node.say("join")
            error = node.failed()
            self.assertEqual(error["kind"], "unavailable", error)
            self.assertIn(str(port), error["message"])


if __name__ == "__main__":
    nodes.main()
