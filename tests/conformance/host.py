"""Loads PyTorch's RPC suites once and runs each test in processes forked from here.

Started by `run`, with the interpreter whose PyTorch is to be used, and told in JSON on standard input
what to do. It answers with one JSON object per line on standard output:

    {"event": "loaded", "torch": ..., "python": ..., "stand_in": ...}
    {"event": "test", "suite": ..., "id": "RpcTest.test_add", "status": ..., "seconds": ..., "detail": ..., "log": ...}
    {"event": "out of scope", "class": ..., "tests": N, "reason": ...}

A status is `passed`, `failed`, `skipped` (by the test itself) or `not applicable` (by scope.py). The
exit status is 0 if all was done, whatever came of the tests, and 3 if the suites could not be loaded.

One process is forked for a test and leads a process group of its own; it forks the four workers. So a
test costs no loading of PyTorch, and nothing of it outlives it: the whole group is killed at its end.
"""

import ctypes
import faulthandler
import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

import pointing
import scope

CANNOT_LOAD = 3
PR_SET_PDEATHSIG = 1
# More of a traceback than this is not worth reading, and would not fit into the pipe.
DETAIL_CHARACTERS = 20_000
# How long a test that is stuck gets to write down where its threads are, before it is killed.
TRACEBACK_SECONDS = 2


def emit(**event):
    print(json.dumps(event), flush=True)


def die_with_parent(how):
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, how, 0, 0, 0)


# ---- loading ----------------------------------------------------------------------------------


FIXTURES = {
    "tensorpipe": ("rpc.tensorpipe_rpc_agent_test_fixture", "TensorPipeRpcAgentTestFixture"),
    "faulty": ("rpc.faulty_rpc_agent_test_fixture", "FaultyRpcAgentTestFixture"),
}


def load_suites(names, reference):
    """{suite name: [concrete test classes]}; all must be for one backend, since loading one registers it."""
    (backend,) = {scope.SUITES[name].backend for name in names}
    stand_in = pointing.provide_expecttest()
    import torch
    from torch.testing._internal import common_distributed
    if not reference:
        pointing.point_at_muster()
    modules = [importlib.import_module("torch.testing._internal.dist_utils")]

    def load(name):
        modules.append(importlib.import_module(f"{scope.SUITES_PACKAGE}.{name}"))
        return modules[-1]

    fixture = getattr(load(FIXTURES[backend][0]), FIXTURES[backend][1])
    processes = forking_processes(common_distributed.MultiProcessTestCase)
    loaded = {}
    for name in names:
        suite = load(scope.SUITES[name].module)
        loaded[name] = [concrete(getattr(suite, one), fixture, processes) for one in scope.SUITES[name].classes]
    if not reference:
        pointing.assert_pointed(modules)
    emit(event="loaded", torch=torch.__version__, python=sys.version.split()[0], stand_in=stand_in)
    return loaded


def concrete(suite, fixture, processes):
    """As PyTorch makes its own: the tests, the backend they run on, and how workers are started."""
    made = type(suite.__name__, (suite, fixture, processes), {"__module__": __name__})
    # Some tests send a method of their own class, so it must be found by its name.
    setattr(sys.modules[__name__], suite.__name__, made)
    return made


def forking_processes(base):
    """PyTorch's base class of tests with several processes, but with fork, and stricter at the end."""
    import torch.multiprocessing

    class ForkedWorkers(base):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _check_return_codes(self, *arguments):
            super()._check_return_codes(*arguments)
            # PyTorch looks at worker 0 and at those that raised; one that crashed would be overlooked.
            codes = [process.exitcode for process in self.processes]
            self.assertEqual(codes, [codes[0]] * len(codes), "the workers' exit codes differ")

    return ForkedWorkers


def assert_single_threaded():
    tasks = len(os.listdir("/proc/self/task"))
    if tasks != 1:
        raise AssertionError(f"loading the suites has left {tasks} threads; forking would lose them")


# ---- one test, in the process forked for it ------------------------------------------------------


class Outcome(unittest.TestResult):
    """What came of the one test that is run."""

    def __init__(self):
        super().__init__()
        self.status, self.detail = "passed", ""

    def set(self, status, detail):
        self.status, self.detail = status, detail

    def addError(self, test, err):
        self.set("failed", "".join(traceback.format_exception(*err)))

    addFailure = addError

    def addSkip(self, test, reason):
        self.set("skipped", reason)

    def addExpectedFailure(self, test, err):
        self.set("passed", "failed as expected")

    def addUnexpectedSuccess(self, test):
        self.set("failed", "passed, though it is marked as failing")


