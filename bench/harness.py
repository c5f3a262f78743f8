"""What all comparisons share: figures and targets, the report, and the processes of a run."""

import contextlib
import ctypes
import dataclasses
import html
import json
import math
import os
import pathlib
import platform
import re
import resource
import select
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPETITIONS = 5


class CannotMeasure(Exception):
    """Something that was to be measured could not be."""


@dataclasses.dataclass
class Options:
    quick: bool
    only: str
    build: pathlib.Path


# ---- figures ----------------------------------------------------------------------------------

TARGET = re.compile(r"(ratio|value) (<=|>=) ([0-9.]+)")


@dataclasses.dataclass
class Figure:
    """One line of the result. `samples` and `against_samples`: a number for each repetition."""

    name: str
    unit: str
    better: str  # "lower" or "higher"
    samples: list
    against: str = None
    against_samples: list = None
    target: str = None

    def __post_init__(self):
        assert self.better in ("lower", "higher")
        assert self.target is None or TARGET.fullmatch(self.target)

    @property
    def value(self):
        return statistics.median(self.samples)

    @property
    def spread(self):
        return [min(self.samples), max(self.samples)]

    @property
    def against_value(self):
        return statistics.median(self.against_samples) if self.against_samples else None

    @property
    def ratio(self):
        return self.value / self.against_value if self.against_value else None

    @property
    def met(self):
        """Whether the target is met, from its text alone; nothing without a target."""
        if self.target is None:
            return None
        what, comparison, limit = TARGET.fullmatch(self.target).groups()
        number = self.ratio if what == "ratio" else self.value
        if number is None:
            return False
        return number <= float(limit) if comparison == "<=" else number >= float(limit)

    def as_json(self):
        figure = {
            "name": self.name,
            "unit": self.unit,
            "better": self.better,
            "value": tidy(self.value),
            "spread": [tidy(number) for number in self.spread],
        }
        if self.against_samples:
            figure |= {"against": self.against, "against_value": tidy(self.against_value)}
            if self.ratio is not None:
                figure["ratio"] = tidy(self.ratio)
        if self.target:
            figure |= {"target": self.target, "met": self.met}
        return figure


def tidy(number):
    """Four significant digits are more than any of these figures has."""
    return float(f"{number:.4g}")


def shown(number):
    if number is None:
        return ""
    if number == 0:
        return "0"
    if abs(number) >= 1e6:
        return f"{number / 1e6:.2f}M"
    if abs(number) >= 1e4:
        return f"{number / 1e3:.1f}k"
    return f"{number:.3g}" if abs(number) < 100 else f"{number:.0f}"


# ---- the report -------------------------------------------------------------------------------


