"""Who takes part in the RPC comparison, and how one measurement with one of them is made.

Each native contender is a program of bench/rpc with the command line of bench/rpc/program.h; how
Muster's own differs is said at `Muster`. PyTorch's is bench/torch_rpc.py.
"""

import collections
import contextlib
import enum
import json
import os
import pathlib
import re
import select
import signal
import subprocess

import harness
import store
from harness import CannotMeasure

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1024 * 1024
PATIENCE = 60
# For clients that have just been started: until they are connected and have made a first call.
SETTLE_SECONDS = 1.5

# An arena of the allocator takes memory in heaps of 64 MiB.
ARENA_BLOCK_BYTES_MAX = 32 * MIB

MUSTER, BLOCKING = "Muster", "Muster that always blocks"
RAW_TCP, FUTEX, SPIN = "raw epoll TCP", "raw futex", "raw spinning"
NAPS = "waking up once a second"
STREAM, STREAM_HOT = "raw TCP stream", "raw TCP stream of 1 MiB"
MEMCPY, MEMCPY_ECHO = "memcpy", "memcpy there and back"
GRPC, CAPNP, TENSORPIPE, TORCH = "gRPC", "Cap'n Proto", "TensorPipe", "PyTorch"
GRPC_SYNC = f"{GRPC} (sync server)"
DEBIAN_PYTHON = "/usr/bin/python3"


class Place(enum.Enum):
    """Where the two processes run."""

    ANY_CORE = "any core"
    PINNED = "pinned"  # a core each
    FROM_ONE_CORE = "from one core"  # until they are connected; then they may leave it


class Cores:
    """The server on the first core, the client on the second; with one core, both share it. The
    priority of all of them is raised alike where that is permitted."""

    def __init__(self):
        cores = sorted(os.sched_getaffinity(0))
        self.pinned = len(cores) >= 2
        self.all = set(cores)
        self.server = {cores[0]} if self.pinned else self.all
        self.client = {cores[1]} if self.pinned else self.all
        self.raised = harness.can_raise_priority()

    def of(self, place):
        """For the server and for the client."""
        return {
            Place.ANY_CORE: (self.all, self.all),
            Place.PINNED: (self.server, self.client),
            Place.FROM_ONE_CORE: (self.server, self.server),
        }[place]


def kept_memory(message_bytes):
    """The environment for echoes, of all alike: memory that a message needed is kept for the next
    one. Without it, who allocates for each message mostly waits for new pages. The allocator has an
    arena for each thread, of which only the first can keep large blocks, so then it is the only
    one."""
    tunables = {"mmap_threshold": 2**30, "trim_threshold": 2**32}
    if message_bytes > ARENA_BLOCK_BYTES_MAX:
        tunables["arena_max"] = 1
    return {
        "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{key}={each}" for key, each in tunables.items())
    }


nothing = contextlib.nullcontext


