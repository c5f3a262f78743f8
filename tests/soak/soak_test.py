"""Many jobs in a row: none hangs, and none leaves a process, a file or a descriptor behind.

usage: soak_test.py [--seed N] [RUNS [KILLED_RUNS]]

RUNS jobs do nothing and end well. KILLED_RUNS jobs lose a worker, an agent or a guard, or get a
signal, at a random moment. Last, one agent restarts its workers as often.

Environment:
  MUSTER_BIN         the program under test; without it, build/bin/muster of this source tree
  MUSTER_SEED        what --seed says; else one that nobody has tried
  MUSTER_SOAK_RUNS   RUNS, and a fifth of it as KILLED_RUNS; else 60. The full number is 1000
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("MUSTER_BIN") or str(ROOT / "build" / "bin" / "muster")
MARK = "MUSTER_TEST_MARK"
# The longest that a job may take. Far beyond what it needs: passing it means "hangs".
PATIENCE_SECONDS = 60
# Agents whose guard was killed have a moment to go, on a machine that has time for them.
LEAVING_SECONDS = 15
RESTARTS_MIN = 50

# A worker that leaves somebody behind, in its own session.
WORKER = """#!/bin/sh
setsid sleep 600 &
echo begin
sleep 0.15
echo end
"""
# A worker that fails until it has been restarted often enough, and looks at its agent.
RESTARTED = """#!/bin/sh
set -- $(ls /proc/$PPID/fd | wc -l) $(grep VmRSS /proc/$PPID/status)
[ "$LOCAL_RANK" = 0 ] && echo "$1 $3" >> "$NOTES"
[ "$TORCHELASTIC_RESTART_COUNT" = "$TIMES" ]
"""


class Wrong(Exception):
    pass


def is_alive(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rsplit(")", 1)[1].split()[0] not in "ZX"


def marked(mark):
    """The living processes with `mark` in their environment: pid -> command line."""
    found = {}
    entry = f"{MARK}={mark}".encode()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0") and is_alive(folder.name):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = words.decode(errors="replace")
    return found


def children(pid):
    with contextlib.suppress(OSError):
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def agent_below(pid):
    """The agent's own process, below the one that was started, its guard; 0 without one."""
    for child in children(pid):
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{child}/comm").read_text() == "muster-agent\n":
                return child
    return 0


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory(pid):
    """In KiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


class Soak:
    def __init__(self, folder):
        self.folder = folder
        self.temporary = folder / "tmp"
        self.here = folder / "here"
        self.temporary.mkdir()
        self.here.mkdir()
        self.jobs = 0
        self.server = None
        self.agents = []

    def script(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    # ---- the store where agents meet ----

    def serve(self):
        port_file = self.folder / "port"
        self.server = subprocess.Popen(
            [BINARY, "store", "serve", "--host=127.0.0.1", "--port=0", f"--port-file={port_file}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=open(self.folder / "server.err", "wb"))  # pylint: disable=consider-using-with
        self.wait(port_file.exists, "the server does not start")
        self.port = int(port_file.read_text())
        self.server_descriptors = descriptors(self.server.pid)
        self.server_memory = memory(self.server.pid)

    def check_server(self):
        if self.server.poll() is not None:
            raise Wrong(f"the server has ended with status {self.server.returncode}")
        self.wait(lambda: descriptors(self.server.pid) == self.server_descriptors,
                  f"the server had {self.server_descriptors} descriptors and does not return to that")
        return memory(self.server.pid) - self.server_memory

    def end_server(self):
        if self.server is not None and self.server.poll() is None:
            self.server.terminate()
            self.server.wait(PATIENCE_SECONDS)

    # ---- one job ----

    def start(self, words, **more):
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(self.temporary),
                       "OMP_NUM_THREADS": "1", MARK: self.mark, **more}
        base = self.folder / f"agent.{len(self.agents)}"
        with open(f"{base}.out", "wb") as out, open(f"{base}.err", "wb") as err:
            self.agents.append(subprocess.Popen(
                [BINARY, "run", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=environment, cwd=self.here))

    def begin(self, *options, agent_count=1, program, **more):
        """Starts the agents of a job; several meet at the server."""
        self.jobs += 1
        self.mark = uuid.uuid4().hex
        self.agents = []
        for _ in range(agent_count):
            words = list(options)
            if agent_count > 1:
                words += ["--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{self.port}",
                          f"--rdzv-id=job-{self.jobs}", "--local-addr=127.0.0.1"]
            self.start([*words, *program], **more)

    def end(self):
        """The statuses of all agents."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for agent in self.agents:
            try:
                agent.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Wrong("the job hangs") from None
        self.wait(lambda: not marked(self.mark), lambda: f"processes are left: {marked(self.mark)}",
                  LEAVING_SECONDS)
        self.wait(lambda: not self.files(), lambda: f"files are left: {self.files()}", LEAVING_SECONDS)
        return [agent.returncode for agent in self.agents]

    def files(self):
        return [str(path) for place in (self.temporary, self.here) for path in place.rglob("*")]

    def output(self, number):
        return (self.folder / f"agent.{number}.out").read_text(errors="replace")

    def describe(self):
        parts = [f"processes: {marked(self.mark)}"]
        for number, agent in enumerate(self.agents):
            errors = (self.folder / f"agent.{number}.err").read_text(errors="replace")
            parts.append(f"--- agent {number}, status {agent.poll()}: {' '.join(agent.args)}\n"
                         f"--- stdout\n{self.output(number)}\n--- stderr\n{errors}")
        return "\n".join(parts)

    def end_all(self):
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        for pid in marked(self.mark) if self.agents else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, look, what, seconds=PATIENCE_SECONDS):
        deadline = time.monotonic() + seconds
        while not look():
            if time.monotonic() > deadline:
                raise Wrong(what() if callable(what) else what)
            time.sleep(0.002)


