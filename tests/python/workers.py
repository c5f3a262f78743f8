"""Workers of one group, as real processes of a test.

A test runs functions of its own in forked processes, which meet in a file. Forking is safe because
the test itself never starts RPC: no thread of it is there to be lost. Functions that workers call
are found by name, since all of them have the module of the test.

Programs whose end is what is tested are started anew: see Scripts.
"""

import faulthandler
import os
import pathlib
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

# PyTorch's own threads would not live on in a forked process.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import muster.rpc as rpc  # noqa: E402

# Far more than any of them needs: passing it means "hangs".
PATIENCE_SECONDS = int(os.environ.get("MUSTER_TEST_PATIENCE_SECONDS", "120"))
# How long the others may go on once one has failed: the first failure is what matters.
OTHERS_SECONDS = 10


class Worker:
    """What a function that a worker runs knows about it."""

    def __init__(self, rank, size, meeting):
        self.rank = rank
        self.size = size
        self.meeting = meeting  # the init method
        self.name = f"worker{rank}"
        self.next = f"worker{(rank + 1) % size}"

    def options(self, **given):
        return rpc.TensorPipeRpcBackendOptions(**{"init_method": self.meeting, **given})

    def start(self, name=None, rank=None, world_size=-1, **options):
        """Joins the group."""
        rpc.init_rpc(
            name or self.name,
            rank=self.rank if rank is None else rank,
            world_size=self.size if world_size == -1 else world_size,
            rpc_backend_options=self.options(**options),
        )


def serve(worker):
    """The body of a worker that is only there to be called."""


class _Process:
    """A forked process that runs one body."""

    def __init__(self, run, log):
        self.answer = b""
        self.log = log
        self.end = None
        source, sink = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(source)
            _live(run, sink, log)
        os.close(sink)
        self.source = source

    def read(self):
        """Takes what it has written; false at the end."""
        data = os.read(self.source, 1 << 16)
        self.answer += data
        return bool(data)

    def close(self):
        os.close(self.source)
        self.end = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def outcome(self):
        """(whether it went well, the result or what went wrong)"""
        if self.answer:
            return pickle.loads(self.answer)
        return False, f"it ended with {self.end}"


def _live(run, sink, log):
    """The life of a forked process; does not return."""
    try:
        with open(log, "ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        faulthandler.enable()
        faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
        try:
            answer = pickle.dumps((True, run()))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        with os.fdopen(sink, "wb") as file:
            file.write(answer)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _body(body, worker, starts, ignores_leaks, options):
    def run():
        rpc.api._ignore_rref_leak = ignores_leaks
        if not starts:
            return body(worker)
        worker.start(**options)
        result = body(worker)
        rpc.shutdown()
        return result

    return run


class TestCase(unittest.TestCase):
    """A test with workers. What they print is shown if it fails."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-python-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.meeting = f"file://{self.folder}/store"
        self._process_count = 0

    def run_workers(
        self, *bodies, size=None, starts=True, expects=(), ignores_leaks=False, meeting=None, **options
    ):
        """Runs one worker for each of `bodies`, and gives what they return.

        size: how many workers there are; those that are left over do nothing but serve.
        starts: whether each joins the group before its body and leaves it, gracefully, after it.
        expects: ranks of workers that are killed by their bodies.
        """
        assert not rpc._is_current_rpc_agent_set(), "a test itself must not start RPC"
        size = size or len(bodies)
        bodies = (*bodies, *[serve] * (size - len(bodies)))
        meeting = meeting or self.meeting
        running = []
        for rank, body in enumerate(bodies):
            worker = Worker(rank, size, meeting)
            log = self.folder / f"log.{self._process_count}"
            self._process_count += 1
            running.append(_Process(_body(body, worker, starts, ignores_leaks, options), log))
        self._gather(running, expects)
        problems = []
        for rank, process in enumerate(running):
            went_well, what = process.outcome()
            if not went_well and rank not in expects:
                said = process.log.read_text(errors="replace")[-8000:]
                problems.append(f"worker {rank}: {what}\n--- it printed\n{said}---")
        if problems:
            self.fail("\n".join(problems))
        return [process.outcome()[1] for process in running]

    def _gather(self, running, expects):
        open_ = {process.source: process for process in running}
        # They end by themselves before that, and say where they were.
        deadline = time.monotonic() + PATIENCE_SECONDS + OTHERS_SECONDS
        while open_:
            ready = select.select(list(open_), [], [], max(0, deadline - time.monotonic()))[0]
            if not ready:
                for process in open_.values():
                    process.kill()
                    process.close()
                return
            for source in ready:
                process = open_[source]
                if process.read():
                    continue
                process.close()
                del open_[source]
                if not process.outcome()[0] and running.index(process) not in expects:
                    deadline = min(deadline, time.monotonic() + OTHERS_SECONDS)

    def logs(self):
        """What all workers so far have printed."""
        return "".join(
            path.read_text(errors="replace") for path in sorted(self.folder.glob("log.*"))
        )

    def take_port(self):
        """A port that nobody else is given while the test runs, and at which a worker may listen."""
        holder = socket.socket()
        # It is bound, but does not listen: who sets the same option may still do so.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        self.addCleanup(holder.close)
        return holder.getsockname()[1]

    # ---- programs of their own

    def run_script(self, text, *, arguments=(), options=(), env=None, expects=0):
        """Runs a Python program to its end; gives what it printed, both streams."""
        path = self.folder / f"script{self._process_count}.py"
        self._process_count += 1
        path.write_text(text)
        process = subprocess.Popen(
            [sys.executable, *options, str(path), self.meeting, *map(str, arguments)],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that it ends with all that it has started
        )
        try:
            said = process.communicate(timeout=PATIENCE_SECONDS)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # it says where it is
            said = process.communicate()[0]
            self.fail(f"it hangs; it printed\n{said[-8000:]}")
        self.assertEqual(process.returncode, expects, said[-8000:])
        return said


def wait_until(is_so, what="it is so"):
    """Looks until `is_so()` is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS / 2
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain until {what}")
        time.sleep(0.002)


def raised(kind, function, *args, **kwargs):
    """What `function` raises, which must be a `kind`, and nothing derived from it.

    Of the errors of RPC itself it is enough that they are derived: muster.errors has their classes.
    """
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        is_one = isinstance(error, kind) and type(error).__module__ == "muster.errors"
        assert is_one or type(error) is kind, f"{kind.__name__} expected, not {error!r}"
        return error
    raise AssertionError(f"{kind.__name__} expected, but it returned {result!r}")


def check(is_so, *said):
    if not is_so:
        raise AssertionError(*said)


def equal(one, other):
    assert one == other, f"{one!r} is not {other!r}"


def has(text, *parts):
    for part in parts:
        assert part in str(text), f"{part!r} is not in {str(text)!r}"


def references():
    """(values here that others refer to or that were made for others, references to them)"""
    info = rpc._rref_context_get_debug_info()
    return int(info["num_owner_rrefs"]), int(info["num_forks"])
