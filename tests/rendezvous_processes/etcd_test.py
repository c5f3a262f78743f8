"""Nodes as processes that meet over real etcd."""

import json
import pathlib

import nodes
from nodes import conf, members
import etcd_cluster
import muster  # from tests/pytorch, by way of nodes

# Short enough to wait for, long enough for a busy machine.
LEASES = dict(keep_alive_interval=1, keep_alive_max_attempt=3)


class EtcdTestCase(nodes.TestCase):
    backend = "etcd"
    options = conf(last_call_timeout=2, **LEASES)
    cluster_options = {}

    @classmethod
    def setUpClass(cls):
        cls.cluster = etcd_cluster.Cluster(**cls.cluster_options)
        cls.addClassCleanup(cls.cluster.end)

    def setUp(self):
        super().setUp()
        self.endpoint = self.cluster.endpoint


class OneMember(EtcdTestCase):
    def test_ranks_follow_the_order_of_addresses(self):
        rounds = self.join(self.nodes("cab", 3))
        self.assertEqual([line["rank"] for line in rounds], [2, 0, 1])
        self.assertEqual({line["master_addr"] for line in rounds}, {"a"})

    def test_a_late_joiner_makes_a_new_round(self):
        a = self.node("a", 1, 2)
        self.assertEqual(a.joined()["world_size"], 1)
        b = self.node("b", 1, 2)
        self.assertEqual(a.next("status")["waiting"], 1)
        self.join([a, b])

    def test_a_killed_member_is_missed_when_its_lease_ends(self):
        group = self.nodes("abc", 2, 3)
        first = self.meet(group)[0]["round"]
        group[0].kill()
        for node in group[1:]:
            self.assertTrue(node.next("status", lambda line: line["lost"]))
        self.meet(group[1:], after=first)

    def test_one_that_stands_still_for_too_long_is_dropped_and_comes_back(self):
        group = self.nodes("abc", 2, 3)
        first = self.meet(group)[0]["round"]
        group[2].stop()
        second = self.meet(group[:2], after=first)[0]["round"]
        group[2].resume()
        self.meet(group, after=second)

    def test_a_spare_takes_the_place_of_a_killed_member(self):
        a, b = self.nodes("ab", 2)
        self.join([a, b])
        spare = self.node("c", 2)
        self.wait_until_shown(lambda shown: len(shown["nodes"]) == 3)
        self.assertEqual(a.waiting(), 0)
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

    def test_the_stores_of_rounds_are_in_it(self):
        a, b = self.nodes("ab", 2)
        self.join([a, b])
        a.ask("set key value", "set")
        self.assertEqual(b.ask("get key", "value")["value"], "value")

    def test_another_maximum_is_refused(self):
        self.join(self.nodes("ab", 2))
        self.assertEqual(self.node("c", 2, 3).failed()["kind"], "invalid")

    def test_what_is_no_state_of_ours_is_said_to_be_and_left_alone(self):
        self.join(self.nodes("ab", 2))
        keys = [key for key in self.cluster.get("/") if self.run_id in key and "state" in key]
        self.assertEqual(len(keys), 1, self.cluster.get("/"))
        # The same key, of a run that nobody is in.
        key = keys[0].replace(self.run_id, "spoilt")
        self.cluster.control("put", key, "junk")
        error = self.node("c", 1, run_id="spoilt").failed()
        self.assertEqual(error["kind"], "corrupt", error)
        self.rendezvous("show", run_id="spoilt", status=nodes.FAILED)
        self.assertIn(key, self.cluster.get("/"))

    def test_the_older_name_of_the_backend_is_one_too(self):
        self.join(self.nodes("ab", 2, backend="etcd-v2"))

    def test_all_keys_are_under_the_prefix(self):
        before = set(self.cluster.get("/"))
        options = self.options + ",etcd_prefix=/of-a-test"
        group = self.nodes("ab", 2, options=options)
        self.join(group)
        group[0].ask("set key value", "set")
        added = set(self.cluster.get("/")) - before
        self.assertTrue(added)
        self.assertEqual([key for key in added if not key.startswith("/of-a-test/")], [])

    def test_show_watch_and_close(self):
        self.rendezvous("show", status=nodes.NO)
        watch = self.start_rendezvous("watch", "--json")
        self.assertFalse(json.loads(watch.stdout.readline())["exists"])
        group = self.nodes("ab", 2)
        self.join(group)
        while members(json.loads(watch.stdout.readline())) != {"a": 0, "b": 1}:
            pass
        lines = self.rendezvous("show")[0].splitlines()
        self.assertEqual(lines[0], f"run {self.run_id}: round 0 complete with 2 nodes")
        self.assertEqual(lines[2].split()[:3], ["0", "member", "a"])
        self.assertEqual([entry["connected"] for entry in self.shown()["nodes"]], [True, True])
        self.rendezvous("close")
        self.assertTrue(self.shown()["closed"])
        while not json.loads(watch.stdout.readline())["closed"]:
            pass
        # Those who are in it hear of it.
        group[0].wait_until_closed()

    def test_no_etcd_is_status_4_and_a_connection_error(self):
        endpoint = f"127.0.0.1:{muster.free_port()}"
        self.rendezvous("show", "--timeout", "1s", endpoint=endpoint, status=nodes.UNREACHABLE)
        error = self.node("a", 1, endpoint=endpoint,
                          options=conf(read_timeout=1)).failed(of="create")
        self.assertEqual(error["kind"], "unavailable", error)
        self.assertIn(endpoint, error["message"])

    def test_bad_options_are_refused(self):
        for options, word in (("protocol=dummy", "protocol"), ("is_host=1", "is_host"),
                              ("pasword=x", "did you mean password?"), ("user=x", "password"),
                              ("ca_cert=/x", "https"), ("read_timeout=0", "read_timeout")):
            with self.subTest(options=options):
                error = self.node("a", 1, options=options).failed(of="create")
                self.assertEqual(error["kind"], "invalid", error)
                self.assertIn(word, error["message"])


