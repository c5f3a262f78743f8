"""The store comparison: Muster's server and client, a raw echo, Redis, and PyTorch's own server.

Every case is measured in turn with each peer, five times, so that whatever else the machine does
meanwhile falls on all of them. Servers run on one core and load generators on another; see `Cores`.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import harness
from harness import CannotMeasure, Figure, REPETITIONS

HERE = pathlib.Path(__file__).resolve().parent
SMALL, LARGE = 16, 64 * 1024
OPERATIONS = ("get", "set", "add", "compare_set", "wake")
CROWD = 10_000
# What a process needs beyond the crowd's descriptors.
DESCRIPTORS_BESIDE_CROWD = 100

ECHO, REDIS, TORCH = "raw epoll echo", "Redis", "PyTorch's server"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long and how much: the full run takes some six minutes, the quick one well under one."""

    milliseconds: int
    clients: tuple
    clients_large: tuple
    operations_large: tuple
    depths: tuple
    clients_pipelined: tuple
    operations_pipelined: tuple
    operations_torch: tuple
    clients_torch: tuple
    idle_seconds: float
    crowd_of_peers: bool


FULL = Plan(
    milliseconds=250,
    clients=(1, 16, 256),
    clients_large=(1, 16, 256),
    operations_large=("get", "set", "compare_set"),
    depths=(16, 64),
    clients_pipelined=(1, 16),
    operations_pipelined=("get", "set", "add"),
    operations_torch=OPERATIONS,
    clients_torch=(1, 16, 64, 256),
    idle_seconds=2.0,
    crowd_of_peers=True,
)
QUICK = Plan(
    milliseconds=60,
    clients=(1, 16),
    clients_large=(1,),
    operations_large=("get",),
    depths=(16,),
    clients_pipelined=(1, 16),
    operations_pipelined=("get", "set"),
    operations_torch=("get", "set", "add"),
    clients_torch=(1, 64),
    idle_seconds=0.3,
    crowd_of_peers=False,
)


class Cores:
    """Servers on the first core, load generators on the second; with one core, both share it. Many
    clients of PyTorch are as many threads, which would fill a core and hide the server: they, and
    then also the server, may use both cores. The priority of all of them is raised alike where that
    is permitted."""

    def __init__(self):
        cores = sorted(os.sched_getaffinity(0))
        self.pinned = len(cores) >= 2
        self.all = set(cores)
        self.server = {cores[0]} if self.pinned else self.all
        self.load = {cores[1]} if self.pinned else self.all
        self.raised = harness.can_raise_priority()


# ---- servers ----------------------------------------------------------------------------------


class Servers:
    """Starts and stops the servers. Each may be started any number of times."""

    def __init__(self, options, cores):
        self.options = options
        self.cores = cores
        self.torch = None

    def muster(self):
        port_file = harness.scratch_file("muster.port")
        return self._start(
            [
                self.options.build / "bin" / "muster",
                "store",
                "serve",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--port-file",
                port_file,
            ],
            port_file,
            "muster store serve",
        )

    def echo(self):
        port_file = harness.scratch_file("echo.port")
        return self._start(
            [self.options.build / "bench" / "echo_server", port_file], port_file, "the echo server"
        )

    def redis(self):
        # Redis cannot choose a port by itself, so a free one is found first; another process may
        # take it in between.
        for _ in range(5):
            port = free_port()
            process = self._run(
                [
                    "redis-server",
                    "--bind",
                    "127.0.0.1",
                    "--port",
                    port,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--maxclients",
                    CROWD + DESCRIPTORS_BESIDE_CROWD,
                ]
            )
            if redis_answers(process, port):
                return Server(process, port)
            harness.stop(process)
        raise CannotMeasure("redis-server does not start")

    def pytorch(self):
        port_file = harness.scratch_file("torch.port")
        return self._start([*self.torch.command, "serve", port_file], port_file, "PyTorch's server")

    def _start(self, command, port_file, what):
        process = self._run(command)
        return Server(process, harness.wait_for_port(process, port_file, what))

    def _run(self, command):
        return harness.start(
            command,
            self.cores.server,
            self.cores.raised,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            log=True,
        )


