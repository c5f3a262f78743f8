"""Launching: how long from the command to the workers, and what the launcher costs, beside torchrun."""

import contextlib
import dataclasses
import os
import pathlib
import select
import signal
import subprocess
import time

import harness
import store
from harness import CannotMeasure, Figure

PATIENCE = 60
FIRST_WORKER_MS = 15
ALL_WORKERS_MS = {64: 120}


@dataclasses.dataclass(frozen=True)
class Plan:
    workers: tuple
    repetitions: int
    torch_repetitions: int
    idle_seconds: float
    nodes: bool  # whether agents die and come


FULL = Plan(workers=(1, 8, 64), repetitions=11, torch_repetitions=5, idle_seconds=10, nodes=True)
QUICK = Plan(workers=(1, 8), repetitions=5, torch_repetitions=1, idle_seconds=2, nodes=True)


@dataclasses.dataclass(frozen=True)
class Stamp:
    seconds: float  # when the worker's main began, on the monotonic clock
    pid: int
    rank: int
    world_size: int
    node: str


class Stamps:
    """The pipe on which workers say when they began."""

    def __init__(self):
        self.path = harness.scratch_file("stamps")
        os.mkfifo(self.path)
        # Both ends, so that the pipe never ends.
        self.pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.rest = b""

    def close(self):
        os.close(self.pipe)

    def wait(self, count, of=lambda stamp: True, patience=PATIENCE):
        """The next `count` stamps for which `of` is true."""
        found = []
        ends = time.monotonic() + patience
        while len(found) < count:
            left = ends - time.monotonic()
            if left <= 0:
                raise CannotMeasure(f"{len(found)} of {count} workers began within {patience} s")
            if not select.select([self.pipe], [], [], left)[0]:
                continue
            lines = (self.rest + os.read(self.pipe, 1 << 16)).split(b"\n")
            self.rest = lines.pop()
            for line in lines:
                nanoseconds, pid, rank, size, node = line.decode().split(" ", 4)
                stamp = Stamp(int(nanoseconds) / 1e9, int(pid), int(rank), int(size), node)
                if of(stamp):
                    found.append(stamp)
        return found


class Launcher:
    """One of the two: how it is called, and what its workers find."""

    def __init__(self, name, command, worker):
        self.name = name
        self.command = command
        self.worker = worker

    def start(self, stamps, workers, *options, stay, node="0"):
        """Starts a job; (process, when)."""
        environment = dict(os.environ, BENCH_STAMPS=str(stamps.path), BENCH_NODE=node,
                           OMP_NUM_THREADS="1", LOGLEVEL="ERROR")
        words = [*self.command, "--nproc-per-node", workers, *options, "--no-python", self.worker]
        if stay:
            words.append("stay")
        began = time.monotonic()
        process = harness.start(words, env=environment, stdout=subprocess.DEVNULL, log=True)
        return process, began


