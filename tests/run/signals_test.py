"""Signals at the agent in each phase, once to three times: a bounded end, and nothing left."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap

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
        agents[1].crash()
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


# Hears each signal, and takes its time to tidy up.
PATIENT = """
    for name in TERM INT HUP QUIT; do trap "note got $name" $name; done
    note ready; wait_file tidy; note tidied"""


class TwoProcesses(Signals):
    """What was started as `muster run` guards the agent, a child of it. Whoever signals them in
    whichever way, the workers hear it once, and are not killed before they have tidied up."""

    def start_as(self, *program, script=PATIENT, options=("--shutdown-timeout=600",)):
        agent = launch.Agent([*options, self.script(script)], environment=self.environment(),
                             folder=self.here, name=f"agent {len(self.agents)}",
                             program=[*program, launch.BINARY, "run"])
        self.agents.append(agent)
        self.wait_notes("ready")
        return agent

    def check_heard_once(self, agent, name="TERM", status=1):
        self.wait_notes(f"got {name}")
        self.touch("tidy")
        self.end(agent, status)
        self.assertEqual(self.notes(), ["ready", f"got {name}", "tidied"])
        self.assertNotIn("second signal", agent.err.text)
        self.assertEqual(agent.err.text.count("received"), 1)

    def several_times(self):
        for _ in range(5):
            self.notes_file.write_text("")
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "tidy").unlink()
            yield

    def test_the_process_alone(self):
        for _ in self.several_times():
            agent = self.start_as()
            agent.signal(signal.SIGTERM)
            self.check_heard_once(agent)

    def test_the_whole_group(self):
        for _ in self.several_times():
            agent = self.start_as("setsid")
            os.killpg(agent.pid, signal.SIGTERM)
            self.check_heard_once(agent)

    def test_timeout_which_signals_the_process_and_its_group(self):
        for _ in self.several_times():
            agent = self.start_as("timeout", "-s", "TERM", "600")
            agent.signal(signal.SIGTERM)  # as if the time were over
            self.check_heard_once(agent)

    def test_each_process_by_itself_as_job_managers_do(self):
        for first_inner in (True, False):
            for _ in self.several_times():
                agent = self.start_as()
                pids = [agent.inner(), agent.pid]
                for pid in pids if first_inner else reversed(pids):
                    os.kill(pid, signal.SIGTERM)
                self.check_heard_once(agent)

    def test_the_agent_alone(self):
        agent = self.start_as()
        os.kill(agent.inner(), signal.SIGTERM)
        self.check_heard_once(agent)

    def test_nohup_keeps_its_promise(self):
        agent = self.start_as("nohup", options=["--signals-to-forward=SIGUSR1"], script="""
            trap 'note got USR1' USR1; trap 'note got HUP' HUP; note ready; wait_file tidy""")
        agent.signal(signal.SIGHUP)
        agent.signal(signal.SIGUSR1)  # arrives later
        self.wait_notes("got USR1")
        self.touch("tidy")
        self.end(agent, 0)
        self.assertEqual(self.notes(), ["ready", "got USR1"])

    def test_signals_that_are_only_passed_on_are_passed_on_once(self):
        agent = self.start_as("setsid", options=["--signals-to-forward=SIGUSR1,SIGUSR2"], script="""
            trap 'note got USR1' USR1; trap 'note got USR2' USR2; note ready; wait_file tidy""")
        for count in range(1, 6):
            os.killpg(agent.pid, signal.SIGUSR1)
            self.wait_notes(*["got USR1"] * count)
        agent.signal(signal.SIGUSR2)
        self.wait_notes("got USR2")
        self.touch("tidy")
        self.end(agent, 0)
        self.assertEqual(self.notes(), ["ready", *["got USR1"] * 5, "got USR2"])

    def test_a_lock_is_held_until_nothing_is_left(self):
        """What it got from whoever started it is given back by the process that they know."""
        lock = self.folder / "lock"
        agent = self.start_as("flock", "--no-fork", lock)
        agent.crash()
        agent.end(-9)
        with open(lock, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.assertEqual(launch.marked(self.mark), {})


# A shell with job control: it runs its words as a job in the foreground, tells what becomes of it,
# and passes a hang-up on before it ends.
SHELL = """
    import os, signal, sys
    def note(text):
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(text + "\\n")
    def hang_up(*_):
        os.killpg(job, signal.SIGHUP)
        os._exit(0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, hang_up)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        for number in (signal.SIGTTOU, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execv(sys.argv[1], sys.argv[1:])
    note(f"job {job}")
    while True:
        status = os.waitpid(job, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            break
        note(f"stopped by {os.WSTOPSIG(status)}")
    note(f"ended with {os.waitstatus_to_exitcode(status)}")
"""


class OnATerminal(Signals):
    def start_job(self, script, *options, mode=0):
        """Returns the pid of what the shell has started."""
        self.controller, terminal = pty.openpty()
        self.addCleanup(self.hang_up)
        if mode:
            attributes = termios.tcgetattr(terminal)
            attributes[3] |= mode
            termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        shell = self.folder / "shell.py"
        shell.write_text(textwrap.dedent(SHELL))
        process = subprocess.Popen(
            [sys.executable, shell, launch.BINARY, "run", *options, self.script(script)],
            stdin=terminal, stdout=terminal, stderr=terminal, env=self.environment(),
            cwd=self.here, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.addCleanup(process.wait, launch.PATIENCE_SECONDS)
        self.addCleanup(process.kill)
        os.close(terminal)
        return int(self.wait_note(r"job (\d+)").group(1))

    def press(self, key):
        os.write(self.controller, key)

    def hang_up(self):
        if self.controller is not None:
            os.close(self.controller)
        self.controller = None

    def read_all(self):
        """All that is shown until nobody has the terminal open any more."""
        text = b""
        with contextlib.suppress(OSError):
            while part := os.read(self.controller, 65536):
                text += part
        return text.decode()

    def told(self):
        return [line for line in self.notes() if not line.startswith("job ")]

    def test_a_key_that_interrupts_is_heard_once(self):
        for key, name in ((b"\x03", "INT"), (b"\x1c", "QUIT")):
            with self.subTest(name=name):
                self.notes_file.write_text("")
                self.start_job(PATIENT, "--shutdown-timeout=600")
                self.wait_notes("ready")
                self.press(key)
                self.wait_notes(f"got {name}")
                self.touch("tidy")
                self.wait_notes("ended with 1")
                self.assertEqual(self.told(), ["ready", f"got {name}", "tidied", "ended with 1"])
                shown = self.read_all()
                self.assertNotIn("second signal", shown)
                self.assertIn(f"ended by SIG{name}", shown)
                (self.folder / "tidy").unlink()

    def test_a_second_key_kills(self):
        self.start_job(PATIENT, "--shutdown-timeout=600")
        self.wait_notes("ready")
        self.press(b"\x03")
        self.wait_notes("got INT")
        self.press(b"\x03")
        self.wait_notes("ended with 1")
        self.assertEqual(self.told(), ["ready", "got INT", "ended with 1"])

    def test_a_hang_up_lets_the_workers_tidy_up(self):
        """The shell tells of it, and when that has ended the kernel does so again."""
        self.start_job(PATIENT, "--shutdown-timeout=600")
        self.wait_notes("ready")
        self.hang_up()
        self.wait_notes("got HUP")
        self.touch("tidy")
        self.wait_notes("tidied")
        launch.wait_until(lambda: not launch.marked(self.mark), lambda: launch.marked(self.mark))
        self.assertEqual(self.told(), ["ready", "got HUP", "tidied"])

    def test_job_control_stops_the_agent_too_and_lets_it_go_on(self):
        job = self.start_job("note ready; wait_file tidy; echo printed", "--tee=3")
        self.wait_notes("ready")
        agent = launch.agent_below(job)

        def is_stopped():
            with open(f"/proc/{agent}/stat", encoding="utf-8") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "T"

        for count in range(1, 4):
            self.press(b"\x1a")
            self.wait_notes(*[f"stopped by {signal.SIGTSTP.value}"] * count)
            launch.wait_until(is_stopped, "the agent goes on")
            os.killpg(job, signal.SIGCONT)
            launch.wait_until(lambda: not is_stopped(), "the agent is still stopped")
        self.touch("tidy")
        self.wait_notes("ended with 0")
        self.assertIn("printed\r\n", self.read_all())

    def test_a_terminal_that_stops_writers_in_the_background_does_not_stop_the_agent(self):
        self.start_job("echo printed; note ready", "--tee=3", mode=termios.TOSTOP)
        self.wait_notes("ended with 0")
        self.assertIn("printed\r\n", self.read_all())


if __name__ == "__main__":
    launch.main()
