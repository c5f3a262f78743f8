"""What surrounds a job: memory that ends, devices that hang, an etcd, a store that forgets, daemons
that hide, nodes that come late or do not wait."""

import contextlib
import errno
import fcntl
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid

import launch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rendezvous_processes"))
import etcd_cluster  # noqa: E402

# Says who it is. It fails when the test asks for it by the number of restarts and a rank, and ends
# well on "go".
OBEY = """
note "$RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT"
while [ ! -e "$FOLDER/go" ]; do
    [ -e "$FOLDER/fail $TORCHELASTIC_RESTART_COUNT $RANK" ] && exit 3
    [ -e "$FOLDER/kill $TORCHELASTIC_RESTART_COUNT $RANK" ] && kill -9 $$
    sleep 0.02
done
"""


def pairs(restarts):
    """The notes of OBEY on two nodes that have begun again so often."""
    return [f"{rank} of 2, restart {restarts}" for rank in range(2)]


class Case(launch.Case):
    def python(self, text):
        """An executable Python script."""
        path = self.folder / "worker.py"
        path.write_text("#!/usr/bin/python3 -S\nimport os\n"
                        "def note(text):\n"
                        "    with open(os.environ['NOTES'], 'a') as notes:\n"
                        "        notes.write(text + '\\n')\n" + textwrap.dedent(text))
        path.chmod(0o755)
        return str(path)

    def start_after(self, command, *words, shell=("sh", "-c")):
        """An agent that a shell becomes after it has run `command`."""
        agent = launch.Agent([str(word) for word in words], environment=self.environment(),
                             folder=self.here, name=f"agent {len(self.agents)}",
                             program=[*shell, f'{command}\nexec "$0" run "$@"', launch.BINARY])
        self.agents.append(agent)
        return agent


# ---- memory -------------------------------------------------------------------------------------


class Memory(Case):
    BYTES_MAX = 64 << 20

    def cgroup(self):
        """A cgroup whose processes share BYTES_MAX; goes with the test."""
        root = pathlib.Path("/sys/fs/cgroup")
        if (root / "memory" / "memory.limit_in_bytes").exists():
            return self.old_cgroup(root / "memory")
        try:
            controllers = (root / "cgroup.controllers").read_text().split()
        except OSError:
            self.skipTest(f"SKIPPED: {root} is no cgroup hierarchy")
        if "memory" not in controllers:
            self.skipTest(f"SKIPPED: {root} has no memory controller")
        folder = root / f"muster-test-{uuid.uuid4().hex}"
        try:
            if "memory" not in (root / "cgroup.subtree_control").read_text().split():
                (root / "cgroup.subtree_control").write_text("+memory")
                self.addCleanup((root / "cgroup.subtree_control").write_text, "-memory")
            folder.mkdir()
            self.addCleanup(self.remove, folder)
            (folder / "memory.max").write_text(str(self.BYTES_MAX))
            with contextlib.suppress(FileNotFoundError):  # where the kernel does not count swap
                (folder / "memory.swap.max").write_text("0")
            # Whether processes may be moved there, which needs more rights than to make it.
            subprocess.run(["sh", "-c", f"echo $$ > {folder}/cgroup.procs"], check=True,
                           capture_output=True, timeout=launch.PATIENCE_SECONDS)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"SKIPPED: no cgroup with a limit can be made below {root}: {error}")
        return folder

    def old_cgroup(self, root):
        """The same in a hierarchy of version 1."""
        folder = root / f"muster-test-{uuid.uuid4().hex}"
        try:
            folder.mkdir()
            self.addCleanup(self.remove, folder)
            (folder / "memory.limit_in_bytes").write_text(str(self.BYTES_MAX))
            subprocess.run(["sh", "-c", f"echo $$ > {folder}/cgroup.procs"], check=True,
                           capture_output=True, timeout=launch.PATIENCE_SECONDS)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"SKIPPED: no cgroup with a limit can be made below {root}: {error}")
        return folder

    @staticmethod
    def remove(folder):
        """With all that is in it, should the test have failed."""

        def look():
            with contextlib.suppress(OSError):
                (folder / "cgroup.kill").write_text("1")
            for inner in sorted(folder.rglob("*/"), reverse=True):
                with contextlib.suppress(OSError):
                    inner.rmdir()
            try:
                folder.rmdir()
            except OSError as error:
                return error.errno == errno.ENOENT
            return True

        launch.wait_until(look, f"cannot remove {folder}")

    def test_a_worker_that_the_kernel_killed_for_want_of_memory_is_reported_as_such(self):
        folder = self.cgroup()
        script = self.python(f"""
            import signal, time
            note(os.environ["RANK"])
            if os.environ["RANK"] == "1":
                while len(open(os.environ["NOTES"]).readlines()) < 2:
                    time.sleep(0.02)
                much = b"x" * {16 * self.BYTES_MAX}
                note("has it")
            signal.pause()""")
        agent = self.start_after(f"echo $$ > {folder}/cgroup.procs", "--nproc-per-node=2", script)
        agent.end(1)
        self.assert_nobody_left()
        self.assertEqual(sorted(self.notes()), ["0", "1"])
        report = launch.Report(agent.err.text)
        self.assertEqual((report.root["rank"], report.root["signal"]), ("1", "SIGKILL"))
        self.assertIn("Rank 1 was killed by the kernel because memory ran out", report.after)
        self.assertNotIn("not by Muster", report.after)

    def test_a_worker_that_somebody_killed_is_not_taken_for_one_that_ran_out_of_memory(self):
        agent = self.launch(self.script("kill -9 $$"), status=1)
        self.assertRegex(launch.Report(agent.err.text).after, "Rank 0 was killed with SIGKILL")
        self.assertNotIn("memory ran out", agent.err.text)


