"""The reference comparison: remote references of Muster beside those of PyTorch's RPC.

A group has three processes: the owner of the values, the user who makes, reads, passes and drops
references to them, and a third worker that gets references passed. Muster's is rref_load.cpp, started
anew for each repetition; PyTorch's is torch_rref.py, which takes seconds to load and so lives for the
whole run and is stopped (SIGSTOP) while others are measured.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys

import harness
import rpc_contenders
from harness import CannotMeasure, Figure
from rpc_contenders import MUSTER, TORCH, parse, read_line

ROLES = ("owner", "third", "user")
TRANSPORTS = ("tcp", "shm")
IN_FLIGHT = 100
PATIENCE = 120

# What the programs call it: what the report does.
CASES = {
    "create": "create",
    "create-fetch": "create and fetch",
    "fetch": "fetch",
    "pass": "pass to a third worker",
    "delete": "delete",
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long and how much: the full run takes about five minutes, the quick one about one."""

    seconds: float
    repetitions: int
    torch_repetitions: int
    torches_max: int  # of the versions that are here
    deleted: int  # references that are dropped at once
    torch_deleted: int
    held: int  # references that live at once
    torch_held: int


FULL = Plan(
    seconds=0.4,
    repetitions=harness.REPETITIONS,
    torch_repetitions=3,
    torches_max=2,
    deleted=50_000,
    torch_deleted=2000,
    held=1_000_000,
    torch_held=20_000,
)
QUICK = Plan(
    seconds=0.2,
    repetitions=2,
    torch_repetitions=1,
    torches_max=1,
    deleted=20_000,
    torch_deleted=1000,
    held=200_000,
    torch_held=5000,
)

# Metric: (command, key of its answer, unit, what is better).
METRICS = {
    "p50": ("after", "p50_us", "us", "lower"),
    "p99": ("after", "p99_us", "us", "lower"),
    "rate": ("many", "per_s", "1/s", "higher"),
}


# ---- groups -----------------------------------------------------------------------------------


class Group:
    """The three processes."""

    def __init__(self, name, command, transport, cores, **options):
        self.name = name
        self.cores = cores
        self.options = options
        self.processes = {}
        words = [*command, "owner", "--transport", transport]
        self.start("owner", words)
        line = read_line(self.processes["owner"], f"{name}, owner", PATIENCE)
        address = line.removeprefix("listening ")
        for role in ("third", "user"):
            words = [*command, role, "--transport", transport, "--address", address]
            self.start(role, words)
        read_line(self.processes["user"], f"{name}, user", PATIENCE)

    def start(self, role, words):
        self.processes[role] = harness.start(
            words,
            self.cores.all,
            self.cores.raised,
            log=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **self.options,
        )

    def ask(self, command, **arguments):
        line = " ".join([command, *(f"{key}={value}" for key, value in arguments.items())])
        user = self.processes["user"]
        try:
            user.stdin.write(line + "\n")
            user.stdin.flush()
        except BrokenPipeError:
            raise CannotMeasure(f"{self.name}, user has ended") from None
        what = f"{self.name}, user, at {line!r}"
        return parse(read_line(user, what, PATIENCE), what)

    def place(self, uses_third):
        """Owner and user on a core each; with the third worker, all of them wherever they like."""
        cores = self.cores
        for role, own in (("owner", cores.server), ("third", cores.server), ("user", cores.client)):
            harness.pin(self.processes[role], cores.all if uses_third else own)

    def signal(self, number, roles=ROLES):
        for role in roles:
            self.processes[role].send_signal(number)

    def resident_bytes(self):
        return {role: harness.resident_bytes(self.processes[role].pid) for role in ("owner", "user")}

    def close(self):
        for role in reversed(ROLES):
            if role in self.processes:
                harness.stop(self.processes[role])


class Muster:
    """A new group for each repetition: its workers would miss each other's signs of life if they were
    stopped."""

    def __init__(self, options, cores):
        self.program = options.build / "bench" / "rref_load"
        self.cores = cores

    @contextlib.contextmanager
    def group(self, transport):
        group = Group(MUSTER, [self.program], transport, self.cores)
        try:
            yield group
        finally:
            group.close()

    @contextlib.contextmanager
    def awake(self, group, uses_third):
        group.place(uses_third)
        yield

    def close(self):
        pass


class Torch:
    """One group for each transport. Over shared memory its processes keep a core busy each, also
    those that nobody talks to, so the third one only runs in the cases that need it."""

    def __init__(self, name, python, cores):
        self.name = name
        self.python = python
        self.cores = cores
        self.groups = {}

    @contextlib.contextmanager
    def group(self, transport):
        if transport not in self.groups:
            program = rpc_contenders.HERE / "torch_rref.py"
            self.groups[transport] = Group(
                self.name,
                [self.python, program],
                transport,
                self.cores,
                death_signal=signal.SIGKILL,  # the only one that ends a stopped process
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            )
        yield self.groups[transport]

    @contextlib.contextmanager
    def awake(self, group, uses_third):
        group.signal(signal.SIGCONT, ROLES if uses_third else ("owner", "user"))
        group.place(uses_third)
        try:
            yield
        finally:
            group.signal(signal.SIGSTOP)

    def close(self):
        for group in self.groups.values():
            group.signal(signal.SIGCONT)
            group.close()
        self.groups = {}


