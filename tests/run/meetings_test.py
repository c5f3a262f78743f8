"""Every rendezvous that needs no other program, and what nodes do at awkward moments."""

import os
import signal
import time

import launch

AGAIN = """
note "$RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT"
while [ "$(grep -c "restart $TORCHELASTIC_RESTART_COUNT" "$NOTES")" -lt 2 ]; do sleep 0.02; done
[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0
[ "$RANK" = 1 ] && exit 3
stay
"""
STAY = 'note "$RANK of $WORLD_SIZE in round $MUSTER_ROUND"; wait_file go\n'


class Backends(launch.Case):
    """Two nodes, one failure, one restart, success."""

    def check(self, first, second=None):
        script = self.script(AGAIN)
        for words in (first, second or first):
            self.start(*words, "--max-restarts=1", "--local-addr=127.0.0.1", script)
        self.end_all(0)
        self.assertEqual(sorted(self.notes()), [f"{rank} of 2, restart {count}" for rank in range(2)
                                                for count in range(2)])

    def test_c10d_hosted_by_one_of_the_nodes(self):
        port = launch.muster.free_port()
        self.check(["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                    "--rdzv-id=job"])

    def test_c10d_in_a_file(self):
        self.check(["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.folder}/store",
                    "--rdzv-id=job",
                    "--rdzv-conf=store_type=file"])

    def test_muster_at_a_server(self):
        self.check(["--nnodes=2", "--rdzv-backend=muster",
                    f"--rdzv-endpoint={self.serve().endpoint}", "--rdzv-id=job"])

    def test_file(self):
        self.check(["--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={self.folder}/meeting",
                    "--rdzv-id=job"])

    def test_static(self):
        common = ["--nnodes=2", "--master-addr=127.0.0.1",
                  f"--master-port={launch.muster.free_port()}"]
        self.check([*common, "--node-rank=0"], [*common, "--node-rank=1"])

    def test_the_end_is_prompt_when_the_host_of_the_store_is_the_first_to_go(self):
        """Five times, as it is a matter of who is faster."""
        script = self.script("[ $TORCHELASTIC_RESTART_COUNT = 1 ]")
        for _ in range(5):
            common = ["--nnodes=2", "--master-addr=127.0.0.1",
                      f"--master-port={launch.muster.free_port()}", "--max-restarts=1"]
            agents = [self.start(*common, f"--node-rank={rank}", script) for rank in range(2)]
            agents[0].end(0)
            before = time.monotonic()
            agents[1].end(0)
            self.assertLess(time.monotonic() - before, 4)

    def test_everything_by_variables(self):
        server = self.serve()
        env = {"PET_NNODES": "2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": server.endpoint,
               "PET_RDZV_ID": "job",
               "PET_MAX_RESTARTS": "1", "PET_NPROC_PER_NODE": "1", "PET_LOCAL_ADDR": "127.0.0.1"}
        script = self.script(AGAIN)
        for _ in range(2):
            self.start(script, env=env)
        self.end_all(0)

    def test_a_run_that_is_over_is_not_joined(self):
        meeting = self.meeting(self.serve(), 1)
        self.launch(*meeting, self.script("note ran"))
        agent = self.start(*meeting, self.script("note ran"))
        agent.end(1)
        self.assertRegex(agent.err.text, r"\Amuster: .*\n\Z")
        self.assertEqual(self.notes(), ["ran"])


class Moments(launch.Case):
    def test_nodes_that_fail_at_the_same_time_cost_one_restart(self):
        meeting = self.meeting(self.serve(), 2)
        script = self.script("""
            note "restart $TORCHELASTIC_RESTART_COUNT"
            while [ "$(grep -c "restart $TORCHELASTIC_RESTART_COUNT" "$NOTES")" -lt 2 ]; do sleep 0.01; done
            [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]""")
        for _ in range(2):
            self.start(*meeting, "--max-restarts=1", script)
        self.end_all(0)
        self.assertEqual(sorted(self.notes()), ["restart 0"] * 2 + ["restart 1"] * 2)

    def test_a_signal_to_all_nodes_at_once(self):
        meeting = self.meeting(self.serve(), 3)
        script = self.script("note ready; stay")
        for _ in range(3):
            self.start(*meeting, script)
        self.wait_notes(*["ready"] * 3)
        for agent in self.agents:
            agent.signal(signal.SIGTERM)
        self.end_all(1)
        self.assertEqual(len(self.notes()), 3)

    def test_three_nodes_come_one_after_the_other(self):
        meeting = self.meeting(self.serve(), "1:3")
        script = self.script(STAY)
        for count in range(1, 4):
            self.start(*meeting, script)
            launch.wait_until(lambda: sum(f"of {count} in" in line
                                          for line in self.notes()) >= count, self.notes)
        self.touch("go")
        self.end_all(0)

    def test_a_node_that_is_taken_for_dead_comes_back(self):
        """It was only stopped: its workers are stopped before it joins again."""
        meeting = self.meeting(self.serve(), "1:2",
                               "keep_alive_interval=1,keep_alive_max_attempt=2")
        script = self.script(STAY)
        for _ in range(2):
            self.start(*meeting, script)
        launch.wait_until(lambda: sum("of 2 in" in line for line in self.notes()) == 2, self.notes)
        os.kill(self.agents[1].inner(), signal.SIGSTOP)
        try:
            self.wait_note(r"0 of 1 in round \d+")
        finally:
            os.kill(self.agents[1].inner(), signal.SIGCONT)
        launch.wait_until(lambda: sum("of 2 in" in line for line in self.notes()) == 4,
                          lambda: "\n".join([str(self.notes()),
                                             *(agent.describe() for agent in self.agents)]))
        self.touch("go")
        self.end_all(0)

    def test_a_node_that_comes_while_others_wait_before_a_restart(self):
        meeting = self.meeting(self.serve(), "1:2")
        script = self.script("""
            note "$RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT"
            [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0
            exit 3""")
        options = ["--max-restarts=1", "--restart-delay=700ms", script]
        first = self.start(*meeting, *options, env={"LOGLEVEL": "INFO"})
        first.err.wait("restarting in")
        self.start(*meeting, *options)
        self.end_all(0)
        self.assertEqual(self.notes()[0], "0 of 1, restart 0")

    def test_nodes_with_different_budgets_agree(self):
        """Who has none left ends the job for all."""
        meeting = self.meeting(self.serve(), 2)
        script = self.script("""
            note "$RANK in $MUSTER_ROUND"
            while [ "$(grep -c "in $MUSTER_ROUND" "$NOTES")" -lt 2 ]; do sleep 0.01; done
            [ "$ROLE_NAME" = fails ] && exit 3
            stay""")
        self.start(*meeting, "--max-restarts=0", "--role=fails", script)
        self.start(*meeting, "--max-restarts=9", script)
        self.end_all(1)
        self.assertEqual(len(self.notes()), 2)

    def test_a_node_that_cannot_start_its_workers_fails_the_job_and_all_say_why(self):
        meeting = self.meeting(self.serve(), 2)
        plain = self.folder / "plain"
        plain.touch(0o755)
        self.start(*meeting, self.script("note ready; stay"))
        self.start(*meeting, plain)
        self.end_all(1)
        for agent in self.agents:
            self.assertIn("exec format", agent.err.text)

    def test_a_static_node_that_dies_does_not_leave_the_others_waiting_for_ever(self):
        common = ["--nnodes=2", "--master-addr=127.0.0.1",
                  f"--master-port={launch.muster.free_port()}",
                  "--exit-barrier-timeout=1"]
        agents = [self.start(*common, f"--node-rank={rank}",
                             self.script('note "$RANK"; wait_file go')) for rank in range(2)]
        self.wait_notes("0", "1")
        agents[1].crash()
        agents[1].end(-9)
        self.touch("go")
        self.assertNotEqual(agents[0].end(), 0)
        self.assert_nobody_left()


class Consoles(launch.Case):
    def test_a_console_that_nobody_reads_does_not_keep_the_agent_from_ending(self):
        read, write = os.pipe()
        try:
            agent = launch.subprocess.Popen(
                [launch.BINARY, "run", "--tee=1", "--shutdown-timeout=1",
                 self.script("note ready; yes")], stdout=write,
                stderr=launch.subprocess.DEVNULL, stdin=launch.subprocess.DEVNULL,
                env=self.environment())
            self.wait_notes("ready")
            agent.send_signal(signal.SIGTERM)
            self.assertEqual(agent.wait(launch.PATIENCE_SECONDS), 1)
            self.assert_nobody_left()
        finally:
            os.close(read)
            os.close(write)

    def test_a_console_that_goes_away_does_not_end_the_job(self):
        read, write = os.pipe()
        agent = launch.subprocess.Popen(
            [launch.BINARY, "run", "--tee=1", f"--log-dir={self.logs}",
             self.script("echo begin; wait_file go; seq 1 50000; note done")], stdout=write,
            stderr=launch.subprocess.DEVNULL, stdin=launch.subprocess.DEVNULL,
            env=self.environment())
        os.close(write)
        self.assertTrue(os.read(read, 100).startswith(b"[default0]:begin"))
        os.close(read)
        self.touch("go")
        self.assertEqual(agent.wait(launch.PATIENCE_SECONDS), 0)
        self.assertEqual(self.notes(), ["done"])
        (log,) = self.logs.rglob("stdout.log")
        self.assertEqual(len(log.read_text().splitlines()), 50001)


if __name__ == "__main__":
    launch.main()