@dataclasses.dataclass
class Report:
    benchmark: str
    machine: dict
    figures: list = dataclasses.field(default_factory=list)
    peers: dict = dataclasses.field(default_factory=dict)  # name: version, for the table
    missing_peers: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    failures: list = dataclasses.field(default_factory=list)
    subject: str = "Muster"  # whose values the figures are

    def __post_init__(self):
        if self.machine["load_before"] > 0.5:
            self.notes.append(
                "CAUTION: the machine was busy before the run; figures and ratios are less certain"
            )

    def as_json(self):
        return {
            "benchmark": self.benchmark,
            "machine": self.machine,
            "figures": [figure.as_json() for figure in self.figures],
            "missing_peers": self.missing_peers,
        }

    def miss(self, peer, reason):
        """A peer that cannot be had. Not an error, but nobody shall overlook it."""
        self.missing_peers.append(peer)
        print(f"*** MISSING PEER: {peer}: {reason}; its figures are left out ***", flush=True)

    def fail(self, what, error):
        self.failures.append(f"{what}: {error}")
        print(f"*** COULD NOT MEASURE {what}: {error} ***", flush=True)

    def print(self):
        print(
            f"\n{self.benchmark}: {self.machine['cores']} cores, Linux {self.machine['kernel']}, "
            f"load before {self.machine['load_before']}"
        )
        for peer, version in self.peers.items():
            print(f"  {peer}: {version}")
        for note in self.notes:
            print(f"  {note}")
        head = (
            "figure",
            "unit",
            self.subject,
            "lowest … highest",
            "against",
            "its value",
            "ratio",
            "target",
            "met",
        )
        rows = [head]
        for figure in self.figures:
            low, high = figure.spread
            met = {None: "", True: "yes", False: "NO"}[figure.met]
            rows.append(
                (
                    figure.name,
                    figure.unit,
                    shown(figure.value),
                    f"{shown(low)} … {shown(high)}",
                    figure.against or "",
                    shown(figure.against_value),
                    f"{figure.ratio:.2f}" if figure.ratio is not None else "",
                    figure.target or "",
                    met,
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        previous = None
        print()
        for number, row in enumerate(rows):
            group = row[0].rsplit("/", 1)[0]
            if number > 1 and group != previous:
                print()
            previous = group
            print(
                "  ".join(
                    f"{cell:>{width}}" if column in (2, 5, 6) else f"{cell:<{width}}"
                    for column, (cell, width) in enumerate(zip(row, widths))
                ).rstrip()
            )
            if number == 0:
                print("  ".join("-" * width for width in widths))
        targets = [figure for figure in self.figures if figure.target]
        missed = [figure for figure in targets if not figure.met]
        print(f"\ntargets: {len(targets) - len(missed)} of {len(targets)} met")
        for figure in missed:
            number = (
                f"ratio {figure.ratio:.2f}"
                if figure.ratio is not None
                else f"value {shown(figure.value)}"
            )
            print(
                f"  missed: {figure.name}"
                + (f" against {figure.against}" if figure.against else "")
                + f": {number}, target {figure.target}"
            )
        for peer in self.missing_peers:
            print(f"*** MISSING PEER: {peer} ***")
        for failure in self.failures:
            print(f"*** COULD NOT MEASURE {failure} ***")

    def svg(self):
        return plot(
            f"{self.benchmark}: {self.subject} beside its peers, as ratios",
            [figure for figure in self.figures if figure.ratio and not figure.name.endswith("p99")],
        )


def plot(title, figures):
    """One line a figure: the ratio on a logarithmic scale, with its target as a mark."""
    left, width, row, top = 430, 420, 16, 64
    low, high = 0.1, 10.0

    def x(ratio):
        inside = min(max(ratio, low), high)
        return left + math.log(inside / low) / math.log(high / low) * width

    height = top + row * len(figures) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 230}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" font-size="15">{html.escape(title)}</text>',
        '<text x="12" y="40" fill="#555">green: Muster ahead; orange: behind; black mark: target. '
        "Times, sizes: left is better. Rates: right is better.</text>",
    ]
    for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10):
        color = "#333" if tick == 1 else "#ddd"
        parts.append(
            f'<line x1="{x(tick):.1f}" y1="{top - 6}" x2="{x(tick):.1f}" y2="{height - 20}" '
            f'stroke="{color}"/>'
        )
        parts.append(
            f'<text x="{x(tick):.1f}" y="{top - 9}" text-anchor="middle" fill="#555">{tick}</text>'
        )
    for number, figure in enumerate(figures):
        y = top + number * row
        ahead = figure.ratio <= 1 if figure.better == "lower" else figure.ratio >= 1
        start, end = sorted((x(1), x(figure.ratio)))
        label = f"{figure.name} vs {figure.against}"
        parts.append(
            f'<text x="{left - 8}" y="{y + 10}" text-anchor="end">{html.escape(label)}</text>'
        )
        parts.append(
            f'<rect x="{start:.1f}" y="{y + 2}" width="{max(end - start, 1):.1f}" '
            f'height="{row - 5}" '
            f'fill="{"#3a9d5d" if ahead else "#e08a2e"}"/>'
        )
        if figure.target and figure.target.startswith("ratio"):
            at = x(float(TARGET.fullmatch(figure.target).group(3)))
            parts.append(
                f'<line x1="{at:.1f}" y1="{y}" x2="{at:.1f}" y2="{y + row - 2}" stroke="black" '
                'stroke-width="2"/>'
            )
        values = f"{shown(figure.value)} / {shown(figure.against_value)} {figure.unit}"
        text = f"{figure.ratio:.2f}   {values}"
        parts.append(f'<text x="{left + width + 10}" y="{y + 10}">{html.escape(text)}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def machine():
    return {
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_before": round(os.getloadavg()[0], 2),
    }


# ---- processes --------------------------------------------------------------------------------

_started = []
_scratch = None


@contextlib.contextmanager
def processes():
    """Whatever `start` starts inside is stopped at the end, also after Ctrl-C or a termination."""
    global _scratch

    def interrupted(_number, _frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as scratch:
        _scratch = pathlib.Path(scratch)
        try:
            yield
        finally:
            for process in reversed(_started):
                stop(process)


def scratch_file(name):
    scratch_file.count += 1
    return _scratch / f"{scratch_file.count}-{name}"


scratch_file.count = 0


def raise_file_limit():
    """Lets this process and its children open as many files as permitted; returns that number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def raise_priority():
    """Puts the calling process before all others. Where the kernel groups processes by session, a
    process has to be in a session of its own, whose group is then raised too. OSError if that is
    not permitted."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    os.nice(-20)
    with contextlib.suppress(FileNotFoundError):
        pathlib.Path("/proc/self/autogroup").write_text("-20")


def can_raise_priority():
    """Tries it in a child."""
    child = os.fork()
    if child == 0:
        try:
            raise_priority()
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def start(
    command, cores=None, raised=False, log=False, death_signal=signal.SIGTERM, **options
):
    """Starts a program on the given cores. It is told to end when this process dies. With `log`,
    what it says on stderr is only shown if it does not start."""
    libc = ctypes.CDLL(None)
    log_file = scratch_file("log") if log else None

    def in_child():
        libc.prctl(1, death_signal)  # PR_SET_PDEATHSIG
        if cores:
            os.sched_setaffinity(0, cores)
        if raised:
            raise_priority()

    with contextlib.ExitStack() as stack:
        if log_file:
            options["stderr"] = stack.enter_context(log_file.open("w"))
        process = subprocess.Popen([str(word) for word in command], preexec_fn=in_child, **options)
    process.log_file = log_file
    _started.append(process)
    return process


def pin(process, cores):
    """Moves all threads of a process; those that it makes later follow its main thread."""
    if process.poll() is not None:
        raise CannotMeasure(f"a process ended with status {process.returncode}")
    for thread in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def stop(process):
    if process in _started:
        _started.remove(process)
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def wait_for_port(process, port_file, what, patience=60):
    """The number that a server writes to its port file."""
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        if process.poll() is not None:
            said = process.log_file.read_text().strip() if process.log_file else ""
            raise CannotMeasure(
                f"{what} ended with status {process.returncode} before it served\n{said}".rstrip()
            )
        if port_file.exists():
            return int(port_file.read_text())
        time.sleep(0.01)
    raise CannotMeasure(f"{what} did not write its port within {patience} s")


class CommandLoop:
    """A load generator: one command a line, one line of JSON as the answer."""

    def __init__(self, name, command, cores, raised):
        self.name = name
        self.out_of_step = False  # an answer may still come that nobody waits for
        self.process = start(
            command, cores, raised, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command, patience=60, **arguments):
        line = " ".join([command, *(f"{key}={value}" for key, value in arguments.items())])
        if self.out_of_step:
            raise CannotMeasure(f"{self.name} did not answer an earlier command")
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise CannotMeasure(f"{self.name} has ended") from None
        if not select.select([self.process.stdout], [], [], patience)[0]:
            self.out_of_step = True
            raise CannotMeasure(f"{self.name} gave no answer to: {line}")
        answer = self.process.stdout.readline()
        if not answer:
            raise CannotMeasure(f"{self.name} ended at: {line}")
        result = json.loads(answer)
        if "error" in result:
            raise CannotMeasure(f"{result['error']} ({self.name}: {line})")
        return result


def cpu_seconds(pid):
    """The processor time of all threads of a process, to the nanosecond where the kernel tells."""
    total = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_bytes(pid):
    """Memory of a process that is not shared with files: what it has allocated and touched."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^RssAnon:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024