@dataclasses.dataclass
class Server:
    process: subprocess.Popen
    port: int

    def stop(self):
        harness.stop(self.process)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def redis_answers(process, port):
    ends = time.monotonic() + 10
    while time.monotonic() < ends and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(16).startswith(b"+PONG"):
                    return True
        except OSError:
            time.sleep(0.02)
    return False


# ---- PyTorch ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Torch:
    version: str
    command: list  # the client program, or the server with `serve PORT_FILE` behind it
    language: str


def find_torch(options, report):
    """The client in C++, compiled against the environment's PyTorch and kept; else in Python."""
    python = torch_python(report)
    if not python:
        return None
    # Without loading it, which takes seconds.
    located = ask_python(
        python,
        "folder = importlib.util.find_spec('torch').submodule_search_locations[0];"
        "version = importlib.metadata.version('torch');"
        "print(json.dumps({'folder': folder, 'version': version}))",
    )
    if not located:
        report.miss("PyTorch 2", f"{python} does not find it")
        return None
    program, problem = compile_torch_client(options, python, located)
    if program:
        return Torch(located["version"], [program], "C++")
    print(
        f"*** the PyTorch client cannot be compiled ({problem}); using Python threads, which cost "
        "both servers' figures alike ***",
        flush=True,
    )
    report.notes.append(
        "PyTorch's client runs in Python threads: the C++ one could not be compiled"
    )
    return Torch(located["version"], [python, HERE / "torch_load.py"], "Python")


