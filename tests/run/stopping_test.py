"""The end of workers: whatever they do or happens to their agent, nothing of them is left."""

import os
import signal
import subprocess
import time

import launch


class Stopping(launch.Case):
    def stop(self, text, *options, status=1, times=1):
        """Starts a worker that notes "ready", and asks its agent to end."""
        agent = self.start("--shutdown-timeout=600", *options, self.script(text))
        self.wait_notes("ready")
        for _ in range(times):
            agent.signal(signal.SIGTERM)
        agent.end(status)
        self.assert_nobody_left()
        return agent

    def test_an_obedient_worker_is_asked_and_may_tidy_up(self):
        self.stop("trap 'sleep 0.2; note tidy; exit 0' TERM; note ready; stay")
        self.assertEqual(self.notes(), ["ready", "tidy"])

    def test_a_deaf_worker_is_killed_after_the_grace(self):
        agent = self.stop("trap '' TERM; note ready; stay", "--shutdown-timeout=1")
        self.assertRegex(agent.err.text, "ended by SIGTERM")

    def test_no_grace_kills_at_once(self):
        self.stop("trap 'note asked' TERM; note ready; stay", "--shutdown-timeout=0")
        self.assertEqual(self.notes(), ["ready"])

    def test_the_grace_may_come_from_the_environment(self):
        agent = self.start(self.script("trap '' TERM; note ready; stay"),
                           env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"})
        self.wait_notes("ready")
        agent.signal(signal.SIGTERM)
        agent.end(1)

    def test_the_grace_holds_for_stops_after_failures_too(self):
        before = time.monotonic()
        self.launch("--shutdown-timeout=1", "--nproc-per-node=2", self.script("""
            [ "$RANK" = 0 ] && { trap '' TERM; note ready; stay; }
            while ! grep -q ready "$NOTES"; do sleep 0.02; done
            exit 1"""), status=1)
        self.assertLess(time.monotonic() - before, 20)  # and not after thirty seconds

    def test_a_stopped_worker_wakes_up_and_ends(self):
        agent = self.start("--shutdown-timeout=600", self.script("note $$; stay"))
        pid = int(self.wait_note(r"\d+").group())
        os.kill(pid, signal.SIGSTOP)
        agent.signal(signal.SIGTERM)
        agent.end(1)
        self.assert_nobody_left()

    def test_a_stopped_and_deaf_worker_is_killed(self):
        agent = self.start("--shutdown-timeout=1", self.script("trap '' TERM; note $$; stay"))
        pid = int(self.wait_note(r"\d+").group())
        os.kill(pid, signal.SIGSTOP)
        agent.signal(signal.SIGTERM)
        agent.end(1)
        self.assert_nobody_left()

    def test_children_in_the_workers_group_are_asked_too(self):
        self.stop("(trap 'note child; exit' TERM; stay) & trap 'wait; note parent; exit' TERM; "
                  "sleep 0.2; note ready; stay")
        self.assertEqual(sorted(self.notes()), ["child", "parent", "ready"])

    def test_what_a_worker_forked_twice_into_a_session_of_its_own_goes_with_it(self):
        self.stop("""
            setsid sh -c 'trap "" TERM; echo far >> "$NOTES"; while :; do sleep 0.05; done' &
            (setsid -f sh -c 'echo further >> "$NOTES"; while :; do sleep 0.05; done')
            while [ "$(wc -l < "$NOTES")" -lt 2 ]; do sleep 0.02; done
            note ready; stay""")

    def test_descendants_of_workers_that_ended_well_are_ended(self):
        for how in ("sh", "setsid sh", "setsid -f sh"):
            with self.subTest(how):
                self.notes_file.write_text("")
                self.launch("--nproc-per-node=2", self.script(f"""
                    {how} -c 'trap "" TERM HUP; echo child >> "$NOTES"; while :; do sleep 0.05; done' &
                    while [ "$(wc -l < "$NOTES")" -lt 2 ]; do sleep 0.02; done"""))
                self.assertEqual(self.notes(), ["child", "child"])

    def test_descendants_of_one_worker_that_ended_well_are_ended_while_others_go_on(self):
        agent = self.start("--nproc-per-node=2", self.script("""
            [ "$RANK" = 1 ] && { wait_file go; exit 0; }
            setsid -f sh -c 'echo "child $$" >> "$NOTES"; while :; do sleep 0.05; done'
            while ! grep -q child "$NOTES"; do sleep 0.02; done"""))
        child = int(self.wait_note(r"child (\d+)").group(1))
        launch.wait_until(lambda: not launch.is_alive(child), "the descendant is still there")
        self.assertTrue(agent.is_running())
        self.touch("go")
        agent.end(0)

    def test_descendants_of_a_worker_that_failed_are_ended(self):
        for how in ("sh", "setsid -f sh"):
            with self.subTest(how):
                self.notes_file.write_text("")
                self.launch("--shutdown-timeout=1", self.script(f"""
                    {how} -c 'trap "" TERM HUP; echo child >> "$NOTES"; while :; do sleep 0.05; done' &
                    while ! grep -q child "$NOTES"; do sleep 0.02; done
                    kill -9 $$"""), status=1)

    def test_a_daemon_that_has_hidden_itself_well_is_ended(self):
        """In a session of its own, with an empty environment, and its parents gone."""
        for status in (0, 3):
            with self.subTest(status=status):
                pid_file = self.folder / "pid"
                pid_file.unlink(missing_ok=True)
                self.launch(self.script(f"""
                    env -i setsid -f sh -c "echo \\$\\$ > $FOLDER/pid.tmp; mv $FOLDER/pid.tmp $FOLDER/pid; exec sleep 600"
                    wait_file pid
                    exit {status}"""), status=1 if status else 0)
                pid = int(pid_file.read_text())
                alive = launch.is_alive(pid)
                if alive:
                    os.kill(pid, signal.SIGKILL)
                self.assertFalse(alive, "the daemon has outlived its job")

    def test_descendants_do_not_survive_into_the_next_round(self):
        self.launch("--max-restarts=1", self.script("""
            if [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]; then
                kill -0 $(cat "$FOLDER/child") 2> /dev/null && note alive || note gone
                exit 0
            fi
            setsid -f sh -c 'echo $$ > "$FOLDER/child.tmp"; mv "$FOLDER/child.tmp" "$FOLDER/child"
                             while :; do sleep 0.05; done'
            wait_file child
            exit 1"""))
        self.assertEqual(self.notes(), ["gone"])

    def test_workers_that_fork_all_the_time_are_caught(self):
        self.stop("""
            trap '' TERM
            run() { while :; do sleep 0.01 & sleep 0.01 & wait; done; }
            for i in 1 2 3 4; do run & done
            note ready; stay""", "--shutdown-timeout=1")

    def test_output_that_a_descendant_holds_open_does_not_hold_up_the_end(self):
        agent = self.launch("--tee=3", self.script("""
            setsid -f sh -c 'trap "" TERM; echo child; echo child >> "$NOTES"; exec sleep 600'
            while ! grep -q child "$NOTES"; do sleep 0.02; done
            echo parent"""))
        self.assertEqual(sorted(agent.out.text.splitlines()),
                         ["[default0]:child", "[default0]:parent"])


class AllOrNothing(launch.Case):
    def test_a_program_that_vanishes_in_the_middle_leaves_no_worker(self):
        script = self.folder / "once"
        # The first worker to run takes the program away; at the latest the last ones cannot start.
        script.write_text('#!/bin/sh\nrm -f "$FOLDER/once"\necho started >> "$NOTES"\nwhile :; do sleep 0.05; done\n')
        script.chmod(0o755)
        agent = self.start("--nproc-per-node=512", script)
        agent.end(1)
        self.assert_nobody_left()
        self.assertRegex(agent.err.text, r"cannot start worker \d+")

    def test_a_descriptor_limit_in_the_middle_leaves_no_worker(self):
        agent = self.limited("-n 40", "--tee=3", f"--log-dir={self.logs}")
        self.assertRegex(agent.err.text, r"cannot start worker \d+|ulimit|descriptors")

    def test_many_workers_within_a_small_limit_start(self):
        """Workers whose output is not read cost two descriptors at most."""
        agent = self.limited("-n 200", status=0)
        self.assertEqual(len(self.notes()), 64)
        self.assertEqual(agent.out.text, "")

    def test_a_very_small_limit_harms_nobody(self):
        agent = self.limited("-n 50", "--nproc-per-node=4", status=0)
        self.assertEqual((self.notes(), agent.err.text), (["started"] * 4, ""))

    def limited(self, limit, *options, status=1):
        """An agent with a resource limit: the shell sets it and becomes the agent."""
        script = self.script("note started; [ -z \"$WAITS\" ] || stay")
        command = f'ulimit {limit}; exec "$0" run "$@"'
        environment = self.environment(OMP_NUM_THREADS="1")
        if status:
            environment["WAITS"] = "1"
        agent = launch.Agent(["--nproc-per-node=64", *options, script], environment=environment,
                             folder=self.here, name="limited",
                             program=["sh", "-c", command, launch.BINARY])
        self.agents.append(agent)
        agent.end(status)
        self.assert_nobody_left()
        return agent


class AgentKilled(launch.Case):
    # With a daemon, a deaf child, and a stopped one.
    FAMILY = """
        trap '' TERM HUP
        setsid -f sh -c 'trap "" TERM HUP; echo daemon >> "$NOTES"; while :; do sleep 0.05; done'
        sh -c 'kill -STOP $$' &
        sh -c 'echo child >> "$NOTES"; while :; do sleep 0.05; done' &
        note worker; stay"""

    def end_by_force(self, agent, guard):
        """Kills the agent itself, or the process that was started as `muster run` and guards it."""
        if guard:
            agent.process.kill()
        else:
            agent.crash()
        agent.end(-9)

    def check_gone(self):
        before = time.monotonic()
        launch.wait_until(lambda: not launch.marked(self.mark), lambda: launch.marked(self.mark))
        # One second is promised; a busy machine may need a little more to let us look.
        self.assertLess(time.monotonic() - before, 10)
        self.assert_no_files()

    def each(self):
        """Both of them; after the agent itself nothing is left once its guard has ended."""
        for guard in (False, True):
            with self.subTest(guard=guard):
                self.notes_file.write_text("")
                yield guard
                if not guard:
                    self.assertEqual(launch.marked(self.mark), {})
                self.check_gone()

    def test_workers_and_their_descendants_end_with_it(self):
        for guard in self.each():
            agent = self.start("--nproc-per-node=2", self.script(self.FAMILY))
            self.wait_notes(*["worker", "child", "daemon"] * 2)
            self.end_by_force(agent, guard)

    def test_at_any_moment(self):
        script = self.script(self.FAMILY)
        for guard in self.each():
            for delay in (0, 0.005, 0.01, 0.02, 0.04, 0.08):
                with self.subTest(delay=delay):
                    agent = self.start("--nproc-per-node=2", "--tee=3", f"--log-dir={self.logs}",
                                       script)
                    time.sleep(delay)
                    self.end_by_force(agent, guard)
                    self.check_gone()

    def test_while_it_stops_deaf_workers(self):
        for guard in self.each():
            agent = self.start("--shutdown-timeout=600", self.script(self.FAMILY))
            self.wait_notes("worker", "child", "daemon")
            agent.signal(signal.SIGTERM)
            agent.err.wait("received SIGTERM")
            self.end_by_force(agent, guard)

    def test_while_it_restarts(self):
        for guard in self.each():
            agent = self.start("--max-restarts=1", "--restart-delay=600",
                               self.script("note failed; exit 1"), env={"LOGLEVEL": "INFO"})
            agent.err.wait("restarting in")
            self.end_by_force(agent, guard)

    def test_while_it_meets_others(self):
        for guard in self.each():
            agent = self.start(*self.meeting(self.serve(), 2), "--event-log-handler=console",
                               self.script("note no"))
            agent.err.wait("rendezvous.begin")
            self.end_by_force(agent, guard)
        self.assertEqual(self.notes(), [])

    def test_while_it_is_stopped(self):
        """The guard's end wakes it up."""
        for guard in self.each():
            agent = self.start(self.script(self.FAMILY))
            self.wait_notes("worker", "child", "daemon")
            os.kill(agent.inner(), signal.SIGSTOP)
            self.end_by_force(agent, guard)

    def test_without_anybody_knowing_the_workers_tokens(self):
        """A worker that clears its environment is ended with its group and its session."""
        for guard in self.each():
            agent = self.start(self.script(
                "exec env -i NOTES=\"$NOTES\" sh -c 'echo $$ >> \"$NOTES\"; exec sleep 600'"))
            pid = int(self.wait_note(r"\d+").group())
            self.end_by_force(agent, guard)
            try:
                launch.wait_until(lambda: not launch.is_alive(pid), "the worker is still there")
            finally:
                if launch.is_alive(pid):
                    os.kill(pid, signal.SIGKILL)

    def test_the_other_nodes_go_on(self):
        """One whose guard was killed says goodbye; one that was killed itself is missed."""
        for guard in self.each():
            (self.folder / "go").unlink(missing_ok=True)
            words = [*self.meeting(self.serve(), "1:2", "last_call_timeout=30,regroup_timeout=0.1"),
                     self.script('note "$RANK of $WORLD_SIZE"; wait_file go')]
            killed, other = [self.start(*words) for _ in range(2)]
            self.wait_notes("0 of 2", "1 of 2")
            self.end_by_force(killed, guard)
            self.wait_notes("0 of 1")
            self.touch("go")
            other.end(0)

    def test_a_container_sees_the_status_that_a_shell_would(self):
        """There the guard is process 1, which no signal can end."""
        enter = ["unshare", "--pid", "--fork", "--mount-proc"]
        tried = subprocess.run([*enter, "true"], capture_output=True, text=True,
                               timeout=launch.PATIENCE_SECONDS)
        if tried.returncode != 0:
            self.skipTest(f"SKIPPED: no pid namespace can be made here: {tried.stderr.strip()}")
        agent = launch.Agent([self.script('note "$PPID"; kill -9 "$PPID"; stay')],
                             environment=self.environment(), folder=self.here, name="container",
                             program=[*enter, launch.BINARY, "run"])
        self.agents.append(agent)
        agent.end(128 + 9)
        self.check_gone()


if __name__ == "__main__":
    launch.main()
