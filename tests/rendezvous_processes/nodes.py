"""What the tests with rendezvous nodes as real processes share.

Environment:
  MUSTER_BIN               the program; without it, build/bin/muster of this source tree
  MUSTER_RENDEZVOUS_NODE   the program built from node.cpp; without it, build/bin/rendezvous_node

A node says everything that happens to it as a line of JSON. Tests wait for such lines, never for
time to pass: what must not happen is looked for after something later has been seen.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "pytorch"))
import muster  # noqa: E402

NODE_BINARY = (os.environ.get("MUSTER_RENDEZVOUS_NODE") or
               str(pathlib.Path(muster.BINARY).parent / "rendezvous_node"))

# The longest wait for something that a node is to say. Far beyond what is ever needed, and below
# the heartbeat window of the tests in which something must be noticed without heartbeats.
PATIENCE_SECONDS = 60

# Exit statuses of `muster`.
FAILED = 1
USAGE = 2
UNREACHABLE = 4
NO = 5


def main():
    """Runs the tests of the calling program."""
    if not os.access(NODE_BINARY, os.X_OK):
        print(f"there is no program {NODE_BINARY}; build it, or name it in MUSTER_RENDEZVOUS_NODE",
              file=sys.stderr)
        sys.exit(2)
    muster.main()


def conf(**options):
    """An option string: conf(join_timeout=5) is "join_timeout=5"."""
    return ",".join(f"{name}={value}" for name, value in options.items())


class Node:
    """A process that is one node. What it has said is in `heard`, oldest first."""

    def __init__(self, name, *, backend, endpoint, run_id, min_nodes, max_nodes, options="",
                 local_addr=None, elastic=True, environment=None):
        self.name = name
        command = [NODE_BINARY, "--backend", backend, "--endpoint", endpoint, "--run-id", run_id,
                   "--min", str(min_nodes), "--max", str(max_nodes), "--conf", options,
                   "--local-addr", local_addr or name]
        if elastic:
            command.append("--elastic")
        self.heard = []
        self._seen = 0  # of `heard`; what comes next is what the tests have not waited for yet
        self._changed = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})}, preexec_fn=muster._die_with_parent)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            try:
                entry = json.loads(line)
            except ValueError:  # a line of its log
                entry = {"event": "log", "text": line.decode(errors="replace").rstrip("\n")}
            with self._changed:
                self.heard.append(entry)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- what it says

    def next(self, event, where=lambda line: True):
        """The next line of that kind, or of one of those, that no call of this has passed yet."""
        events = (event,) if isinstance(event, str) else event
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            while True:
                while self._seen < len(self.heard):
                    line = self.heard[self._seen]
                    self._seen += 1
                    if line["event"] in events and where(line):
                        return line
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    why = "has ended" if self._ended else "does not say it"
                    raise AssertionError(f"waited for {events} of node {self.name}, but it {why}")
                self._changed.wait(left)

    def next_of(self, *events):
        """The next line of any of these kinds."""
        return self.next(events)

    def joined(self):
        """The next round it is in."""
        return self.next("joined")

    def failed(self, of="join"):
        """The next error of that command."""
        return self.next("error", lambda line: line["of"] == of)

    def reported(self, text):
        """The next event whose message contains `text`."""
        return self.next("record", lambda line: text in line["message"])

    def all(self, event):
        """All lines of that kind, also those that were waited for."""
        with self._changed:
            return [line for line in self.heard if line["event"] == event]

    def last_round(self):
        """The last round it has joined, if it has joined one and is not on its way to the next."""
        with self._changed:
            for line in reversed(self.heard):
                if line["event"] == "joined":
                    return line
                if line["event"] in ("status", "joining"):
                    return None
        return None

    def wait_for_change(self, count, deadline):
        """Until it has said more than `count` lines."""
        with self._changed:
            while len(self.heard) <= count and not self._ended:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    # -- what is done to it

    def say(self, command):
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def ask(self, command, event):
        """Gives a command, and returns its answer."""
        self.say(command)
        return self.next(event)

    def leave(self):
        self.ask("leave", "left")

    def close_run(self):
        self.ask("close", "closed")

    def waiting(self):
        return self.ask("waiting", "waiting")["count"]

    def is_closed(self):
        return self.ask("closed", "is_closed")["closed"]

    def wait_until_closed(self):
        """Until it knows that the run is closed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.is_closed():
            if time.monotonic() > deadline:
                raise AssertionError(f"node {self.name} does not hear that the run is closed")
            time.sleep(0.02)

    @property
    def pid(self):
        return self._process.pid

    def is_running(self):
        return self._process.poll() is None

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_SECONDS)

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def exit(self):
        """Ends it in the orderly way; its exit status."""
        self.say("exit")
        return self._process.wait(PATIENCE_SECONDS)

    def wait(self):
        """Until it ends by itself; its exit status."""
        return self._process.wait(PATIENCE_SECONDS)

    def end(self):
        """Whatever state it is in."""
        if self.is_running():
            self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_SECONDS)
        self._process.stdin.close()
        self._process.stdout.close()

    def transcript(self):
        with self._changed:
            lines = [json.dumps(line) for line in self.heard]
        status = self._process.poll()
        return "\n  ".join([f"node {self.name} (pid {self.pid}, status {status}):", *lines])