def end(process, *pids):
    """Ends a launcher in good order; kills what it should have ended."""
    harness.stop(process)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children_of(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agent_below(process):
    """The process that does the work: that of the agent, else the one that was started."""
    for pid in children_of(process.pid):
        if status_of(pid)["Name"].strip() == "muster-agent":
            return pid
    return process.pid


class Comparison:
    def __init__(self, options, report):
        self.options = options
        self.report = report
        self.plan = QUICK if options.quick else FULL
        worker = options.build / "bench" / "launch_worker"
        self.muster_program = options.build / "bin" / "muster"
        self.muster = Launcher("muster", [self.muster_program, "run"], worker)
        self.torch = None
        python = store.torch_python(report)
        if python:
            # What the torchrun command itself does.
            self.torch = Launcher("torchrun", [python, "-m", "torch.distributed.run"], worker)
            report.peers["torchrun"] = "PyTorch " + subprocess.run(
                [python, "-c", "import torch; print(torch.__version__)"],
                stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def wanted(self, name):
        return self.options.only in name

    def add(self, name, unit, samples, better="lower", **rest):
        self.report.figures.append(Figure(name, unit, better, samples, **rest))

    def beside(self, name, unit, ours, theirs, targets):
        """One line for each target; one beside the peer, if there is one."""
        absolute = [target for target in targets if target.startswith("value")]
        relative = [target for target in targets if target.startswith("ratio")]
        for target in absolute or [None]:
            if target or not theirs:
                self.add(name, unit, ours, target=target)
        if theirs:
            self.add(name, unit, ours, against="torchrun", against_samples=theirs,
                     target=relative[0] if relative else None)

    # ---- the start

    def start_once(self, launcher, workers):
        """(command to first main, command to last main), in milliseconds, of one job."""
        stamps = Stamps()
        try:
            process, began = launcher.start(stamps, workers, "--standalone", stay=False)
            begun = [stamp.seconds for stamp in stamps.wait(workers)]
            status = process.wait(PATIENCE)
            harness.stop(process)
            if status != 0:
                raise CannotMeasure(f"{launcher.name} ended with status {status}")
            return (min(begun) - began) * 1e3, (max(begun) - began) * 1e3
        finally:
            stamps.close()

    def starts(self):
        for workers in self.plan.workers:
            name = f"start/{workers} workers" if workers > 1 else "start/1 worker"
            if not self.wanted(name):
                continue
            ours, theirs = [], []
            for repetition in range(self.plan.repetitions):
                ours.append(self.start_once(self.muster, workers))
                if self.torch and repetition < self.plan.torch_repetitions:
                    theirs.append(self.start_once(self.torch, workers))
            first = [f"value <= {FIRST_WORKER_MS}"] if workers == 1 else []
            if workers == 1:
                first.append("ratio <= 0.02")
            self.beside(f"{name}/first", "ms", [a for a, _ in ours], [a for a, _ in theirs], first)
            every = [f"value <= {ALL_WORKERS_MS[workers]}"] if workers in ALL_WORKERS_MS else []
            self.beside(f"{name}/last", "ms", [b for _, b in ours], [b for _, b in theirs], every)

    # ---- what it costs to wait

    def cost(self, launcher, workers):
        stamps = Stamps()
        try:
            process, _ = launcher.start(stamps, workers, "--standalone", stay=True)
            pids = [stamp.pid for stamp in stamps.wait(workers)]
            time.sleep(0.5)  # what a start leaves to do
            # Ours are two: the one that was started guards the agent.
            agent = agent_below(process)
            launchers = {process.pid, agent}
            before = sum(map(cpu_seconds, launchers))
            time.sleep(self.plan.idle_seconds)
            used = sum(map(cpu_seconds, launchers)) - before
            status = status_of(agent)
            memory = int(status["VmRSS"].split()[0]) + sum(
                int(status_of(pid)["RssAnon"].split()[0]) for pid in launchers - {agent})
            end(process, *pids)
            return memory / 1024, int(status["Threads"]), used / self.plan.idle_seconds * 1e3
        finally:
            stamps.close()

    def costs(self):
        workers = self.plan.workers[-1]
        name = f"waiting/{workers} workers"
        if not self.wanted(name):
            return
        ours = [self.cost(self.muster, workers) for _ in range(3)]
        theirs = [self.cost(self.torch, workers)] if self.torch else []
        self.beside(f"{name}/memory", "MiB", [c[0] for c in ours], [c[0] for c in theirs],
                    ["value <= 12"])
        self.beside(f"{name}/threads", "", [c[1] for c in ours], [c[1] for c in theirs], [])
        self.beside(f"{name}/processor time", "ms/s", [c[2] for c in ours], [c[2] for c in theirs],
                    ["value <= 0"])

    # ---- a worker dies

    def restart_once(self, launcher, workers=4):
        stamps = Stamps()
        pids = []
        try:
            process, _ = launcher.start(stamps, workers, "--standalone", "--max-restarts", 3,
                                        stay=True)
            pids = [stamp.pid for stamp in stamps.wait(workers)]
            time.sleep(0.3)
            killed = time.monotonic()
            os.kill(pids[0], signal.SIGKILL)
            again = stamps.wait(workers)
            pids += [stamp.pid for stamp in again]
            end(process, *pids)
            return (max(stamp.seconds for stamp in again) - killed) * 1e3
        finally:
            stamps.close()

    def restarts(self):
        if not self.wanted("worker killed"):
            return
        ours = [self.restart_once(self.muster) for _ in range(self.plan.repetitions)]
        theirs = []
        if self.torch:
            theirs = [self.restart_once(self.torch) for _ in range(self.plan.torch_repetitions)]
        self.beside("worker killed/4 workers/all replaced", "ms", ours, theirs, ["value <= 20"])

    # ---- nodes come and go

    @contextlib.contextmanager
    def two_nodes(self, first_alone=False):
        """Two agents with two workers each over a store of their own; (stamps, start, agents)."""
        stamps = Stamps()
        port_file = harness.scratch_file("port")
        server = harness.start(
            [self.muster_program, "store", "serve", "--host", "127.0.0.1", "--port", "0",
             "--port-file", port_file, "--log-level", "error"], stdout=subprocess.DEVNULL)
        port = harness.wait_for_port(server, port_file, "muster store serve")
        agents = []

        def start(node):
            process, began = self.muster.start(
                stamps, 2, "--nnodes", "1:2", "--max-restarts", 3, "--rdzv-backend", "muster",
                "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "bench", "--local-addr",
                "127.0.0.1", stay=True, node=node)
            agents.append(process)
            return process, began

        try:
            start("0")
            if first_alone:
                stamps.wait(2, lambda stamp: stamp.world_size == 2)
            else:
                start("1")
                stamps.wait(4, lambda stamp: stamp.world_size == 4)
            yield stamps, start, agents
        finally:
            for agent in agents:
                with contextlib.suppress(ProcessLookupError):
                    agent.send_signal(signal.SIGCONT)
                harness.stop(agent)
            harness.stop(server)
            stamps.close()

    def agent_killed(self):
        with self.two_nodes() as (stamps, _, agents):
            time.sleep(0.3)
            killed = time.monotonic()
            os.kill(agent_below(agents[1]), signal.SIGKILL)
            again = stamps.wait(2, lambda stamp: stamp.world_size == 2)
            return (max(stamp.seconds for stamp in again) - killed) * 1e3

    def host_silent(self):
        """The agent stops answering without a word, as when its host loses power."""
        with self.two_nodes() as (stamps, _, agents):
            time.sleep(0.3)
            silenced = time.monotonic()
            os.kill(agent_below(agents[1]), signal.SIGSTOP)
            again = stamps.wait(2, lambda stamp: stamp.world_size == 2)
            return (max(stamp.seconds for stamp in again) - silenced) * 1e3

    def scale_up(self):
        with self.two_nodes(first_alone=True) as (stamps, start, _):
            time.sleep(0.3)
            _, began = start("1")
            again = stamps.wait(4, lambda stamp: stamp.world_size == 4)
            return (max(stamp.seconds for stamp in again) - began) * 1e3

    def nodes(self):
        cases = (("agent killed/2 nodes/survivors in a new round", self.agent_killed, 500),
                 ("host silent/2 nodes/survivors in a new round", self.host_silent, 5000),
                 ("node added/1 to 2 nodes/all in a new round", self.scale_up, None))
        for name, measure, limit in cases:
            if self.plan.nodes and self.wanted(name):
                samples = [measure() for _ in range(5)]
                self.add(name, "ms", samples, target=f"value <= {limit}" if limit else None)


def run(options):
    report = harness.Report("launch", harness.machine())
    report.notes.append("start: from the command to the first line of a worker's main; "
                        "torchrun as `python -m torch.distributed.run`, both --standalone")
    report.notes.append("memory: resident pages of the agent, and what its guard holds for itself")
    if os.getloadavg()[0] > 1:
        report.notes.append("the machine was busy: compare ratios, not times")
    comparison = Comparison(options, report)
    for part in (comparison.starts, comparison.costs, comparison.restarts, comparison.nodes):
        try:
            part()
        except CannotMeasure as error:
            report.fail(part.__name__, error)
    return report
