"""Nodes as processes that meet at a `muster store serve`, which hosts their run."""

import json
import os
import signal

import nodes
from nodes import conf, members
import muster  # from tests/pytorch, by way of nodes


class MusterTestCase(nodes.TestCase):
    backend = "muster"
    # A last call long enough for everybody to come to it on a busy machine.
    options = conf(last_call_timeout=2)

    def setUp(self):
        super().setUp()
        self.start_server()

    def start_server(self, port=0):
        self.server = nodes.Server(host="127.0.0.1", port=port)
        self.endpoint = self.server.endpoint
        self.addCleanup(self.server.stop)

    def restart_server(self):
        self.server.kill()
        self.start_server(port=self.server.port)


class Rounds(MusterTestCase):
    def test_ranks_follow_the_order_of_addresses_and_not_of_arrival(self):
        names = ["10.0.0.2", "10.0.0.10", "b"]
        group = self.nodes(names, 3)
        rounds = self.join(group)
        ranks = {name: line["rank"] for name, line in zip(names, rounds)}
        self.assertEqual(ranks, {"10.0.0.10": 0, "10.0.0.2": 1, "b": 2})
        self.assertEqual({line["round"] for line in rounds}, {0})
        self.assertEqual({line["master_addr"] for line in rounds}, {"10.0.0.10"})

    def test_nodes_of_one_address_are_ordered_by_pid(self):
        group = [self.node(name, 3, local_addr="same") for name in "cab"]
        self.join(group)
        ranks = [node.last_round()["rank"] for node in sorted(group, key=lambda node: node.pid)]
        self.assertEqual(ranks, [0, 1, 2])

    def test_a_round_does_not_complete_before_there_are_enough(self):
        a = self.node("a", 2)
        self.wait_until_shown(lambda shown: members(shown).keys() == {"a"})
        self.assertEqual(a.all("joined"), [])
        self.join([a, self.node("b", 2)])

    def test_a_late_joiner_makes_a_new_round(self):
        a = self.node("a", 1, 3)
        self.assertEqual(a.joined()["world_size"], 1)
        b = self.node("b", 1, 3)
        self.assertEqual(a.next("status")["waiting"], 1)
        rounds = self.meet([a, b])
        self.assertGreaterEqual(rounds[0]["round"], 1)
        self.assertEqual([line["rank"] for line in rounds], [0, 1])
        self.assertEqual(a.waiting(), 0)

    def test_a_newcomer_that_becomes_rank_0_is_where_all_find_the_workers_store(self):
        b = self.node("b", 1, 2)
        self.assertEqual(b.joined()["master_addr"], "b")
        a = self.node("a", 1, 2)
        self.assertEqual([line["master_addr"] for line in self.join([a, b])], ["a", "a"])

    def test_the_workers_store_is_a_new_one_in_every_round(self):
        a = self.node("a", 1, 2)
        line = a.joined()
        muster.finish(muster.start_command(f"localhost:{line['master_port']}", "set", "key", "1"))
        rounds = self.join([a, self.node("b", 1, 2)])
        self.assertEqual({line["master_addr"] for line in rounds}, {"a"})
        keys = muster.finish(muster.start_command(f"localhost:{rounds[0]['master_port']}", "keys"))
        self.assertEqual((keys.returncode, keys.stdout), (0, b""))

    def test_one_that_fails_its_workers_meets_the_others_in_the_next_round(self):
        group = self.nodes("ab", 3)
        failing = self.node("c", 3, elastic=False)
        failing.say("join")
        self.join([*group, failing])
        failing.say("join")
        rounds = self.join([*group, failing])
        self.assertEqual(rounds[0]["round"], 1)

    def test_two_runs_of_one_server_do_not_see_one_another(self):
        other = self.nodes("xy", 2, run_id=f"{self.run_id}-other")
        group = self.nodes("ab", 2)
        self.join(group)
        self.join(other)
        other[0].close_run()
        self.assertFalse(group[0].is_closed())
        self.assertEqual(members(self.shown()), {"a": 0, "b": 1})

    def test_the_stores_of_two_rounds_have_different_keys(self):
        a = self.node("a", 1, 2)
        a.joined()
        a.ask("set key of-round-0", "set")
        b = self.node("b", 1, 2)
        rounds = self.join([a, b])
        a.ask("set key of-round-1", "set")
        self.assertEqual(b.ask("get key", "value")["value"], "of-round-1")
        keys = muster.finish(muster.start_command(self.endpoint, "keys", "")).stdout.decode()
        for number in (0, rounds[0]["round"]):
            self.assertIn(f"torch.rendezvous.{self.run_id}.{number}/key\n", keys)

    def test_a_lone_node_with_too_few_others_gives_up_and_leaves_no_trace(self):
        a = self.node("a", 2, 3, options=conf(join_timeout=1))
        error = a.failed()
        self.assertEqual(error["kind"], "timeout", error)
        self.assertEqual(self.shown()["nodes"], [])

    def test_without_a_shared_store_all_still_agree_on_an_address(self):
        environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        rounds = self.join(self.nodes("ab", 2, environment=environment))
        self.assertEqual([line["use_agent_store"] for line in rounds], [False, False])
        self.assertGreater(rounds[0]["master_port"], 0)
        # Any other value means nothing.
        other = self.node("c", 1, run_id="other",
                          environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "true"})
        self.assertTrue(other.joined()["use_agent_store"])