# ---- the three parts ------------------------------------------------------------------------------


def idle_jobs(soak, count):
    """Jobs that end well. Their workers print which descriptors they have got."""
    seconds = []  # and of what
    shapes = ((1, ["--nproc-per-node=2"]), (1, ["--standalone", "--nproc-per-node=2"]),
              (2, ["--nnodes=2"]), (1, ["--nproc-per-node=2", "--tee=3", f"--log-dir={soak.folder}/logs"]))
    for number in range(count):
        agent_count, options = shapes[number % len(shapes)]
        began = time.monotonic()
        soak.begin(*options, agent_count=agent_count, program=["ls", "/proc/self/fd"])
        statuses = soak.end()
        seconds.append((time.monotonic() - began, " ".join(options)))
        if statuses != [0] * agent_count:
            raise Wrong(f"run {number}: the agents ended with {statuses}")
        lines = "".join(soak.output(agent) for agent in range(agent_count)).split()
        # 3 is the folder that `ls` reads.
        seen = collections.Counter(line.split(":")[-1] for line in lines)
        if seen != {name: 2 for name in "0123"}:
            raise Wrong(f"run {number}: the workers have the descriptors {sorted(seen.elements())}")
        shutil.rmtree(soak.folder / "logs", ignore_errors=True)
    return seconds


FAULTS = {
    # what -> the statuses with which the agent that it happens to may end
    "kill a worker": (0,),
    "stop a worker for a moment": (0,),
    "kill the guard": (-9, 0),
    "kill the agent": (-9, 0),
    "stop the agent, kill the guard": (-9, 0),
    "SIGTERM": (1, 0, -15),  # it may have ended already, or not have begun to listen
    "SIGINT": (1, 0, -2),
    "SIGHUP": (1, 0, -1),
    "SIGQUIT": (1, 0, -3),
    "SIGTERM twice": (1, 0, -15),
}