@contextlib.contextmanager
def busy(options, count):
    """So many processes use the processor meanwhile. Not in sessions of their own: where the kernel
    shares the processor among sessions first, they have to count one by one."""
    command = [options.build / "bench" / "rpc_raw", "client", "--case", "busy", "--seconds", 3600]
    processes = [harness.start(command, stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            harness.stop(process)


def read_line(process, what, patience=PATIENCE):
    if not select.select([process.stdout], [], [], patience)[0]:
        raise CannotMeasure(f"{what} said nothing for {patience} s")
    line = process.stdout.readline().strip()
    if not line:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            raise CannotMeasure(f"{what} closed its output and did not end") from None
        said = process.log_file.read_text().strip() if process.log_file else ""
        raise CannotMeasure(f"{what} ended with status {process.returncode} {said[-500:]}".strip())
    return line


def parse(line, what):
    try:
        result = json.loads(line)
    except ValueError:
        raise CannotMeasure(f"{what} said {line!r}") from None
    if "error" in result:
        raise CannotMeasure(f"{what}: {result['error']}")
    return result


class Native:
    """A server and a client, started for each measurement: some servers use a core even when nobody
    calls them."""

    def __init__(self, options, cores, name, program, transports, kind=None, sleepless=()):
        self.name = name
        self.cores = cores
        self.program = options.build / "bench" / program
        self.transports = transports  # ours: what it has in its place
        self.kind = ["--kind", kind] if kind else []
        self.sleepless = sleepless  # over which transports it uses the processor also when quiet

    def can(self, case):
        """Whether it takes part in a case."""
        if case.transport not in self.transports:
            return False
        if case.is_for_muster_alone:
            return False
        # A second server differs in how it runs functions.
        is_second = "sync" in self.kind
        return not is_second or (case.name.startswith(("noop", "inflight")) and not case.busy)

    def is_telling(self, case):
        """Whether --quick needs it, too."""
        is_own = self.transports[case.transport] == case.transport
        return is_own and "sync" not in self.kind and not case.busy

    def close(self):
        pass

    def translate(self, arguments):
        """The case as the program knows it."""
        if arguments["case"] == "noop-pool":
            return {**arguments, "case": "noop"}
        return arguments

    def measure(self, transport, arguments, place, raised):
        arguments = self.translate(arguments)
        with self.connect(transport, arguments, place, raised) as (_, client):
            return parse(read_line(client, f"{self.name}, client"), f"{self.name}, client")

    def stay_connected(self, transport, seconds):
        """A context with the two processes, which say nothing to each other."""
        arguments = {"case": "idle", "threads": 1, "seconds": seconds}
        return self.connect(transport, arguments, Place.ANY_CORE, raised=True)

    @contextlib.contextmanager
    def connect(self, transport, arguments, place, raised):
        """The two processes."""
        server_cores, client_cores = self.cores.of(place)
        words = ["--transport", self.transports[transport], *self.kind]
        keep = kept_memory(arguments["bytes"]) if arguments["case"] == "echo" else {}
        server = self.start(
            ["server", *words, "--threads", arguments["threads"]],
            server_cores,
            raised,
            keep,
        )
        client = None
        try:
            word, _, address = read_line(server, f"{self.name}, server").partition(" ")
            if word != "listening":
                raise CannotMeasure(f"{self.name}, server: it said {word!r}")
            words += ["--address", address]
            for key, value in arguments.items():
                words += [f"--{key.replace('_', '-')}", value]
            if place == Place.FROM_ONE_CORE:
                words += ["--frees", server.pid]
            client = self.start(["client", *words], client_cores, raised, keep)
            yield server, client
        finally:
            for process in (client, server):
                if process:
                    harness.stop(process)

    def start(self, words, cores, raised, keep):
        environment = {**os.environ, "TMPDIR": str(harness.scratch_file("socket").parent)}
        return harness.start(
            [self.program, *words],
            cores,
            raised and self.cores.raised,
            log=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | keep,
        )


class Muster(Native):
    """build/bench/rpc_muster. It knows two cases more: `noop-pool`, a no-op that runs in the
    server's pool, and `peers --count N`, which answers {"memory_bytes": ...}: the memory of one
    process with so many connected peers."""

    def can(self, case):
        return True

    def translate(self, arguments):
        return arguments

    def measure_memory(self, transport, count):
        """It makes its peers itself."""
        words = ["client", "--transport", self.transports[transport], "--case", "peers"]
        process = self.start([*words, "--count", count], self.cores.all, raised=True, keep={})
        try:
            result = parse(read_line(process, self.name), self.name)
        finally:
            harness.stop(process)
        if "memory_bytes" not in result:
            raise CannotMeasure("rpc_muster: the case peers brought no memory_bytes")
        return result["memory_bytes"]


class Blocking(Muster):
    """It never looks before it sleeps, which is the best that one can do where threads outnumber
    the cores, be they its own or others'."""

    def can(self, case):
        return case.busy or case.is_crowd

    def is_telling(self, case):
        return True


class Bound(Native):
    """Plain sockets and plain shared memory."""

    def is_telling(self, case):
        return case.name != "echo"  # beside which there is the stream

    def can(self, case):
        if case.transport not in self.transports or case.name == "idle":
            return False
        if case.is_for_muster_alone:
            return False
        if case.transport == "tcp":
            return True
        if self.transports["shm"] == "spin" and (case.threads > 1 or case.busy):
            return False  # it needs a core for each thread
        return case.name in ("noop", "noop-pool")


class Naps(Native):
    """Not even a connection: a thread in each process that wakes up once a second."""

    def can(self, case):
        return case.name == "idle"

    @contextlib.contextmanager
    def stay_connected(self, transport, seconds):
        words = ["client", "--case", "naps", "--seconds", seconds]
        pair = [self.start(words, self.cores.all, raised=True, keep={}) for _ in range(2)]
        try:
            yield pair
        finally:
            for process in pair:
                harness.stop(process)


class Volume(Native):
    """What can be moved at all, beside the echo of 64 MiB."""

    def __init__(self, options, cores, name, transport, case, moved=None):
        super().__init__(options, cores, name, "rpc_raw", {transport: "tcp"})
        self.case = case
        self.moved = moved

    def can(self, case):
        takes_part = super().can(case) and case.name == "echo" and case.bytes == 64 * MIB
        return takes_part and (case.is_pinned or not self.moved)

    def is_telling(self, case):
        return self.name in (STREAM, MEMCPY)

    def translate(self, arguments):
        return {**arguments, "case": self.case, "bytes": self.moved or arguments["bytes"]}


class Torch:
    """Pairs of processes for the whole run, since PyTorch takes seconds to load: one for each
    transport and, since how memory is kept is said when a process starts, each for large messages
    and for others. They are stopped while others are measured: over shared memory they use a core
    each. A pair that dies is replaced once."""

    STARTS_MAX = 2
    sleepless = ()

    def __init__(self, cores, name, python, seconds):
        self.name = name
        self.cores = cores
        self.python = python
        self.seconds = seconds  # of a measurement
        self.pairs = {}  # (transport, environment): (server, client)
        self.starts_left = collections.defaultdict(lambda: self.STARTS_MAX)  # of such a pair

    @staticmethod
    def key_of(transport, message_bytes):
        return transport, tuple(kept_memory(message_bytes).items())

    def can(self, case):
        key = self.key_of(case.transport, case.bytes)
        if case.is_for_muster_alone or (key not in self.pairs and self.starts_left[key] == 0):
            return False
        # Not where both processes may use all cores: that tells little more, and takes long.
        return case.is_crowd or (case.is_pinned and case.name in ("noop", "inflight", "echo"))

    def close(self):
        for key in list(self.pairs):
            self.drop(key)

    def drop(self, key):
        for process in reversed(self.pairs.pop(key)):
            process.send_signal(signal.SIGCONT)
            harness.stop(process)

    def measure(self, transport, arguments, place, raised):
        key = self.key_of(transport, arguments["bytes"])
        if key not in self.pairs:
            self.pairs[key] = self.start_pair(key)
        server, client = self.pairs[key]
        try:
            for process, cores in zip((server, client), self.cores.of(place)):
                process.send_signal(signal.SIGCONT)
                harness.pin(process, cores)
            client.stdin.write(json.dumps({**arguments, "seconds": self.seconds}) + "\n")
            client.stdin.flush()
            line = read_line(client, f"{self.name}, client")
        except (CannotMeasure, OSError) as error:
            self.drop(key)
            raise CannotMeasure(f"{self.name} is gone: {error}") from None
        for process in (server, client):
            process.send_signal(signal.SIGSTOP)
        return parse(line, f"{self.name}, client")

    def start_pair(self, key):
        if self.starts_left[key] == 0:
            raise CannotMeasure(f"{self.name} is gone")
        self.starts_left[key] -= 1
        with contextlib.ExitStack() as started:
            try:
                server = self.start(started, key, "server")
                address = read_line(server, f"{self.name}, server").removeprefix("listening ")
                client = self.start(started, key, "client", "--address", address)
                read_line(client, f"{self.name}, client")
            except CannotMeasure:
                # What does not start now will not later, and each attempt may take a minute.
                self.starts_left[key] = 0
                raise
            started.pop_all()
        return server, client

    def start(self, started, key, role, *more):
        """Who is `started` is stopped with it."""
        transport, environment = key
        process = harness.start(
            [self.python, HERE / "torch_rpc.py", role, "--transport", transport, *more],
            self.cores.all,
            self.cores.raised,
            log=True,
            death_signal=signal.SIGKILL,  # the only one that ends a stopped process
            env=os.environ | dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.callback(harness.stop, process)
        return process


# ---- finding them -----------------------------------------------------------------------------


def find(options, report, cores, torch_seconds):
    """Name: contender, in the order of the report. Who cannot be had is named in the report. With
    no `torch_seconds`, without PyTorch."""
    found = {}

    def add(contender):
        found[contender.name] = contender

    def native(name, program, package, about, kinds, sleepless=()):
        if not (options.build / "bench" / program).exists():
            report.miss(
                name,
                f"build/bench/{program} was not built; it needs {package} "
                "(tools/packages install bench)",
            )
            return
        report.peers[name] = f"{version_of(package)} {about}".strip()
        for kind, transports in kinds.items():
            full = f"{name} ({kind} server)" if kind else name
            add(Native(options, cores, full, program, transports, kind, sleepless))

    if (options.build / "bench" / "rpc_muster").exists():
        both = {"tcp": "tcp", "shm": "shm"}
        add(Muster(options, cores, MUSTER, "rpc_muster", both))
        add(Blocking(options, cores, BLOCKING, "rpc_muster", both, "blocking"))
    else:
        report.fail(MUSTER, "build/bench/rpc_muster was not built; the peers are shown alone")
    add(Bound(options, cores, RAW_TCP, "rpc_raw", {"tcp": "tcp"}))
    add(Bound(options, cores, FUTEX, "rpc_raw", {"shm": "futex"}))
    add(Bound(options, cores, SPIN, "rpc_raw", {"shm": "spin"}))
    add(Naps(options, cores, NAPS, "rpc_raw", {"tcp": "tcp", "shm": "shm"}))
    add(Volume(options, cores, STREAM, "tcp", "stream"))
    add(Volume(options, cores, STREAM_HOT, "tcp", "stream", MIB))
    add(Volume(options, cores, MEMCPY, "shm", "memcpy"))
    add(Volume(options, cores, MEMCPY_ECHO, "shm", "memcpy-echo"))
    on_unix = {"tcp": "tcp", "shm": "unix"}
    native(
        GRPC,
        "rpc_grpc",
        "libgrpc++-dev",
        "(the better of its callback and its sync server)",
        {"callback": on_unix, "sync": on_unix},
    )
    native(CAPNP, "rpc_capnp", "libcapnp-dev", "", {None: on_unix})
    native(
        TENSORPIPE,
        "rpc_tensorpipe",
        "libtensorpipe-dev",
        "(transport uv and channel basic; transport shm and channel cma)",
        {None: {"tcp": "tcp", "shm": "shm"}},
        sleepless=("shm",),
    )
    if torch_seconds:
        for name, python in torches(report).items():
            add(Torch(cores, name, python, torch_seconds))
    return found


def version_of(package):
    """What Debian says, or nothing."""
    command = ["dpkg-query", "-W", "-f", "${Version}", package]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return ""


def torches(report):
    """Name: interpreter. PyTorch 2 from its environment, and Debian's if it is installed."""
    found = {}
    for python in filter(None, (store.torch_python(report), DEBIAN_PYTHON)):
        ask = "print(json.dumps(importlib.metadata.version('torch')))"
        version = pathlib.Path(python).exists() and store.ask_python(python, ask)
        if version:
            number = re.match(r"\d+\.\d+", version).group()
            found[f"{TORCH} {number}"] = python
            report.peers[f"{TORCH} {number}"] = f"{version}, torch.distributed.rpc from Python"
    if DEBIAN_PYTHON not in found.values():
        report.miss("PyTorch 1.13", "python3-torch is not installed")
    return found