class Spares(MusterTestCase):
    def test_one_too_many_waits_past_its_deadline_and_disturbs_nobody(self):
        group = self.nodes("ab", 2)
        self.join(group)
        spare = self.node("c", 2, options=conf(join_timeout=1))
        spare.reported("parked as a spare")
        # Another node, with as little patience, that came later: once it has given up, the spare
        # would have had to.
        impatient = self.node("x", 2, run_id="another", options=conf(join_timeout=1))
        self.assertEqual(impatient.failed()["kind"], "timeout")
        self.assertEqual(spare.all("error"), [])
        self.assertEqual([node.waiting() for node in group], [0, 0])
        for node in group:
            self.assertEqual(node.all("status"), [])
        shown = self.shown()
        self.assertEqual([node["address"] for node in shown["nodes"] if node["role"] == "spare"],
                         ["c"])

    def test_a_spare_takes_the_place_of_a_member_that_is_killed(self):
        a, b = self.nodes("ab", 2)
        self.join([a, b])
        spare = self.node("c", 2)
        spare.reported("parked as a spare")
        b.kill()
        spare.reported("a spare no more")
        rounds = self.join([a, spare])
        self.assertEqual([line["round"] for line in rounds], [1, 1])

    def test_a_spare_takes_the_place_of_a_member_that_leaves(self):
        a, b = self.nodes("ab", 2, elastic=False)
        a.say("join")
        b.say("join")
        self.join([a, b])
        spare = self.node("c", 2)
        spare.reported("parked as a spare")
        a.leave()
        b.say("join")
        self.join([b, spare])

    def test_the_seat_of_a_spare_that_is_killed_is_gone(self):
        self.join(self.nodes("ab", 2))
        spare = self.node("c", 2)
        spare.reported("parked as a spare")
        spare.kill()
        self.wait_until_shown(lambda shown: len(shown["nodes"]) == 2)


class Losses(MusterTestCase):
    # Longer than the tests wait: what is noticed, is noticed by the loss of the connection.
    slow = conf(last_call_timeout=2, keep_alive_interval=30)
    quick = conf(last_call_timeout=2, keep_alive_interval=1, keep_alive_max_attempt=2)

    def test_a_killed_member_is_missed_long_before_its_heartbeats_are(self):
        group = self.nodes("abc", 2, 3, options=self.slow)
        self.meet(group)
        group[0].kill()
        for node in group[1:]:
            self.assertTrue(node.next("status")["lost"])
        rounds = self.meet(group[1:])
        # The workers' store was the killed node's.
        self.assertEqual({line["master_addr"] for line in rounds}, {"b"})

    def test_one_that_is_killed_while_the_round_forms_is_not_counted(self):
        dead = self.node("a", 3, options=self.slow)
        self.wait_until_shown(lambda shown: members(shown).keys() == {"a"})
        dead.kill()
        b, c = self.nodes("bc", 3, options=self.slow)
        self.wait_until_shown(lambda shown: members(shown).keys() == {"b", "c"})
        self.join([b, c, self.node("d", 3, options=self.slow)])

    def test_one_that_exits_is_missed_as_one_that_is_killed(self):
        group = self.nodes("abc", 2, 3, options=self.slow)
        self.meet(group)
        self.assertEqual(group[2].exit(), 0)
        self.meet(group[:2])

    def test_one_that_stands_still_for_too_long_is_dropped_and_comes_back(self):
        group = self.nodes("abc", 2, 3, options=self.quick)
        first = self.meet(group)[0]["round"]
        group[2].stop()
        second = self.meet(group[:2], after=first)[0]["round"]
        group[2].resume()
        # It learns that it is not a member any more.
        self.assertFalse(group[2].next("status")["member"])
        self.meet(group, after=second)

    def test_one_that_stands_still_for_a_moment_stays(self):
        group = self.nodes("ab", 2, options=self.slow)
        self.join(group)
        group[1].stop()
        # Something that takes the server longer than the grace for broken connections.
        impatient = self.node("x", 2, run_id="another", options=conf(join_timeout=1))
        self.assertEqual(impatient.failed()["kind"], "timeout")
        group[1].resume()
        self.assertEqual(group[1].waiting(), 0)
        for node in group:
            self.assertEqual(node.all("status"), [])

    def test_one_that_leaves_is_missed_and_can_come_back(self):
        a = self.node("a", 1, 2)
        b = self.node("b", 1, 2, elastic=False)
        b.say("join")
        first = self.meet([a, b])[0]["round"]
        b.leave()
        self.assertTrue(a.next("status", lambda line: line["lost"]))
        alone = self.meet([a], after=first)[0]["round"]
        b.say("join")
        self.meet([a, b], after=alone)


