"""What the tests of `muster run` share: agents and workers as real processes, and bounded waits.

Workers are shell scripts. They tell the test what they do by lines in one file, so nothing here
depends on how their output is handled. Every process that a test starts carries the test's own
mark in its environment; when a test ends, none may be left that has it.

Environment:
  MUSTER_BIN            the program under test; without it, build/bin/muster of this source tree
  MUSTER_SKEWED_CLOCK   the library that skewed_clock.cpp makes; without it, tests that need it skip
"""

import contextlib
import faulthandler
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "pytorch"))
import muster  # noqa: E402

BINARY = muster.BINARY
# The longest that anything here waits. Far beyond what is ever needed: passing it means "hangs".
PATIENCE_SECONDS = 60
MARK = "MUSTER_TEST_MARK"

# Before every worker script.
PRELUDE = """#!/bin/sh
note() { echo "$*" >> "$NOTES"; }
wait_file() { while [ ! -e "$FOLDER/$1" ]; do sleep 0.02; done; }
stay() { while :; do sleep 0.05; done; }
"""


def main():
    """Runs the tests of the calling program."""
    muster.main()


def wait_until(look, what):
    """Waits until `look()` returns something true, and returns it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain: {what() if callable(what) else what}")
        time.sleep(0.005)


def is_alive(pid):
    """Whether there is a process `pid` that is no zombie."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rsplit(")", 1)[1].split()[0] not in "ZX"


def agent_below(pid):
    """The agent's own process, below the one that was started as `muster run`; 0 without one."""
    with contextlib.suppress(OSError):
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{child}/comm").read_text() == "muster-agent\n":
                    return int(child)
    return 0


def marked(mark):
    """The living processes with `mark` in their environment: pid -> command line."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            entry = f"{MARK}={mark}".encode()
            if entry not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            name = (folder / "comm").read_text().strip()
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if is_alive(int(folder.name)):
                found[int(folder.name)] = f"{name}: {words}"
    return found


class Stream:
    """What a process writes to a pipe, read as it comes."""

    def __init__(self, pipe):
        self._pipe = pipe
        self._bytes = b""
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        while True:
            part = os.read(self._pipe.fileno(), 65536)
            with self._changed:
                self._bytes += part
                self._ended = not part
                self._changed.notify_all()
            if not part:
                return

    @property
    def bytes(self):
        with self._changed:
            return self._bytes

    @property
    def text(self):
        return self.bytes.decode(errors="replace")

    def wait(self, pattern):
        """Waits for a match of `pattern`, and returns it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            while True:
                match = re.search(pattern, self._bytes.decode(errors="replace"), re.MULTILINE)
                if match:
                    return match
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    raise AssertionError(f"no {pattern!r} in:\n{self._bytes.decode(errors='replace')}")
                self._changed.wait(left)

    def close(self):
        self._thread.join(PATIENCE_SECONDS)
        self._pipe.close()


class Agent:
    """A running `muster run`."""

    def __init__(self, words, *, environment, folder, name, stdin=subprocess.DEVNULL,
                 program=(BINARY, "run")):
        self.name = name
        self.words = words
        self.process = subprocess.Popen(
            [*program, *words], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment, cwd=folder)
        self.pid = self.process.pid
        self.out = Stream(self.process.stdout)
        self.err = Stream(self.process.stderr)

    def signal(self, number):
        self.process.send_signal(number)

    def inner(self):
        """The pid of the agent itself; the process that was started is its guard."""
        return wait_until(lambda: agent_below(self.pid), lambda: f"no agent\n{self.describe()}")

    def crash(self):
        """Kills the agent itself."""
        os.kill(self.inner(), signal.SIGKILL)

    def end(self, status=None):
        """Waits for its end; checks its status if one is given (negative: a signal)."""
        try:
            got = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.describe()}\nhangs") from None
        self.out.close()
        self.err.close()
        if status is not None and got != status:
            raise AssertionError(f"{self.describe()}\nended with {got}, not {status}")
        return got

    def is_running(self):
        return self.process.poll() is None

    def describe(self):
        return (f"--- {self.name}: muster run {' '.join(self.words)}\n--- stdout\n{self.out.text}"
                f"\n--- stderr\n{self.err.text}\n---")


