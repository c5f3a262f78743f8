"""Where the output of workers goes: redirects, tee, filters, and the folders of logs."""

import itertools
import json
import os
import pty
import re

import launch

SPEAK = 'echo "out $RANK"; echo "err $RANK" >&2'


class Output(launch.Case):
    def run_job(self, *options, count=2, text=SPEAK, status=0, env=None):
        agent = self.launch(f"--nproc-per-node={count}", f"--log-dir={self.logs}", *options,
                            self.script(text),
                            status=status, env={"OMP_NUM_THREADS": "1", **(env or {})})
        return agent

    def log(self, rank, stream):
        path = self.job_folder() / "attempt_0" / str(rank) / f"{stream}.log"
        return path.read_text() if path.exists() else None

    def forget(self):
        for job in self.logs.iterdir():
            for path in sorted(job.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            job.rmdir()

    def lines(self, stream):
        return sorted(stream.text.splitlines())


class Routes(Output):
    def test_every_combination_of_redirect_tee_and_filter(self):
        """One worker of two is looked at closely: its masks, and in the filter or not."""
        for redirect, tee, shown in itertools.product(range(4), range(4), (None, True, False)):
            with self.subTest(redirect=redirect, tee=tee, shown=shown):
                options = [f"--redirects=0:{redirect}", f"--tee=0:{tee}"]
                if shown is not None:
                    options.append(f"--local-ranks-filter={0 if shown else 1}")
                agent = self.run_job(*options, count=2)
                for bit, name, stream in ((1, "out", agent.out), (2, "err", agent.err)):
                    to_file = bool((redirect | tee) & bit)
                    self.assertEqual(self.log(0, f"std{name}"), f"{name} 0\n" if to_file else None)
                    expected = [f"{name} 1"] if shown is not True else []
                    if shown is not False:
                        if tee & bit:
                            expected.append(f"[default0]:{name} 0")
                        elif not redirect & bit:
                            expected.append(f"{name} 0")
                    self.assertEqual(self.lines(stream), sorted(expected))
                    self.assertIsNone(self.log(1, f"std{name}"))
                self.forget()

    def test_one_mask_for_all(self):
        agent = self.run_job("-r", "1", "-t", "2")
        self.assertEqual([self.log(rank, "stdout") for rank in (0, 1)], ["out 0\n", "out 1\n"])
        self.assertEqual([self.log(rank, "stderr") for rank in (0, 1)], ["err 0\n", "err 1\n"])
        self.assertEqual((self.lines(agent.out), self.lines(agent.err)),
                         ([], ["[default0]:err 0", "[default1]:err 1"]))

    def test_ranks_beyond_nine_and_ranges(self):
        agent = self.run_job("--tee=10:3,2-3:1", "--redirects=11:3",
                             "--local-ranks-filter=0,2-3,10-11", count=12)
        self.assertEqual(self.lines(agent.out), sorted(["out 0", "[default2]:out 2",
                                                        "[default3]:out 3", "[default10]:out 10"]))
        self.assertEqual(self.lines(agent.err),
                         sorted(["err 0", "err 2", "err 3", "[default10]:err 10"]))
        self.assertEqual((self.log(10, "stderr"), self.log(11, "stdout"), self.log(3, "stdout")),
                         ("err 10\n", "out 11\n", "out 3\n"))
        self.assertEqual((self.log(3, "stderr"), self.log(1, "stdout")), (None, None))

    def test_the_null_device_as_log_folder(self):
        agent = self.launch("--nproc-per-node=2", "--log-dir=/dev/null", "--redirects=0:1",
                            "--tee=1:3",
                            "--duplicate-stdout-filters=out", self.script(SPEAK),
                            env={"OMP_NUM_THREADS": "1"})
        self.assertNotIn("out 0", agent.out.text)
        self.assertIn("err 0\n", agent.err.text)
        self.assert_no_files()

    def test_without_a_log_folder_files_go_to_a_temporary_one_and_stay(self):
        self.launch("--redirects=1", self.script(SPEAK))
        (log,) = self.temporary.rglob("stdout.log")
        self.assertEqual(log.read_text(), "out 0\n")
        self.assertRegex(str(log.relative_to(self.temporary)),
                         r"\Atorchelastic_[a-z0-9_]{8}/[0-9a-f-]{36}_[a-z0-9_]{8}/attempt_0/0/stdout\.log\Z")

    def test_the_folder_is_named_after_the_run_and_made_with_its_parents(self):
        server = self.serve()
        deep = self.logs / "a" / "b"
        self.launch(*self.meeting(server, 1, run_id="my-run"), f"--log-dir={deep}", "-r3",
                    self.script(SPEAK))
        (job,) = deep.iterdir()
        self.assertRegex(job.name, r"\Amy-run_[a-z0-9_]{8}\Z")

    def test_a_relative_log_folder(self):
        self.launch("--log-dir=relative", "-r3",
                    self.script(SPEAK + '; note "$TORCHELASTIC_ERROR_FILE"'))
        (job,) = (self.here / "relative").iterdir()
        self.assertEqual((job / "attempt_0" / "0" / "stdout.log").read_text(), "out 0\n")


class Prefixes(Output):
    TEMPLATE = "<${role_name}|${rank}|${local_rank}|${other}>"

    def test_by_option_and_by_variable(self):
        for options, env in (([f"--log-line-prefix-template={self.TEMPLATE}"], {}),
                             ([], {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": self.TEMPLATE}),
                             ([], {"PET_LOG_LINE_PREFIX_TEMPLATE": self.TEMPLATE}),
                             ([f"--log-line-prefix-template={self.TEMPLATE}"],
                              {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "no"})):
            with self.subTest(options=options, env=env):
                agent = self.run_job("--tee=1", "--role=r", *options, env=env)
                self.assertEqual(self.lines(agent.out),
                                 ["<r|0|0|${other}>out 0", "<r|1|1|${other}>out 1"])
                self.forget()

    def test_the_host(self):
        agent = self.run_job("--tee=1", "--log-line-prefix-template=${hostname} ", count=1)
        self.assertEqual(agent.out.text, f"{os.uname().nodename.split('.')[0]} out 0\n")

    def test_json(self):
        agent = self.run_job("--tee=1", "--log-format=json", count=1)
        record = json.loads(agent.out.text)
        self.assertEqual({name: record[name]
                          for name in ("rank", "local_rank", "role", "stream", "round", "line")},
                         {"rank": 0, "local_rank": 0, "role": "default", "stream": "stdout",
                          "round": 0,
                          "line": "out 0"})
        self.assertIn("time", record)


class Filters(Output):
    TEXT = 'echo "loss=1, step"; echo "noise"; echo "done"; echo "loss err" >&2'

    def filtered(self, stream="stdout"):
        path = self.job_folder() / "attempt_0" / f"filtered_{stream}.log"
        return sorted(path.read_text().splitlines()) if path.exists() else None

    def test_matching_lines_of_teed_workers_are_copied(self):
        self.run_job("--tee=0:3,1:3", "--duplicate-stdout-filters=loss,done", count=3,
                     text=self.TEXT)
        self.assertEqual(self.filtered(), sorted(f"[default{rank}]:{line}" for rank in (0, 1)
                                                 for line in ("loss=1, step", "done")))
        self.assertIsNone(self.filtered("stderr"))

    def test_a_doubled_comma_and_an_empty_text(self):
        self.run_job("--tee=3", "--duplicate-stdout-filters=1,, step",
                     "--duplicate-stderr-filters=", count=1,
                     text=self.TEXT)
        self.assertEqual((self.filtered(), self.filtered("stderr")),
                         (["[default0]:loss=1, step"], ["[default0]:loss err"]))

    def test_workers_out_of_the_rank_filter_do_not_take_part(self):
        self.run_job("--tee=3", "--duplicate-stdout-filters=done", "--local-ranks-filter=1",
                     text=self.TEXT)
        self.assertEqual(self.filtered(), ["[default1]:done"])


class Lines(Output):
    def test_lines_stay_whole_when_workers_write_them_in_pieces(self):
        agent = self.run_job("--tee=1", count=4, text="""
            for line in 1 2 3; do
                for part in a b c; do printf "$RANK$part"; sleep 0.02; done; echo " $line"
            done""")
        self.assertEqual(self.lines(agent.out), sorted(
            f"[default{rank}]:{rank}a{rank}b{rank}c {line}" for rank in range(4)
            for line in (1, 2, 3)))

    def test_no_line_is_lost_or_reordered_and_the_last_needs_no_end(self):
        agent = self.run_job("--tee=1", count=3, text='seq 1 20000; printf "last of $RANK"')
        for rank in range(3):
            mine = [line.split(":", 1)[1] for line in agent.out.text.splitlines()
                    if line.startswith(f"[default{rank}]")]
            self.assertEqual(mine, [str(number) for number in range(1, 20001)]
                             + [f"last of {rank}"])
            self.assertEqual(self.log(rank, "stdout").splitlines(), mine)

    def test_a_worker_that_is_killed_loses_nothing_that_it_wrote(self):
        agent = self.run_job("--tee=1", count=1, status=1, text="seq 1 5000; kill -9 $$")
        self.assertEqual(len(agent.out.text.splitlines()), 5000)

    def test_rotation_and_a_cap(self):
        self.run_job("--redirects=1", "--log-rotate-bytes=1K", "--log-keep=2", count=1,
                     text="seq 1 2000")
        folder = self.job_folder() / "attempt_0" / "0"
        self.assertEqual(len([path for path in folder.iterdir() if path.name.startswith("stdout")]),
                         3)
        self.assertTrue(self.log(0, "stdout").endswith("2000\n"))
        self.forget()
        self.run_job("--redirects=1", "--log-max-bytes=1K", count=1, text="seq 1 2000")
        self.assertLess(len(self.log(0, "stdout")), 2048)

    def test_a_terminal_gets_colour_and_a_file_does_not(self):
        controller, terminal = pty.openpty()
        agent = launch.subprocess.Popen(
            [launch.BINARY, "run", "--tee=1", f"--log-dir={self.logs}", self.script(SPEAK)],
            stdout=terminal,
            stderr=launch.subprocess.DEVNULL, stdin=launch.subprocess.DEVNULL,
            env=self.environment(TERM="xterm"))
        os.close(terminal)
        text = b""
        while True:
            try:
                part = os.read(controller, 4096)
            except OSError:
                break
            if not part:
                break
            text += part
        os.close(controller)
        self.assertEqual(agent.wait(launch.PATIENCE_SECONDS), 0)
        self.assertRegex(text.decode(), re.escape("\x1b[") + r".*\[default0\]:.*out 0")
        self.assertEqual(self.log(0, "stdout"), "out 0\n")


if __name__ == "__main__":
    launch.main()
