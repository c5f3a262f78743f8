"""Signs of life: the agent's socket, deadlines, and PyTorch's file timers by hand."""

import json
import pathlib
import re
import signal
import textwrap

import launch

ONCE = '[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || { note again; exit 0; }\n'

# A client of PyTorch's protocol, in the few lines that it takes.
TIMER = """#!/usr/bin/python3 -S
import json, os, sys, time

def send(scope, seconds, signal=9, pid=None):
    message = {"version": 1, "pid": pid or os.getpid(), "scope_id": scope,
               "expiration_time": -1 if seconds is None else time.time() + seconds, "signal": signal}
    raw(json.dumps(message) + "\\n")

def raw(text):
    pipe = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    os.write(pipe, text.encode())
    os.close(pipe)

def note(text):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(text + "\\n")

if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    note("again")
    sys.exit(0)
"""


class Socket(launch.Case):
    def test_alive_ready_and_status_are_taken(self):
        self.launch(self.script(
            '"$MUSTER" ready && "$MUSTER" alive && "$MUSTER" tell status half way && note ok'))
        self.assertEqual(self.notes(), ["ok"])

    def test_the_protocol_is_one_line_and_one_answer(self):
        self.launch(self.python("""
            import os, socket
            agent = socket.socket(socket.AF_UNIX)
            agent.connect(os.environ["MUSTER_AGENT_SOCKET"])
            agent.settimeout(30)
            lines = agent.makefile("rw")
            answers = []
            for line in ("alive", "ready", "status fine", "expires a 100", "release a", "release a", "nonsense"):
                lines.write(line + "\\n")
                lines.flush()
                answers.append(lines.readline().split()[0])
            open(os.environ["NOTES"], "a").write(" ".join(answers) + "\\n")
            """))
        self.assertEqual(self.notes(), ["ok ok ok ok ok error error"])

    def python(self, text):

        path = self.folder / "worker"
        path.write_text("#!/usr/bin/python3 -S\n" + textwrap.dedent(text))
        path.chmod(0o755)
        return path

    def test_who_is_no_worker_is_refused(self):
        agent = self.start(self.script('note "$MUSTER_AGENT_SOCKET"; wait_file go'))
        path = self.wait_note("/.*").group()
        done = launch.subprocess.run([launch.BINARY, "alive", "--socket", path],
                                     capture_output=True, text=True,
                                     timeout=launch.PATIENCE_SECONDS)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("does not belong", done.stderr)
        self.touch("go")
        agent.end(0)

    def test_outside_of_a_job_there_is_nobody_to_tell(self):
        done = launch.subprocess.run([launch.BINARY, "alive"], capture_output=True, text=True,
                                     env=self.environment(), timeout=launch.PATIENCE_SECONDS)
        self.assertEqual(done.returncode, 2)
        self.assertIn("MUSTER_AGENT_SOCKET is not set", done.stderr)

    def test_the_socket_is_gone_at_the_end_and_only_for_this_user(self):
        self.launch(self.script('note "$(stat -c %a "$(dirname "$MUSTER_AGENT_SOCKET")")"'))
        self.assertEqual(self.notes(), ["700"])
        self.assert_no_files()


class Deadlines(launch.Case):
    def fail(self, pattern, text, *options, status=1, restarts=0):
        agent = self.launch(f"--max-restarts={restarts}", *options, self.script(ONCE + text),
                            status=status)
        self.assertRegex(agent.err.text, pattern)
        return agent

    def test_a_worker_that_hangs_is_killed_and_counts_as_failed(self):
        agent = self.fail("it made no progress for 300ms", '"$MUSTER" alive; stay',
                          "--hang-timeout=300ms")
        root = launch.Report(agent.err.text).root
        self.assertEqual(root["signal"], "SIGKILL")
        self.assertNotIn("not by Muster", agent.err.text)

    def test_and_is_restarted(self):
        self.fail("is killed", '"$MUSTER" alive; stay', "--hang-timeout=300ms", restarts=1,
                  status=0)
        self.assertEqual(self.notes(), ["again"])

    def test_a_stopped_worker_hangs_too(self):
        self.fail("is killed", '"$MUSTER" alive; kill -STOP $$', "--hang-timeout=300ms", restarts=1,
                  status=0)

    def test_a_worker_that_never_speaks_is_left_alone(self):
        self.launch("--hang-timeout=100ms", self.script("sleep 0.5"))

    def test_a_worker_that_speaks_in_time_is_left_alone(self):
        """Each sign of life counts anew: together they last longer than the limit."""
        self.launch("--hang-timeout=20",
                    self.script('for i in 1 2 3; do "$MUSTER" alive; done; note $?'))
        self.assertEqual(self.notes(), ["0"])

    def test_a_worker_that_does_not_get_ready_is_killed(self):
        agent = self.fail("is killed: it .*(ready|start)", "stay", "--start-timeout=300ms")
        self.assertEqual(launch.Report(agent.err.text).root["signal"], "SIGKILL")

    def test_a_worker_that_gets_ready_may_take_its_time(self):
        self.launch("--start-timeout=30", self.script('"$MUSTER" ready; sleep 0.2; note done'))
        self.assertEqual(self.notes(), ["done"])

    def test_only_the_late_worker_is_the_cause(self):
        agent = self.launch("--nproc-per-node=3", "--start-timeout=5", self.script("""
            [ "$RANK" = 2 ] || "$MUSTER" ready
            stay"""), status=1)
        self.assertEqual(launch.Report(agent.err.text).root["rank"], "2")

    def test_a_promise_that_is_broken(self):
        agent = self.fail('timer "?step"? expired', '"$MUSTER" tell expires step 0.3; stay')
        self.assertEqual(launch.Report(agent.err.text).root["code"], "-9")

    def test_a_promise_with_a_signal_of_its_own(self):
        agent = self.fail("expired", '"$MUSTER" tell expires step 0.3 SIGABRT; ulimit -c 0; stay')
        self.assertEqual(launch.Report(agent.err.text).root["code"], "-6")

    def test_a_promise_that_is_kept(self):
        self.launch(self.script('''
            "$MUSTER" tell expires step 3 && "$MUSTER" tell release step && sleep 3.2 && note kept'''))
        self.assertEqual(self.notes(), ["kept"])