def strike(soak, fault, source):
    agent = soak.agents[0]
    moment = time.monotonic() + source.uniform(0, 0.3)
    soak.wait(lambda: time.monotonic() > moment or agent.poll() is not None, "")
    if agent.poll() is not None:
        return
    inner = agent_below(agent.pid)
    workers = children(inner)
    if fault.endswith("kill the guard"):
        if inner and fault.startswith("stop"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(inner, signal.SIGSTOP)
        agent.kill()
    elif fault == "kill the agent":
        with contextlib.suppress(ProcessLookupError):
            os.kill(inner or agent.pid, signal.SIGKILL)
    elif fault.startswith("SIG"):
        for _ in range(2 if fault.endswith("twice") else 1):
            agent.send_signal(signal.Signals[fault.split()[0]])
    elif workers:
        victim = source.choice(workers)
        with contextlib.suppress(ProcessLookupError):
            if fault == "kill a worker":
                os.kill(victim, signal.SIGKILL)
                return
            os.kill(victim, signal.SIGSTOP)
            moment = time.monotonic() + 0.1
            soak.wait(lambda: time.monotonic() > moment, "")
            os.kill(victim, signal.SIGCONT)


def killed_jobs(soak, count, source):
    """Jobs to which something happens; what does not end because of it must end well."""
    seconds = []
    worker = soak.script("worker", WORKER)
    for number in range(count):
        agent_count = source.choice((1, 2))
        options = ["--max-restarts=5", f"--log-dir={soak.folder}/logs", f"--tee={source.choice((0, 3))}"]
        options += ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=5,regroup_timeout=1"] \
            if agent_count == 2 else ["--nproc-per-node=3"]
        fault = source.choice(list(FAULTS))
        began = time.monotonic()
        soak.begin(*options, agent_count=agent_count, program=[worker])
        strike(soak, fault, source)
        try:
            statuses = soak.end()
        except Wrong as error:
            raise Wrong(f"killed run {number} ({fault}, {agent_count} agents): {error}") from None
        seconds.append((time.monotonic() - began, f"{fault}, {agent_count} agents"))
        if statuses[0] not in FAULTS[fault] or any(statuses[1:]):
            raise Wrong(f"killed run {number} ({fault}): the agents ended with {statuses}")
        shutil.rmtree(soak.folder / "logs", ignore_errors=True)
    return seconds


def restarts(soak, count):
    """One agent that lives long: neither its descriptors nor its memory grow."""
    notes = soak.folder / "notes"
    program = soak.script("restarted", RESTARTED)
    soak.begin("--nproc-per-node=2", f"--max-restarts={count}", "--tee=3", f"--log-dir={soak.folder}/logs",
               program=[program], NOTES=str(notes), TIMES=str(count))
    statuses = soak.end()
    if statuses != [0]:
        raise Wrong(f"restarts: the agent ended with {statuses}")
    seen = [tuple(int(word) for word in line.split()) for line in notes.read_text().splitlines()]
    # How many the workers see is a matter of luck: the other one is being started or ended just then.
    tenth = max(1, len(seen) // 10)
    first = max(fds for fds, _ in seen[:tenth])
    last = max(fds for fds, _ in seen[-tenth:])
    if last > first + RESTARTS_MIN // 4:
        raise Wrong(f"restarts: the agent had {first} descriptors, and after {len(seen)} starts {last}")
    shutil.rmtree(soak.folder / "logs", ignore_errors=True)
    return first, last, seen[tenth][1], seen[-1][1]


def summary(name, seconds):
    middle = statistics.median(length for length, _ in seconds)
    longest, which = max(seconds)
    return (f"{len(seconds)} {name}: {sum(length for length, _ in seconds):.1f} s; one takes "
            f"{middle * 1000:.0f} ms (median), {longest * 1000:.0f} ms at most ({which})")


def run(soak, options):
    soak.serve()
    descriptors_before = descriptors("self")
    print(summary("jobs that did nothing", idle_jobs(soak, options.runs)), flush=True)
    killed = killed_jobs(soak, options.killed_runs, random.Random(options.seed))
    print(summary("jobs with kills and signals", killed), flush=True)
    restart_count = max(RESTARTS_MIN, options.killed_runs)
    fds_first, fds_last, memory_first, memory_last = restarts(soak, restart_count)
    print(f"{restart_count} restarts by one agent: descriptors {fds_first}, then {fds_last}; "
          f"memory {memory_first} KiB, then {memory_last} KiB", flush=True)
    grown = soak.check_server()
    print(f"the server after {soak.jobs} jobs: as many descriptors as before, {grown} KiB more memory",
          flush=True)
    if descriptors("self") > descriptors_before:
        raise Wrong(f"this test has {descriptors('self')} descriptors, and had {descriptors_before}")


def main():
    runs = int(os.environ.get("MUSTER_SOAK_RUNS") or 60)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=int, nargs="?", default=runs)
    parser.add_argument("killed_runs", type=int, nargs="?", default=0)
    parser.add_argument("--seed", type=int,
                        default=os.environ.get("MUSTER_SEED") or random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    options.killed_runs = options.killed_runs or max(1, options.runs // 5)
    if not os.access(BINARY, os.X_OK):
        print(f"there is no program {BINARY}; build it, or name it in MUSTER_BIN", file=sys.stderr)
        return 2
    script = pathlib.Path(__file__).resolve().relative_to(ROOT)
    print(f"replay with: /usr/bin/python3 {script} --seed {options.seed} {options.runs} {options.killed_runs}",
          flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-soak-"))
    soak = Soak(folder)
    try:
        run(soak, options)
    except Wrong as error:
        print(f"FAILED: {error}\n{soak.describe()}", flush=True)
        return 1
    finally:
        soak.end_all()
        soak.end_server()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
