"""Nodes as processes that bring their own store: one of them hosts it, or it is a file."""

import os
import pathlib
import socket
import stat
import tempfile
import time

import nodes
from nodes import conf, members
import muster  # from tests/pytorch, by way of nodes


class C10dTestCase(nodes.TestCase):
    backend = "c10d"
    options = conf(last_call_timeout=2)

    def setUp(self):
        super().setUp()
        self.endpoint = f"127.0.0.1:{muster.free_port()}"

    def hosting_node(self, name, *sizes, **options):
        """A node, once it hosts the store."""
        node = self.node(name, *sizes, **options)
        node.reported("this node hosts the store")
        return node

    def assert_hosts_nothing(self, node):
        self.assertFalse([line for line in node.all("record") if "hosts the store" in
                          line["message"]])


class Hosting(C10dTestCase):
    def test_the_first_node_on_the_machine_that_the_endpoint_names_hosts_the_others_connect(self):
        first = self.hosting_node("a", 3)
        others = self.nodes("bc", 3)
        self.join([first, *others])
        for node in others:
            self.assert_hosts_nothing(node)
        self.assertEqual(members(self.shown()), {"a": 0, "b": 1, "c": 2})

    def test_of_many_that_start_at_once_one_hosts(self):
        group = self.nodes("abcdef", 6)
        self.join(group)
        hosting = [node for node in group for line in node.all("record")
                   if "hosts the store" in line["message"]]
        self.assertEqual(len(hosting), 1)

    def test_is_said_in_an_event_of_the_first_kind(self):
        node = self.node("a", 1)
        self.assertEqual(node.reported("hosts the store on port")["state"], "INIT")

    def test_by_the_node_that_is_told_to(self):
        host = self.hosting_node("b", 2, options=conf(is_host="true", read_timeout=10))
        client = self.node("a", 2, options=conf(is_host="no"))
        self.join([client, host])
        self.assert_hosts_nothing(client)

    def test_may_begin_after_the_others_have_come(self):
        early = self.nodes("bc", 3, options=conf(is_host=0))
        self.join([self.hosting_node("a", 3, options=conf(is_host=1)), *early])

    def test_is_refused_on_a_port_that_is_taken_if_it_was_asked_for(self):
        self.hosting_node("a", 2)
        node = self.node("b", 2, options=conf(is_host=1))
        error = node.failed(of="create")
        self.assertEqual(error["kind"], "unavailable", error)
        self.assertIn("is_host", error["message"])
        self.assertEqual(node.wait(), 1)

    def test_on_any_free_port(self):
        host = self.node("a", 2, endpoint="localhost:0", options=conf(is_host=1))
        port = host.reported("hosts the store on port")["message"].split()[-1]
        self.join([host, self.node("b", 2, endpoint=f"localhost:{port}")])

    def test_on_any_free_port_is_for_the_host_alone(self):
        error = self.node("a", 2, endpoint="localhost:0",
                          options=conf(is_host=0)).failed(of="create")
        self.assertEqual(error["kind"], "invalid", error)
        self.assertIn("port 0", error["message"])

    def test_serves_ordinary_clients_too(self):
        node = self.hosting_node("a", 1)
        node.joined()
        node.ask("set key value", "set")
        key = f"torch.rendezvous.{self.run_id}.0/key"
        self.assertEqual(muster.finish(muster.start_command(self.endpoint, "get", key)).stdout,
                         b"value\n")

    def test_several_runs_at_once(self):
        host = self.hosting_node("a", 1)
        other = self.nodes("bc", 2, run_id="another")
        host.joined()
        self.join(other)


