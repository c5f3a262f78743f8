"""What the RPC comparison measures, for how long and how often, and what is asked of the outcome.

Who takes part is in rpc_contenders.py; rpc.py does the measuring.
"""

import dataclasses

from harness import REPETITIONS
from rpc_contenders import (
    BLOCKING,
    CAPNP,
    FUTEX,
    GRPC,
    GRPC_SYNC,
    MEMCPY,
    MIB,
    MUSTER,
    RAW_TCP,
    STREAM,
    TENSORPIPE,
    Place,
)

TRANSPORTS = ("tcp", "shm")
IN_FLIGHT = 100
ECHO_THREADS = 4
PEERS_CONNECTED = 1000
BUSY_PER_CORE = 2

# Metric: (key of a measurement, unit, what is better, factor to the unit).
METRICS = {
    "p50": ("p50_us", "us", "lower", 1),
    "p99": ("p99_us", "us", "lower", 1),
    "calls": ("calls_per_s", "1/s", "higher", 1),
    "bandwidth": ("bytes_per_s", "MB/s", "higher", 1e-6),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long and how often: the full run takes under ten minutes, the quick one under one. What
    is short of time gets shorter, not rarer: whatever is measured is so five times at least.

    On a busy machine a pair makes four times as many calls if the kernel happens to put both of it
    on one core, which differs from start to start; means of many starts could not tell two that are
    alike from two that differ by a tenth. So pairs are compared where they begin on the same cores
    each time; Muster with and without looking `busy_repetitions` times, so that the few which then
    go elsewhere do not decide. Calling threads that outnumber the cores wander less, but enough for
    `crowd_repetitions` of Muster.

    `quiet_seconds` hold all that a quiet pair does, which sends signs of life every five seconds.
    """

    seconds: float
    echo_seconds: float
    busy_seconds: float
    busy_repetitions: int
    busy_places: tuple
    threads: tuple
    crowd_repetitions: int
    quiet_seconds: float
    torch_seconds: float  # 0: without PyTorch
    thorough: bool  # also on all cores, the pool, 1 MiB, many peers, and all contenders everywhere


FULL = Plan(
    seconds=0.25,
    echo_seconds=0.2,
    busy_seconds=0.25,
    busy_repetitions=25,
    busy_places=(Place.FROM_ONE_CORE, Place.PINNED, Place.ANY_CORE),
    threads=(4, 16),
    crowd_repetitions=15,
    quiet_seconds=10,
    torch_seconds=0.15,
    thorough=True,
)
QUICK = Plan(
    seconds=0.08,
    echo_seconds=0.08,
    busy_seconds=0.15,
    busy_repetitions=7,
    busy_places=(Place.FROM_ONE_CORE,),
    threads=(),
    crowd_repetitions=0,
    quiet_seconds=5,
    torch_seconds=0,
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
    def is_crowd(self):
        """Calling threads outnumber the cores, with nobody else about."""
        return self.name == "noop" and self.threads > 1

    @property
    def is_for_muster_alone(self):
        """With and without looking."""
        return self.busy and self.is_pinned

    @property
    def is_told_from_blocking(self):
        """Enough is measured to tell looking from not looking; see Plan."""
        return self.is_crowd or (self.busy and self.place != Place.ANY_CORE)

    def arguments(self, plan):
        seconds = plan.echo_seconds if self.name == "echo" else plan.seconds
        return {
            "case": self.name,
            "bytes": self.bytes,
            "in_flight": self.in_flight,
            "threads": self.threads,
            "seconds": plan.busy_seconds if self.busy else seconds,
        }

    def rounds(self, plan):
        if not self.is_told_from_blocking:
            return REPETITIONS
        return plan.busy_repetitions if self.busy else plan.crowd_repetitions

    def is_due(self, contender, turn, plan):
        """Muster is measured in every round, the others in as many as are needed."""
        rounds = self.rounds(plan)
        if contender in (MUSTER, BLOCKING):
            return True
        return (turn + 1) * REPETITIONS // rounds > turn * REPETITIONS // rounds


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
        yield Case(
            transport,
            f"echo of 1 MiB, {ECHO_THREADS} threads",
            ("bandwidth",),
            name="echo",
            bytes=MIB,
            threads=ECHO_THREADS,
        )
        yield Case(transport, "no-op in the pool", latency, name="noop-pool", **pinned)
    for place in plan.busy_places:
        yield Case(transport, "no-op", ("p50", "calls"), place=place, busy=True)


# ---- targets ----------------------------------------------------------------------------------

THREE_TIMES = {"p50": "ratio <= 0.333", "calls": "ratio >= 3"}
NOT_SLOWER = {
    "p50": "ratio <= 1",
    "p99": "ratio <= 1",
    "calls": "ratio >= 1",
    "bandwidth": "ratio >= 1",
}
# What is left is noise.
NOT_SLOWER_THAN_BLOCKING = {"p50": "ratio <= 1.1", "calls": "ratio >= 0.9"}


def targets_of(case, against):
    """Metric: target, of Muster beside one contender."""
    if case.name == "noop-pool":
        # The other servers answer in the thread that reads, which is another kind of work.
        return THREE_TIMES if against == GRPC_SYNC else {}
    if against == BLOCKING:
        return NOT_SLOWER_THAN_BLOCKING if case.is_told_from_blocking else {}
    if against in (CAPNP, TENSORPIPE):
        return NOT_SLOWER
    if against.startswith(GRPC):
        # Plain sockets are not three times as fast as gRPC in echoes, which are mostly the kernel's
        # and the memory's work, nor on a busy machine, where nobody can look and the kernel hands
        # every call over twice. On any core it also decides which pairs it leaves on one.
        is_the_kernels = case.busy and (case.transport == "tcp" or case.place == Place.ANY_CORE)
        return NOT_SLOWER if case.name == "echo" or is_the_kernels else THREE_TIMES
    if case.name == "echo" and case.bytes == 64 * MIB:
        return {
            STREAM: {"bandwidth": "ratio >= 0.8"},
            MEMCPY: {"bandwidth": "ratio >= 0.6"},
        }.get(against, {})
    if case.name == "noop" and case.threads == 1 and not case.busy:
        # On a busy machine the bounds do less than a call does.
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
