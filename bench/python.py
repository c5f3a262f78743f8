"""The Python comparison: muster.rpc beside torch.distributed.rpc, in the same interpreter and with the
same program, python_worker.py.

Each repetition starts a server and a client of each library anew, since some of them use a core even
when nobody calls; the two are measured in turn.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile

import harness
import rpc_contenders
from harness import CannotMeasure, Figure
from rpc_contenders import parse, read_line

IN_FLIGHT = 100
MIB = 1024 * 1024
PATIENCE = 120

# What is asked of the client: (name, command, arguments, key of the answer, unit, better, target).
CASES = (
    ("rpc_sync/p50", "sync", {}, "p50_us", "us", "lower", "ratio <= 0.25"),
    ("rpc_sync/p99", "sync", {}, "p99_us", "us", "lower", None),
    ("100 in flight/rate", "inflight", {"count": IN_FLIGHT}, "per_s", "1/s", "higher", "ratio >= 5"),
    ("remote and to_here/p50", "remote", {}, "p50_us", "us", "lower", None),
    ("remote and to_here/p99", "remote", {}, "p99_us", "us", "lower", None),
    ("echo of 1 MiB", "echo", {"bytes": MIB}, "bytes_per_s", "B/s", "higher", None),
    ("echo of 64 MiB", "echo", {"bytes": 64 * MIB}, "bytes_per_s", "B/s", "higher", "ratio >= 2"),
)
LIVES = (2, 8)


class Python:
    """One interpreter with one PyTorch, in which both libraries are run."""

    def __init__(self, options, name, interpreter, cores):
        self.name = name
        self.interpreter = interpreter
        self.cores = cores
        self.environment = os.environ | {
            "PYTHONPATH": str(options.build / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, library, *words):
        return harness.start(
            [self.interpreter, rpc_contenders.HERE / "python_worker.py", library, *map(str, words)],
            self.cores.all,
            self.cores.raised,
            log=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    @contextlib.contextmanager
    def started(self, *commands):
        """Processes, each with the words after LIBRARY; ended at the end."""
        processes = []
        try:
            for command in commands:
                processes.append(self.start(*command))
            yield processes
        finally:
            for process in reversed(processes):
                harness.stop(process)

    @contextlib.contextmanager
    def pair(self, library):
        """A function that asks the client of a pair."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/store"
            with self.started((library, "serve", path), (library, "call", path)) as processes:
                what = f"{library} with {self.name}"
                client = processes[1]
                read_line(client, what, PATIENCE)
                for process, cores in zip(processes, (self.cores.server, self.cores.client)):
                    harness.pin(process, cores)

                def ask(command, **arguments):
                    words = [command, *(f"{key}={value}" for key, value in arguments.items())]
                    client.stdin.write(" ".join(words) + "\n")
                    client.stdin.flush()
                    return parse(read_line(client, f"{what}, at {command}", PATIENCE), what)

                yield ask

    def life(self, library, size):
        """Milliseconds of the slowest of `size` workers for init and shutdown."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/store"
            commands = [(library, "life", path, rank, size) for rank in range(size)]
            with self.started(*commands) as processes:
                what = f"{size} workers of {library} with {self.name}"
                for one in processes:
                    read_line(one, what, PATIENCE)
                for one in processes:
                    one.stdin.write("go\n")
                    one.stdin.flush()
                answers = [parse(read_line(one, what, PATIENCE), what) for one in processes]
        return max(answer["seconds"] for answer in answers) * 1000

    def imported(self, library):
        with self.started((library, "import")) as processes:
            what = f"the import of {library} with {self.name}"
            return parse(read_line(processes[0], what, PATIENCE), what)


class Comparison:
    def __init__(self, options):
        self.options = options
        self.report = harness.Report("python", harness.machine())
        self.cores = rpc_contenders.Cores()
        self.seconds = 0.5 if options.quick else 2.0
        self.repetitions = 2 if options.quick else harness.REPETITIONS

    def run(self):
        if not (self.options.build / "python" / "muster").exists():
            raise CannotMeasure("the Python package is not built; run: make bench")
        self.describe()
        torches = list(rpc_contenders.torches(self.report).items())
        for name, interpreter in torches[: 1 if self.options.quick else 2]:
            python = Python(self.options, name, interpreter, self.cores)
            try:
                self.compare(python)
            except CannotMeasure as error:
                self.report.fail(f"Python with {name}", error)
        return self.report

    def describe(self):
        notes = self.report.notes
        notes.append("both libraries in the same interpreter, from the same program")
        notes.append("server and client on a core each" if self.cores.pinned else "one core")

    def wanted(self, title):
        return self.options.only in title

    def compare(self, python):
        samples = {}  # title: ({library: numbers}, unit, better, target)

        def add(library, title, value, unit, better, target=None):
            entry = samples.setdefault(title, ({}, unit, better, target))
            entry[0].setdefault(library, []).append(value)

        for repetition in range(self.repetitions):
            libraries = ("muster", "torch") if repetition % 2 == 0 else ("torch", "muster")
            for library in libraries:
                self.progress(f"{python.name}, {library}, {repetition + 1}")
                self.measure_calls(python, library, add)
                self.measure_lives(python, library, add)
                self.measure_import(python, library, add)
        for title, (numbers, unit, better, target) in samples.items():
            self.report.figures.append(
                Figure(
                    name=title,
                    unit=unit,
                    better=better,
                    samples=numbers["muster"],
                    against=python.name,
                    against_samples=numbers["torch"],
                    target=target,
                )
            )

    def measure_calls(self, python, library, add):
        cases = [case for case in CASES if self.wanted(case[0])]
        if not cases:
            return
        with python.pair(library) as ask:
            answers = {}
            for title, command, arguments, key, unit, better, target in cases:
                asked = (command, json.dumps(arguments))
                if asked not in answers:
                    answers[asked] = ask(command, seconds=self.seconds, **arguments)
                add(library, title, answers[asked][key], unit, better, target)
            # The pair is killed: how it ends is measured elsewhere.

    def measure_lives(self, python, library, add):
        for size in LIVES:
            title = f"init and shutdown of {size}"
            if self.wanted(title):
                add(library, title, python.life(library, size), "ms", "lower", "ratio <= 0.2")

    def measure_import(self, python, library, add):
        if not self.wanted("import/time"):
            return
        answer = python.imported(library)
        target = "value <= 30"
        add(library, "import/time", answer["seconds"] * 1000, "ms", "lower", target)
        add(library, "import/memory", answer["bytes"], "B", "lower")

    def progress(self, text):
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def run(options):
    return Comparison(options).run()