class Closing(MusterTestCase):
    def test_ends_joins_and_nothing_else(self):
        group = self.nodes("ab", 2)
        self.join(group)
        spare = self.node("c", 2)
        spare.reported("parked as a spare")
        group[0].close_run()
        # A spare that is not needed any more has done its duty.
        error = spare.failed()
        self.assertEqual(error["kind"], "finished", error)
        self.assertNotIn("FAILED", [line["state"] for line in spare.all("record")])
        late = self.node("d", 2)
        self.assertEqual(late.failed()["kind"], "closed")
        # The group goes on.
        group[1].wait_until_closed()
        for node in group:
            self.assertEqual(node.all("status"), [])
        self.assertEqual(members(self.shown()), {"a": 0, "b": 1})

    def test_ends_a_join_that_waits_for_others(self):
        a = self.node("a", 2)
        self.wait_until_shown(lambda shown: members(shown).keys() == {"a"})
        self.rendezvous("close")
        self.assertEqual(a.failed()["kind"], "closed")

    def test_can_be_done_twice_and_by_shutdown(self):
        a, b = self.nodes("ab", 2)
        self.join([a, b])
        a.close_run()
        a.close_run()
        self.assertTrue(b.ask("shutdown", "shutdown")["ok"])
        self.assertTrue(b.ask("shutdown", "shutdown")["ok"])
        a.wait_until_closed()

    def test_lasts_although_the_server_is_restarted(self):
        group = self.nodes("ab", 2)
        self.join(group)
        group[0].close_run()
        group[1].wait_until_closed()
        self.restart_server()
        self.wait_until_shown(lambda shown: shown["closed"])
        self.assertEqual(self.node("c", 2).failed()["kind"], "closed")


class Refusals(MusterTestCase):
    def test_another_maximum(self):
        group = self.nodes("ab", 2)
        self.join(group)
        error = self.node("c", 2, 3).failed()
        self.assertEqual(error["kind"], "invalid", error)
        self.assertIn("2", error["message"])
        self.assertIn("3", error["message"])
        self.assertEqual(members(self.shown()), {"a": 0, "b": 1})

    def test_a_maximum_below_the_minimum(self):
        error = self.node("a", 3, 2).failed(of="parameters")
        self.assertEqual(error["kind"], "invalid", error)

    def test_a_store_that_cannot_be_reached(self):
        endpoint = f"127.0.0.1:{muster.free_port()}"
        node = self.node("a", 1, endpoint=endpoint, options=conf(read_timeout=1))
        error = node.failed(of="create")
        self.assertEqual(error["kind"], "unavailable", error)
        self.assertIn(endpoint, error["message"])
        self.assertIn("muster store serve", error["message"])
        self.assertEqual(node.wait(), 1)

    def test_an_option_that_is_not_its_own(self):
        error = self.node("a", 1, options=conf(is_host=1)).failed(of="create")
        self.assertEqual(error["kind"], "invalid", error)
        self.assertIn("is_host", error["message"])


