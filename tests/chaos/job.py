"""The job under test: its agents, what happens to them, and what must have come of it."""

import collections
import contextlib
import heapq
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import logs
import network
import plan
from logs import Wrong

HOST_COUNT = 5
WORKER_COUNT = 2  # on each host with an agent
# The longest that a healthy job may need for anything. Far beyond what it needs: it means "hangs".
PATIENCE_SECONDS = 90
MAX_RESTARTS = 100000
RENDEZVOUS = "join_timeout=600,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"


def processes():
    """All living processes of this PID namespace: pid -> (parent, state, command)."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if stat[0] not in "ZX":
                name = (entry / "comm").read_text().strip()
                found[int(entry.name)] = (int(stat[1]), stat[0], f"{name}: {words}")
    return found


def below(ancestor):
    """`ancestor` and what it has started, directly or not."""
    children = collections.defaultdict(list)
    for pid, (parent, _, _) in processes().items():
        children[parent].append(pid)
    found = [ancestor]
    for pid in found:
        found.extend(children[pid])
    return found


def inner(pid):
    """The agent's own process, below the one that was started, its guard; 0 without one."""
    return next((child for child, (parent, _, what) in processes().items()
                 if parent == pid and what.startswith("muster-agent:")), 0)


def variable(pid, name):
    with contextlib.suppress(OSError):
        for entry in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(name.encode() + b"="):
                return entry.split(b"=", 1)[1].decode()
    return None


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Job:
    def __init__(self, binary, folder):
        self.binary = binary
        self.folder = folder
        self.hosts = network.make_hosts(HOST_COUNT)
        self.agents = {}  # host number -> process
        self.start_counts = collections.Counter()
        self.killed = set()  # (host name, pid)
        self.timeline = []
        self._began = time.monotonic()
        self._agenda = []  # heap of (time, number, function)
        self._numbers = itertools.count()
        self._stopped = {}  # pid -> why
        self._cuts = collections.Counter()  # host number -> how many cuts at once
        for name in ("journals", "saved"):
            (folder / name).mkdir()
        (folder / "ledger").touch()
        self.store = self._start_store()

    # ---- time ----

    def now(self):
        return time.monotonic() - self._began

    def note(self, text):
        clock = time.strftime("%H:%M:%S", time.gmtime())
        self.timeline.append(f"{clock} {self.now():8.3f} {text}")

    def at(self, when, function):
        heapq.heappush(self._agenda, (when, next(self._numbers), function))

    def go_on(self, until, done=lambda: False):
        """Does what is due, until `until` or until `done`; says whether it is done."""
        while not done():
            if self.now() > until:
                return False
            while self._agenda and self._agenda[0][0] <= self.now():
                heapq.heappop(self._agenda)[2]()
            self._check_nobody_gave_up()
            time.sleep(0.01)
        return True

    def is_quiet(self):
        return not self._agenda

    def _check_nobody_gave_up(self):
        for number, agent in self.agents.items():
            status = agent.poll()
            if status is not None and not (status == 0 and (self.folder / "finish").exists()):
                raise Wrong(f"the agent of host{number} has ended by itself, with status {status}")
        if self.store.poll() is not None:
            raise Wrong(f"the store has ended by itself, with status {self.store.returncode}")

    # ---- processes ----

    def _start(self, host, words, name, **environment):
        temporary = self.folder / host.name / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(temporary),
                     "LOGLEVEL": "INFO", "MUSTER_BIN": self.binary, "CHAOS_HOST": host.name,
                     "CHAOS_ADDRESS": host.address, "CHAOS_FOLDER": str(self.folder), **environment}
        base = self.folder / host.name / name
        with open(f"{base}.out", "wb") as out, open(f"{base}.err", "wb") as err:
            return subprocess.Popen([self.binary, *words], stdin=subprocess.DEVNULL, stdout=out,
                                    stderr=err, env=variables, preexec_fn=host.move_in)

    def _start_store(self):
        port_file = self.folder / "port"
        store = self._start(self.hosts[0], ["store", "serve", f"--host={self.hosts[0].address}",
                                            "--port=0", f"--port-file={port_file}"], "store")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not port_file.exists():
            if store.poll() is not None or time.monotonic() > deadline:
                raise Wrong("the store does not start")
            time.sleep(0.01)
        self.endpoint = f"{self.hosts[0].address}:{int(port_file.read_text())}"
        return store

    def start_agent(self, number):
        host = self.hosts[number]
        self.start_counts[number] += 1
        words = ["run", "--nnodes=2:4", f"--nproc-per-node={WORKER_COUNT}",
                 f"--max-restarts={MAX_RESTARTS}", "--rdzv-backend=muster",
                 f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=chaos",
                 f"--rdzv-conf={RENDEZVOUS}", f"--local-addr={host.address}", "--tee=1",
                 "--redirects=2", f"--log-dir={self.folder / host.name / 'logs'}",
                 "--shutdown-timeout=5", sys.executable, "-IS",
                 str(pathlib.Path(__file__).with_name("worker.py"))]
        self.agents[number] = self._start(host, words, f"agent.{self.start_counts[number]}")
        self.note(f"host{number}: agent {self.agents[number].pid} started")

    def worker(self, number, local_rank):
        """The pid of a worker, if it runs now."""
        if number in self.agents:
            agent = inner(self.agents[number].pid)
            for pid in below(agent)[1:] if agent else ():
                parent = processes().get(pid, (0,))[0]
                if parent == agent and variable(pid, "LOCAL_RANK") == str(local_rank):
                    return pid
        return None

    # ---- faults ----

    def commit(self, fault):
        victims = None
        if fault.kind in ("kill worker", "stop worker"):
            pid = self.worker(fault.host, fault.local_rank)
            victims = [pid] if pid else []
        elif fault.kind in ("kill agent", "stop agent", "freeze host"):
            agent = self.agents.get(fault.host)
            victims = [inner(agent.pid)] if agent and inner(agent.pid) else []
            if agent and fault.kind == "freeze host":
                victims = below(agent.pid)
        elif fault.kind == "stop store":
            victims = [self.store.pid]
        if victims == []:
            self.note(f"{fault.describe()}: nobody is there")
            return
        self.note(f"{fault.describe()} {victims or ''}")
        if fault.kind == "cut":
            self._cut(fault)
        elif fault.kind == "kill worker":
            send(victims, signal.SIGKILL)
        elif fault.kind == "kill agent":
            self._kill_agent(fault, victims[0])
        else:
            send(victims, signal.SIGSTOP)
            self._stopped.update({pid: fault.kind for pid in victims})
            self.at(self.now() + fault.length, lambda: self._wake(victims))

    def _kill_agent(self, fault, pid):
        """In turn the agent itself and its guard."""
        agent = self.agents.pop(fault.host)
        for victim in (agent.pid, pid):
            self._stopped.pop(victim, None)
        send([agent.pid if self.start_counts[fault.host] % 2 == 0 else pid], signal.SIGKILL)
        # One that is stopped cannot end.
        send([agent.pid], signal.SIGCONT)
        agent.wait()
        self.killed.add((self.hosts[fault.host].name, pid))
        self.at(self.now() + fault.length, lambda: self.start_agent(fault.host))

    def _wake(self, pids):
        pids = [pid for pid in pids if self._stopped.pop(pid, None)]
        if pids:
            self.note(f"wake {pids}")
            send(pids, signal.SIGCONT)

    def _cut(self, fault):
        host = self.hosts[fault.host]
        others = [other for other in self.hosts if other is not host]
        if fault.loss == "send_nothing":
            for other in others:
                host.lose_towards(other)
        elif fault.loss == "hear_nothing":
            for other in others:
                other.lose_towards(host)
        else:
            getattr(host, fault.loss)()
        self._cuts[fault.host] += 1
        self.at(self.now() + fault.length, lambda: self._heal(fault.host))

    def _heal(self, number):
        """Ends all cuts of a host, once the last one is over."""
        self._cuts[number] -= 1
        if self._cuts[number] > 0:
            return
        self.note(f"heal the link of host{number}")
        self.hosts[number].heal(self.hosts)
        for other, host in enumerate(self.hosts):
            if other != number and not self._cuts[other]:
                host.heal([self.hosts[number]])

    # ---- what came of it ----

    def ledger(self):
        """(round, world size, step) of each step saved."""
        lines = (self.folder / "ledger").read_text().split("\n")[:-1]
        return [tuple(int(word) for word in line.split()) for line in lines]

    def check_steps(self):
        """Each round goes on where those before it have been; nothing saved is lost."""
        steps = collections.defaultdict(list)
        for round_number, world_size, step in self.ledger():
            if world_size not in (4, 6, 8):
                raise Wrong(f"round {round_number} has {world_size} workers")
            steps[round_number].append(step)
        done = 0
        for round_number in sorted(steps):
            mine = steps[round_number]
            if mine != list(range(mine[0], mine[0] + len(mine))):
                raise Wrong(f"round {round_number} has done the steps {mine}")
            # The last step of a round that was given up need not have been saved before the next began.
            if done and not done <= mine[0] <= done + 1:
                raise Wrong(f"round {round_number} begins with step {mine[0]}, after step {done}")
            done = max(done, mine[-1])
        return done, len(steps)

    def check_logs(self):
        checked = logs.Logs(self.folder, self.killed)
        checked.check(self.folder.glob("host*/logs/**/stdout.log"), "stdout.log", True)
        checked.check(self.folder.glob("host*/logs/**/stderr.log"), "stderr.log", False)
        checked.check(self.folder.glob("host*/agent.*.out"), "console", True, consoles=True)
        return checked

    def check_nobody_is_left(self):
        """The pid namespace is ours alone: whoever is in it is ours."""
        ours = {1, os.getpid(), os.getppid(), self.store.pid}
        deadline = time.monotonic() + 10  # Agents whose guard was killed have a moment to go.
        while True:
            left = {pid: what for pid, what in processes().items() if pid not in ours}
            if not left:
                return
            if time.monotonic() > deadline:
                raise Wrong(f"processes are left: {left}")
            time.sleep(0.01)

    def describe(self):
        parts = ["--- timeline", *self.timeline, "--- processes"]
        parts.extend(f"{pid}: {what}" for pid, what in sorted(processes().items()))
        parts.append("--- last steps (round, workers, step)")
        parts.extend(str(entry) for entry in self.ledger()[-10:])
        files = [*sorted(self.folder.glob("host*/*.err")), self.folder / "troubles"]
        for path in filter(pathlib.Path.exists, files):
            parts.append(f"--- the end of {path.relative_to(self.folder)}")
            parts.extend(path.read_text(errors="replace").splitlines()[-60:])
        return "\n".join(parts)