class ThreeMembers(EtcdTestCase):
    cluster_options = dict(member_count=3)

    def test_one_of_which_is_killed(self):
        group = self.nodes("ab", 2, 3)
        first = self.meet(group)[0]["round"]
        for member in range(3):
            with self.subTest(member=member):
                self.cluster.kill(member)
                # Whatever the nodes were connected to, they are still one group, and a newcomer
                # finds them.
                newcomer = self.node(f"c{member}", 2, 3)
                first = self.meet([*group, newcomer], after=first)[0]["round"]
                self.cluster.restart(member)
                newcomer.kill()
                first = self.meet(group, after=first)[0]["round"]

    def lose_a_member_by_its_lease(self, endpoint):
        observer, silent = self.nodes("xy", 1, 2, endpoint=endpoint, run_id="another")
        self.meet([observer, silent])
        silent.kill()
        observer.next("status", lambda line: line["lost"])

    def test_all_of_which_are_stopped_and_resumed(self):
        group = self.nodes("abc", 3)
        self.join(group)
        group[0].ask("set key value", "set")
        self.cluster.stop_all()
        # Longer than any lease: at another etcd, a group loses a member by one.
        other = etcd_cluster.Cluster()
        self.addCleanup(other.end)
        self.lose_a_member_by_its_lease(other.endpoint)
        self.cluster.resume_all()
        # And again, now at the same one: whatever leases may do to the group, they have done.
        self.lose_a_member_by_its_lease(self.endpoint)
        self.meet(group)
        self.assertEqual(group[2].waiting(), 0)
        self.assertEqual(members(self.shown()), {"a": 0, "b": 1, "c": 2})
        # No more than they were, none of them is alone; and it is still the run it was.
        self.assertTrue(all(line["world_size"] == 3 for node in group
                            for line in node.all("joined")))
        rounds = [[line["round"] for line in node.all("joined")] for node in group]
        self.assertTrue(all(seen == rounds[0] for seen in rounds), rounds)
        self.rendezvous("close")
        self.assertEqual(self.node("d", 3).failed()["kind"], "closed")

    def test_all_of_which_are_stopped_while_nodes_join(self):
        a, b = self.nodes("ab", 3)
        self.wait_until_shown(lambda shown: members(shown).keys() == {"a", "b"})
        self.cluster.stop_all()
        c = self.node("c", 3)
        self.cluster.resume_all()
        self.meet([a, b, c])


class Password(EtcdTestCase):
    cluster_options = dict(password="a secret")

    def test_of_a_user_opens_it(self):
        secret = pathlib.Path(self.cluster.file("secret"))
        secret.write_text("a secret\n")
        options = conf(user="root", password="a secret")
        group = [self.node("a", 2, options=options),
                 self.node("b", 2, options=conf(user="root", password_file=secret))]
        self.join(group)
        shown = self.shown("--conf", options)
        self.assertEqual(members(shown), {"a": 0, "b": 1})

    def test_that_is_wrong_or_missing_is_refused(self):
        for options in (conf(user="root", password="no secret"), ""):
            with self.subTest(options=options):
                error = self.node("a", 1, options=options).next("error")
                self.assertEqual(error["kind"], "invalid", error)


class Tls(EtcdTestCase):
    cluster_options = dict(tls=True)

    def test_is_what_the_options_say(self):
        options = conf(protocol="https", ca_cert=self.cluster.file("ca.pem"),
                       ssl_cert=self.cluster.file("client.pem"),
                       ssl_cert_key=self.cluster.file("client.key"), **LEASES)
        self.join(self.nodes("ab", 2, options=options))
        older = conf(protocol="HTTPS", cacert=self.cluster.file("ca.pem"),
                     cert=self.cluster.file("client.pem"), key=self.cluster.file("client.key"))
        self.assertEqual(members(self.shown("--conf", older)), {"a": 0, "b": 1})

    def test_without_the_right_certificates_is_no_connection(self):
        for options in (conf(protocol="https", read_timeout=2),
                        conf(protocol="https", read_timeout=2,
                             ca_cert=self.cluster.file("ca.pem")),
                        conf(protocol="https", read_timeout=2,
                             ca_cert=self.cluster.file("missing.pem"))):
            with self.subTest(options=options):
                error = self.node("a", 1, options=options).failed(of="create")
                self.assertIn(error["kind"], ("unavailable", "invalid"), error)


if __name__ == "__main__":
    etcd_cluster.skip_if_missing()
    nodes.main()
