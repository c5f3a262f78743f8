"""How workers fail, what their agent says about it, and the status it ends with."""

import json
import os
import re
import shutil
import signal
import time

import launch

# Rank 1 fails in the way that its argument says; the others would go on.
FAIL = """
note $RANK
[ "$RANK" = 1 ] || stay
case "$1" in
  -*) ulimit -c 0; kill "$1" $$; stay;;
  *) exit "$1";;
esac
"""


class Exits(launch.Case):
    def fail(self, how, *options, status=1):
        agent = self.launch("--nproc-per-node=3", *options, self.script(FAIL), how, status=status)
        self.assert_no_files()
        return launch.Report(agent.err.text)

    def test_workers_that_end_well_make_a_job_that_ends_well(self):
        agent = self.launch("--nproc-per-node=3", self.script("note $RANK"),
                            env={"OMP_NUM_THREADS": "1"})
        self.assertEqual((agent.out.text, agent.err.text), ("", ""))
        self.assertEqual(sorted(self.notes()), ["0", "1", "2"])
        self.assert_no_files()

    def test_a_status_is_reported(self):
        for status in (3, 255):
            with self.subTest(status=status):
                report = self.fail(str(status))
                self.assertEqual(report.title, str(self.folder / "worker"))
                self.assertEqual(report.codes(), {0: -15, 1: status, 2: -15})
                self.assertEqual((report.root["rank"], report.root["local_rank"]), ("1", "1"))
                self.assertEqual((report.root["signal"], report.root["error_file"]),
                                 (None, "<N/A>"))
                self.assertEqual([entry["signal"] for entry in report.others], ["SIGTERM"] * 2)
                self.assertEqual([entry["index"] for entry in report.others], ["0", "2"])
                self.assertEqual(report.root["index"], "1")

    def test_a_signal_is_reported(self):
        for number, name in ((6, "SIGABRT"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM")):
            with self.subTest(signal=name):
                report = self.fail(f"-{number}")
                root = report.root
                self.assertEqual((root["rank"], root["code"], root["signal"]),
                                 ("1", f"-{number}", name))
                self.assertEqual(root["traceback"].split("\n")[0],
                                 f"Signal {number} ({name}) received by PID {root['pid']}")
                self.assertEqual(report.codes()[0], -15)

    def test_the_status_is_passed_on_where_asked_for(self):
        self.fail("3", "--propagate-exit-code", status=3)
        self.fail("255", "--propagate-exit-code", status=255)
        self.fail("-9", "--propagate-exit-code", status=128 + 9)
        self.fail("-15", "--propagate-exit-code", status=128 + 15)

    def test_a_single_failure_says_that_there_are_no_others(self):
        agent = self.launch(self.script("exit 7"), status=1)
        report = launch.Report(agent.err.text)
        self.assertEqual(report.others_text.strip(), "<NO_OTHER_FAILURES>")
        self.assertNotIn("Traceback", agent.err.text)
        self.assertNotIn("Logs:", agent.err.text)  # there are none
        self.assert_no_files()

    def test_a_worker_that_ends_badly_while_it_is_stopped_is_not_the_cause(self):
        agent = self.launch("--nproc-per-node=2", self.script("""
            [ "$RANK" = 0 ] && { trap 'exit 9' TERM; note ready; stay; }
            while ! grep -q ready "$NOTES"; do sleep 0.02; done
            exit 3"""), status=1)
        report = launch.Report(agent.err.text)
        self.assertEqual((report.root["rank"], report.codes()), ("1", {0: 9, 1: 3}))

    def test_the_first_of_two_failures_is_the_cause(self):
        """Thirty milliseconds apart, and the later one has the lower rank."""
        agent = self.launch("--nproc-per-node=2", self.script("""
            trap '' TERM
            note $RANK
            while [ "$(wc -l < "$NOTES")" -lt 2 ]; do sleep 0.01; done
            [ "$RANK" = 0 ] && sleep 0.03
            exit 3"""), status=1)
        self.assertEqual(launch.Report(agent.err.text).root["rank"], "1")

    def test_a_failure_is_said_before_the_others_are_stopped(self):
        agent = self.start("--nproc-per-node=2", "--shutdown-timeout=600", self.script("""
            [ "$RANK" = 1 ] || { trap '' TERM; note deaf; stay; }
            while ! grep -q deaf "$NOTES"; do sleep 0.02; done
            exit 5"""))
        agent.err.wait("rank 1 .*exit status 5")
        self.assertTrue(agent.is_running())
        agent.signal(signal.SIGTERM)
        agent.err.wait("received SIGTERM")
        agent.signal(signal.SIGTERM)
        agent.end(1)
        self.assert_nobody_left()

    def test_the_last_lines_of_the_failed_worker_are_shown(self):
        agent = self.launch("--nproc-per-node=2", "--tee=2", f"--log-dir={self.logs}",
                            self.script("""
            [ "$RANK" = 1 ] || stay
            echo first >&2; echo last >&2; exit 3"""), status=1)
        after = launch.Report(agent.err.text).after
        self.assertIn("| first\n", after)
        self.assertIn("| last\n", after)
        self.assertIn(str(self.job_folder()), after)

    def test_failures_on_two_nodes_are_reported_on_both(self):
        meeting = self.meeting(self.serve(), 2)
        script = self.script("""
            note "$RANK"
            [ "$RANK" = 3 ] || stay
            while [ "$(wc -l < "$NOTES")" -lt 4 ]; do sleep 0.02; done
            exit 3""")
        for _ in range(2):
            self.start(*meeting, "--nproc-per-node=2", "--propagate-exit-code", script)
        self.end_all(3)
        for agent in self.agents:
            report = launch.Report(agent.err.text)
            self.assertEqual((report.root["rank"], report.root["local_rank"]), ("3", "1"))
            self.assertEqual(report.codes(), {0: -15, 1: -15, 2: -15, 3: 3})


class ErrorFiles(launch.Case):
    def fail_with(self, text, *options, env=None):
        """A job whose worker writes its error file with `text`, a shell command, and fails once."""
        script = self.script(f"""
            [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exit 4
            FILE="$TORCHELASTIC_ERROR_FILE"
            {text}
            exit 3""")
        agent = self.launch(f"--log-dir={self.logs}", *options, script, status=1, env=env)
        return launch.Report(agent.err.text).root

    def structured(self, **info):
        return json.dumps({"message": {"message": "ValueError: bad shape", "extraInfo": {
            "py_callstack": "Traceback (most recent call last):\n  line 1\nValueError: bad shape",
            "timestamp": str(int(time.time())), **info}}})

    def write(self, text):
        source = self.folder / "error"
        source.write_text(text)
        return f'cat "{source}" > "$FILE"'

    def test_structured(self):
        root = self.fail_with(self.write(self.structured()))
        self.assertEqual(root["error_file"],
                         str(self.job_folder() / "attempt_0" / "0" / "error.json"))
        self.assertEqual(root["traceback"].split("\n")[0], "Traceback (most recent call last):")
        self.assertIn("\n    line 1\n", root["traceback"])

    def test_whoever_recorded_first_is_the_cause_though_it_is_the_last_to_end(self):
        """Its agent stops it, for the sake of one that died of losing it."""
        script = self.script(f"""
            FILE="$TORCHELASTIC_ERROR_FILE"
            [ "$RANK" = 1 ] && {{ {self.write(self.structured())}; note failed; stay; }}
            while ! grep -q failed "$NOTES"; do sleep 0.02; done
            sleep 0.05  # more than one tick of the clock that stamps files
            exit 3""")
        agent = self.launch(f"--log-dir={self.logs}", "--nproc-per-node=2", script, status=1)
        report = launch.Report(agent.err.text)
        self.assertEqual((report.root["rank"], report.codes()), ("1", {0: 3, 1: -15}))
        self.assertIn("ValueError: bad shape", report.root["traceback"])
        self.assertNotIn("stopped because of this failure", agent.err.text)

    def test_whoever_records_that_it_was_stopped_is_not_the_cause(self):
        script = self.script(f"""
            FILE="$TORCHELASTIC_ERROR_FILE"
            [ "$RANK" = 0 ] && {{
              trap '{self.write(self.structured())}; exit 9' TERM; note ready; stay; }}
            while ! grep -q ready "$NOTES"; do sleep 0.02; done
            exit 3""")
        agent = self.launch(f"--log-dir={self.logs}", "--nproc-per-node=2", script, status=1)
        report = launch.Report(agent.err.text)
        self.assertEqual((report.root["rank"], report.codes()), ("1", {0: 9, 1: 3}))

    def test_simple(self):
        root = self.fail_with(self.write(json.dumps({"message": "out of cheese",
                                                     "timestamp": int(time.time())})))
        self.assertEqual(root["traceback"].split("\n")[0], "out of cheese")

    def test_simple_without_a_time_or_with_one_as_text(self):
        self.assertIn("no time", self.fail_with(self.write('{"message": "no time"}'))["traceback"])
        self.launch_again()
        root = self.fail_with(self.write(f'{{"message": "text", "timestamp": "{int(time.time())}"}}'))
        self.assertIn("text", root["traceback"])

    def launch_again(self):
        shutil.rmtree(self.logs)

    def test_files_that_make_no_sense_cost_only_themselves(self):
        for name, text in {
                "empty": ': > "$FILE"',
                "truncated": self.write(self.structured()[:40]),
                "binary": 'head -c 3000 /dev/urandom > "$FILE"',
                "no object": 'echo "[1, 2]" > "$FILE"',
                "other members": 'echo "{\\"a\\": 1}" > "$FILE"',
                "a folder": 'mkdir "$FILE"',
                "a pipe": 'mkfifo "$FILE"',
                "a dangling link": 'ln -s /no/such "$FILE"',
                "unreadable": 'echo "{}" > "$FILE"; chmod 0 "$FILE"',
                "ten megabytes": 'head -c 10000000 /dev/zero | tr "\\0" x > "$FILE"',
        }.items():
            with self.subTest(name):
                root = self.fail_with(text, "--max-restarts=0")
                self.assertEqual((root["code"], root["rank"]), ("3", "0"))
                self.assertLess(len(root["traceback"]), 100_000)
                self.launch_again()

    def test_a_truncated_file_does_not_cost_the_restarts(self):
        root = self.fail_with(self.write(self.structured()[:40]), "--max-restarts=1")
        self.assertEqual(root["code"], "4")
        self.assertTrue((self.job_folder() / "attempt_1").is_dir())

    def test_a_long_message_is_bounded(self):
        text = json.dumps({"message": "begin" + "x" * 10_000_000 + "finish", "timestamp": 1})
        root = self.fail_with(self.write(text))
        self.assertTrue(root["traceback"].startswith("begin"))
        self.assertLess(len(root["traceback"]), 100_000)

    def test_the_cause_is_passed_upward_with_its_status(self):
        upward = self.folder / "upward.json"
        upward.write_text("old")
        self.fail_with(self.write(self.structured(custom="kept")),
                       env={"TORCHELASTIC_ERROR_FILE": str(upward)})
        message = json.loads(upward.read_text())["message"]
        self.assertEqual((message["errorCode"], message["extraInfo"]["custom"]), (3, "kept"))

    def test_an_error_of_the_agent_is_passed_upward(self):
        upward = self.folder / "upward.json"
        plain = self.folder / "plain"
        plain.touch(0o755)
        self.launch(plain, status=1, env={"TORCHELASTIC_ERROR_FILE": str(upward)})
        self.assertIn("exec format", json.loads(upward.read_text())["message"]["message"])

    def test_a_refusal_is_passed_upward(self):
        upward = self.folder / "upward.json"
        self.launch("no-such-program", status=1, env={"TORCHELASTIC_ERROR_FILE": str(upward)})
        self.assertIn("no-such-program", upward.read_text())

    def test_the_error_file_of_the_agent_is_not_the_workers(self):
        upward = self.folder / "upward.json"
        self.launch(self.script('note "$TORCHELASTIC_ERROR_FILE"'),
                    env={"TORCHELASTIC_ERROR_FILE": str(upward)})
        self.assertNotIn(str(upward), self.notes())


class SkewedClocks(launch.Case):
    """Two nodes whose clocks are ten minutes apart. A worker fails; one of the other node fails
    because of it, before anybody has told its agent."""

    SECONDS = 600

    def check(self, first_lead, second_lead):
        library = os.environ.get("MUSTER_SKEWED_CLOCK")
        if not library:
            self.skipTest("SKIPPED: MUSTER_SKEWED_CLOCK names no library (ctest sets it)")
        # The first agent is busy with a deaf worker before it tells anybody. The second fails a
        # second later: how far the clocks are apart is known as exactly as messages are fast.
        script = self.script("""
            [ "$LOCAL_RANK" = 1 ] && { trap '' TERM; note "$NAME is deaf"; stay; }
            note "$NAME is $$"
            while [ "$(grep -c " is " "$NOTES")" -lt 4 ]; do sleep 0.02; done
            [ "$NAME" = first ] && exit 3
            first=$(sed -n 's/^first is \\([0-9]*\\)$/\\1/p' "$NOTES")
            while kill -0 "$first" 2> /dev/null; do sleep 0.02; done
            sleep 1
            exit 4""")
        meeting = self.meeting(self.serve(), 2)
        for name, lead in (("first", first_lead), ("second", second_lead)):
            self.start(*meeting, "--nproc-per-node=2", "--shutdown-timeout=5", script,
                       env={"NAME": name, "LD_PRELOAD": library,
                            "TEST_CLOCK_SKEW_SECONDS": str(lead)})
        self.end_all(1)
        for agent in self.agents:
            report = launch.Report(agent.err.text)
            self.assertEqual(report.root["code"], "3", agent.describe())
            self.assertIn(4, report.codes().values(), agent.describe())
        text = self.agents[0].err.text + self.agents[1].err.text
        self.assertEqual(
            len(re.findall(r"the clock of this node is \S+ (?:ahead of|behind) that", text)), 1, text)

    def test_whoever_failed_first_is_the_root_cause_though_its_clock_is_ahead(self):
        self.check(self.SECONDS, 0)

    def test_whoever_failed_first_is_the_root_cause_though_the_other_clock_is_behind(self):
        self.check(0, -self.SECONDS)

    def test_the_right_order_stays_right(self):
        self.check(-self.SECONDS, 0)


if __name__ == "__main__":
    launch.main()
