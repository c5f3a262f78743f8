"""Jobs of PyTorch workers, run by `muster run` or by torchrun, as processes of a test.

All launchers of a test append what they and their workers print to one file, so that the order of
the lines is the order of events. Every process of a job has the token of its test in its
environment; when the test is over none of them may be left.
"""

import contextlib
import faulthandler
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "pytorch"))
import muster  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = muster.ROOT / "examples"

# Workers need seconds to import PyTorch, and on a busy machine many of them. Passing this means
# "hangs".
PATIENCE_SECONDS = 240
TEST_SECONDS_MAX = 600
# Far more than the guard of a dead launcher needs to end its workers.
GONE_SECONDS_MAX = 20

TOKEN = "MUSTER_TEST_TOKEN"


class Process:
    """One entry of /proc: its parent and its environment when it was started."""

    def __init__(self, pid):
        self.pid = pid
        entry = pathlib.Path("/proc", str(pid))
        # The name, in parentheses, may contain anything; the state follows it, then the parent.
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        self.is_dead = state in "ZX"
        self.parent = int(parent)
        entries = (entry / "environ").read_bytes().split(b"\0")
        self.environment = dict(os.fsdecode(entry).split("=", 1) for entry in entries
                                if b"=" in entry)


def processes_with(token):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            process = Process(int(name))
            if not process.is_dead and process.environment.get(TOKEN) == token:
                found.append(process)
    return found


class TestCase(unittest.TestCase):
    """A test whose launchers end with it, and are quoted if it fails."""

    def run(self, result=None):
        result = result if result is not None else self.defaultTestResult()
        bad_before = len(result.failures) + len(result.errors)
        self.log = ""
        faulthandler.dump_traceback_later(TEST_SECONDS_MAX, exit=True)
        try:
            return super().run(result)
        finally:
            faulthandler.cancel_dump_traceback_later()
            if len(result.failures) + len(result.errors) > bad_before:
                print(f"--- what {self.id()} printed\n{self.log}---", file=sys.stderr, flush=True)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-torch-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self._log_path = self.folder / "log"
        self._log_path.touch()
        self.addCleanup(lambda: setattr(self, "log", self.read_log()))
        self.token = uuid.uuid4().hex
        self._launchers = []
        self.addCleanup(self._check_that_nothing_is_left)
        self.addCleanup(self._end_launchers)

    # -- launchers

    def environment(self, **variables):
        """What launchers are started with: nothing of a launcher that this test runs under."""
        made = {name: value for name, value in os.environ.items()
                if not name.startswith(("PET_", "TORCHELASTIC_", "TORCH_", "NCCL_", "MUSTER_"))}
        made.pop("OMP_NUM_THREADS", None)
        # The interpreter that runs this test has the PyTorch version to test.
        made.update({"PYTHON_EXEC": sys.executable, "GLOO_SOCKET_IFNAME": "lo",
                     "TMPDIR": str(self.folder), TOKEN: self.token, **variables})
        return made

    def start(self, *words, **variables):
        """Starts a launcher; it is ended with the test."""
        with open(self._log_path, "ab") as log:
            launcher = subprocess.Popen(
                [str(word) for word in words], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=self.environment(**variables),
                preexec_fn=muster._die_with_parent)
        self._launchers.append(launcher)
        return launcher

    def muster_run(self, *words, **variables):
        return self.start(muster.BINARY, "run", *words, **variables)

    def torchrun(self, *words, **variables):
        return self.start(sys.executable, HERE / "torchrun.py", *words, **variables)

    def finish(self, *launchers):
        """Waits for their ends; their exit statuses."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        statuses = []
        for launcher in launchers:
            try:
                statuses.append(launcher.wait(max(0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                self.fail(f"{launcher.args} hangs")
        return statuses

    def _end_launchers(self):
        for launcher in self._launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGTERM)
        for launcher in self._launchers:
            try:
                launcher.wait(GONE_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()

    def _check_that_nothing_is_left(self):
        try:
            self.wait_until(lambda: not processes_with(self.token), "every process is gone",
                            GONE_SECONDS_MAX)
        finally:
            for process in processes_with(self.token):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def workers(self):
        """The running workers of all launchers, by rank."""
        launchers = {launcher.pid for launcher in self._launchers}
        running = processes_with(self.token)
        # `muster run` is two processes: the one that was started guards the agent.
        launchers |= {process.pid for process in running
                      if process.parent in launchers and "RANK" not in process.environment}
        return {int(process.environment["RANK"]): process for process in running
                if process.parent in launchers and "RANK" in process.environment}

    # -- what they print

    def read_log(self):
        return self._log_path.read_text(errors="replace")

    def wait_until(self, is_so, what, seconds_max=PATIENCE_SECONDS):
        """Looks until `is_so` returns something true, and returns it."""
        deadline = time.monotonic() + seconds_max
        while not (value := is_so()):
            if time.monotonic() > deadline:
                self.fail(f"waited in vain until {what}")
            time.sleep(0.01)
        return value

    def wait_for_line(self, pattern, accept=lambda match: True):
        """Waits for a line that matches, among all that were printed so far; the match."""

        def find():
            ended = all(launcher.poll() is not None for launcher in self._launchers)
            for match in re.finditer(pattern, self.read_log(), re.MULTILINE):
                if accept(match):
                    return match
            self.assertFalse(ended, f"all launchers have ended without a line {pattern!r}")
            return None

        return self.wait_until(find, f"there is a line {pattern!r}")


def main():
    if not os.access(muster.BINARY, os.X_OK):
        print(f"there is no program {muster.BINARY}; build it, or name it in MUSTER_BIN",
              file=sys.stderr)
        sys.exit(2)
    unittest.main()