def ask_python(python, code):
    """What the code prints as JSON, or nothing."""
    asked = subprocess.run(
        [python, "-c", "import importlib.metadata, importlib.util, json;" + code],
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    return json.loads(asked.stdout.strip().splitlines()[-1]) if asked.returncode == 0 else None


def torch_python(report):
    """The interpreter with PyTorch 2: MUSTER_TORCH2_PYTHON, or what tools/python_env makes."""
    given = os.environ.get("MUSTER_TORCH2_PYTHON")
    if given:
        return given
    tool = harness.ROOT / "tools" / "python_env"
    found = (
        subprocess.run([tool], stdout=subprocess.PIPE, text=True).stdout.strip()
        if tool.exists()
        else ""
    )
    if not found:
        report.miss("PyTorch 2", "there is no environment with it (tools/python_env)")
    return found


def compile_torch_client(options, python, located):
    """The program, or why there is none."""
    source = HERE / "torch_load.cpp"
    compiler = os.environ.get("CXX", "g++")
    mark = hashlib.sha256(repr((source.read_bytes(), compiler, located)).encode()).hexdigest()
    program = options.build / "bench" / f"torch_load-{mark[:12]}"
    if program.exists():
        return program, None
    torch = ask_python(
        python,
        "import torch, torch.utils.cpp_extension as c;"
        "print(json.dumps({'include': c.include_paths(), 'lib': c.library_paths(),"
        "'abi': int(torch._C._GLIBCXX_USE_CXX11_ABI)}))",
    )
    if not torch:
        return None, "PyTorch does not load"
    flags = [
        "-std=c++20",
        "-O2",
        f"-D_GLIBCXX_USE_CXX11_ABI={torch['abi']}",
        *(f"-isystem{folder}" for folder in torch["include"]),
    ]
    links = [word for folder in torch["lib"] for word in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
    links += ["-Wl,--no-as-needed", "-ltorch_cpu", "-lc10", "-pthread"]
    print("compiling the PyTorch client (once) …", flush=True)
    program.parent.mkdir(parents=True, exist_ok=True)
    draft = program.with_suffix(f".{os.getpid()}")
    try:
        done = subprocess.run(
            [compiler, *flags, str(source), "-o", str(draft), *links],
            capture_output=True,
            text=True,
        )
    except OSError as error:
        return None, str(error)
    if done.returncode != 0:
        return None, next(
            (line for line in done.stderr.splitlines() if "error" in line), "the compiler failed"
        )
    draft.replace(program)
    return program, None


# ---- cases ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    operation: str
    clients: int
    depth: int = 1
    value_bytes: int = SMALL

    @property
    def name(self):
        size = "/64 KiB" if self.value_bytes == LARGE else ""
        if self.depth > 1:
            many = "" if self.clients == 1 else f"{self.clients} clients, "
            return f"{self.operation}{size}/{many}pipelined {self.depth}"
        return f"{self.operation}{size}/" + (
            "sequential" if self.clients == 1 else f"{self.clients} clients"
        )

    @property
    def arguments(self):
        return {
            "operation": self.operation,
            "clients": self.clients,
            "depth": self.depth,
            "value_bytes": self.value_bytes,
        }


class Comparison:
    def __init__(self, options):
        self.options = options
        self.plan = QUICK if options.quick else FULL
        self.report = harness.Report("store", harness.machine())
        self.cores = Cores()
        self.servers = Servers(options, self.cores)
        self.load = None
        self.running = {}  # peer: Server, for as long as their cases run

    def run(self):
        for program in ("bin/muster", "bench/store_load", "bench/echo_server"):
            if not (self.options.build / program).exists():
                raise CannotMeasure(f"{self.options.build / program} is missing; run: make bench")
        self.descriptors = harness.raise_file_limit()
        self.report.peers["Muster"] = subprocess.run(
            [self.options.build / "bin" / "muster", "--version"], capture_output=True, text=True
        ).stdout.strip()
        self.describe()
        self.find_peers()
        self.load = harness.CommandLoop(
            "store_load",
            [self.options.build / "bench" / "store_load"],
            self.cores.load,
            self.cores.raised,
        )
        self.compare_stores()
        self.compare_torch_clients()
        self.compare_crowds()
        harness.stop(self.load.process)
        return self.report

    def describe(self):
        cores = self.cores
        notes = self.report.notes
        notes.append(
            f"servers pinned to core {min(cores.server)}, load to core {min(cores.load)}; with "
            "more than one PyTorch client, both may use both"
            if cores.pinned
            else "one core: nothing is pinned"
        )
        notes.append(
            "priority raised for servers and load generators alike"
            if cores.raised
            else "priority not raised: not permitted here"
        )
        notes.append(
            f"one thread of load, {SMALL} byte values unless it says 64 KiB; each reply is "
            "followed by the next request; PyTorch's client: one thread a client"
        )
        notes.append(
            "wake: one write releases all clients, each on its own connection (Redis: PUBLISH to "
            "SUBSCRIBE; echo: one message in, one out to each); only Muster's waits begin anew for "
            "each round, which its throughput and server cpu include"
        )
        notes.append(
            "server cpu: the server's processor time for one operation, connecting included; other "
            "programs on the machine disturb it least"
        )
        notes.append("Redis has no compare_set without a script, so there is no figure beside that")

    def find_peers(self):
        if shutil.which("redis-server"):
            version = subprocess.run(
                ["redis-server", "--version"], capture_output=True, text=True
            ).stdout
            found = re.search(r"v=(\S+)", version)
            self.report.peers[REDIS] = (
                f"{found.group(1) if found else version.strip()}, no persistence, "
                "one thread as by default"
            )
        else:
            self.report.miss(
                "redis-server", "the program is not installed (tools/packages install bench)"
            )
        self.report.peers[ECHO] = "bench/echo_server, the same bytes as Muster's request and reply"
        torch = find_torch(self.options, self.report)
        self.servers.torch = torch
        if torch:
            self.report.peers[TORCH] = f"{torch.version}, libuv; its client in {torch.language}"
            if torch.language == "C++":
                self.report.notes.append(
                    "PyTorch looks up each peer's name; here it is told the number at once"
                )

    def wanted(self, name):
        return self.options.only in name

    # Runs `measure(peer)` for each peer in turn, five times; each peer gets to be first.
    def alternate(self, peers, measure):
        samples = {peer: [] for peer in peers}
        for repetition in range(REPETITIONS):
            at = repetition % len(peers)
            for peer in (*peers[at:], *peers[:at]):
                samples[peer].append(measure(peer))
        return samples

    def progress(self, name):
        if sys.stderr.isatty():
            print(f"\r\033[K{name}", end="", file=sys.stderr, flush=True)

    # ---- Muster's client, the raw echo, Redis ----

    def compare_stores(self):
        plan = self.plan
        cases = [Case(operation, clients) for operation in OPERATIONS for clients in plan.clients]
        cases += [
            Case(operation, clients, value_bytes=LARGE)
            for operation in plan.operations_large
            for clients in plan.clients_large
        ]
        cases += [
            Case(operation, clients, depth)
            for operation in plan.operations_pipelined
            for depth in plan.depths
            for clients in plan.clients_pipelined
        ]
        cases = [case for case in cases if self.wanted(case.name)]
        if not cases:
            return
        starters = {"muster": self.servers.muster, "echo": self.servers.echo}
        if REDIS in self.report.peers:
            starters["redis"] = self.servers.redis
        self.running = {peer: starter() for peer, starter in starters.items()}
        for case in cases:
            self.progress(case.name)
            try:
                self.compare_store(case)
            except CannotMeasure as error:
                self.report.fail(case.name, error)
        for server in self.running.values():
            server.stop()

    def compare_store(self, case):
        wire = self.load.ask(
            "wire_bytes",
            port=self.running["muster"].port,
            operation=case.operation,
            value_bytes=case.value_bytes,
        )

        def measure(peer):
            extra = wire if peer == "echo" else {}
            return self.measure(
                self.load, self.running[peer], driver=peer, **case.arguments, **extra
            )

        peers = [
            peer
            for peer in self.running
            if not (peer == "redis" and case.operation == "compare_set")
        ]
        samples = self.alternate(peers, measure)
        for peer, against in (("echo", ECHO), ("redis", REDIS)):
            if peer in samples:
                # Alone, a server mostly falls asleep and wakes up: not what a request costs.
                metrics = ("p50", "p99", "throughput", "server cpu")[
                    : 3 if case.clients * case.depth == 1 else 4
                ]
                self.add_figures(
                    case.name,
                    samples["muster"],
                    samples[peer],
                    against,
                    targets_of(case, peer),
                    metrics,
                )

    def measure(self, load, server, **arguments):
        """One measurement, and the server's processor time for each operation meanwhile."""
        before = harness.cpu_seconds(server.process.pid)
        result = load.ask(
            "measure", port=server.port, milliseconds=self.plan.milliseconds, **arguments
        )
        used = harness.cpu_seconds(server.process.pid) - before
        return {**result, "cpu": used * 1e6 / result["all_operations"]}

    # Metric: (key of the measurement, unit, what is better).
    METRICS = {
        "p50": ("p50", "us", "lower"),
        "p99": ("p99", "us", "lower"),
        "throughput": ("rate", "1/s", "higher"),
        "server cpu": ("cpu", "us", "lower"),
    }

    def add_figures(self, name, ours, theirs, against, targets, metrics):
        for metric in metrics:
            key, unit, better = self.METRICS[metric]
            self.report.figures.append(
                Figure(
                    name=f"{name}/{metric}",
                    unit=unit,
                    better=better,
                    samples=[sample[key] for sample in ours],
                    against=against,
                    against_samples=[sample[key] for sample in theirs],
                    target=targets.get(metric),
                )
            )

    # ---- PyTorch's client on both servers ----

    def compare_torch_clients(self):
        if not self.servers.torch:
            return
        plan = self.plan
        cases = [
            Case(operation, clients)
            for operation in plan.operations_torch
            for clients in plan.clients_torch
        ]
        if not self.options.quick:
            cases += [
                Case(operation, clients, value_bytes=LARGE)
                for operation in ("get", "set")
                for clients in (1, 64)
            ]
        named = [
            (
                f"PyTorch client/{case.operation}{'/64 KiB' if case.value_bytes == LARGE else ''}/"
                f"{case.clients} client{'s' if case.clients > 1 else ''}",
                case,
            )
            for case in cases
        ]
        named = [(name, case) for name, case in named if self.wanted(name)]
        raw = [
            (f"dialect M, plain sockets/{operation}/64 clients", Case(operation, 64))
            for operation in ("get", "add")
        ]
        raw = [(name, case) for name, case in raw if self.wanted(name)]
        if not named and not raw:
            return
        client = harness.CommandLoop(
            "torch_load", self.servers.torch.command, self.cores.load, self.cores.raised
        )
        running = {"muster": self.servers.muster(), "torch": self.servers.pytorch()}
        for name, case in named:
            self.progress(name)
            self.guard(name, lambda: self.compare_torch_client(name, case, client, running))
        harness.stop(client.process)
        for server in running.values():
            server.stop()
        # The same with a client that costs little, so that the servers themselves are compared, and
        # with the raw echo, so that one sees how far apart servers can be at all: most of a request
        # is the kernel's work.
        starters = {
            "muster": self.servers.muster,
            "echo": self.servers.echo,
            "torch": self.servers.pytorch,
        }
        running = {peer: starter() for peer, starter in starters.items()} if raw else {}
        for name, case in raw:
            self.progress(name)
            self.guard(name, lambda: self.compare_dialect(name, case, running))
        for server in running.values():
            server.stop()

    def guard(self, name, work):
        try:
            work()
        except CannotMeasure as error:
            self.report.fail(name, error)

    def compare_torch_client(self, name, case, client, running):
        alone = case.clients == 1
        harness.pin(client.process, self.cores.load if alone else self.cores.all)
        for server in running.values():
            harness.pin(server.process, self.cores.server if alone else self.cores.all)

        def measure(peer):
            return self.measure(
                client,
                running[peer],
                operation=case.operation,
                clients=case.clients,
                value_bytes=case.value_bytes,
            )

        samples = self.alternate(["muster", "torch"], measure)
        # A set has no reply, so how long the call takes says nothing about the server.
        metrics = ("throughput",) if case.operation == "set" else ("p50", "p99", "throughput")
        if case.clients > 1:
            metrics += ("server cpu",)
        targets = {"throughput": "ratio >= 1.5" if case.clients == 64 else "ratio >= 1"}
        if case.operation == "wake":
            targets = {"p50": "ratio <= 1"}
        if case.clients == 1 and "p50" in metrics:
            targets["p50"] = "ratio <= 1"
        self.add_figures(name, samples["muster"], samples["torch"], TORCH, targets, metrics)

    # For the raw echo: a request and a reply in dialect M, with a key as from `key_of` in load.h.
    DIALECT_BYTES = {
        "get": {"request_bytes": 1 + 8 + 12, "reply_bytes": 8 + SMALL},
        "add": {"request_bytes": 1 + 8 + 12 + 8, "reply_bytes": 8},
    }

    def compare_dialect(self, name, case, running):
        def measure(peer):
            if peer == "echo":
                return self.measure(
                    self.load,
                    running[peer],
                    driver="echo",
                    **case.arguments,
                    **self.DIALECT_BYTES[case.operation],
                )
            return self.measure(self.load, running[peer], driver="tcpstore", **case.arguments)

        samples = self.alternate(["muster", "echo", "torch"], measure)
        for peer, against in (("echo", ECHO), ("torch", TORCH)):
            self.add_figures(
                name,
                samples["muster"],
                samples[peer],
                against,
                {},
                ("p50", "throughput", "server cpu"),
            )

    # ---- thousands of connections ----

    def compare_crowds(self):
        size = min(CROWD, self.descriptors - DESCRIPTORS_BESIDE_CROWD)
        if not self.wanted(f"{size} connections"):
            return
        if size < CROWD:
            self.report.notes.append(
                f"only {size} connections: the limit is {self.descriptors} open files a process"
            )
        crowds = {"muster": (self.servers.muster, "tcpstore"), "echo": (self.servers.echo, "echo")}
        if self.plan.crowd_of_peers and REDIS in self.report.peers:
            crowds["redis"] = (self.servers.redis, "redis")
        if self.plan.crowd_of_peers and self.servers.torch:
            crowds["torch"] = (self.servers.pytorch, "tcpstore")
        self.progress(f"{size} connections")
        self.guard(f"{size} connections", lambda: self.compare_crowd(size, crowds))

    def compare_crowd(self, size, crowds):
        samples = self.alternate(list(crowds), lambda peer: self.crowd_once(size, *crowds[peer]))
        ours = samples["muster"]

        def add(name, unit, key, target, peers, absolute=True):
            figure = Figure(
                name=name, unit=unit, better="lower", samples=[sample[key] for sample in ours]
            )
            if absolute:
                self.report.figures.append(dataclasses.replace(figure, target=target))
            for peer, against in peers:
                if peer in samples:
                    self.report.figures.append(
                        dataclasses.replace(
                            figure,
                            against=against,
                            against_samples=[sample[key] for sample in samples[peer]],
                        )
                    )

        everyone = (("echo", ECHO), ("redis", REDIS), ("torch", TORCH))
        stores = everyone[1:]
        add(
            f"{size} connections/one set wakes them, the last after",
            "ms",
            "last",
            "value <= 100",
            everyone,
        )
        add(
            f"{size} connections/memory of an idle one",
            "bytes",
            "idle_bytes",
            "value <= 8192",
            stores,
        )
        add(f"{size} connections/memory of a waiting one", "bytes", "waiting_bytes", None, stores)
        add(
            f"{size} connections/processor time while idle",
            "us/s",
            "idle_cpu",
            "value <= 0",
            stores,
        )
        self.report.notes.append(
            "memory of a connection: growth of the server's own pages (RssAnon); what the kernel "
            "keeps for the socket is not in it"
        )

    def crowd_once(self, size, starter, driver):
        """A new server for each repetition: one that has held a crowd has its memory already."""
        server = starter()
        pid = server.process.pid
        # For the echo, as in dialect M: a set of 16 bytes with its key, the byte that releases.
        extra = {"request_bytes": 64, "reply_bytes": 1} if driver == "echo" else {}
        # A few connections first, so that what the first ones cause is not counted as theirs.
        self.load.ask("crowd_open", driver=driver, port=server.port, clients=64, **extra)
        self.load.ask("crowd_wake", value_bytes=SMALL)
        self.load.ask("crowd_close")
        before = harness.resident_bytes(pid)
        self.load.ask(
            "crowd_open", driver=driver, port=server.port, clients=size, patience=120, **extra
        )
        idle = harness.resident_bytes(pid)
        time.sleep(0.05)
        cpu, begun = harness.cpu_seconds(pid), time.monotonic()
        time.sleep(self.plan.idle_seconds)
        idle_cpu = (harness.cpu_seconds(pid) - cpu) / (time.monotonic() - begun)
        self.load.ask("crowd_wait", patience=120)
        waiting = harness.resident_bytes(pid)
        woken = self.load.ask("crowd_wake", value_bytes=SMALL)
        self.load.ask("crowd_close")
        server.stop()
        return {
            "idle_bytes": (idle - before) / size,
            "waiting_bytes": (waiting - before) / size,
            "idle_cpu": idle_cpu * 1e6,
            "last": woken["longest"] / 1e3,
        }


def targets_of(case, peer):
    if peer == "echo" and case == Case("get", 1):
        return {"p50": "ratio <= 1.5"}
    if peer == "redis" and case.depth > 1:
        return {"throughput": "ratio >= 1"}
    return {}


def run(options):
    return Comparison(options).run()