class Restarts(MusterTestCase):
    """The server is killed, and another takes its place."""

    def test_members_carry_on_in_their_round(self):
        group = self.nodes("ab", 2, 3)
        first = self.meet(group)[0]["round"]
        self.restart_server()
        shown = self.wait_until_shown(lambda shown: len(members(shown)) == 2)
        self.assertEqual(members(shown), {"a": 0, "b": 1})
        self.assertEqual((shown["round"], shown["complete"], shown["world_size"]),
                         (first, True, 2))
        self.assertEqual([node.waiting() for node in group], [0, 0])
        for node in group:
            self.assertEqual(node.last_round()["round"], first)
        # Whoever comes later makes the round after theirs.
        self.meet([*group, self.node("c", 2, 3)], after=first)

    def test_a_member_that_is_lost_meanwhile_is_missed(self):
        group = self.nodes("abc", 2, 3, options=conf(last_call_timeout=2, keep_alive_interval=1,
                                                     keep_alive_max_attempt=3))
        first = self.meet(group)[0]["round"]
        self.server.kill()
        group[0].kill()
        self.start_server(port=self.server.port)
        self.meet(group[1:], after=first)

    def test_a_join_that_waits_is_not_lost(self):
        a = self.node("a", 2)
        self.wait_until_shown(lambda shown: members(shown).keys() == {"a"})
        self.restart_server()
        self.join([a, self.node("b", 2)])

    def test_a_spare_stays_one(self):
        group = self.nodes("ab", 2)
        self.join(group)
        spare = self.node("c", 2)
        spare.reported("parked as a spare")
        self.restart_server()
        self.wait_until_shown(lambda shown: len(shown["nodes"]) == 3)
        group[1].kill()
        self.meet([group[0], spare])

    def test_a_server_that_stood_still_finds_its_group_as_it_was(self):
        options = conf(last_call_timeout=2, keep_alive_interval=1, keep_alive_max_attempt=2,
                       heartbeat_timeout=30)
        group = self.nodes("ab", 2, options=options)
        self.join(group)
        # At another server, as much time passes as makes a silent node a lost one.
        other_server = nodes.Server(host="127.0.0.1")
        self.addCleanup(other_server.stop)
        observer, silent = self.nodes("xy", 1, 2, options=options, endpoint=other_server.endpoint)
        self.meet([observer, silent])
        os.kill(self.server.pid, signal.SIGSTOP)
        silent.stop()
        observer.next("status", lambda line: line["lost"])
        os.kill(self.server.pid, signal.SIGCONT)
        self.assertEqual(members(self.shown()), {"a": 0, "b": 1})
        self.assertEqual([node.waiting() for node in group], [0, 0])
        for node in group:
            self.assertEqual(node.all("status"), [])