# ---- uninterruptible sleep ----------------------------------------------------------------------


def state_of(pid):
    """The letter that the kernel gives the state of a process; nothing if there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rsplit(")", 1)[1].split()[0]


class UninterruptibleSleep(Case):
    """Who starts a program with vfork sleeps so until the child has executed it. A child that has
    to open a pipe first, whose other end nobody opens, never gets there."""

    VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"

    def setUp(self):
        super().setUp()
        self.pipe = self.folder / "pipe"
        os.mkfifo(self.pipe)
        self.check_assumption()

    def sleeper(self):
        return self.python("""
            note(str(os.getpid()))
            child = os.posix_spawn("/bin/true", ["true"], {}, file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.environ["FOLDER"] + "/pipe", os.O_RDONLY, 0)])
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            note(f"awake, {status}")
            raise SystemExit(status)""")

    def await_sleep(self):
        """Waits until the one worker sleeps so; returns its pid."""
        pid = int(self.wait_note(r"\d+").group())
        launch.wait_until(lambda: state_of(pid) == "D", lambda: f"its state is {state_of(pid)!r}")
        return pid

    def wake(self):
        """The pipe gets its other end."""

        def opened():
            try:
                os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody reads yet
                    raise
                return False
            return True

        launch.wait_until(opened, "nobody wants to read")

    def check_assumption(self):
        """Skips the test where the kernel calls this sleep by another name."""
        process = subprocess.Popen([self.sleeper()], env=self.environment())
        try:
            self.await_sleep()
        except AssertionError as error:
            self.skipTest(f"SKIPPED: vfork is no uninterruptible sleep here ({error})")
        finally:
            self.wake()
            process.wait(launch.PATIENCE_SECONDS)
        self.notes_file.write_text("")

    def test_a_worker_that_sleeps_so_for_too_long_ends_the_node_without_a_restart(self):
        agent = self.launch("--max-restarts=3", "--shutdown-timeout=1", self.sleeper(), status=1,
                            env={self.VARIABLE: "1"})
        (pid,) = self.notes()
        self.assertEqual(agent.err.text.splitlines()[-1],
                         f"muster: worker 0 (pid {pid}) has been in uninterruptible sleep for more "
                         "than 1s; this node ends, since new workers would collide with it")

    def test_a_sleep_that_ends_in_time_does_no_harm(self):
        agent = self.start(self.sleeper(), env={self.VARIABLE: "600"})
        self.await_sleep()
        self.wake()
        agent.end(0)
        self.assertEqual(self.notes()[1:], ["awake, 0"])
        self.assertNotIn("uninterruptible", agent.err.text)


# ---- etcd ---------------------------------------------------------------------------------------


class Etcd(Case):
    def setUp(self):
        super().setUp()
        for program in ("etcd", "etcdctl"):
            if shutil.which(program) is None:
                self.skipTest(f"SKIPPED: the program {program} is not installed "
                              "(see tools/packages)")
        cluster = etcd_cluster.Cluster()
        self.addCleanup(cluster.end)
        words = ["--nnodes=1:2", "--rdzv-backend=etcd", f"--rdzv-endpoint={cluster.endpoint}",
                 "--rdzv-id=job", "--local-addr=127.0.0.1", "--max-restarts=1", self.script(OBEY)]
        for _ in range(2):
            self.start(*words)
        self.wait_notes(*pairs(0))

    def test_a_killed_worker_is_restarted_on_both_nodes_and_both_end_well(self):
        self.touch("kill 0 1")
        self.wait_notes(*pairs(1))
        self.touch("go")
        self.end_all(0)
        failed = [agent for agent in self.agents if "worker failed: rank 1" in agent.err.text]
        self.assertEqual(len(failed), 1)

    def test_a_node_goes_on_alone_when_the_other_agent_is_killed(self):
        """The budget that is used up by then does not matter: nobody has failed."""
        self.touch("kill 0 0")
        self.wait_notes(*pairs(1))
        before = len(self.notes())
        killed, other = self.agents
        killed.crash()
        killed.end(-9)
        launch.wait_until(lambda: "0 of 1, restart 1" in self.notes()[before:],
                          lambda: (self.notes(), other.describe()))
        self.touch("go")
        other.end(0)
        launch.wait_until(lambda: not self.left(), self.left)

    def test_a_failure_without_a_restart_left_ends_both_nodes(self):
        self.touch("fail 0 0")
        self.wait_notes(*pairs(1))
        self.touch("fail 1 1")
        self.end_all(1)
        for agent in self.agents:
            root = launch.Report(agent.err.text).root
            self.assertEqual((root["rank"], root["code"]), ("1", "3"))


# ---- a node alone -------------------------------------------------------------------------------


class Alone(Case):
    def start_alone(self, run_id):
        """An agent whose workers run, its other words, and how many seconds it took by its own
        account."""
        events = self.folder / f"events of {run_id}"
        words = [*self.meeting(self.serve(), "1:2", run_id=run_id), self.script(OBEY)]
        agent = self.start(f"--event-log-handler=file:{events}", *words)
        self.wait_notes("0 of 1, restart 0")

        def times(name):
            """When events happened. The last line may be incomplete."""
            records = [json.loads(line) for line in events.read_text().split("\n")[:-1]]
            return [record["timestamp"] / 1000 for record in records if record["name"] == name]

        (started,) = launch.wait_until(lambda: times("torchelastic.worker.status.START"),
                                       events.read_text)
        (began,) = times("muster.rendezvous.begin")
        return agent, words, started - began

    def test_an_elastic_job_begins_soon_with_one_node_and_grows(self):
        """Not after a last call of half a minute. A very busy machine may need a second look."""
        for attempt in range(3):
            agent, words, seconds = self.start_alone(f"job{attempt}")
            if seconds < 15:
                break
            agent.signal(signal.SIGTERM)
            agent.end(1)
            self.notes_file.write_text("")
        self.assertLess(seconds, 15)
        other = self.start(*words)
        self.wait_notes(*pairs(0))
        self.touch("go")
        agent.end(0)
        other.end(0)
        self.assert_nobody_left()


# ---- a store that forgets -----------------------------------------------------------------------


def quiet_port():
    """A free port below those that connections take by chance, while nobody listens there."""
    while True:
        port = random.randrange(20000, 30000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class StoreRestarted(Case):
    """The store knows nothing when it comes back; the nodes do."""

    def start_job(self, backend):
        """Two nodes that have begun again once."""
        self.port = quiet_port()
        self.serve_again()
        for _ in range(2):
            self.start("--nnodes=2", f"--rdzv-backend={backend}",
                       f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=job",
                       "--local-addr=127.0.0.1", "--max-restarts=2", self.script(OBEY),
                       env={"LOGLEVEL": "INFO"})
        self.wait_notes(*pairs(0))
        self.touch("fail 0 1")
        self.wait_notes(*pairs(1))

    def serve_again(self):
        self.store = launch.muster.Server(host="127.0.0.1", port=self.port)
        self.addCleanup(self.store.stop)

    def kill_store(self):
        os.kill(self.store.pid, signal.SIGKILL)
        launch.wait_until(lambda: not self.store.is_running(), "the store cannot be killed")
        with contextlib.suppress(AssertionError):  # it says that it had ended, and tidies up
            self.store.stop()
        for agent in self.agents:
            agent.err.wait("lost the server of run")

    def check_end(self):
        """After the second failure: the third one is the last."""
        self.wait_notes(*pairs(2))
        self.touch("fail 2 0")
        self.end_all(1)
        self.assertEqual(set(self.notes()), {*pairs(0), *pairs(1), *pairs(2)})
        for agent in self.agents:
            root = launch.Report(agent.err.text).root
            self.assertEqual((root["rank"], root["code"]), ("0", "3"))

    def fail_after(self, backend):
        self.start_job(backend)
        self.kill_store()
        self.serve_again()
        self.touch("fail 1 0")
        self.check_end()

    def fail_meanwhile(self, backend):
        self.start_job(backend)
        self.kill_store()
        self.touch("fail 1 0")
        launch.wait_until(lambda: any("worker failed: rank 0" in agent.err.text
                                      for agent in self.agents),
                          lambda: "\n".join(agent.describe() for agent in self.agents))
        self.serve_again()
        self.check_end()

    def test_failures_before_and_after_count_together(self):
        self.fail_after("c10d")

    def test_failures_before_and_after_count_together_with_the_backend_muster(self):
        self.fail_after("muster")

    def test_a_failure_while_it_is_away_counts_too(self):
        self.fail_meanwhile("c10d")

    def test_a_failure_while_it_is_away_counts_too_with_the_backend_muster(self):
        self.fail_meanwhile("muster")

    def test_a_job_in_which_nobody_fails_does_not_notice(self):
        self.start_job("c10d")
        self.kill_store()
        self.serve_again()
        self.touch("go")
        self.end_all(0)
        self.assertEqual(sorted(self.notes()), sorted(pairs(0) + pairs(1)))


# ---- a store that goes with its node -------------------------------------------------------------


class StoreOnANode(Case):
    """The store of the c10d rendezvous is in the agent of the node that the endpoint names. When
    that one is killed, the others cannot know whether it comes back; they give it five seconds."""

    # Far below what the timeouts of the rendezvous (60 s and more) would take.
    SECONDS_MAX = 40

    def start_job(self, script, *options, nodes=2):
        self.endpoint = f"127.0.0.1:{quiet_port()}"
        self.words = [f"--nnodes={nodes}", "--rdzv-backend=c10d",
                      f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=job",
                      "--local-addr=127.0.0.1", *options, self.script(script)]
        self.host = self.start(*self.words, env={"LOGLEVEL": "INFO"})
        self.host.err.wait("this node hosts the store")
        self.other = self.start(*self.words, env={"LOGLEVEL": "INFO"})

    def lose_host(self):
        self.host.crash()
        self.host.end(-9)
        self.other.err.wait("lost the server of run")
        self.lost_at = time.monotonic()

    def check_end(self, status):
        self.other.end(status)
        self.assertLess(time.monotonic() - self.lost_at, self.SECONDS_MAX)
        self.assert_nobody_left()
        return self.other.err.text.splitlines()

    def check_reason(self, line):
        self.assertIn(f'muster: the store of run "job" at {self.endpoint} is gone: the agent of '
                      "that node hosted it and has been out of reach for 5s", line)
        self.assertIn("`muster store serve`", line)

    def test_workers_that_end_well_are_no_success(self):
        self.start_job(OBEY)
        self.wait_notes(*pairs(0))
        self.lose_host()
        self.touch("go")
        lines = self.check_end(3)
        self.check_reason(lines[-2])
        self.assertIn("did not confirm", lines[-1])

    def test_a_worker_that_fails_is_not_restarted(self):
        self.start_job("note $RANK; wait_file go; exit 3", "--max-restarts=3")
        self.wait_notes("0", "1")
        self.lose_host()
        self.touch("go")
        self.check_reason(self.check_end(1)[-1])

    def test_a_worker_that_fails_later_is_not_restarted_either(self):
        self.start_job("note $RANK; wait_file go; exit 3", "--max-restarts=3")
        self.wait_notes("0", "1")
        self.lose_host()
        self.other.err.wait("the workers of this node go on, but cannot be restarted")
        self.assertTrue(self.other.is_running())
        self.touch("go")
        self.check_reason(self.check_end(1)[-1])

    def test_a_worker_that_fails_for_good_is_reported(self):
        self.start_job("note $RANK; wait_file go; exit 3")
        self.wait_notes("0", "1")
        self.lose_host()
        self.touch("go")
        self.check_end(1)
        self.assertEqual(launch.Report(self.other.err.text).root["code"], "3")

    def test_a_node_that_waits_for_others_does_not_wait_on(self):
        self.start_job("note no", nodes=3)
        self.await_both()
        self.lose_host()
        self.check_reason(self.check_end(1)[-1])
        self.assertEqual(self.notes(), [])

    def await_both(self):
        """Until the host knows of both nodes."""

        def show():
            return subprocess.run(
                [launch.BINARY, "rendezvous", "show", f"--endpoint={self.endpoint}", "--run-id=job"],
                capture_output=True, text=True, timeout=launch.PATIENCE_SECONDS).stdout

        launch.wait_until(lambda: show().count("127.0.0.1") >= 2, show)

    def test_an_agent_that_comes_back_in_time_brings_the_job_back(self):
        self.start_job(OBEY, nodes="1:2")
        self.wait_notes(*pairs(0))
        self.lose_host()
        before = len(self.notes())
        again = self.start(*self.words)
        launch.wait_until(lambda: set(pairs(0)) <= set(self.notes()[before:]),
                          lambda: (self.notes(), self.other.describe(), again.describe()))
        self.touch("go")
        self.other.end(0)
        again.end(0)


# ---- daemons that hide --------------------------------------------------------------------------


class HiddenDaemons(Case):
    """They have a session of their own, an empty environment and no parents, do not hear SIGTERM,
    and new ones come while the job is being stopped. All of them hold a lock."""

    SCRIPT = """
        exec 9> "$FOLDER/lock"
        flock -s 9
        count=0
        hide() {
            count=$((count + 1))
            [ $count -gt 200 ] || env -i /usr/bin/setsid -f /bin/sleep 600
        }
        deaf() { while :; do hide; sleep 0.02; done; }
        hide; hide; hide
        %s
        note ready; deaf"""
    DEAF = SCRIPT % "trap '' TERM"
    # A program that notices, and does not obey.
    STUBBORN = SCRIPT % "trap 'hide; hide; note again' TERM"

    def setUp(self):
        super().setUp()
        self.lock = self.folder / "lock"
        self.addCleanup(self.kill_holders)

    def holders(self):
        """Living processes that have the lock's file open."""
        found = {}
        for link in pathlib.Path("/proc").glob("[0-9]*/fd/9"):
            with contextlib.suppress(OSError):
                if os.readlink(link) == str(self.lock):
                    found[int(link.parts[2])] = (link.parents[1] / "comm").read_text().strip()
        return found

    def kill_holders(self):
        """They have no mark: what is left after a failure must be found so."""

        def look():
            found = self.holders()
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not found

        launch.wait_until(look, "daemons cannot be killed")

    def assert_unlocked(self):
        with open(self.lock, "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.fail(f"daemons are left: {self.holders()}")

    def stop_deaf(self, start):
        agent = start("--shutdown-timeout=1", self.script(self.DEAF))
        self.wait_notes("ready")
        agent.signal(signal.SIGTERM)
        agent.end(1)
        self.assert_unlocked()
        self.assert_nobody_left()
        self.assertIn("ended by SIGTERM", agent.err.text)

    def stop_stubborn(self, start):
        agent = start("--nproc-per-node=2", "--shutdown-timeout=600", self.script(self.STUBBORN))
        self.wait_notes("ready", "ready")
        agent.signal(signal.SIGTERM)
        self.wait_notes("again", "again")
        self.assertTrue(self.holders())
        agent.signal(signal.SIGTERM)
        agent.end(1)
        self.assert_unlocked()
        self.assert_nobody_left()

    def kill(self, start):
        """The agent itself, and the process that was started and guards it."""
        for guard in (False, True):
            with self.subTest(guard=guard):
                self.notes_file.write_text("")
                agent = start(self.script(self.DEAF))
                self.wait_notes("ready")
                if guard:
                    agent.process.kill()
                else:
                    agent.crash()
                agent.end(-9)
                if guard:  # the agent needs a moment to see it
                    launch.wait_until(lambda: not self.left() and not self.holders(), self.holders)
                self.assert_unlocked()
                self.assert_nobody_left()

    def without_cgroups(self):
        """Agents that may not write to a cgroup: they have the other nets only."""
        hide = r"""
            while read -r _ point type _; do
                [ "$type" != cgroup2 ] || mount -o remount,bind,ro "$point" || exit 77
            done < /proc/self/mounts"""
        enter = ["unshare", "--mount", "--propagation=private", "sh", "-c"]
        tried = subprocess.run([*enter, hide], capture_output=True, text=True,
                               timeout=launch.PATIENCE_SECONDS)
        if tried.returncode != 0:
            self.skipTest("SKIPPED: cgroups cannot be taken away from an agent here: "
                          f"{tried.stderr.strip()}")
        return functools.partial(self.start_after, hide, shell=enter)

    def test_of_a_deaf_worker_are_gone_after_the_grace(self):
        self.stop_deaf(self.start)

    def test_of_a_deaf_worker_are_gone_after_the_grace_without_a_cgroup(self):
        self.stop_deaf(self.without_cgroups())

    def test_end_with_an_agent_that_is_killed(self):
        self.kill(self.start)

    def test_end_with_an_agent_that_is_killed_without_a_cgroup(self):
        self.kill(self.without_cgroups())

    def test_that_come_after_the_signal_are_gone_too(self):
        self.stop_stubborn(self.start)

    def test_that_come_after_the_signal_are_gone_too_without_a_cgroup(self):
        self.stop_stubborn(self.without_cgroups())


# ---- a node that does not wait ------------------------------------------------------------------


class NoExitBarrier(Case):
    """--exit-barrier-timeout=0: a node that is done does not wait for the others. What became of
    them it cannot know, and says so."""

    def test_a_node_alone_has_nobody_to_wait_for(self):
        for words in ([], self.meeting(self.serve(), "1:2")):
            with self.subTest(words=words):
                agent = self.launch("--exit-barrier-timeout=0", *words, self.script("note ran"),
                                    env={"OMP_NUM_THREADS": "1"})
                self.assertEqual(agent.err.text, "")
        self.assertEqual(self.notes(), ["ran", "ran"])

    def test_a_node_that_is_done_ends_at_once_without_claiming_success(self):
        """The other one goes on as after every departure: alone, in a new round, at no cost."""
        words = [*self.meeting(self.serve(), "1:2"), "--exit-barrier-timeout=0", self.script("""
            note "$RANK of $WORLD_SIZE in $MUSTER_ROUND, restart $TORCHELASTIC_RESTART_COUNT"
            [ "$WORLD_SIZE$RANK" = 20 ] && { wait_file done; exit 0; }
            wait_file go""")]
        agents = [self.start(*words) for _ in range(2)]
        number = int(self.wait_note(r"1 of 2 in (\d+), restart 0").group(1))
        self.wait_notes(f"0 of 2 in {number}, restart 0")
        later = [f"0 of 1 in {number + step}, restart 0" for step in range(1, 4)]
        self.touch("done")
        launch.wait_until(lambda: not all(agent.is_running() for agent in agents),
                          "nobody has ended")
        (done,) = [agent for agent in agents if not agent.is_running()]
        (other,) = [agent for agent in agents if agent.is_running()]
        done.end(3)
        self.assertIn("have not confirmed within 0s", done.err.text)
        self.assertIn("muster: the workers of this node ended well, but the other nodes did not "
                      "confirm that theirs did", done.err.text.splitlines()[-1])
        # It may have been alone before the two met as well.
        launch.wait_until(lambda: any(line in self.notes() for line in later), self.notes)
        self.touch("go")
        other.end(0)
        self.assert_nobody_left()

    def test_the_variable_says_the_same(self):
        words = [*self.meeting(self.serve(), 2), self.script('note $RANK; wait_file "go $RANK"')]
        agents = [self.start(*words, env={"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "0"})
                  for _ in range(2)]
        self.wait_notes("0", "1")
        self.touch("go 0")
        launch.wait_until(lambda: not all(agent.is_running() for agent in agents),
                          "nobody has ended")
        (other,) = [agent for agent in agents if agent.is_running()]
        for agent in agents:
            if agent is not other:
                agent.end(3)
        other.signal(signal.SIGTERM)
        other.end(1)
        self.assert_nobody_left()


if __name__ == "__main__":
    launch.main()
