"""What the tests with real PyTorch peers share: the program, child processes, bounded waits.

Environment:
  MUSTER_BIN            the program under test; without it, build/bin/muster of this source tree
  MUSTER_OTHER_PYTHON   an interpreter with another PyTorch version, for the tests that mix both

A test file is run as a program, by whichever interpreter has the PyTorch version to test.
"""

import concurrent.futures
import contextlib
import ctypes
import datetime
import faulthandler
import gc
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

SKIPPED = 77  # The exit status that ctest takes for "skipped".

# The longest that anything here waits. Far beyond what is ever needed: passing it means "hangs".
PATIENCE_SECONDS = 60
SERVER_START_SECONDS_MAX = 10
# Past this a test is ended together with its whole process, after the stacks have been printed.
TEST_SECONDS_MAX = 150

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("MUSTER_BIN") or str(ROOT / "build" / "bin" / "muster")

# Long enough for a server to see the request that is to time out, short enough to wait for.
BRIEF = datetime.timedelta(milliseconds=200)
PATIENCE = datetime.timedelta(seconds=PATIENCE_SECONDS)


def import_distributed():
    """torch.distributed, or the end of this program as "skipped"."""
    # Time-outs and closed connections are what these tests provoke; PyTorch warns about each one.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        import torch.distributed as distributed
    except ImportError as error:
        print(f"SKIPPED: {sys.executable} has no PyTorch ({error}); on Debian: apt-get install "
              "python3-torch", flush=True)
        sys.exit(SKIPPED)
    if not distributed.is_available():
        print(f"SKIPPED: the PyTorch of {sys.executable} was built without torch.distributed",
              flush=True)
        sys.exit(SKIPPED)
    return distributed


def main():
    """Runs the tests of the calling program."""
    if not os.access(BINARY, os.X_OK):
        print(f"there is no program {BINARY}; build it, or name it in MUSTER_BIN", file=sys.stderr)
        sys.exit(2)
    unittest.main()


# ---- ports and addresses ----------------------------------------------------------------------


_taken_ports = []


def free_port():
    """A port that nobody else is given, for the few cases in which port 0 cannot be used. As long as
    nobody listens there, connections are refused."""
    holder = socket.socket()
    # It is bound, but does not listen: who sets the same option, as servers do, may still do so.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _taken_ports.append(holder)
    return holder.getsockname()[1]


def has_ipv6_loopback():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


# ---- the program under test -------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def _die_with_parent():
    # A test that is killed from outside runs no cleanups and must leave no server behind.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A running `muster store serve`. Starts in the constructor; ends in stop()."""

    def __init__(self, host=None, port=0):
        self.host = host or "127.0.0.1"
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-test-"))
        port_file = self._folder / "port"
        command = [BINARY, "store", "serve", "--port", str(port), "--port-file", str(port_file)]
        if host is not None:
            command += ["--host", host]
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=_die_with_parent)
        try:
            self.port = self._wait_for_port(port_file)
        except BaseException:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._folder)
            raise

    def _wait_for_port(self, port_file):
        deadline = time.monotonic() + SERVER_START_SECONDS_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                return int(port_file.read_text())
            if self._process.poll() is not None:
                raise AssertionError(
                    f"the server ended with status {self._process.returncode}:\n{self.log()}")
            time.sleep(0.005)
        raise AssertionError(f"the server wrote no port file:\n{self.log()}")

    @property
    def endpoint(self):
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def pid(self):
        return self._process.pid

    def log(self):
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / "log").read_text(errors="replace")
        return ""

    def is_running(self):
        return self._process.poll() is None

    def stop(self):
        """Ends the server in the orderly way; fails if it had ended before or does not obey."""
        if not self._folder.exists():
            return
        try:
            if not self.is_running():
                raise AssertionError(f"the server ended by itself with status "
                                     f"{self._process.returncode}:\n{self.log()}")
            self._process.send_signal(signal.SIGTERM)
            try:
                status = self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the server ignores SIGTERM:\n{self.log()}") from None
            if status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
                raise AssertionError(f"the server ended with status {status}:\n{self.log()}")
        finally:
            if self.is_running():
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self._folder)


def start_command(endpoint, *words, timeout="30s"):
    """Starts `muster store WORD... --endpoint ENDPOINT`; the caller collects it with finish()."""
    name, *arguments = words
    command = [BINARY, "store", name, "--endpoint", endpoint, "--timeout", timeout, *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, preexec_fn=_die_with_parent)