class Commands(MusterTestCase):
    def test_show_prints_a_table(self):
        group = self.nodes("ab", 2)
        self.join(group)
        self.node("c", 2).reported("parked as a spare")
        out = self.rendezvous("show")[0]
        lines = out.splitlines()
        self.assertEqual(lines[0], f"run {self.run_id}: round 0 complete with 2 nodes, 1 spare")
        self.assertEqual(lines[1].split(), ["RANK", "STATE", "NODE", "HEARD"])
        self.assertEqual(lines[2].split()[:5], ["0", "member", "a", "pid", str(group[0].pid)])
        self.assertEqual(lines[3].split()[:5], ["1", "member", "b", "pid", str(group[1].pid)])
        self.assertEqual(lines[4].split()[:3], ["-", "spare", "c"])
        self.assertEqual(len(lines), 5)

    def test_show_prints_json(self):
        group = self.nodes("ab", 2, 3)
        self.meet(group)
        shown = self.shown()
        self.assertEqual(shown["run_id"], self.run_id)
        self.assertTrue(shown["exists"])
        self.assertTrue(shown["complete"])
        self.assertFalse(shown["closed"])
        self.assertFalse(shown["lost_member"])
        self.assertEqual((shown["min_nodes"], shown["max_nodes"], shown["world_size"]), (2, 3, 2))
        self.assertIsNone(shown["last_call_seconds_left"])
        for node, entry in zip(group, shown["nodes"]):
            self.assertEqual((entry["role"], entry["address"], entry["pid"], entry["connected"]),
                             ("member", node.name, node.pid, True))
            self.assertGreaterEqual(entry["heard_seconds_ago"], 0)

    def test_show_says_how_long_the_last_call_takes(self):
        self.node("a", 1, 2, options=conf(last_call_timeout=300))
        shown = self.wait_until_shown(lambda shown: members(shown).keys() == {"a"})
        self.assertFalse(shown["complete"])
        self.assertLessEqual(shown["last_call_seconds_left"], 300)
        self.assertGreater(shown["last_call_seconds_left"], 0)
        self.assertIn("round 0 forming, 1 of 1 to 2 nodes, last call ends in",
                      self.rendezvous("show")[0])

    def test_show_says_with_status_5_that_there_is_no_such_run(self):
        out = self.rendezvous("show", run_id="unknown", status=nodes.NO)[0]
        self.assertIn("nobody has joined", out)
        self.assertFalse(self.shown(run_id="unknown", status=nodes.NO)["exists"])

    def test_looking_at_a_run_does_not_make_one(self):
        self.rendezvous("show", status=nodes.NO)
        self.join(self.nodes("ab", 2))
        self.assertEqual(self.shown()["round"], 0)

    def test_watch_prints_every_change(self):
        watch = self.start_rendezvous("watch", "--json", "--count", "4")
        self.assertFalse(json.loads(watch.stdout.readline())["exists"])
        a = self.node("a", 2)
        self.assertEqual(members(json.loads(watch.stdout.readline())).keys(), {"a"})
        self.join([a, self.node("b", 2)])
        self.assertTrue(json.loads(watch.stdout.readline())["complete"])
        self.rendezvous("close")
        self.assertTrue(json.loads(watch.stdout.readline())["closed"])
        self.assertEqual(watch.wait(nodes.PATIENCE_SECONDS), 0)

    def test_watch_is_for_people_too(self):
        watch = self.start_rendezvous("watch", "--count", "1")
        self.assertIn("nobody has joined", muster.finish(watch).stdout.decode())
        self.assertEqual(watch.returncode, 0)

    def test_close_closes_for_good(self):
        group = self.nodes("ab", 2)
        self.join(group)
        self.assertIn(f"run {self.run_id} is closed", self.rendezvous("close")[0])
        self.assertEqual(json.loads(self.rendezvous("close", "--json")[0]),
                         {"run_id": self.run_id, "closed": True})
        self.assertTrue(self.shown()["closed"])
        self.assertIn("closed; round 0 complete", self.rendezvous("show")[0])
        group[0].wait_until_closed()

    def test_close_closes_also_a_run_that_nobody_has_joined(self):
        self.rendezvous("close")
        self.assertEqual(self.node("a", 1).failed()["kind"], "closed")

    def test_a_store_that_is_not_there_is_status_4(self):
        endpoint = f"127.0.0.1:{muster.free_port()}"
        for command in ("show", "watch", "close"):
            out, err = self.rendezvous(command, "--timeout", "1s", "--json", endpoint=endpoint,
                                       status=nodes.UNREACHABLE)
            self.assertEqual(json.loads(out)["error"], "unavailable")
            self.assertIn(endpoint, err)

    def test_a_watch_whose_server_dies_says_so(self):
        watch = self.start_rendezvous("watch", "--json")
        watch.stdout.readline()
        self.server.kill()
        done = muster.finish(watch)
        self.assertEqual(done.returncode, nodes.UNREACHABLE, done)
        self.assertTrue(done.stderr)

    def test_a_wrong_option_is_status_2_with_a_suggestion(self):
        err = self.rendezvous("show", "--conf", "read_timout=5", status=nodes.USAGE)[1]
        self.assertIn("did you mean read_timeout?", err)
        err = self.rendezvous("show", "--jsn", status=nodes.USAGE)[1]
        self.assertIn("--json", err)
        err = self.rendezvous("shwo", status=nodes.USAGE)[1]
        self.assertIn("show", err)
        self.rendezvous("show", "--conf", "read_timeout", status=nodes.USAGE)
        self.rendezvous("show", "--conf", "read_timeout=0", status=nodes.USAGE)
        self.rendezvous("show", endpoint="127.0.0.1:70000", status=nodes.USAGE)
        err = self.rendezvous("show", backend="static", status=nodes.USAGE)[1]
        self.assertIn("c10d, muster, file and etcd", err)
        self.rendezvous("show", backend="nonsense", status=nodes.USAGE)


if __name__ == "__main__":
    nodes.main()