def run_in_child(test_class, name, folder, answer):
    """Runs one test and writes its outcome to the pipe `answer`. Never returns."""
    try:
        os.setsid()
        die_with_parent(signal.SIGKILL)
        for handled in (signal.SIGINT, signal.SIGTERM):
            signal.signal(handled, signal.SIG_DFL)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)  # and in the workers forked from here
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        outcome = Outcome()
        test_class(name).run(outcome)
        sys.stdout.flush()
        answer_text = {"status": outcome.status, "detail": outcome.detail[-DETAIL_CHARACTERS:]}
    except BaseException:  # whatever it is, the parent is told
        answer_text = {"status": "failed", "detail": traceback.format_exc()[-DETAIL_CHARACTERS:]}
    with os.fdopen(answer, "w") as pipe:
        json.dump(answer_text, pipe)
    os._exit(0)


class Running:
    """A test that has been started, and its end: as it says itself, or after its time limit."""

    def __init__(self, suite, test_class, name, logs, limit):
        self.suite, self.id = suite, f"{test_class.__name__}.{name}"
        self.folder = logs / self.id
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.begin = time.monotonic()
        self.deadline = self.begin + limit
        self.limit = limit
        self.told_to_trace = False
        self.answer, theirs = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.answer)
            run_in_child(test_class, name, self.folder, theirs)
        os.close(theirs)

    def signal(self, number):
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass  # it has not become the leader of its group yet, or is gone

    def has_ended(self):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def watch(self):
        """To be called now and then; the test's event if it has ended, else None."""
        if not self.has_ended():
            now = time.monotonic()
            if now > self.deadline and not self.told_to_trace:
                self.told_to_trace = True
                self.signal(signal.SIGUSR1)
            if now > self.deadline + TRACEBACK_SECONDS:
                return self.finish(f"did not end within {self.limit:g} s; the log has where its threads were")
            return None
        return self.finish(None)

    def finish(self, stuck):
        seconds = time.monotonic() - self.begin
        # The leader has not been reaped yet, so the number of its group cannot have become another's.
        self.signal(signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        text = b"" if stuck else self.read_answer()
        os.close(self.answer)
        if stuck:
            outcome = {"status": "failed", "detail": stuck}
        elif text:
            outcome = json.loads(text)
        else:
            outcome = {"status": "failed", "detail": "the process that ran the test died"}
        self.remove_scratch()
        return {"event": "test", "suite": self.suite, "id": self.id, "seconds": round(seconds, 2),
                "log": str(self.folder / "log"), **outcome}

    def read_answer(self):
        text = b""
        while chunk := os.read(self.answer, 65536):
            text += chunk
        return text

    def remove_scratch(self):
        for entry in self.folder.iterdir():
            if entry.name != "log":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


# ---- all ------------------------------------------------------------------------------------------


def source_of(module):
    """The text of a module of PyTorch's test helpers, without loading it."""
    spec = importlib.util.find_spec("torch")
    path = Path(spec.origin).parent / "testing/_internal/distributed" / (module.replace(".", "/") + ".py")
    return scope.Source(path.read_text(encoding="utf-8"))


def plan(loaded, order):
    """[(suite, class, test)] to run; says of the others why they are not."""
    wanted = []
    for suite, classes in loaded.items():
        source = source_of(scope.SUITES[suite].module)
        for test_class in classes:
            for name in unittest.TestLoader().getTestCaseNames(test_class):
                one = f"{test_class.__name__}.{name}"
                if not any(pattern in one for pattern in order["patterns"] or [""]):
                    continue
                reason = scope.reason_not_applicable(source, test_class.__name__, name)
                if reason:
                    emit(event="test", suite=suite, id=one, status="not applicable", seconds=0, detail=reason,
                         log=None)
                else:
                    wanted.append((suite, test_class, name))
    return wanted


def run_all(wanted, order, running):
    waiting = list(reversed(wanted))
    while waiting or running:
        while waiting and len(running) < order["jobs"]:
            running.append(Running(*waiting.pop(), Path(order["logs"]), order["limit"]))
        select.select([one.answer for one in running], [], [], 0.05)
        for one in list(running):
            event = one.watch()
            if event:
                running.remove(one)
                emit(**event)


def main():
    order = json.load(sys.stdin)
    sys.argv = sys.argv[:1]  # PyTorch's helpers read it
    die_with_parent(signal.SIGTERM)
    running = []

    def stop(number, _frame):
        for one in running:
            one.signal(signal.SIGKILL)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        loaded = load_suites(order["suites"], order["reference"])
        assert_single_threaded()
    except Exception:
        traceback.print_exc()
        return CANNOT_LOAD
    for module in order["out_of_scope"]:
        source = source_of(module)
        for name in source.test_classes():
            emit(event="out of scope", **{"class": name}, tests=len(source.tests(name)),
                 reason=scope.OUT_OF_SCOPE[module])
    run_all(plan(loaded, order), order, running)
    return 0


if __name__ == "__main__":
    sys.exit(main())
