"""Nodes that come and go, jobs side by side, and how a job ends for all of its nodes."""

import re
import signal
import time

import launch

# Says who it is in each round, and stays until it is told to go.
STAY = """
note "$RANK of $WORLD_SIZE in round $MUSTER_ROUND"
wait_file go
"""


class SideBySide(launch.Case):
    def test_two_jobs_on_one_host_without_options(self):
        script = self.script("""
            note "$TORCHELASTIC_RUN_ID $MASTER_PORT"
            wait_file go""")
        for _ in range(2):
            self.start("--nproc-per-node=2", script)
        launch.wait_until(lambda: len(self.notes()) == 4, self.notes)
        ids, ports = zip(*(line.split() for line in self.notes()))
        self.assertEqual((len(set(ids)), len(set(ports))), (2, 2))
        self.touch("go")
        self.end_all(0)

    def test_standalone_wins_over_what_else_is_said(self):
        agent = self.launch("--standalone", "--rdzv-backend=static", "--rdzv-endpoint=127.0.0.1:1",
                            self.script('note "$WORLD_SIZE"'))
        self.assertEqual(self.notes(), ["1"])
        self.assertEqual(len(re.findall("no effect with --standalone", agent.err.text)), 2)

    def test_two_jobs_with_two_ids_share_one_store(self):
        server = self.serve()
        script = self.script('note "$TORCHELASTIC_RUN_ID $RANK"')
        for run in ("a", "b"):
            for _ in range(2):
                self.start(*self.meeting(server, 2, run_id=run), script)
        self.end_all(0)
        self.assertEqual(sorted(self.notes()), ["a 0", "a 1", "b 0", "b 1"])


class Scaling(launch.Case):
    def test_one_to_two_to_one(self):
        meeting = self.meeting(self.serve(), "1:2")
        script = self.script(STAY)
        self.start(*meeting, script)
        self.wait_notes("0 of 1 in round 0")
        self.start(*meeting, script)
        self.wait_notes("0 of 2 in round 1", "1 of 2 in round 1")
        self.agents[1].signal(signal.SIGTERM)
        self.agents[1].end(1)
        self.wait_notes("0 of 1 in round 2")
        self.touch("go")
        self.agents[0].end(0)
        self.assert_nobody_left()
        self.assertEqual(len(self.notes()), 4)

    def test_a_node_that_is_killed_is_noticed_without_a_worker_that_fails(self):
        meeting = self.meeting(self.serve(), "1:2")
        script = self.script(STAY)
        for _ in range(2):
            self.start(*meeting, script)
        launch.wait_until(lambda: sum("of 2" in line for line in self.notes()) == 2, self.notes)
        before = time.monotonic()
        self.agents[1].crash()
        self.agents[1].end(-9)
        self.wait_note("0 of 1 in round [12]")
        self.assertLess(time.monotonic() - before, 30)
        self.touch("go")
        self.agents[0].end(0)

    def test_a_departure_of_a_needed_node_lets_a_replacement_in(self):
        meeting = self.meeting(self.serve(), 2)
        script = self.script(STAY)
        for _ in range(2):
            self.start(*meeting, script)
        self.wait_notes("0 of 2 in round 0", "1 of 2 in round 0")
        self.agents[0].crash()
        self.agents[0].end(-9)
        self.start(*meeting, script)
        self.wait_notes("0 of 2 in round 1", "1 of 2 in round 1")
        self.touch("go")
        self.agents[1].end(0)
        self.agents[2].end(0)

    def test_workers_that_fail_because_a_node_is_gone_cost_no_restart(self):
        """They see their peer die at once, as those do that hold a connection to it."""
        server = self.serve()
        script = self.script("""
            note "$RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT"
            [ "$WORLD_SIZE" = 1 ] && wait_file go && exit 0
            echo $$ > "$FOLDER/pid$RANK.$MUSTER_ROUND.tmp"
            mv "$FOLDER/pid$RANK.$MUSTER_ROUND.tmp" "$FOLDER/pid$RANK.$MUSTER_ROUND"
            wait_file "pid$((1 - RANK)).$MUSTER_ROUND"
            peer=$(cat "$FOLDER/pid$((1 - RANK)).$MUSTER_ROUND")
            note "$RANK connected in $MUSTER_ROUND"
            while kill -0 "$peer" 2> /dev/null; do sleep 0.01; done
            exit 1""")
        for number, how in enumerate((signal.SIGKILL, signal.SIGTERM)):
            with self.subTest(how.name):
                self.notes_file.write_text("")
                (self.folder / "go").unlink(missing_ok=True)
                for path in self.folder.glob("pid*"):
                    path.unlink()
                words = [*self.meeting(server, "1:2", run_id=f"job{number}"), script]
                stays, goes = self.start(*words), self.start(*words)
                launch.wait_until(lambda: sum("connected" in line for line in self.notes()) == 2,
                                  lambda: (self.notes(), stays.describe()))
                goes.signal(how)
                goes.end()
                self.assertEqual(self.wait_note("0 of 1, restart (.*)").group(1), "0")
                self.touch("go")
                stays.end(0)

    def test_a_spare_is_released_with_success_when_the_job_ends(self):
        meeting = self.meeting(self.serve(), "1:2")
        script = self.script(STAY)
        for _ in range(2):
            self.start(*meeting, script)
        launch.wait_until(lambda: sum("of 2" in line for line in self.notes()) == 2, self.notes)
        spare = self.start(*meeting, "--event-log-handler=console",
                           self.script("note spare", "spare"))
        spare.err.wait("parked as a spare")
        self.touch("go")
        self.end_all(0)
        self.assertNotIn("spare", self.notes())

    def test_workers_survive_the_loss_of_the_node_that_hosts_the_store_but_it_is_no_success(self):
        port = launch.muster.free_port()
        words = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                 "--rdzv-id=job",
                 "--local-addr=127.0.0.1", "--exit-barrier-timeout=1"]
        script = self.script(STAY + "note finished")
        host = self.start(*words, script)
        self.wait_notes("0 of 1 in round 0")
        other = self.start(*words, script)
        self.wait_notes("0 of 2 in round 1", "1 of 2 in round 1")
        host.crash()
        host.end(-9)
        other.err.wait("warn .*out of reach")
        self.touch("go")
        self.wait_notes("finished")
        self.assertNotIn(other.end(), (0, 2))
        self.assertIn("did not confirm", other.err.text)
        launch.wait_until(lambda: not launch.marked(self.mark), lambda: launch.marked(self.mark))


