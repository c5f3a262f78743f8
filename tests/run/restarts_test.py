"""Restarts: what counts, what does not, and what workers and logs see of it."""

import json
import re
import signal
import time

import launch

# Says which round it is, and fails as often as the first argument says.
FAIL_TIMES = """
note "$RANK: restart $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS, round $MUSTER_ROUND"
while [ "$(grep -c "round $MUSTER_ROUND" "$NOTES")" -lt "$WORLD_SIZE" ]; do sleep 0.02; done
[ "$TORCHELASTIC_RESTART_COUNT" -ge "$1" ] && exit 0
[ "$RANK" = 0 ] && exit 3
stay
"""


class Budget(launch.Case):
    def test_without_a_budget_the_first_failure_ends_it(self):
        self.launch("--nproc-per-node=2", self.script(FAIL_TIMES), 1, status=1)
        self.assertEqual({line for line in self.notes() if line.startswith("0")},
                         {"0: restart 0 of 0, round 0"})

    def test_as_many_restarts_as_there_are_failures(self):
        for budget in (1, 3):
            with self.subTest(budget=budget):
                self.notes_file.write_text("")
                self.launch("--nproc-per-node=2", f"--max-restarts={budget}",
                            self.script(FAIL_TIMES), budget)
                self.assertEqual([line for line in self.notes() if line.startswith("0")],
                                 [f"0: restart {count} of {budget}, round {count}"
                                  for count in range(budget + 1)])
                self.assert_no_files()

    def test_one_failure_too_many_ends_it(self):
        for budget in (1, 3):
            with self.subTest(budget=budget):
                self.notes_file.write_text("")
                agent = self.launch(f"--max-restarts={budget}", self.script(FAIL_TIMES), 99,
                                    status=1)
                self.assertEqual(len(self.notes()), budget + 1)
                self.assertEqual(launch.Report(agent.err.text).root["code"], "3")

    def test_every_restart_has_a_folder_of_its_own(self):
        self.launch("--max-restarts=2", "--redirects=1", f"--log-dir={self.logs}",
                    self.script('''
                        echo "this is $TORCHELASTIC_RESTART_COUNT"
                        [ $TORCHELASTIC_RESTART_COUNT = 2 ]'''))
        job = self.job_folder()
        self.assertEqual(job.stat().st_mode & 0o777, 0o700)
        self.assertEqual(sorted(path.name for path in job.iterdir()),
                         ["attempt_0", "attempt_1", "attempt_2"])
        for count in range(3):
            self.assertEqual((job / f"attempt_{count}" / "0" / "stdout.log").read_text(),
                             f"this is {count}\n")

    def test_several_workers_that_fail_at_once_cost_one_restart(self):
        self.launch("--nproc-per-node=4", "--max-restarts=1",
                    self.script('''
                        note $TORCHELASTIC_RESTART_COUNT
                        [ $TORCHELASTIC_RESTART_COUNT = 1 ]'''))
        self.assertEqual(sorted(set(self.notes())), ["0", "1"])

    def test_the_other_workers_are_stopped_before_new_ones_start(self):
        self.launch("--nproc-per-node=2", "--max-restarts=1", self.script("""
            [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && { note "started $RANK"; exit 0; }
            [ "$RANK" = 1 ] && { trap 'sleep 0.3; note stopped; exit 0' TERM; note ready; stay; }
            while ! grep -q ready "$NOTES"; do sleep 0.02; done
            exit 1"""))
        self.assertEqual(self.notes()[:2], ["ready", "stopped"])
        self.assertEqual(sorted(self.notes()[2:]), ["started 0", "started 1"])

    def test_the_window_forgets_old_restarts(self):
        """Three failures and a budget of one, in a window that is shorter than their distance."""
        agent = self.start("--max-restarts=1", "--restart-window=300ms", self.script("""
            note "round $MUSTER_ROUND"
            [ "$MUSTER_ROUND" = 3 ] && exit 0
            sleep 0.4
            exit 3"""))
        agent.end(0)
        self.assertEqual(self.notes(), [f"round {count}" for count in range(4)])

    def test_restarts_are_delayed_and_each_twice_as_long(self):
        agent = self.start("--max-restarts=3", "--restart-delay=100ms", "--restart-delay-max=200ms",
                           self.script("exit 3"), env={"LOGLEVEL": "INFO"})
        agent.end(1)
        self.assertEqual(re.findall(r"restarting in (\S+)", agent.err.text),
                         ["100ms", "200ms", "200ms"])

    def test_a_delay_really_passes(self):
        before = time.monotonic()
        self.launch("--max-restarts=2", "--restart-delay=200ms", self.script("exit 3"), status=1)
        self.assertGreaterEqual(time.monotonic() - before, 0.6)