class FileTimers(launch.Case):
    def client(self, text):
        path = self.folder / "worker"
        path.write_text(TIMER + text)
        path.chmod(0o755)
        return path

    def run_job(self, text, *options, status=0, env=None):
        events = self.folder / "events"
        events.unlink(missing_ok=True)
        agent = self.launch("--max-restarts=1", f"--event-log-handler=file:{events}", *options,
                            self.client(text),
                            status=status,
                            env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", **(env or {})})
        self.events = [json.loads(line) for line in events.read_text().splitlines()]
        return agent

    def names(self):
        return [event["name"] for event in self.events
                if re.fullmatch("watchdog (started|stopped)|timer expired|kill worker process",
                                event["name"])]

    def test_an_expired_timer_kills_the_worker_and_the_job_begins_again(self):
        self.run_job('send("scope", 0.2); note("waits"); time.sleep(600)')
        self.assertEqual(self.notes(), ["waits", "again"])
        names = self.names()
        self.assertEqual(names[0], "watchdog started")
        self.assertEqual(names[-1], "watchdog stopped")
        self.assertEqual([name for name in names if not name.startswith("watchdog")],
                         ["timer expired", "kill worker process"])
        (expired,) = [event for event in self.events if event["name"] == "timer expired"]
        inner = json.loads(expired["metadata"]["metadata"])
        self.assertEqual((inner["scope_id"], inner["signal"]), ("scope", "9"))
        self.assertGreater(expired["timestamp"], 0)

    def test_a_timer_that_is_released_or_renewed_does_nothing(self):
        self.run_job('send("a", 1.5); send("a", None, 0); send("b", 1.5); send("b", 600)\n'
                     'time.sleep(1.8); note("fine")')
        self.assertEqual(self.notes(), ["fine"])

    def test_a_timer_without_a_signal_only_says_so(self):
        self.run_job('send("a", 0.1, 0); time.sleep(0.5); note("fine")')
        self.assertEqual(self.notes(), ["fine"])
        self.assertIn("timer expired", self.names())
        self.assertNotIn("kill worker process", self.names())

    def test_a_malformed_line_costs_only_itself(self):
        self.run_job('raw("nonsense\\n{\\n"); send("a", 0.2); raw("[]\\n"); time.sleep(600)')
        self.assertEqual(self.notes(), ["again"])

    def test_nobody_can_have_others_killed(self):
        """The pid of the test, of its agent, and of nobody."""
        agent = self.run_job('send("a", 0.1, 9, os.getppid()); send("b", 0.1, 9, 1)\n'
                             'send("c", 0.1, 9, 4194303)\n'
                             'time.sleep(0.4); note("fine")')
        self.assertEqual(agent.process.returncode, 0)
        self.assertEqual(self.notes(), ["fine"])

    def test_the_file_is_where_it_is_asked_for_and_gone_at_the_end(self):
        path = self.folder / "timer"
        self.run_job('note(os.environ["TORCHELASTIC_TIMER_FILE"])',
                     env={"TORCHELASTIC_TIMER_FILE": str(path)})
        self.assertEqual(self.notes(), [str(path)])
        self.assertFalse(path.exists())

    def test_the_file_has_a_name_of_its_own_else(self):
        self.run_job('note(os.environ["TORCHELASTIC_TIMER_FILE"])')
        (path,) = self.notes()
        self.assertRegex(path, re.escape(str(self.temporary))
                         + r"/muster-\w{12}/watchdog_timer_[0-9a-f-]{36}")
        self.assertFalse(pathlib.Path(path).exists())
        self.assert_no_files()

    def test_without_being_asked_for_there_is_none(self):
        self.launch(self.script('note "file ${TORCHELASTIC_TIMER_FILE-none}"'))
        self.assertEqual(self.notes(), ["file none"])

    def test_the_agent_survives_a_timer_that_asks_for_sigterm(self):
        agent = self.run_job(f'send("a", 0.2, {int(signal.SIGTERM)}); time.sleep(600)')
        self.assertEqual(self.notes(), ["again"])
        self.assertIn("SIGTERM", agent.err.text)


if __name__ == "__main__":
    launch.main()
