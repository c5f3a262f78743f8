"""The RPC comparison: Muster's calls between two processes, beside plain sockets and shared memory
(the bounds), gRPC, Cap'n Proto, TensorPipe and PyTorch's RPC.

Every case is measured in turn with each contender, five times, so that whatever else the machine
does meanwhile falls on all of them. A contender has a server process and a client process, new for
each measurement; see rpc_contenders.py.
"""

import contextlib
import dataclasses
import statistics
import sys
import time

import harness
import rpc_contenders
from harness import CannotMeasure, Figure, REPETITIONS
from rpc_contenders import (
    CAPNP,
    FUTEX,
    GRPC,
    MEMCPY,
    BLOCKING,
    MUSTER,
    RAW_TCP,
    STREAM,
    TENSORPIPE,
    Place,
)

MIB = 1024 * 1024
IN_FLIGHT = 100
PEERS_CONNECTED = 1000
BUSY_PER_CORE = 2
# On a busy machine a pair makes four times as many calls if the kernel happens to put both of it on
# one core, which differs from start to start: a sample is the mean of so many. Even so it cannot tell
# two that are alike from two that differ by a tenth. What is compared is pairs that begin on the same
# cores each time, often enough that the few which then go elsewhere do not decide.
BUSY_STARTS = 5
BUSY_REPETITIONS = 25
# The least time in which all that a quiet pair does happens, for each sample.
QUIET_SECONDS = 5