# ---- the comparison ---------------------------------------------------------------------------


def target_of(metric, case):
    """Of Muster beside PyTorch."""
    return "ratio <= 0.1" if (metric, case) == ("p50", "create-fetch") else None


class Comparison:
    def __init__(self, options):
        self.options = options
        self.plan = QUICK if options.quick else FULL
        self.report = harness.Report("rref", harness.machine())
        self.cores = rpc_contenders.Cores()
        self.contenders = {}

    def run(self):
        program = self.options.build / "bench" / "rref_load"
        if not program.exists():
            raise CannotMeasure(f"{program} is missing; run: make bench")
        self.describe()
        self.contenders = {MUSTER: Muster(self.options, self.cores)}
        torches = list(rpc_contenders.torches(self.report).items())
        for name, python in torches[: self.plan.torches_max]:
            self.contenders[name] = Torch(name, python, self.cores)
        try:
            # First: later, processes that live on have memory to spare that was freed before.
            self.compare_memory(TRANSPORTS[0])
            for transport in TRANSPORTS:
                self.compare(transport)
        finally:
            for contender in self.contenders.values():
                contender.close()
        return self.report

    def describe(self):
        notes = self.report.notes
        notes.append(
            "owner and user on a core each; where a third worker takes part, all of them on any"
            if self.cores.pinned
            else "one core: nothing is pinned"
        )
        notes.append(
            "priority raised for all alike"
            if self.cores.raised
            else "priority not raised: not permitted here"
        )
        notes.append(f"p50, p99: one after the other; rate: {IN_FLIGHT} under way all the time")
        notes.append("Muster from C++, PyTorch from Python")

    # ---- times and rates

    def compare(self, transport):
        """Each repetition is all cases, with each contender in turn."""
        cases = [case for case in CASES if self.options.only in f"{transport}/{CASES[case]}"]
        samples = {}  # (case, metric): {contender: numbers}
        broken = set()
        names = list(self.contenders)
        for repetition in range(self.plan.repetitions if cases else 0):
            at = repetition % len(names)
            for name in (*names[at:], *names[:at]):
                is_torch = name.startswith(TORCH)
                if name in broken or (is_torch and repetition >= self.plan.torch_repetitions):
                    continue
                self.progress(f"{transport}, {name}, {repetition + 1}")
                try:
                    self.measure(name, transport, cases, samples)
                except CannotMeasure as error:
                    self.report.fail(f"{transport} with {name}", error)
                    broken.add(name)
        for case in cases:
            for metric in METRICS:
                self.add(transport, case, metric, samples.get((case, metric), {}))

    def measure(self, name, transport, cases, samples):
        contender = self.contenders[name]
        deleted = self.plan.torch_deleted if name.startswith(TORCH) else self.plan.deleted
        with contender.group(transport) as group:
            for case in cases:
                with contender.awake(group, uses_third=case == "pass"):
                    answer = group.ask("after", case=case, seconds=self.plan.seconds)
                    answer |= group.ask(
                        "many",
                        case=case,
                        seconds=self.plan.seconds,
                        in_flight=IN_FLIGHT,
                        count=deleted,
                    )
                for metric, (_, key, _, _) in METRICS.items():
                    numbers = samples.setdefault((case, metric), {}).setdefault(name, [])
                    numbers.append(answer[key])

    def add(self, transport, case, metric, samples):
        ours = samples.pop(MUSTER, None)
        if not ours:
            return
        _, _, unit, better = METRICS[metric]
        common = dict(name=f"{transport}/{CASES[case]}/{metric}", unit=unit, better=better)
        if not samples:
            self.report.figures.append(Figure(samples=ours, **common))
        for name, theirs in samples.items():
            self.report.figures.append(
                Figure(
                    samples=ours,
                    against=name,
                    against_samples=theirs,
                    target=target_of(metric, case),
                    **common,
                )
            )

    # ---- memory

    def compare_memory(self, transport):
        title = "memory/of a reference"
        if self.options.only not in title:
            return
        used = {}
        for name, contender in self.contenders.items():
            is_torch = name.startswith(TORCH)
            held = self.plan.torch_held if is_torch else self.plan.held
            self.progress(f"{held} references, {name}")
            try:
                with contender.group(transport) as group, contender.awake(group, False):
                    used[name] = self.measure_memory(group, held)
            except CannotMeasure as error:
                self.report.fail(f"{title} with {name}", error)
        if MUSTER not in used:
            return
        self.report.notes.append(
            f"memory: {self.plan.held} references of Muster, {self.plan.torch_held} of PyTorch, "
            "to a number of eight bytes each"
        )
        ours = used.pop(MUSTER)
        for role in ("owner", "user"):
            common = dict(name=f"{title}/{role}", unit="B", better="lower", samples=[ours[role]])
            self.report.figures.append(Figure(target="value <= 300", **common))
            for name, theirs in used.items():
                self.report.figures.append(
                    Figure(against=name, against_samples=[theirs[role]], **common)
                )

    def measure_memory(self, group, count):
        """Bytes of a reference, by role."""
        group.ask("hold", count=1000)  # what is made only once
        group.ask("release")
        before = group.resident_bytes()
        group.ask("hold", count=count)
        after = group.resident_bytes()
        group.ask("release")
        return {role: (after[role] - before[role]) / count for role in before}

    def progress(self, text):
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def run(options):
    return Comparison(options).run()