class Alone(launch.Case):
    """--restart-scope=worker: only the worker that failed is started again."""

    def test_the_others_run_on(self):
        agent = self.launch("--nproc-per-node=3", "--max-restarts=2", "--restart-scope=worker",
                            "--redirects=1", f"--log-dir={self.logs}", self.script("""
            note "$RANK: restart $TORCHELASTIC_RESTART_COUNT, round $MUSTER_ROUND"
            echo "this is $TORCHELASTIC_RESTART_COUNT"
            [ "$RANK" = 1 ] && { [ "$TORCHELASTIC_RESTART_COUNT" = 2 ]; exit; }
            while ! grep -q '1: restart 2' "$NOTES"; do sleep 0.02; done"""))
        self.assertEqual(sorted(self.notes()),
                         ["0: restart 0, round 0"] +
                         [f"1: restart {count}, round 0" for count in range(3)] +
                         ["2: restart 0, round 0"])
        self.assertEqual(len(re.findall("worker failed", agent.err.text)), 2)
        attempt = self.job_folder() / "attempt_0"
        for count, name in enumerate(("1", "1.restart_1", "1.restart_2")):
            self.assertEqual((attempt / name / "stdout.log").read_text(), f"this is {count}\n")
        self.assert_nobody_left()

    def test_each_worker_has_a_budget_of_its_own(self):
        self.launch("--nproc-per-node=4", "--max-restarts=1", "--restart-scope=worker",
                    self.script('note $RANK; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]'))
        self.assertEqual(sorted(self.notes()), sorted("00112233"))

    def test_one_failure_too_many_ends_the_job(self):
        agent = self.launch("--nproc-per-node=2", "--max-restarts=1", "--restart-scope=worker",
                            self.script('note $RANK; [ "$RANK" = 1 ] && exit 7; stay'), status=1)
        self.assertEqual(sorted(self.notes()), ["0", "1", "1"])
        report = launch.Report(agent.err.text)
        self.assertEqual((report.root["rank"], report.root["code"]), ("1", "7"))
        self.assert_nobody_left()

    def test_what_a_worker_left_behind_is_gone_before_it_starts_again(self):
        self.launch("--nproc-per-node=2", "--max-restarts=1", "--restart-scope=worker",
                    self.script("""
            [ "$RANK" = 0 ] && { while ! grep -q done "$NOTES"; do sleep 0.02; done; exit 0; }
            if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
                setsid sleep 1000 & note "left $!"
                exit 3
            fi
            left=$(sed -n 's/^left //p' "$NOTES")
            kill -0 "$left" 2>/dev/null && note "still there"
            note done"""))
        self.assertEqual(self.notes()[1:], ["done"])

    def test_restarts_are_delayed(self):
        agent = self.start("--max-restarts=2", "--restart-scope=worker", "--restart-delay=50ms",
                           self.script("exit 3"), env={"LOGLEVEL": "INFO"})
        agent.end(1)
        self.assertEqual(re.findall(r"restarting worker 0 in (\S+)", agent.err.text),
                         ["50ms", "100ms"])

    def test_a_stop_in_the_middle_of_a_delay_starts_nothing_any_more(self):
        agent = self.start("--nproc-per-node=2", "--max-restarts=9", "--restart-scope=worker",
                           "--restart-delay=1h", "--restart-delay-max=1h", self.script(
                               'note "started $RANK"; [ "$RANK" = 1 ] && exit 3; stay'),
                           env={"LOGLEVEL": "INFO"})
        agent.err.wait("restarting worker 1 in 60m")
        self.wait_notes("started 0", "started 1")
        agent.signal(signal.SIGTERM)
        agent.end(1)
        self.assertEqual(sorted(self.notes()), ["started 0", "started 1"])
        self.assert_nobody_left()

    def test_other_nodes_do_not_even_notice(self):
        meeting = self.meeting(self.serve(), 2)
        script = self.script("""
            note "$RANK: restart $TORCHELASTIC_RESTART_COUNT, round $MUSTER_ROUND"
            [ "$RANK" = 1 ] && { [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]; exit; }
            while ! grep -q '1: restart 1' "$NOTES"; do sleep 0.02; done""")
        for _ in range(2):
            self.start(*meeting, "--max-restarts=1", "--restart-scope=worker", script)
        self.end_all(0)
        self.assertEqual(sorted(self.notes()), ["0: restart 0, round 0", "1: restart 0, round 0",
                                                "1: restart 1, round 0"])

    def test_status_and_metrics_count_what_the_budget_counts(self):
        """That is, the worker that has been started again most often."""
        agent = self.start("--nproc-per-node=3", "--max-restarts=5", "--restart-scope=worker",
                           "--http=0", self.script("""
            [ "$TORCHELASTIC_RESTART_COUNT" -lt "$RANK" ] && exit 3
            note "$RANK: restart $TORCHELASTIC_RESTART_COUNT"
            wait_file go"""), env={"LOGLEVEL": "INFO"})
        port = launch.http_port(agent)
        self.wait_notes(*[f"{rank}: restart {rank}" for rank in range(3)])
        status = launch.get_json(port, "/status")
        self.assertEqual((status["restarts_used"], status["restarts_max"]), (2, 5))
        metrics = launch.get(port, "/metrics")[1]
        self.assertRegex(metrics, r'(?m)^muster_remaining_restarts\{role="default"\} 3$')
        self.assertRegex(
            metrics,
            r'(?m)^muster_torchelastic\{name="workers.default.remaining_restarts"\} 3$')
        self.touch("go")
        agent.end(0)

    def test_the_watchdog_watches_the_new_one_too(self):
        agent = self.launch("--max-restarts=1", "--restart-scope=worker", "--hang-timeout=300ms",
                            self.script('"$MUSTER" alive; stay'), status=1)
        self.assertEqual(len(re.findall("is killed", agent.err.text)), 2)