class Barrier(launch.Case):
    def pair(self, text, *options, env=None):
        meeting = self.meeting(self.serve(), 2)
        script = self.script(text)
        return [self.start(*meeting, *options, script, env=env) for _ in range(2)]

    def test_an_early_finisher_waits_for_the_others(self):
        agents = self.pair('[ "$RANK" = 0 ] || wait_file go; note "$RANK done"')
        self.wait_notes("0 done")
        self.assertTrue(all(agent.is_running() for agent in agents))
        self.touch("go")
        self.end_all(0)

    def test_a_peer_that_fails_fails_the_job_for_those_that_are_done(self):
        self.pair('[ "$RANK" = 0 ] && { note done; exit 0; }; wait_file go; exit 3',
                  "--propagate-exit-code")
        self.wait_notes("done")
        self.touch("go")
        before = time.monotonic()
        self.end_all(3)
        self.assertLess(time.monotonic() - before, 30)
        for agent in self.agents:
            self.assertEqual(launch.Report(agent.err.text).root["rank"], "1")

    def test_a_peer_that_fails_with_restarts_left_brings_the_finisher_back(self):
        self.pair("""
            note "$RANK in $MUSTER_ROUND"
            [ "$MUSTER_ROUND" = 1 ] && exit 0
            [ "$RANK" = 0 ] && exit 0
            wait_file go; exit 3""", "--max-restarts=1")
        self.wait_notes("0 in 0", "1 in 0")
        self.touch("go")
        self.end_all(0)
        self.assertEqual(sorted(self.notes()), ["0 in 0", "0 in 1", "1 in 0", "1 in 1"])

    def find_finisher(self, agents):
        """The agent in the barrier, and the other one."""
        ports = [launch.http_port(agent) for agent in agents]

        def look():
            phases = [launch.get_json(port, "/status")["phase"] for port in ports]
            return [index for index, phase in enumerate(phases) if "onfirm" in phase]

        (index,) = launch.wait_until(look, "nobody is in the barrier")
        return agents[index], agents[1 - index]

    def test_a_peer_that_dies_and_is_not_replaced_is_no_success(self):
        meeting = self.meeting(self.serve(), 2, "join_timeout=1")
        script = self.script('[ "$RANK" = 0 ] && exit 0; stay')
        agents = [self.start(*meeting, "--http=0", script, env={"LOGLEVEL": "INFO"})
                  for _ in range(2)]
        finisher, other = self.find_finisher(agents)
        other.crash()
        other.end(-9)
        finisher.end(1)
        self.assertRegex(finisher.err.text.splitlines()[-1], "muster: .*")

    def test_a_peer_that_dies_and_is_replaced_brings_the_finisher_back(self):
        text = """
            note "$RANK in $MUSTER_ROUND"
            [ "$RANK" = 0 ] || [ "$MUSTER_ROUND" = 1 ] || stay"""
        finisher, other = self.find_finisher(self.pair(text, "--http=0", env={"LOGLEVEL": "INFO"}))
        other.crash()
        other.end(-9)
        replacement = self.start(*finisher.words[:-2], self.script(text))
        finisher.end(0)
        replacement.end(0)
        self.assertEqual(sorted(self.notes())[-1], "1 in 1")

    def test_a_barrier_that_takes_too_long_is_no_success(self):
        agents = self.pair('[ "$RANK" = 0 ] && exit 0; stay', "--http=0",
                           "--exit-barrier-timeout=1",
                           env={"LOGLEVEL": "INFO"})
        finisher, other = self.find_finisher(agents)
        status = finisher.end()
        self.assertNotIn(status, (0, 2))
        self.assertIn("did not confirm", finisher.err.text)
        other.signal(signal.SIGTERM)
        other.end(1)

    def test_the_barrier_of_the_environment(self):
        agents = self.pair('[ "$RANK" = 0 ] && exit 0; stay', "--http=0",
                           env={"LOGLEVEL": "INFO", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "1"})
        finisher, other = self.find_finisher(agents)
        self.assertNotEqual(finisher.end(), 0)
        other.signal(signal.SIGTERM)
        other.end(1)

    def test_a_node_that_comes_while_some_are_done_is_let_in_or_told_to_go(self):
        meeting = self.meeting(self.serve(), "1:2")
        script = self.script('note "$RANK of $WORLD_SIZE"; wait_file go')
        self.start(*meeting, script)
        self.wait_notes("0 of 1")
        self.touch("go")
        self.start(*meeting, script)
        for agent in self.agents:
            self.assertIn(agent.end(), (0, 1))
        self.agents[0].end(0)


if __name__ == "__main__":
    launch.main()