class Server(muster.Server):
    """A `muster store serve` that can also be killed."""

    def kill(self):
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)


class TestCase(muster.TestCase):
    """A test whose nodes end with it, and are quoted if it fails."""

    backend = "muster"
    endpoint = None  # what nodes are given unless the test says otherwise
    options = ""

    def run(self, result=None):
        result = result if result is not None else self.defaultTestResult()
        bad_before = len(result.failures) + len(result.errors)
        self._nodes = []
        outcome = super().run(result)
        if len(result.failures) + len(result.errors) > bad_before:
            for node in self._nodes:
                print(node.transcript(), file=sys.stderr, flush=True)
        return outcome

    def setUp(self):
        super().setUp()
        self.run_id = f"run-{uuid.uuid4().hex[:8]}"

    def node(self, name, min_nodes, max_nodes=None, **options):
        options.setdefault("backend", self.backend)
        options.setdefault("endpoint", self.endpoint)
        options.setdefault("run_id", self.run_id)
        options.setdefault("options", self.options)
        node = Node(name, min_nodes=min_nodes, max_nodes=max_nodes or min_nodes, **options)
        self._nodes.append(node)
        self.addCleanup(node.end)
        return node

    def nodes(self, names, min_nodes, max_nodes=None, **options):
        return [self.node(name, min_nodes, max_nodes, **options) for name in names]

    # -- what groups have in common

    @staticmethod
    def told_alike(rounds):
        """Whether all have been told of the same round."""
        keys = ("round", "world_size", "master_addr", "master_port")
        return len({tuple(line[key] for key in keys) for line in rounds}) == 1

    def assert_one_group(self, rounds):
        """What the members of one complete round have been told fits together."""
        self.assertTrue(self.told_alike(rounds), rounds)
        self.assertEqual(rounds[0]["world_size"], len(rounds), rounds)
        self.assertEqual(sorted(line["rank"] for line in rounds), list(range(len(rounds))), rounds)

    def join(self, nodes):
        """Waits for the next round of these nodes, who are all that are in it; what each was told,
        in their order."""
        rounds = [node.joined() for node in nodes]
        self.assert_one_group(rounds)
        return rounds

    def meet(self, nodes, after=-1):
        """Waits until these nodes, and nobody else, are in one round later than `after`, however
        many rounds they need; returns what each was told."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            counts = [len(node.heard) for node in nodes]
            rounds = [node.last_round() for node in nodes]
            # Rounds of a store that was started again have the numbers of those before: whoever is
            # in one of the others has only not said yet that it has left it.
            if (all(rounds) and self.told_alike(rounds) and
                    rounds[0]["world_size"] == len(nodes) and rounds[0]["round"] > after):
                self.assert_one_group(rounds)
                return rounds
            for node in nodes:
                self.assertTrue(node.is_running(), f"node {node.name} has ended")
            if time.monotonic() > deadline:
                self.fail(f"{[node.name for node in nodes]} do not meet: {rounds}")
            # Whoever is not there yet is the one to wait for.
            behind = min(range(len(nodes)), key=lambda i: (rounds[i] or {"round": -1})["round"])
            nodes[behind].wait_for_change(counts[behind], min(deadline, time.monotonic() + 0.2))

    # -- the program

    def rendezvous(self, command, *words, status=0, run_id=None, endpoint=None, backend=None):
        """Runs `muster rendezvous COMMAND …`, checks its exit status, returns (stdout, stderr)."""
        done = muster.finish(self.start_rendezvous(command, *words, run_id=run_id,
                                                   endpoint=endpoint, backend=backend))
        out, err = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, status, f"{done.args}\n{out}\n{err}")
        return out, err

    def start_rendezvous(self, command, *words, run_id=None, endpoint=None, backend=None):
        process = subprocess.Popen(
            [muster.BINARY, "rendezvous", command, "--backend", backend or self.backend,
             "--endpoint", endpoint or self.endpoint, "--run-id", run_id or self.run_id, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=muster._die_with_parent)

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()

        self.addCleanup(end)
        return process

    def shown(self, *words, **options):
        """The run as `muster rendezvous show --json` prints it."""
        return json.loads(self.rendezvous("show", "--json", *words, **options)[0])

    def wait_until_shown(self, is_there, **options):
        """Watches the run until it looks like that."""
        process = self.start_rendezvous("watch", "--json", **options)
        deadline = time.monotonic() + PATIENCE_SECONDS
        shown = None
        while time.monotonic() < deadline:
            line = process.stdout.readline()
            if not line:
                raise AssertionError(f"the watch ended: {process.stderr.read().decode()}")
            shown = json.loads(line)
            if is_there(shown):
                process.kill()
                return shown
        raise AssertionError(f"the run does not come to look as expected: {shown}")


def members(shown):
    """{address: rank} of the members that `shown` lists."""
    return {node["address"]: node["rank"] for node in shown["nodes"] if node["role"] == "member"}