class Departures(launch.Case):
    """--max-departures: a node that comes and goes does not keep a job busy for ever."""

    def lose_a_node(self, meeting, number, script):
        """One more agent joins, and is killed once both workers of a common round run."""
        other = self.start(*meeting, script)
        self.wait_notes(*[f"{rank} of 2 in {number}" for rank in range(2)])
        other.signal(signal.SIGKILL)
        other.end(-signal.SIGKILL)

    def test_one_too_many_ends_the_job(self):
        meeting = [*self.meeting(self.serve(), "1:2"), "--max-departures=1"]
        script = self.script('note "$RANK of $WORLD_SIZE in $MUSTER_ROUND"; stay')
        first = self.start(*meeting, script)
        self.wait_notes("0 of 1 in 0")
        self.lose_a_node(meeting, 1, script)
        self.wait_notes("0 of 1 in 2")
        self.lose_a_node(meeting, 3, script)
        first.end(1)
        self.assertIn("muster: nodes were lost more often than --max-departures 1 allows\n",
                      first.err.text)
        self.assertNotIn("0 of 1 in 4", self.notes())

    def test_none_at_all(self):
        meeting = [*self.meeting(self.serve(), "1:2"), "--max-departures=0"]
        script = self.script('note "$RANK of $WORLD_SIZE in $MUSTER_ROUND"; stay')
        first = self.start(*meeting, script)
        self.wait_notes("0 of 1 in 0")
        self.lose_a_node(meeting, 1, script)
        first.end(1)


