"""PyTorch's own timer clients against our timer server.

Environment:
  MUSTER_TIMER_SERVER   the program built from timer_server.cpp

Run as a program, by whichever interpreter has the PyTorch version to test. Nothing here waits for
time to pass: what must not happen is looked for after something later has been seen.
"""

import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "pytorch"))
import muster  # noqa: E402

muster.import_distributed()
try:
    import timer_workers  # noqa: E402
except ImportError as problem:
    print(f"SKIPPED: this PyTorch has no file timers ({problem})")
    sys.exit(muster.SKIPPED)

SERVER = os.environ.get("MUSTER_TIMER_SERVER")

# Beyond every test; and over at once.
LONG = 3600
SHORT = 0.05


class TimerServer:
    """A running timer_server. Says what it says by `hear`, in that order."""

    def __init__(self, folder):
        self._process = subprocess.Popen(
            [SERVER, os.path.join(folder, "timer"), os.path.join(folder, "agent")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            bufsize=1)
        self._heard = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        listening = self.hear("listening")
        self.timer_path = listening["timers"]
        self.socket_path = listening["socket"]

    def _read(self):
        for line in self._process.stdout:
            self._heard.put(json.loads(line))
        self._heard.put(None)

    def hear(self, event):
        """The next thing it says, which must be such an event."""
        said = self._heard.get(timeout=muster.PATIENCE_SECONDS)
        if said is None or said["event"] != event:
            raise AssertionError(f"the server should have said {event!r}, not {said!r}")
        return said

    def state(self):
        self._process.stdin.write("state\n")
        return self.hear("state")

    def stop(self):
        """Ends it; returns what it logged."""
        if self._process.poll() is None:
            self._process.stdin.close()
        try:
            self._process.wait(muster.PATIENCE_SECONDS)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._reader.join(muster.PATIENCE_SECONDS)
        if self._process.stderr.closed:
            return ""
        log = self._process.stderr.read()
        self._process.stdout.close()
        self._process.stderr.close()
        return log


class WatchdogTestCase(muster.TestCase):

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="muster-timer-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.server = self.start_server()

    def start_server(self):
        server = TimerServer(self.folder)
        self.addCleanup(server.stop)
        return server

    def assert_ended(self, worker, status):
        with self.assertRaisesRegex(AssertionError, f"ended with status {status}$"):
            worker.join()


class FileTimerTest(WatchdogTestCase):

    def worker(self, kill_signal=signal.SIGKILL):
        worker = self.peer(timer_workers.obey, self.server.timer_path, kill_signal)
        return worker, worker.receive()

    def order(self, worker, *words):
        worker.send(words)
        return worker.receive()

    def test_a_worker_that_is_late_is_killed(self):
        worker, pid = self.worker()
        self.assertEqual(self.order(worker, "acquire", "step", SHORT), "acquired")
        self.assertEqual(self.server.hear("expired"),
                         {"event": "expired", "pid": pid, "scope": "step", "signal": 9})
        self.assert_ended(worker, -signal.SIGKILL)

    def test_a_block_that_hangs_is_ended_with_the_signal_of_choice(self):
        worker, pid = self.worker(signal.SIGTERM)
        worker.send(("hang", SHORT))
        late = self.server.hear("expired")
        self.assertEqual((late["pid"], late["signal"]), (pid, signal.SIGTERM))
        self.assertRegex(late["scope"], r"#\d+$")  # PyTorch's own: where the block stands
        self.assert_ended(worker, -signal.SIGTERM)

    def test_blocks_that_end_in_time_leave_nothing(self):
        worker, _ = self.worker()
        self.assertEqual(self.order(worker, "guarded", LONG, 50), "guarded")
        self.assertEqual(self.server.state(),
                         {"event": "state", "timers": 0, "messages": 202, "refused": 0})

    def test_a_timer_that_is_acquired_again_is_moved(self):
        worker, _ = self.worker()
        other, other_pid = self.worker()
        # Moved while it has not expired, and released; the other shows that time has passed.
        self.order(worker, "acquire", "step", LONG)
        self.order(worker, "acquire", "step", 2 * LONG)
        self.assertEqual(self.server.state()["timers"], 1)
        self.order(other, "acquire", "step", SHORT)
        self.assertEqual(self.server.hear("expired")["pid"], other_pid)
        self.assertEqual(self.order(worker, "release", "step"), "released")
        self.assertEqual(self.server.state()["timers"], 0)

    def test_a_timer_that_is_moved_forward_expires_then(self):
        worker, pid = self.worker()
        self.order(worker, "acquire", "step", LONG)
        self.order(worker, "acquire", "step", SHORT)
        self.assertEqual(self.server.hear("expired")["pid"], pid)
        self.assert_ended(worker, -signal.SIGKILL)

    def test_only_the_late_worker_is_killed_and_never_the_server(self):
        late, late_pid = self.worker()
        good, _ = self.worker()
        self.order(good, "acquire", "step", LONG)
        self.order(late, "acquire", "step", SHORT)
        self.assertEqual(self.server.hear("expired")["pid"], late_pid)
        self.assert_ended(late, -signal.SIGKILL)
        self.assertEqual(self.order(good, "release", "step"), "released")
        self.assertEqual(self.server.state()["timers"], 0)

    def test_without_a_signal_a_late_worker_is_only_reported(self):
        for no_signal in (0, -1):
            worker, pid = self.worker(no_signal)
            self.order(worker, "acquire", "step", SHORT)
            self.assertEqual(self.server.hear("expired"),
                             {"event": "expired", "pid": pid, "scope": "step", "signal": 0})
            self.assertEqual(self.order(worker, "acquire", "step", LONG), "acquired")
            worker.send(None)
            worker.receive()
            worker.join()

    def test_timers_end_with_their_worker(self):
        worker, pid = self.worker()
        self.order(worker, "acquire", "step", LONG)
        self.assertEqual(self.server.state()["timers"], 1)
        os.kill(pid, signal.SIGKILL)
        self.assert_ended(worker, -signal.SIGKILL)
        self.assertEqual(self.server.state()["timers"], 0)

    def test_a_timer_may_never_expire_and_scopes_may_be_any_text(self):
        worker, _ = self.worker()
        self.assertEqual(self.order(worker, "acquire", "endless", float("inf")), "acquired")
        for scope in ("", "größe \"quoted\" \\ \n \0", "x" * 2000):
            self.assertEqual(self.order(worker, "acquire", scope, LONG), "acquired")
        self.assertEqual(self.server.state(),
                         {"event": "state", "timers": 4, "messages": 4, "refused": 0})

    def test_a_malformed_line_costs_only_itself(self):
        worker, _ = self.worker()
        self.order(worker, "acquire", "before", LONG)
        with open(self.server.timer_path, "w", encoding="utf-8") as pipe:
            pipe.write("nonsense\n{\"version\": 1}\n" + 9000 * "x" + "\n")
        self.order(worker, "acquire", "after", LONG)
        self.assertEqual(self.server.state(),
                         {"event": "state", "timers": 2, "messages": 2, "refused": 3})

    def test_nobody_speaks_for_processes_that_are_no_workers(self):
        with open(self.server.timer_path, "w", encoding="utf-8") as pipe:
            for pid in (1, os.getpid(), os.getppid()):
                message = {"version": 1, "pid": pid, "scope_id": "step", "expiration_time": 1,
                           "signal": 9}
                pipe.write(json.dumps(message) + "\n")
        self.assertEqual(self.server.state(),
                         {"event": "state", "timers": 0, "messages": 0, "refused": 3})

    def test_a_server_can_be_started_again(self):
        worker, pid = self.worker()
        self.order(worker, "acquire", "step", LONG)
        self.server.stop()
        self.assertEqual(os.listdir(self.folder), [])
        self.assertRegex(self.order(worker, "acquire", "step", LONG), "^BrokenPipeError")
        path = self.server.timer_path
        self.server = self.start_server()
        self.assertEqual(self.server.timer_path, path)
        self.order(worker, "acquire", "step", SHORT)
        self.assertEqual(self.server.hear("expired")["pid"], pid)
        self.assert_ended(worker, -signal.SIGKILL)


class AgentSocketTest(WatchdogTestCase):
    """The other way to say the same, without PyTorch."""

    def test_a_worker_says_how_it_is(self):
        worker = self.peer(timer_workers.tell, self.server.socket_path,
                           ["ready", "alive", "status epoch 3", "expires step 60", "release step",
                            "release step now"])
        pid = worker.receive()
        self.assertEqual(worker.receive(), 5 * ["ok\n"] + ["error expected `release SCOPE`\n"])
        told = [self.server.hear("told") for _ in range(5)]
        self.assertEqual([(said["pid"], said["kind"]) for said in told],
                         [(pid, kind) for kind in (1, 0, 4, 2, 3)])
        self.assertEqual(told[2]["text"], "epoch 3")

    def test_a_worker_that_is_late_is_killed(self):
        worker = self.peer(timer_workers.tell, self.server.socket_path, ["expires step 0.05 TERM"])
        pid = worker.receive()
        self.assertEqual(worker.receive(), ["ok\n"])
        self.server.hear("told")
        self.assertEqual(self.server.hear("expired"),
                         {"event": "expired", "pid": pid, "scope": "step", "signal": 15})
        self.assert_ended(worker, -signal.SIGTERM)


if __name__ == "__main__":
    if not SERVER or not os.access(SERVER, os.X_OK):
        print("name the program timer_server in MUSTER_TIMER_SERVER", file=sys.stderr)
        sys.exit(2)
    unittest.main()