class Connecting(C10dTestCase):
    def test_in_vain_ends_after_the_time_it_has(self):
        node = self.node("a", 1, options=conf(is_host=0, read_timeout=2))
        error = node.failed(of="create")
        self.assertEqual(error["kind"], "unavailable", error)
        self.assertIn(self.endpoint, error["message"])
        self.assert_hosts_nothing(node)
        self.assertEqual(node.wait(), 1)

    def test_to_something_that_is_no_store_is_an_error(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
            node = self.node("a", 1, endpoint=endpoint, options=conf(is_host=0, read_timeout=2))
            self.assertEqual(node.failed(of="create")["kind"], "unavailable")


class Options(C10dTestCase):
    def refused(self, options, **others):
        error = self.node("a", 1, options=options, **others).failed(of="create")
        self.assertEqual(error["kind"], "invalid", error)
        return error["message"]

    def test_that_do_not_exist_are_refused_with_a_suggestion(self):
        self.assertIn("did you mean read_timeout?", self.refused("read_timout=5"))
        self.assertIn("did you mean keep_alive_interval?", self.refused("keepalive_interval=5"))

    def test_of_other_backends_are_refused(self):
        self.assertIn("etcd", self.refused("etcd_prefix=/x"))

    def test_with_bad_values_are_refused(self):
        for options in ("store_type=dummy", "read_timeout=0", "read_timeout=-10", "is_host=maybe",
                        "join_timeout=0", "keep_alive_interval=0", "keep_alive_max_attempt=0",
                        "last_call_timeout=soon"):
            with self.subTest(options=options):
                self.assertIn(options.split("=")[0], self.refused(options))

    def test_that_cannot_be_read_are_refused(self):
        for options in ("read_timeout", "=5", "read_timeout=5,", "read_timeout=5,,is_host=1"):
            with self.subTest(options=options):
                error = self.node("a", 1, options=options).failed(of="options")
                self.assertEqual(error["kind"], "invalid", error)

    def test_that_change_nothing_are_only_warned_about(self):
        node = self.node("a", 1, options="timeout=900")
        node.joined()
        self.assertTrue([line for line in node.all("log") if "timeout" in line["text"]])

    def test_do_not_make_up_for_a_bad_endpoint(self):
        for endpoint in ("127.0.0.1:70000", "127.0.0.1:", "a b:1", "::1"):
            with self.subTest(endpoint=endpoint):
                self.refused("", endpoint=endpoint)


class HostLoss(C10dTestCase):
    """The process that hosts the store dies."""

    options = conf(last_call_timeout=2, keep_alive_interval=1, keep_alive_max_attempt=2,
                   join_timeout=5, close_timeout=1, heartbeat_timeout=1)

    def test_is_an_error_to_those_who_ask_once_it_has_lasted(self):
        host = self.hosting_node("a", 2)
        other = self.node("b", 2)
        self.join([host, other])
        host.kill()
        # What is known counts for as long as heartbeats do; then it is too old.
        other.say("waiting")
        while other.next_of("waiting", "error")["event"] == "waiting":
            time.sleep(0.02)
            other.say("waiting")
        self.assertEqual(other.all("error")[-1]["kind"], "unavailable")
        other.say("close")
        self.assertEqual(other.failed(of="close")["kind"], "unavailable")
        self.assertFalse(other.ask("shutdown", "shutdown")["ok"])
        self.assertEqual(other.exit(), 0)

    def test_ends_a_join_that_waits_when_its_time_is_up(self):
        host = self.hosting_node("a", 3)
        other = self.node("b", 3)
        self.wait_until_shown(lambda shown: members(shown).keys() == {"a", "b"})
        host.kill()
        error = other.failed()
        self.assertEqual(error["kind"], "unavailable", error)
        self.assertEqual(other.exit(), 0)

    def test_is_got_over_when_the_host_is_started_again(self):
        options = conf(last_call_timeout=2, keep_alive_interval=5)
        host = self.hosting_node("a", 2, 3, options=options)
        others = self.nodes("bc", 2, 3, options=options)
        self.meet([host, *others])
        host.kill()
        host = self.hosting_node("a", 2, 3, options=options)
        self.meet([host, *others])


class FileTestCase(nodes.TestCase):
    backend = "file"
    options = conf(last_call_timeout=2, keep_alive_interval=1, keep_alive_max_attempt=2)

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="muster-rendezvous-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.endpoint = str(self.folder / "store")


class Files(FileTestCase):
    def test_ranks_follow_the_order_of_addresses(self):
        self.assertEqual([line["rank"] for line in self.join(self.nodes("cab", 3))], [2, 0, 1])

    def test_a_killed_member_is_missed_and_the_rest_meet_again(self):
        group = self.nodes("abc", 2, 3)
        first = self.meet(group)[0]["round"]
        group[0].kill()
        self.meet(group[1:], after=first)

    def test_one_that_stands_still_for_too_long_is_dropped_and_comes_back(self):
        group = self.nodes("abc", 2, 3)
        first = self.meet(group)[0]["round"]
        group[2].stop()
        second = self.meet(group[:2], after=first)[0]["round"]
        group[2].resume()
        self.meet(group, after=second)

    def test_a_late_joiner_makes_a_new_round(self):
        a = self.node("a", 1, 2)
        a.joined()
        self.join([a, self.node("b", 1, 2)])

    def test_a_spare_takes_the_place_of_a_killed_member(self):
        a, b = self.nodes("ab", 2)
        self.join([a, b])
        spare = self.node("c", 2)
        self.wait_until_shown(lambda shown: len(shown["nodes"]) == 3)
        self.assertEqual(a.waiting(), 0)
        b.kill()
        self.meet([a, spare])

    def test_the_stores_of_rounds_are_in_it(self):
        a, b = self.nodes("ab", 2)
        self.join([a, b])
        a.ask("set key value", "set")
        self.assertEqual(b.ask("get key", "value")["value"], "value")

    def test_closing_ends_joins(self):
        group = self.nodes("ab", 2)
        self.join(group)
        spare = self.node("c", 2)
        self.wait_until_shown(lambda shown: len(shown["nodes"]) == 3)
        group[0].close_run()
        self.assertEqual(spare.failed()["kind"], "finished")
        self.assertNotIn("FAILED", [line["state"] for line in spare.all("record")])
        self.assertEqual(self.node("d", 2).failed()["kind"], "closed")
        group[1].wait_until_closed()

    def test_another_maximum_is_refused(self):
        self.join(self.nodes("ab", 2))
        self.assertEqual(self.node("c", 2, 3).failed()["kind"], "invalid")

    def test_a_file_that_is_something_else_is_left_as_it_is(self):
        text = b"This is no store, and never was one.\n" * 10
        pathlib.Path(self.endpoint).write_bytes(text)
        error = self.node("a", 1, options=conf(join_timeout=2)).next("error")
        self.assertIn(error["kind"], ("corrupt", "unavailable"), error)
        self.assertEqual(pathlib.Path(self.endpoint).read_bytes(), text)

    def test_a_path_that_cannot_be_used_is_a_connection_error(self):
        for path in (str(self.folder), str(self.folder / "missing" / "store")):
            with self.subTest(path=path):
                error = self.node("a", 1, endpoint=path).failed(of="create")
                self.assertEqual(error["kind"], "unavailable", error)
                self.assertIn(path, error["message"])

    def test_no_path_is_a_mistake(self):
        self.assertEqual(self.node("a", 1, endpoint="").failed(of="create")["kind"], "invalid")

    def test_is_an_option_of_c10d(self):
        group = self.nodes("ab", 2, backend="c10d",
                           options=conf(store_type=" fIlE ", keep_alive_interval=1))
        self.join(group)
        self.assertEqual(members(self.shown("--conf", "store_type=file", backend="c10d")),
                         {"a": 0, "b": 1})

    def test_c10d_without_a_path_makes_one_that_nobody_else_can_read(self):
        node = self.node("a", 1, backend="c10d", endpoint="", options=conf(store_type="file"),
                         environment={"TMPDIR": str(self.folder)})
        node.joined()
        made = list(self.folder.iterdir())
        self.assertEqual(len(made), 1)
        self.assertEqual(stat.S_IMODE(os.stat(made[0]).st_mode), 0o600)

    def test_c10d_says_when_it_cannot_make_one(self):
        node = self.node("a", 1, backend="c10d", endpoint="", options=conf(store_type="file"),
                         environment={"TMPDIR": str(self.folder / "missing")})
        self.assertIn("temporary file", node.failed(of="create")["message"])

    def test_show_knows_a_missing_file_from_an_unknown_run(self):
        self.rendezvous("show", status=nodes.UNREACHABLE)
        self.join(self.nodes("ab", 2))
        shown = self.shown()
        self.assertEqual(members(shown), {"a": 0, "b": 1})
        self.assertTrue(shown["complete"])
        self.rendezvous("show", run_id="unknown", status=nodes.NO)
        self.rendezvous("close")
        self.assertTrue(self.shown()["closed"])


if __name__ == "__main__":
    nodes.main()