class TwoNodes(launch.Case):
    def test_the_budget_belongs_to_the_job(self):
        """Each node has one failure; together they are one too many."""
        meeting = self.meeting(self.serve(), 2)
        script = self.script("""
            note "$RANK in $MUSTER_ROUND: $TORCHELASTIC_RESTART_COUNT"
            while [ "$(grep -c "in $MUSTER_ROUND:" "$NOTES")" -lt 2 ]; do sleep 0.02; done
            [ "$RANK" = "$MUSTER_ROUND" ] && exit 3
            stay""")
        for _ in range(2):
            self.start(*meeting, "--max-restarts=1", script)
        self.end_all(1)
        self.assertEqual(sorted(self.notes()), ["0 in 0: 0", "0 in 1: 1", "1 in 0: 0", "1 in 1: 1"])
        for agent in self.agents:
            self.assertEqual(launch.Report(agent.err.text).root["rank"], "1")

    def test_the_budget_is_untouched_when_a_node_joins(self):
        meeting = self.meeting(self.serve(), "1:2")
        script = self.script("""
            note "$RANK of $WORLD_SIZE in $MUSTER_ROUND: $TORCHELASTIC_RESTART_COUNT"
            [ "$WORLD_SIZE" = 2 ] && exit 0
            stay""")
        options = ["--max-restarts=1", f"--log-dir={self.logs}", "--redirects=1"]
        self.start(*meeting, *options, script)
        self.wait_notes("0 of 1 in 0: 0")
        self.start(*meeting, *options, script)
        self.end_all(0)
        self.assertEqual(sorted(self.notes()),
                         ["0 of 1 in 0: 0", "0 of 2 in 1: 0", "1 of 2 in 1: 0"])
        # The first agent has two rounds, and the logs of both.
        folders = sorted(sorted(path.name for path in job.iterdir()) for job in self.logs.iterdir())
        self.assertEqual(folders, [["attempt_0"], ["attempt_0", "attempt_0.round_1"]])

    def test_a_node_that_is_replaced_brings_no_new_budget(self):
        meeting = self.meeting(self.serve(), 2)
        script = self.script("""
            note "$RANK in $MUSTER_ROUND: $TORCHELASTIC_RESTART_COUNT"
            while [ "$(grep -c "in $MUSTER_ROUND:" "$NOTES")" -lt 2 ]; do sleep 0.02; done
            [ "$MUSTER_ROUND" = 0 ] && [ "$RANK" = 0 ] && exit 3
            [ "$MUSTER_ROUND" -ge 2 ] && [ "$RANK" = 1 ] && exit 4
            stay""")
        for _ in range(2):
            self.start(*meeting, "--max-restarts=1", script)
        self.wait_notes("0 in 1: 1", "1 in 1: 1")
        self.agents[1].crash()
        self.agents[1].end(-9)
        self.start(*meeting, "--max-restarts=1", script)
        self.wait_notes("0 in 2: 1", "1 in 2: 1")
        self.agents[0].end(1)
        self.agents[2].end(1)
        self.assertEqual(len(self.notes()), 6)

    def test_a_failure_restarts_the_workers_of_all_nodes_at_once(self):
        meeting = self.meeting(self.serve(), 2)
        script = self.script(FAIL_TIMES)
        for _ in range(2):
            self.start(*meeting, "--max-restarts=1", script, 1)
        self.end_all(0)
        self.assertEqual(sorted(self.notes()),
                         [f"{rank}: restart {count} of 1, round {count}" for rank in range(2)
                          for count in range(2)])


class Events(launch.Case):
    def test_budget_and_restarts_are_in_the_events(self):
        events = self.folder / "events"
        self.launch("--max-restarts=1", f"--event-log-handler=file:{events}",
                    self.script(FAIL_TIMES), 1)
        records = [json.loads(line) for line in events.read_text().splitlines()]
        end = [record for record in records
               if record["name"] == "torchelastic.worker.status.SUCCEEDED"]
        self.assertEqual({record["source"] for record in end}, {"AGENT", "WORKER"})
        self.assertEqual({record["metadata"]["agent_restarts"] for record in end}, {1})


if __name__ == "__main__":
    launch.main()