# Metric: (key of a measurement, unit, what is better, factor to the unit).
METRICS = {
    "p50": ("p50_us", "us", "lower", 1),
    "p99": ("p99_us", "us", "lower", 1),
    "calls": ("calls_per_s", "1/s", "higher", 1),
    "bandwidth": ("bytes_per_s", "MB/s", "higher", 1e-6),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long and how much: the full run takes under ten minutes, the quick one under one."""

    seconds: float
    busy_seconds: float
    quiet_samples: int
    torch: bool
    threads: tuple
    volume_repetitions: int
    thorough: bool  # also both processes on all cores, the pool, 1 MiB, and all peers everywhere


FULL = Plan(
    seconds=0.4,
    busy_seconds=0.3,
    quiet_samples=5,
    torch=True,
    threads=(4, 16),
    volume_repetitions=REPETITIONS,
    thorough=True,
)
QUICK = Plan(
    seconds=0.1,
    busy_seconds=0.2,
    quiet_samples=2,
    torch=False,
    threads=(),
    volume_repetitions=3,
    thorough=False,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """`busy`: more threads want to run than there are cores."""

    transport: str
    what: str
    metrics: tuple
    name: str = "noop"  # what the programs call it
    bytes: int = 0
    in_flight: int = 1
    threads: int = 1
    place: Place = Place.ANY_CORE
    busy: bool = False

    @property
    def title(self):
        busy = "busy machine, " if self.busy else ""
        return f"{self.transport}/{self.what}, {busy}{self.place.value}"

    @property
    def is_pinned(self):
        return self.place == Place.PINNED

    @property
    def is_for_muster_alone(self):
        """With and without looking."""
        return self.busy and self.place != Place.ANY_CORE

    def arguments(self, seconds):
        return {
            "case": self.name,
            "bytes": self.bytes,
            "in_flight": self.in_flight,
            "threads": self.threads,
            "seconds": seconds,
        }


def cases_of(plan, transport):
    """What is compared over one transport."""
    latency, rate, volume = ("p50", "p99", "calls"), ("calls",), ("bandwidth", "p50")
    places = (Place.PINNED, Place.ANY_CORE) if plan.thorough else (Place.PINNED,)
    for place in places:
        yield Case(transport, "no-op", latency, place=place)
        yield Case(
            transport,
            f"no-op, {IN_FLIGHT} in flight",
            rate,
            name="inflight",
            in_flight=IN_FLIGHT,
            place=place,
        )
    for place in places:
        yield Case(transport, "echo of 64 MiB", volume, name="echo", bytes=64 * MIB, place=place)
    for threads in plan.threads:
        yield Case(transport, f"no-op, {threads} threads", ("p50", "calls"), threads=threads)
    if plan.thorough:
        pinned = dict(place=Place.PINNED)
        yield Case(transport, "echo of 1 MiB", volume, name="echo", bytes=MIB, **pinned)
        yield Case(transport, "no-op in the pool", latency, name="noop-pool", **pinned)
    for place in (Place.FROM_ONE_CORE, Place.PINNED, Place.ANY_CORE):
        yield Case(transport, "no-op", ("p50", "calls"), place=place, busy=True)


# ---- targets ----------------------------------------------------------------------------------


def targets_of(case, against):
    """Metric: target, of Muster beside one contender."""
    if case.name == "noop-pool":
        return {}
    if against in (CAPNP, TENSORPIPE):
        return {"p50": "ratio <= 1", "calls": "ratio >= 1", "bandwidth": "ratio >= 1"}
    if against.startswith(GRPC):
        # Echoes are mostly the kernel's and the memory's work: plain sockets are not three times as
        # fast as gRPC there.
        return {"p50": "ratio <= 0.333", "calls": "ratio >= 3"} if case.name != "echo" else {}
    if case.name == "echo" and case.bytes == 64 * MIB:
        return {
            STREAM: {"bandwidth": "ratio >= 0.8"},
            MEMCPY: {"bandwidth": "ratio >= 0.6"},
        }.get(against, {})
    if case.busy:
        # Never slower than blocking; what is left is noise. The bounds do less than a call does.
        # Of any core see BUSY_STARTS.
        return {"p50": "ratio <= 1.1", "calls": "ratio >= 0.9"} if case.is_for_muster_alone else {}
    if case.name == "noop" and case.threads == 1:
        if against == RAW_TCP:
            return {"p50": "ratio <= 1"}
        if against == FUTEX:
            # On one core, which the kernel chooses for two that take turns, nobody can do better by
            # spinning: the other one could not run.
            return {"p50": "ratio <= 0.25" if case.is_pinned else "ratio <= 1"}
    return {}


# Of Muster alone.
def absolute_target(case, metric):
    if case.name == "inflight" and metric == "calls":
        return "value >= 200000"
    return None


def means(samples, count):
    """Of each `count` samples in a row, one."""
    groups = [samples[at : at + count] for at in range(0, len(samples), count)]
    return [
        {key: statistics.fmean(sample[key] for sample in group) for key in group[0]}
        for group in groups
    ]


# ---- the comparison ---------------------------------------------------------------------------


class Comparison:
    def __init__(self, options):
        self.options = options
        self.plan = QUICK if options.quick else FULL
        self.report = harness.Report("rpc", harness.machine())
        self.cores = rpc_contenders.Cores()
        self.contenders = {}

    def run(self):
        if not (self.options.build / "bench" / "rpc_raw").exists():
            raise CannotMeasure(
                f"{self.options.build / 'bench' / 'rpc_raw'} is missing; run: make bench"
            )
        harness.raise_file_limit()
        self.describe()
        self.contenders = rpc_contenders.find(
            self.options, self.report, self.cores, self.plan.torch
        )
        if MUSTER not in self.contenders:
            self.report.subject = "the peer"
        try:
            for transport in ("tcp", "shm"):
                for case in cases_of(self.plan, transport):
                    self.guard(case.title, lambda: self.compare(case))
            self.guard("connected and quiet", self.compare_idle)
            self.guard(f"{PEERS_CONNECTED} connected peers", self.measure_connected_peers)
        finally:
            for contender in self.contenders.values():
                contender.close()
        return self.report

    def describe(self):
        cores, notes = self.cores, self.report.notes
        notes.append(
            f"pinned: the server on core {min(cores.server)}, the client on core "
            f"{min(cores.client)}; any core: both on all of them; from one core: both on the "
            "server's until they are connected, then on all"
            if cores.pinned
            else "one core: nothing is pinned"
        )
        notes.append(
            "priority raised for all alike, except on the busy machine"
            if cores.raised
            else "priority not raised: not permitted here"
        )
        notes.append(
            f"busy machine: {BUSY_PER_CORE} processes a core that only use the processor, at the "
            f"same priority as all others; any core: each sample is the mean of {BUSY_STARTS} starts"
        )
        notes.append(
            "bandwidth: of an echo, bytes both ways; of a stream and of memcpy, bytes moved once"
        )
        notes.append("tcp is loopback; peers without shared memory use Unix sockets in its place")
        if self.options.quick:
            notes.append("--quick goes without PyTorch's RPC and Unix sockets; echoes: three times")

    def guard(self, title, work):
        if self.options.only not in title:
            return
        if sys.stderr.isatty():
            print(f"\r\033[K{title}", end="", file=sys.stderr, flush=True)
        try:
            work()
        except CannotMeasure as error:
            self.report.fail(title, error)

    # ---- calls

    def compare(self, case):
        if case.name == "noop-pool" and MUSTER not in self.contenders:
            return  # a second no-op of Muster's
        names = [name for name in self.contenders if self.takes_part(name, case)]
        if not names:
            return
        samples = {name: [] for name in names}
        broken = set()
        repetitions = self.plan.volume_repetitions if case.name == "echo" else REPETITIONS
        starts = 1
        if case.is_for_muster_alone:
            repetitions = BUSY_REPETITIONS
        elif case.busy:
            starts = BUSY_STARTS
        with self.busy_processes(case):
            for repetition in range(repetitions * starts):
                at = repetition % len(names)
                for name in (*names[at:], *names[:at]):
                    most = self.contenders[name].repetitions_max
                    if name in broken or repetition >= (most or repetitions) * starts:
                        continue
                    try:
                        samples[name].append(self.measure(name, case))
                    except CannotMeasure as error:
                        self.report.fail(f"{case.title} with {name}", error)
                        broken.add(name)
        self.add_figures(
            case, {name: means(samples[name], starts) for name in names if name not in broken}
        )

    def takes_part(self, name, case):
        contender = self.contenders[name]
        if self.plan.thorough or name == MUSTER or not contender.can(case):
            return contender.can(case)
        return contender.is_telling(case)

    def busy_processes(self, case):
        if not case.busy:
            return rpc_contenders.nothing()
        return rpc_contenders.busy(self.options, BUSY_PER_CORE * len(self.cores.all))

    def measure(self, name, case):
        seconds = self.plan.busy_seconds if case.busy else self.plan.seconds
        return self.contenders[name].measure(
            case.transport, case.arguments(seconds), case.place, raised=not case.busy
        )

    def add_figures(self, case, samples):
        ours = samples.pop(MUSTER, None)
        if not ours and MUSTER in self.contenders:
            return
        for metric in case.metrics:
            values = {
                name: [sample[METRICS[metric][0]] for sample in each]
                for name, each in samples.items()
                if METRICS[metric][0] in each[0]
            }
            values = best_of_grpc(values, METRICS[metric][2])
            if ours:
                mine = [sample[METRICS[metric][0]] for sample in ours]
                self.add_beside(case, metric, mine, values)
            else:
                self.add_peers(case, metric, values)

    def add_beside(self, case, metric, ours, values):
        target = absolute_target(case, metric)
        if target or not values:
            self.add(case.title, metric, ours, target=target)
        for name, theirs in values.items():
            self.add(
                case.title,
                metric,
                ours,
                against=name,
                against_samples=theirs,
                target=targets_of(case, name).get(metric),
            )

    def add_peers(self, case, metric, values):
        """Without Muster: each contender beside the first bound that was measured."""
        bounds = [name for name in (RAW_TCP, FUTEX, STREAM, MEMCPY) if name in values]
        for name, theirs in values.items():
            beside = bounds and name != bounds[0]
            self.add(
                case.title,
                metric,
                theirs,
                whose=f" with {name}",
                against=bounds[0] if beside else None,
                against_samples=values[bounds[0]] if beside else None,
            )

    def add(self, title, metric, samples, whose="", against_samples=None, **rest):
        _, unit, better, factor = METRICS[metric]
        if against_samples:
            rest["against_samples"] = [sample * factor for sample in against_samples]
        self.report.figures.append(
            Figure(
                name=f"{title}/{metric}{whose}",
                unit=unit,
                better=better,
                samples=[sample * factor for sample in samples],
                **rest,
            )
        )

    # ---- quiet

    def compare_idle(self):
        """Processor time of both processes together, while they are connected and nobody calls. All
        at once: who uses the processor meanwhile does not change what the others use."""
        pairs, used = {}, {}
        with contextlib.ExitStack() as stack:
            for transport in ("tcp", "shm"):
                case = Case(transport, "idle", (), name="idle")
                for name, each in self.contenders.items():
                    if each.can(case):
                        pairs[transport, name] = stack.enter_context(
                            each.stay_connected(transport, 60)
                        )
            time.sleep(rpc_contenders.SETTLE_SECONDS)
            for _ in range(self.plan.quiet_samples):
                before = {key: (cpu_seconds_of(pair), time.monotonic()) for key, pair in pairs.items()}
                time.sleep(QUIET_SECONDS)
                for key, pair in pairs.items():
                    if any(process.poll() is not None for process in pair):
                        raise CannotMeasure(f"{key} ended while it was to be quiet")
                    cpu, begun = before[key]
                    rate = (cpu_seconds_of(pair) - cpu) / (time.monotonic() - begun)
                    used.setdefault(key, []).append(rate * 1e6)
        for transport in ("tcp", "shm"):
            self.add_idle(
                f"{transport}/connected and quiet/processor time",
                {name: value for (over, name), value in used.items() if over == transport},
            )

    def add_idle(self, title, used):
        ours = used.pop(MUSTER, None)
        common = dict(unit="us/s", better="lower")
        if ours:
            self.report.figures.append(
                Figure(name=title, samples=ours, target="value <= 100", **common)
            )
        for name, theirs in used.items():
            figure = (
                dict(name=title, samples=ours, against=name, against_samples=theirs)
                if ours
                else dict(name=f"{title} with {name}", samples=theirs)
            )
            self.report.figures.append(Figure(**figure, **common))

    def measure_connected_peers(self):
        if MUSTER not in self.contenders:
            return
        samples = [
            self.contenders[MUSTER].measure_memory(PEERS_CONNECTED) / 1e6
            for _ in range(1 if self.options.quick else 3)
        ]
        self.report.figures.append(
            Figure(
                name=f"{PEERS_CONNECTED} connected peers/memory of the process",
                unit="MB",
                better="lower",
                samples=samples,
                target="value <= 64",
            )
        )


def cpu_seconds_of(pair):
    return sum(harness.cpu_seconds(process.pid) for process in pair)


def best_of_grpc(values, better):
    """gRPC has two servers here. What counts is the better one, and the figure names it."""
    kinds = [name for name in values if name.startswith(GRPC)]
    if len(kinds) < 2:
        return values
    kinds.sort(key=lambda name: statistics.median(values[name]))
    best = kinds[0] if better == "lower" else kinds[-1]
    return {name: each for name, each in values.items() if name not in kinds or name == best}


def run(options):
    return Comparison(options).run()