class Case(unittest.TestCase):
    """A test with a folder of its own and agents that end with it."""

    def run(self, result=None):
        faulthandler.dump_traceback_later(muster.TEST_SECONDS_MAX, exit=True)
        try:
            return super().run(result)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mr-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.temporary = self.folder / "tmp"
        self.logs = self.folder / "logs"
        self.here = self.folder / "here"  # the agents' working folder
        for folder in (self.temporary, self.here):
            folder.mkdir()
        self.notes_file = self.folder / "notes"
        self.notes_file.touch()
        self.mark = uuid.uuid4().hex
        self.agents = []
        self.addCleanup(self._check_nobody_is_left)
        self.addCleanup(self._end_agents)

    # ---- agents ----

    def environment(self, **more):
        """All that agents get from here, and through them their workers."""
        made = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(self.temporary),
                "NOTES": str(self.notes_file), "FOLDER": str(self.folder), "MUSTER": BINARY,
                MARK: self.mark}
        made.update(more)
        return made

    def script(self, text, name="worker"):
        """An executable shell script."""
        path = self.folder / name
        path.write_text(PRELUDE + text)
        path.chmod(0o755)
        return str(path)

    def start(self, *words, env=None, stdin=subprocess.DEVNULL):
        agent = Agent([str(word) for word in words], environment=self.environment(**(env or {})),
                      folder=self.here, name=f"agent {len(self.agents)}", stdin=stdin)
        self.agents.append(agent)
        return agent

    def launch(self, *words, status=0, env=None):
        """Runs a job to its end; nothing of it may be left."""
        agent = self.start(*words, env=env)
        agent.end(status)
        if not any(other.is_running() for other in self.agents):
            self.assert_nobody_left()
        return agent

    def end_all(self, status):
        for agent in self.agents:
            agent.end(status)
        self.assert_nobody_left()

    def left(self):
        """Living processes of this test, agents excepted; one that has lost its guard may take a
        moment to go."""
        agents = {agent.pid for agent in self.agents}
        return {pid: what for pid, what in marked(self.mark).items()
                if pid not in agents and not what.startswith("muster-agent:")}

    def assert_nobody_left(self):
        self.assertEqual(self.left(), {}, "processes are left")

    def _end_agents(self):
        for agent in self.agents:
            if agent.is_running():
                agent.process.kill()
            agent.process.wait()
            agent.out.close()
            agent.err.close()

    def _check_nobody_is_left(self):
        try:
            wait_until(lambda: not marked(self.mark), "")
        except AssertionError:
            left = marked(self.mark)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"processes are left: {left}") from None

    # ---- several nodes ----

    def serve(self):
        """A store for rendezvous; ends with the test."""
        server = muster.Server(host="127.0.0.1")
        self.addCleanup(server.stop)
        return server

    def meeting(self, server, nodes, conf="", run_id="job"):
        """The options of an agent that meets others at `server`."""
        words = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={server.endpoint}",
                 f"--rdzv-id={run_id}", "--local-addr=127.0.0.1"]
        return [*words, f"--rdzv-conf={conf}"] if conf else words

    # ---- what workers and agents left ----

    def notes(self):
        """The complete lines that workers wrote."""
        return self.notes_file.read_text().split("\n")[:-1]

    def wait_notes(self, *wanted):
        """Waits until each of `wanted` has been noted as often as it is given."""

        def all_there():
            lines = self.notes()
            return all(lines.count(line) >= wanted.count(line) for line in wanted)

        def what():
            agents = "\n".join(agent.describe() for agent in self.agents)
            return f"notes {wanted}; there are {self.notes()}\n{agents}"

        wait_until(all_there, what)

    def wait_note(self, pattern):
        """Waits for a note that matches as a whole; returns the match."""

        def find():
            return next(filter(None, (re.fullmatch(pattern, line) for line in self.notes())), None)

        def what():
            agents = "\n".join(agent.describe() for agent in self.agents)
            return f"note {pattern!r}; there are {self.notes()}\n{agents}"

        return wait_until(find, what)

    def touch(self, name):
        """Lets workers go on that wait_file NAME."""
        (self.folder / name).touch()

    def files(self, folder):
        """All files and folders below, relative."""
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))

    def assert_no_files(self):
        """Nothing is left in the temporary and the working folder."""
        self.assertEqual(self.files(self.temporary), [])
        self.assertEqual(self.files(self.here), [])

    def job_folder(self):
        """The one folder that a job made below the log folder."""
        (only,) = self.logs.iterdir()
        return only


# ---- HTTP ---------------------------------------------------------------------------------------


def http_port(agent):
    """The port of an agent that was started with --http 0 and LOGLEVEL=INFO."""
    return int(agent.err.wait(r"events on port (\d+)").group(1))


def get(port, path):
    """(status, body) of GET."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}",
                                    timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def get_json(port, path):
    return json.loads(get(port, path)[1])


# ---- the report ---------------------------------------------------------------------------------

ENTRY = re.compile(
    r"^\[(?P<index>\d+)\]:\n"
    r"  time      : (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)\n"
    r"  host      : (?P<host>\S+)\n"
    r"  rank      : (?P<rank>\d+) \(local_rank: (?P<local_rank>\d+)\)\n"
    r"  exitcode  : (?P<code>-?\d+) \(pid: (?P<pid>\d+)\) (?: \((?P<signal>\w+)\))?\n"
    r"  error_file: (?P<error_file>.*)\n"
    r"  traceback : (?P<traceback>(?:.|\n(?!\[|-{10}|={10}))*)$", re.MULTILINE)


class Report:
    """The report at the end of a failed run, taken apart."""

    def __init__(self, text):
        match = re.search(
            r"\n(?P<rule>=+)\n(?P<title>.*) FAILED\n-+\nFailures:\n(?P<others>(?:.|\n)*?)\n-+\n"
            r"Root Cause \(first observed failure\):\n(?P<root>(?:.|\n)*?)\n(?P=rule)\n", text)
        if match is None:
            raise AssertionError(f"no report in:\n{text}")
        self.title = match["title"]
        self.others = [entry.groupdict() for entry in ENTRY.finditer(match["others"])]
        self.others_text = match["others"]
        self.root = ENTRY.search(match["root"]).groupdict()
        self.after = text[match.end():]

    def codes(self):
        """rank -> exit code, of all."""
        return {int(entry["rank"]): int(entry["code"]) for entry in [*self.others, self.root]}
