"""Signals at the agent in each phase, once to three times: a bounded end, and nothing left."""

import signal

import launch

OBEDIENT = "note ready; stay"
DEAF = "trap '' TERM INT HUP QUIT; note ready; stay"


class Signals(launch.Case):
    def end(self, agent, status):
        agent.end(status)
        if not any(other.is_running() for other in self.agents):
            self.assert_nobody_left()
            launch.wait_until(lambda: not self.files(self.temporary),
                              lambda: self.files(self.temporary))


class WhileRunning(Signals):
    def test_each_signal_is_passed_on_and_ends_the_job_with_status_1(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(signal=number.name):
                self.notes_file.write_text("")
                name = number.name[3:]
                agent = self.start("--nproc-per-node=2", "--max-restarts=3",
                                   self.script(f"trap 'note got {name}; exit 0' {name}; note ready; stay"))
                self.wait_notes("ready", "ready")
                agent.signal(number)
                self.end(agent, 1)
                self.assertEqual(sorted(self.notes()), [f"got {name}"] * 2 + ["ready"] * 2)
                self.assertIn(f"ended by {number.name}", agent.err.text)

    def test_a_second_signal_kills_deaf_workers(self):
        for times in (2, 3):
            for number in (signal.SIGTERM, signal.SIGINT):
                with self.subTest(times=times, signal=number.name):
                    self.notes_file.write_text("")
                    agent = self.start("--shutdown-timeout=600", self.script(DEAF))
                    self.wait_notes("ready")
                    agent.signal(number)
                    agent.err.wait(f"received {number.name}")
                    agent.signal(number)
                    if times == 3:
                        agent.process.send_signal(number)
                    self.end(agent, 1)

    def test_two_different_signals(self):
        agent = self.start("--shutdown-timeout=600", self.script(DEAF))
        self.wait_notes("ready")
        agent.signal(signal.SIGINT)
        agent.err.wait("received SIGINT")
        agent.signal(signal.SIGTERM)
        self.end(agent, 1)

    def test_the_status_says_which_signal_where_asked_for(self):
        agent = self.start("--propagate-exit-code", self.script(OBEDIENT))
        self.wait_notes("ready")
        agent.signal(signal.SIGTERM)
        self.end(agent, 128 + 15)

    def test_workers_that_end_with_failure_on_the_signal_are_no_failure_to_restart_after(self):
        agent = self.start("--max-restarts=9", self.script("trap 'exit 7' TERM; note ready; stay"))
        self.wait_notes("ready")
        agent.signal(signal.SIGTERM)
        self.end(agent, 1)
        self.assertEqual(self.notes(), ["ready"])

    def test_the_list_of_signals_can_be_chosen(self):
        agent = self.start("--signals-to-handle=SIGUSR2,SIGTERM", self.script(
            "trap 'note got USR2; exit 0' USR2; note ready $TORCHELASTIC_SIGNALS_TO_HANDLE; stay"))
        self.wait_notes("ready SIGUSR2,SIGTERM")
        agent.signal(signal.SIGUSR2)
        self.end(agent, 1)
        self.assertIn("got USR2", self.notes())

    def test_a_signal_that_is_not_handled_ends_the_agent_and_its_workers(self):
        agent = self.start(self.script(OBEDIENT))
        self.wait_notes("ready")
        agent.signal(signal.SIGUSR1)
        agent.end(-signal.SIGUSR1)
        launch.wait_until(lambda: not launch.marked(self.mark), lambda: launch.marked(self.mark))

    def test_signals_can_be_passed_on_without_an_end(self):
        agent = self.start("--signals-to-forward=SIGUSR1,SIGHUP", self.script(
            "trap 'note got USR1' USR1; trap 'note got HUP; exit 0' HUP; note ready; stay"))
        self.wait_notes("ready")
        agent.signal(signal.SIGUSR1)
        self.wait_notes("got USR1")
        self.assertTrue(agent.is_running())
        agent.signal(signal.SIGHUP)
        self.end(agent, 0)

    def test_a_signal_leaves_the_rendezvous_open(self):
        """The node that is told to end goes; another takes its place."""
        meeting = self.meeting(self.serve(), 2)
        script = self.script("""
            note "round $MUSTER_ROUND"
            [ "$MUSTER_ROUND" = 0 ] && stay
            exit 0""")
        for _ in range(2):
            self.start(*meeting, script)
        self.wait_notes("round 0", "round 0")
        self.agents[1].signal(signal.SIGTERM)
        self.agents[1].end(1)
        self.start(*meeting, script)
        self.agents[0].end(0)
        self.agents[2].end(0)


class BeforeWorkers(Signals):
    def test_at_the_very_start_the_signal_ends_it_as_if_it_had_no_handler(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal=number.name):
                agent = self.start("--nnodes=2", "--rdzv-backend=c10d",
                                   f"--rdzv-endpoint=127.0.0.1:{launch.muster.free_port()}",
                                   self.script("note no"))
                agent.signal(number)
                self.end(agent, -number)
        self.assertEqual(self.notes(), [])

    def waiting(self, *words):
        agent = self.start("--nnodes=2", "--event-log-handler=console", *words,
                           self.script("note no"))
        agent.err.wait("rendezvous.begin")
        return agent

    def test_in_the_rendezvous_alone(self):
        server = self.serve()
        for words in (["--rdzv-backend=c10d", f"--rdzv-endpoint={server.endpoint}"],
                      ["--rdzv-backend=muster", f"--rdzv-endpoint={server.endpoint}"],
                      ["--master-addr=127.0.0.1", f"--master-port={launch.muster.free_port()}"],
                      ["--master-addr=127.0.0.1", f"--master-port={launch.muster.free_port()}",
                       "--node-rank=1"]):
            for number in (signal.SIGTERM, signal.SIGINT):
                with self.subTest(words=words, signal=number.name):
                    agent = self.waiting(*words)
                    agent.signal(number)
                    self.end(agent, -number)
        self.assertEqual(self.notes(), [])

    def test_several_times_in_the_rendezvous(self):
        for times in (2, 3):
            agent = self.waiting("--rdzv-backend=c10d", f"--rdzv-endpoint={self.serve().endpoint}")
            for _ in range(times):
                agent.signal(signal.SIGTERM)
            self.end(agent, -signal.SIGTERM)


class BetweenRounds(Signals):
    def test_while_it_waits_before_a_restart(self):
        for times in (1, 2):
            agent = self.start("--max-restarts=1", "--restart-delay=600",
                               self.script("note failed; exit 3"),
                               env={"LOGLEVEL": "INFO"})
            agent.err.wait("restarting in")
            for _ in range(times):
                agent.signal(signal.SIGTERM)
            self.end(agent, 1)
        self.assertEqual(self.notes(), ["failed"] * 2)

    def test_while_it_waits_for_others_in_a_later_round(self):
        meeting = self.meeting(self.serve(), 2)
        script = self.script("note ready; stay")
        agents = [self.start(*meeting, "--event-log-handler=console", script) for _ in range(2)]
        self.wait_notes("ready", "ready")
        agents[1].process.kill()
        agents[1].end(-9)
        agents[0].err.wait(r"(?:rendezvous.begin(?:.|\n)*){2}")
        agents[0].signal(signal.SIGTERM)
        agents[0].end(1)
        self.assert_nobody_left()

    def test_while_it_stops_deaf_workers_after_a_failure(self):
        agent = self.start("--nproc-per-node=2", "--max-restarts=3", "--shutdown-timeout=600",
                           self.script("""
            [ "$RANK" = 0 ] && { trap '' TERM; note ready; stay; }
            while ! grep -q ready "$NOTES"; do sleep 0.02; done
            exit 3"""), env={"LOGLEVEL": "INFO"})
        agent.err.wait("stopping the workers")
        agent.signal(signal.SIGTERM)
        agent.err.wait("received SIGTERM")
        agent.signal(signal.SIGTERM)
        self.end(agent, 1)
        self.assertEqual(self.notes(), ["ready"])


class InTheBarrier(Signals):
    def test_an_agent_that_waits_for_others_listens(self):
        for times in (1, 3):
            with self.subTest(times=times):
                meeting = self.meeting(self.serve(), 2)
                script = self.script('note "rank $RANK"; [ "$RANK" = 0 ] && exit 0; stay')
                agents = [self.start(*meeting, "--http=0", script, env={"LOGLEVEL": "INFO"})
                          for _ in range(2)]
                ports = [launch.http_port(agent) for agent in agents]

                def find_waiting():
                    phases = [launch.get_json(port, "/status")["phase"] for port in ports]
                    return next((agent for agent, phase in zip(agents, phases)
                                 if "onfirm" in phase), None)

                waiting = launch.wait_until(find_waiting, "nobody waits")
                for _ in range(times):
                    waiting.signal(signal.SIGTERM)
                waiting.end(1)
                for agent in agents:
                    if agent.is_running():
                        agent.signal(signal.SIGTERM)
                        agent.end(1)
                self.assert_nobody_left()
                self.agents.clear()


if __name__ == "__main__":
    launch.main()
