"""Rendezvous: how long until every node knows its rank, beside PyTorch's c10d rendezvous."""

import dataclasses
import os
import shutil
import subprocess
import time

import harness
import store
from harness import CannotMeasure, Figure

REPETITIONS = harness.REPETITIONS

AFTER_LAST_JOIN_MS = {2: 5, 1000: 50, 10000: 500}
STORM_MS = {1000: 300, 10000: 3000}


@dataclasses.dataclass(frozen=True)
class Plan:
    nodes: tuple
    nodes_settling: int
    nodes_shared: tuple
    nodes_torch: tuple
    torch_patience: float
    idle_seconds: float


FULL = Plan(
    nodes=(2, 64, 256, 1000, 4000, 10000),
    nodes_settling=1000,
    nodes_shared=(16, 64, 256),
    nodes_torch=(2, 64, 256),
    torch_patience=60,
    idle_seconds=5,
)
QUICK = Plan(
    nodes=(2, 64, 1000),
    nodes_settling=1000,
    nodes_shared=(16,),
    nodes_torch=(64,),
    torch_patience=20,
    idle_seconds=2,
)


class Samples(dict):
    """Numbers by name, one for each repetition."""

    def add(self, name, number):
        self.setdefault(name, []).append(number)


class Comparison:
    def __init__(self, options, report):
        self.options = options
        self.report = report
        self.plan = QUICK if options.quick else FULL
        self.cores = store.Cores()
        self.servers = store.Servers(options, self.cores)
        self.count = 0

    def wanted(self, name):
        return self.options.only in name

    def new_run(self):
        self.count += 1
        return f"bench-{self.count}"

    def new_load(self):
        return harness.CommandLoop(
            "rendezvous_load",
            [self.options.build / "bench" / "rendezvous_load"],
            self.cores.load,
            self.cores.raised,
        )

    def add(self, name, unit, samples, better="lower", **rest):
        if samples:
            self.report.figures.append(Figure(name, unit, better, samples, **rest))

    # ---- hosted in the store server -----------------------------------------------------------

    def measure_hosted(self, nodes):
        """One repetition after the other, each with new nodes; the server and the load stay."""
        samples = Samples()
        server = self.servers.muster()
        load = self.new_load()
        pid = server.process.pid
        try:
            for _ in range(REPETITIONS):
                place = {"backend": "hosted", "endpoint": f"127.0.0.1:{server.port}"}
                before = harness.cpu_seconds(pid)
                storm = load.ask("storm", run=self.new_run(), nodes=nodes, **place)
                samples.add("storm", storm["seconds"] * 1e3)
                samples.add("after_last_join", storm["after_last_join"] * 1e3)
                samples.add("cpu", (harness.cpu_seconds(pid) - before) / nodes * 1e6)
                load.ask("end")

                load.ask("connect", run=self.new_run(), nodes=nodes, **place)
                first = load.ask("join")
                samples.add("first", first["seconds"] * 1e3)
                samples.add("bytes", first["bytes"])
                samples.add("messages", first["writes"] + first["reads"])
                samples.add("second", load.ask("join")["seconds"] * 1e3)
                if nodes == max(self.plan.nodes):
                    before = harness.cpu_seconds(pid)
                    idle = load.ask("idle", seconds=self.plan.idle_seconds)
                    spent = harness.cpu_seconds(pid) - before
                    samples.add("idle", spent / self.plan.idle_seconds * 100)
                    samples.add("heartbeat", idle["bytes_a_heartbeat"])
                load.ask("end")
        finally:
            harness.stop(load.process)
            server.stop()
        return samples

    def hosted(self):
        found = {}
        for nodes in self.plan.nodes:
            if not self.wanted(f"hosted/{nodes} nodes"):
                continue
            try:
                found[nodes] = self.measure_hosted(nodes)
            except CannotMeasure as error:
                self.report.fail(f"hosted/{nodes} nodes", error)
        for nodes, samples in found.items():
            group = f"hosted/{nodes} nodes"
            limit = AFTER_LAST_JOIN_MS.get(nodes)
            self.add(
                f"{group}/last join to all ranks",
                "ms",
                samples["after_last_join"],
                target=f"value <= {limit}" if limit else None,
            )
            limit = STORM_MS.get(nodes)
            self.add(
                f"{group}/connect and join",
                "ms",
                samples["storm"],
                target=f"value <= {limit}" if limit else None,
            )
            self.add(
                f"{group}/second round",
                "ms",
                samples["second"],
                against="first round",
                against_samples=samples["first"],
                target="ratio <= 1",
            )
            self.add(f"{group}/bytes a join", "B", samples["bytes"], target="value <= 250")
            self.add(f"{group}/reads and writes a join", "", samples["messages"])
            self.add(f"{group}/server cpu a node", "us", samples["cpu"])
            if "idle" in samples:
                self.add(f"{group}/bytes a heartbeat", "B", samples["heartbeat"], target="value <= 32")
                self.add(f"{group}/server cpu when quiet", "%", samples["idle"], target="value <= 3")
        return found

    def settling(self):
        nodes = self.plan.nodes_settling
        if not self.wanted("settling"):
            return
        samples = Samples()
        server = self.servers.muster()
        load = self.new_load()
        try:
            for _ in range(REPETITIONS):
                # Without grace: what is measured begins when the loss is noticed. Last call is
                # short, so that it is not what is measured.
                load.ask(
                    "connect",
                    backend="hosted",
                    endpoint=f"127.0.0.1:{server.port}",
                    run=self.new_run(),
                    nodes=nodes,
                    min=nodes - 1,
                    max=nodes,
                    last_call_ms=1,
                    grace_ms=0,
                )
                load.ask("join")
                samples.add("loss", load.ask("lose")["seconds"] * 1e3)
                samples.add("arrival", load.ask("arrive")["seconds"] * 1e3)
                load.ask("end")
        except CannotMeasure as error:
            self.report.fail("settling", error)
        finally:
            harness.stop(load.process)
            server.stop()
        for name in ("loss", "arrival"):
            self.add(
                f"settling/{nodes} nodes/{name} of one",
                "ms",
                samples.get(name),
                target="value <= 200",
            )

    # ---- PyTorch ------------------------------------------------------------------------------

    def against_torch(self, hosted):
        python = store.torch_python(self.report)
        if python is None:
            return
        for nodes in self.plan.nodes_torch:
            name = f"against PyTorch/{nodes} nodes"
            if nodes not in hosted or not self.wanted(name):
                continue
            rounds = self.measure_torch(python, nodes)
            if rounds is None:
                continue
            ours = hosted[nodes]
            for number, (mine, theirs) in enumerate(zip((ours["first"], ours["second"]), rounds)):
                if not theirs:
                    self.report.notes.append(
                        f"PyTorch's c10d rendezvous of {nodes} nodes: {['first', 'second'][number]} "
                        f"round not complete within {self.plan.torch_patience:.0f} s"
                    )
                    continue
                self.add(
                    f"{name}/{['first', 'second'][number]} round",
                    "ms",
                    mine,
                    against="PyTorch c10d",
                    against_samples=theirs,
                    target="ratio <= 0.05" if nodes == 64 else None,
                )

    def measure_torch(self, python, nodes):
        """The times of the first and the second rounds."""
        rounds = ([], [])
        # Its nodes are processes: both cores for them and their server.
        load = harness.CommandLoop(
            "PyTorch's rendezvous",
            [python, harness.ROOT / "bench" / "torch_rendezvous.py"],
            self.cores.all,
            self.cores.raised,
        )
        patience = self.plan.torch_patience
        try:
            for _ in range(REPETITIONS):
                answer = load.ask(
                    "join", patience=4 * patience + 60, nodes=nodes, patience_s=patience
                )
                for number, seconds in enumerate(answer["rounds"]):
                    rounds[number].append(seconds * 1e3)
                if len(answer["rounds"]) < 2:
                    break  # it will not get better, and takes minutes
        except CannotMeasure as error:
            self.report.fail(f"PyTorch/{nodes} nodes", error)
            return None
        finally:
            harness.stop(load.process)
        return rounds

    # ---- compare and set ----------------------------------------------------------------------

    def shared(self):
        starts = (
            ("file", self.start_file),
            ("plain", self.start_plain),
            ("etcd", self.start_etcd),
        )
        for backend, start in starts:
            for nodes in self.plan.nodes_shared:
                name = f"{backend}/{nodes} nodes"
                if not self.wanted(name):
                    continue
                try:
                    self.measure_shared(backend, start, nodes, name)
                except CannotMeasure as error:
                    self.report.fail(name, error)

    def measure_shared(self, backend, start, nodes, name):
        started = start()
        if started is None:
            return
        endpoint, process = started
        samples = Samples()
        load = self.new_load()
        try:
            for _ in range(REPETITIONS):
                load.ask(
                    "connect", backend=backend, endpoint=endpoint, run=self.new_run(), nodes=nodes
                )
                for which in ("first", "second"):
                    joined = load.ask("join", patience=130)
                    samples.add(which, joined["seconds"] * 1e3)
                    if "state_writes" in joined:
                        samples.add(f"{which} writes", joined["state_writes"])
                    if joined["bytes"] > 0:
                        samples.add(f"{which} bytes", joined["bytes"])
                        samples.add(f"{which} messages", joined["writes"])
                load.ask("end")
        finally:
            harness.stop(load.process)
            if process:
                harness.stop(process)
        for which in ("first", "second"):
            group = f"{name}/{which} round"
            self.add(group, "ms", samples[which])
            self.add(f"{group}/writes of the state", "", samples.get(f"{which} writes"))
            self.add(f"{group}/requests a node", "", samples.get(f"{which} messages"))
            self.add(f"{group}/bytes a node", "B", samples.get(f"{which} bytes"))

    def start_file(self):
        return harness.scratch_file("store"), None

    def start_plain(self):
        server = self.servers.muster()
        return f"127.0.0.1:{server.port}", server.process

    def start_etcd(self):
        if shutil.which("etcd") is None:
            if "etcd" not in self.report.missing_peers:
                self.report.miss("etcd", "there is no program of that name (etcd-server)")
            return None
        client, peer = store.free_port(), store.free_port()
        url = f"http://127.0.0.1:{client}"
        process = harness.start(
            [
                "etcd",
                "--data-dir",
                harness.scratch_file("etcd"),
                "--listen-client-urls",
                url,
                "--advertise-client-urls",
                url,
                "--listen-peer-urls",
                f"http://127.0.0.1:{peer}",
                "--initial-advertise-peer-urls",
                f"http://127.0.0.1:{peer}",
                "--initial-cluster",
                f"default=http://127.0.0.1:{peer}",
                "--log-level",
                "error",
            ],
            log=True,
            stdout=subprocess.DEVNULL,
        )
        if not store_answers(process, client):
            harness.stop(process)
            raise CannotMeasure("etcd does not start")
        return f"127.0.0.1:{client}", process


def store_answers(process, port):
    import urllib.request

    ends = time.monotonic() + 20
    while time.monotonic() < ends and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if b"true" in answer.read():
                    return True
        except OSError:
            time.sleep(0.05)
    return False


def run(options):
    report = harness.Report("rendezvous", harness.machine())
    report.notes.append("Muster's nodes: one process, a connection and a driver for each")
    limit = harness.raise_file_limit()
    comparison = Comparison(options, report)
    largest = max(comparison.plan.nodes)
    if limit < largest + 100:
        raise CannotMeasure(f"{largest} connections need as many files, and only {limit} are allowed")
    if os.getloadavg()[0] > 1:
        report.notes.append("the machine was busy: compare ratios, not times")
    hosted = comparison.hosted()
    comparison.settling()
    comparison.against_torch(hosted)
    comparison.shared()
    return report