def finish(process):
    """What `process` left, as a subprocess.CompletedProcess with bytes."""
    try:
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"{process.args} hangs; so far: {output!r} {errors!r}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


# ---- peers in other processes -----------------------------------------------------------------

# Children are forked from a process that has PyTorch loaded but no thread and no store: importing
# it again in each would take seconds, and forking this process, with the threads it has by then, is
# what only the tests about forking should do.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed"])


class Peer:
    """A process that runs `function(pipe, *arguments)`, a function of the module peers.

    The function may pipe.send() and pipe.recv(); what it returns arrives by receive() as well.
    """

    def __init__(self, function, *arguments):
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_run_peer, args=(theirs, function, arguments),
                                         daemon=True)
        self._process.start()
        theirs.close()

    def send(self, value):
        self._pipe.send(value)

    def receive(self):
        if not self._pipe.poll(PATIENCE_SECONDS):
            raise AssertionError("a peer hangs")
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            self._process.join(PATIENCE_SECONDS)
            raise AssertionError(f"a peer ended with status {self._process.exitcode}") from None
        if kind == "error":
            raise AssertionError(f"a peer failed:\n{value}")
        return value

    def has_message(self):
        return self._pipe.poll(0)

    def join(self):
        """Waits for the end; fails if it was not a regular one."""
        self._process.join(PATIENCE_SECONDS)
        if self._process.exitcode != 0:
            raise AssertionError(f"a peer ended with status {self._process.exitcode}")

    def end(self):
        if self._process.is_alive():
            self._process.kill()
        self._process.join(PATIENCE_SECONDS)
        self._pipe.close()


class _PeerPipe:
    def __init__(self, connection):
        self._connection = connection

    def send(self, value):
        self._connection.send(("value", value))

    def recv(self):
        if not self._connection.poll(PATIENCE_SECONDS):
            raise AssertionError("the test does not answer its peer")
        return self._connection.recv()


def _run_peer(connection, function, arguments):
    faulthandler.dump_traceback_later(TEST_SECONDS_MAX, exit=True)
    try:
        connection.send(("value", function(_PeerPipe(connection), *arguments)))
    except Exception:  # pylint: disable=broad-except
        connection.send(("error", traceback.format_exc()))
        sys.exit(1)
    finally:
        faulthandler.cancel_dump_traceback_later()


# ---- tests ------------------------------------------------------------------------------------


class TestCase(unittest.TestCase):
    """A test whose servers, stores, threads and peers end with it, in the order that is safe."""

    def run(self, result=None):
        result = result if result is not None else self.defaultTestResult()
        bad_before = len(result.failures) + len(result.errors)
        self._logs = []
        faulthandler.dump_traceback_later(TEST_SECONDS_MAX, exit=True)
        try:
            return super().run(result)
        finally:
            faulthandler.cancel_dump_traceback_later()
            if len(result.failures) + len(result.errors) > bad_before:
                for log in filter(None, self._logs):
                    print(f"--- server log of {self.id()}\n{log}---", file=sys.stderr, flush=True)

    def setUp(self):
        self._stores = []
        self._threads = None

    def serve(self, **options):
        server = Server(**options)

        def stop():
            # PyTorch 1.13 does not bear the loss of a server well: its stores go first.
            self._end_threads()
            self._stores.clear()
            gc.collect()
            self._logs.append(server.log())
            server.stop()

        self.addCleanup(stop)
        return server

    def keep(self, store):
        """Keeps `store` until the servers stop, for the threads that use it."""
        self._stores.append(store)
        return store

    def start(self, function, *arguments):
        """Runs `function` in a thread; the result is a future."""
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(max_workers=32)
            self.addCleanup(self._end_threads)
        return self._threads.submit(function, *arguments)

    def _end_threads(self):
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None

    def finish_all(self, futures):
        return [future.result(PATIENCE_SECONDS) for future in futures]

    def peer(self, function, *arguments):
        peer = Peer(function, *arguments)
        self.addCleanup(peer.end)
        return peer

    def command(self, endpoint, *words, **options):
        """Runs `muster store WORD...` to its end."""
        return finish(self.start_command(endpoint, *words, **options))

    def start_command(self, endpoint, *words, **options):
        process = start_command(endpoint, *words, **options)

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()

        self.addCleanup(end)
        return process