def play(job, faults, seconds):
    for number in range(1, HOST_COUNT):
        job.start_agent(number)
    for fault in faults:
        job.at(fault.at, lambda fault=fault: job.commit(fault))
    job.go_on(seconds)
    # What is still wrong is undone by the agenda within seconds; nothing new goes wrong.
    job.go_on(job.now() + PATIENCE_SECONDS, job.is_quiet)
    job.note("all is healed")
    seen = len(job.ledger())

    def is_complete():
        return any(entry[1] == 8 for entry in job.ledger()[seen:]) and len(job.agents) == 4

    if not job.go_on(job.now() + PATIENCE_SECONDS, is_complete):
        raise Wrong("the four hosts do not find together again")
    job.note("all four hosts work together")
    (job.folder / "finish").touch()
    ended = job.go_on(job.now() + PATIENCE_SECONDS,
                      lambda: all(agent.poll() is not None for agent in job.agents.values()))
    if not ended:
        raise Wrong("the job does not end")
    job.note("the job has ended")
    job.check_nobody_is_left()


def run(seed, seconds, binary, verbose):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    job = Job(binary, folder)
    faults = plan.make(seed, seconds, HOST_COUNT, WORKER_COUNT)
    try:
        play(job, faults, seconds)
        steps, rounds = job.check_steps()
        checked = job.check_logs()
    except BaseException:
        print(f"{job.describe()}\n--- everything is in {folder}", flush=True)
        raise
    job.store.terminate()
    job.store.wait()
    if verbose:
        print(job.describe())
    print(f"{len(faults)} faults in {seconds:g} s, healed and over after {job.now():.1f} s: {steps} steps "
          f"in {rounds} rounds, {checked.worker_count()} workers, {checked.line_count} lines, none lost")
    shutil.rmtree(folder)
