"""The RPC comparison: Muster's calls between two processes, beside plain sockets and shared memory
(the bounds), gRPC, Cap'n Proto, TensorPipe and PyTorch's RPC.

Every case is measured in turn with each contender, five times, so that whatever else the machine
does meanwhile falls on all of them. A contender has a server process and a client process, new for
each measurement; see rpc_contenders.py.
"""

import contextlib
import statistics
import sys
import time

import harness
import rpc_contenders
from harness import CannotMeasure, Figure, REPETITIONS
from rpc_cases import (
    BUSY_PER_CORE,
    FULL,
    METRICS,
    PEERS_CONNECTED,
    QUICK,
    TRANSPORTS,
    Case,
    absolute_target,
    cases_of,
    targets_of,
)
from rpc_contenders import FUTEX, GRPC, MEMCPY, MUSTER, RAW_TCP, STREAM

# Who never sleeps shows soon what it uses.
SLEEPLESS_SECONDS = 0.4


# ---- the comparison ---------------------------------------------------------------------------


class Comparison:
    def __init__(self, options):
        self.options = options
        self.plan = QUICK if options.quick else FULL
        self.report = harness.Report("rpc", harness.machine())
        self.cores = rpc_contenders.Cores()
        self.contenders = {}

    def run(self):
        begun = time.monotonic()
        if not (self.options.build / "bench" / "rpc_raw").exists():
            raise CannotMeasure(
                f"{self.options.build / 'bench' / 'rpc_raw'} is missing; run: make bench"
            )
        harness.raise_file_limit()
        self.describe()
        self.contenders = rpc_contenders.find(
            self.options, self.report, self.cores, self.plan.torch_seconds
        )
        if MUSTER not in self.contenders:
            self.report.subject = "the peer"
        try:
            for transport in TRANSPORTS:
                for case in cases_of(self.plan, transport):
                    self.guard(case.title, lambda: self.compare(case))
            self.guard("connected and quiet", self.compare_quiet)
            for transport in TRANSPORTS if self.plan.thorough else ():
                title = f"{transport}/{PEERS_CONNECTED} connected peers"
                self.guard(title, lambda: self.measure_connected_peers(transport, title))
        finally:
            for contender in self.contenders.values():
                contender.close()
        self.report.notes.append(f"all of it took {time.monotonic() - begun:.0f} s")
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
            "same priority as all others"
        )
        notes.append(
            "bandwidth: of an echo, bytes both ways; of a stream and of memcpy, bytes moved once"
        )
        notes.append("tcp is loopback; peers without shared memory use Unix sockets in its place")
        if self.options.quick:
            notes.append("--quick goes without PyTorch's RPC, Unix sockets and many peers")

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
        with self.busy_processes(case):
            for turn in range(case.rounds(self.plan)):
                at = turn % len(names)
                for name in (*names[at:], *names[:at]):
                    if name in broken or not case.is_due(name, turn, self.plan):
                        continue
                    try:
                        samples[name].append(self.measure(name, case))
                    except CannotMeasure as error:
                        self.report.fail(f"{case.title} with {name}", error)
                        broken.add(name)
        self.add_figures(case, {name: samples[name] for name in names if name not in broken})

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
        return self.contenders[name].measure(
            case.transport, case.arguments(self.plan), case.place, raised=not case.busy
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
            if case.name != "noop-pool":  # there the two servers differ in what they do
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

    def compare_quiet(self):
        """Processor time of both processes together, while they are connected and nobody calls. A
        sample each of as many pairs at once, since who sleeps does not disturb others; but who
        never does is measured after them, alone, and one pair gives all samples."""
        quiet = [
            (transport, name)
            for transport in TRANSPORTS
            for name in self.contenders
            if self.takes_part(name, Case(transport, "connected and quiet", (), name="idle"))
        ]
        used = {key: [] for key in quiet}
        sleepless = [key for key in quiet if key[0] in self.contenders[key[1]].sleepless]
        sleeping = [key for key in quiet if key not in sleepless]
        self.measure_quiet(sleeping * REPETITIONS, self.plan.quiet_seconds, 1, used)
        for key in sleepless:
            self.measure_quiet([key], SLEEPLESS_SECONDS, REPETITIONS, used)
        for transport in TRANSPORTS:
            self.add_quiet(
                f"{transport}/connected and quiet/processor time",
                {name: samples for (over, name), samples in used.items() if over == transport},
            )

    def measure_quiet(self, keys, seconds, times, used):
        """Adds to `used` so many samples of a pair for each of the keys: a transport and a name."""
        patience = seconds * times + rpc_contenders.PATIENCE
        with contextlib.ExitStack() as stack:
            pairs = []
            for transport, name in keys:
                pair = self.contenders[name].stay_connected(transport, patience)
                pairs.append((name, stack.enter_context(pair)))
            time.sleep(rpc_contenders.SETTLE_SECONDS)
            for _ in range(times):
                before = [(cpu_seconds_of(*pair), time.monotonic()) for pair in pairs]
                time.sleep(seconds)
                for key, pair, (cpu, begun) in zip(keys, pairs, before):
                    rate = (cpu_seconds_of(*pair) - cpu) / (time.monotonic() - begun)
                    used[key].append(rate * 1e6)

    def add_quiet(self, title, used):
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

    # ---- many peers

    def measure_connected_peers(self, transport, title):
        if MUSTER not in self.contenders:
            return
        samples = [
            self.contenders[MUSTER].measure_memory(transport, PEERS_CONNECTED) / 1e6
            for _ in range(REPETITIONS)
        ]
        self.report.figures.append(
            Figure(
                name=f"{title}/memory of the process",
                unit="MB",
                better="lower",
                samples=samples,
                target="value <= 64",
            )
        )


def cpu_seconds_of(name, pair):
    if any(process.poll() is not None for process in pair):
        raise CannotMeasure(f"{name} ended while it was to be quiet")
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
