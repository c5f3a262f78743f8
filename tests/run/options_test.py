"""Options: on the command line in every spelling, by variable, and both at once."""

import os
import re

import launch

NODES = ["--nnodes=3", "--rdzv-backend=c10d"]
STATIC = ["--nnodes=3"]

# name, other options that it needs, and two values with what the plan then says.
SHOWN = [
    ("nnodes", ["--rdzv-backend=c10d"], {"2": r"^nodes +2$", "3:5": r"^nodes +3 to 5$"}),
    ("nproc-per-node", [], {"2": r"^workers +2 on", "3": r"^workers +3 on"}),
    ("role", [], {"a": r"role a$", "b": r"role b$"}),
    ("rdzv-backend", ["--nnodes=2"],
     {"c10d": r"^rendezvous +c10d at", "muster": r"^rendezvous +muster at"}),
    ("rdzv-endpoint", NODES, {"a:1": r"c10d at a:1,", "b:2": r"c10d at b:2,"}),
    ("rdzv-id", NODES, {"x": r"run id x$", "y": r"run id y$"}),
    ("rdzv-conf", NODES,
     {"join_timeout=5": r'join_timeout="5"', "join_timeout=6": r'join_timeout="6"'}),
    ("node-rank", STATIC, {"1": r"node rank 1:", "2": r"node rank 2:"}),
    ("master-addr", STATIC, {"a": r"static at a:29500,", "b": r"static at b:29500,"}),
    ("master-port", STATIC, {"5": r"127\.0\.0\.1:5,", "6": r"127\.0\.0\.1:6,"}),
    ("max-restarts", [], {"3": r"at most 3$", "0": r"at most 0$"}),
    ("restart-window", ["--max-restarts=1"], {"5": r"in 5s$", "2m": r"in (2m|120s)$"}),
    ("restart-delay", ["--max-restarts=1"],
     {"1": r"1s before the first", "2": r"2s before the first"}),
    ("restart-delay-max", ["--restart-delay=1"], {"5": r"up to 5s", "6": r"up to 6s"}),
    ("shutdown-timeout", [], {"5": r"after 5s SIGKILL", "0": r"SIGKILL at once"}),
    ("signals-to-handle", [], {"SIGINT": r"^signals +SIGINT$", "SIGTERM": r"^signals +SIGTERM$"}),
    ("redirects", [], {"1": r"redirects 1,", "0:3": r"redirects 0:3,"}),
    ("tee", [], {"1": r"tee 1$", "0:3": r"tee 0:3$"}),
    ("event-log-handler", [], {"console": r"^events +console$", "null": r"^events +null$"}),
    ("http", [], {"0": r"^http +0$", "off": r"^http +off$"}),
]

# Those that a plan does not show: one value that is refused, one that is not.
REFUSED = [
    ("monitor-interval", [], "0", "2.5"),
    ("local-ranks-filter", [], "x", "0"),
    ("log-rotate-bytes", [], "x", "1M"),
    ("log-max-bytes", [], "x", "1G"),
    ("log-keep", ["--log-rotate-bytes=1M"], "-1", "2"),
    ("log-format", [], "xml", "json"),
    ("numa-memory", ["--numa-binding=node"], "moon", "default"),
    ("start-method", ["--run-path"], "moon", "spawn"),
    ("start-timeout", [], "0", "5s"),
    ("hang-timeout", [], "0", "5s"),
    ("exit-barrier-timeout", [], "soon", "5s"),
    ("signals-to-forward", [], "SIGFOO", "SIGUSR1"),
]

FLAGS = [
    ("standalone", ["--rdzv-endpoint=h:1"], r"c10d at localhost:0"),
    ("module", [], r"^  \$ .*python.* -u -m \S*worker\.py$"),
    ("no-python", [], r"^  \$ \S*worker\.py$"),
    ("run-path", [], r"^  \$ .*python.* .*worker\.py"),
    ("virtual-local-rank", [], r"^  CUDA_VISIBLE_DEVICES=0$"),
]


def variable(name):
    return "PET_" + name.upper().replace("-", "_")


class Options(launch.Case):
    def setUp(self):
        super().setUp()
        self.program = self.folder / "worker.py"
        self.program.write_text("#!/bin/sh\n")
        self.program.chmod(0o755)

    def plan(self, *words, env=None, status=0):
        return self.launch("--dry-run", *words, self.program,
                           env={"OMP_NUM_THREADS": "1", **(env or {})},
                           status=status).out.text

    def assert_shown(self, pattern, text):
        self.assertTrue(re.search(pattern, text, re.MULTILINE), f"no {pattern!r} in\n{text}")


class Values(Options):
    def test_every_spelling_of_every_option_that_a_plan_shows(self):
        for name, needs, ((one, pattern), (other, other_pattern)) in (
                (name, needs, values.items()) for name, needs, values in SHOWN):
            with self.subTest(name):
                under = name.replace("-", "_")
                self.assert_shown(pattern, self.plan(*needs, f"--{name}={one}"))
                self.assert_shown(other_pattern, self.plan(*needs, f"--{under}", other))
                self.assert_shown(pattern, self.plan(*needs, env={variable(name): one}))
                self.assert_shown(other_pattern,
                                  self.plan(*needs, f"--{name}", other, env={variable(name): one}))
                self.assert_shown(pattern, self.plan(*needs, f"--{name}={other}",
                                                     f"--{under}={one}"))  # the last

    def test_every_other_option_on_the_command_line_by_variable_and_both(self):
        for name, needs, bad, good in REFUSED:
            with self.subTest(name):
                bad_variable, good_variable = {variable(name): bad}, {variable(name): good}
                self.plan(*needs, f"--{name}={good}")
                self.plan(*needs, f"--{name.replace('-', '_')}", good)
                self.plan(*needs, env=good_variable)
                self.plan(*needs, f"--{name}={good}", env=bad_variable)
                for words, env in (([f"--{name}={bad}"], None), ([], bad_variable),
                                   ([f"--{name}={bad}"], good_variable)):
                    agent = self.start("--dry-run", *needs, *words, self.program, env=env)
                    self.assertIn(agent.end(), (1, 2))
                    self.assertRegex(agent.err.text, f"--{name}|{variable(name)}")

    def test_the_log_folder(self):
        for words, env in (([f"--log-dir={self.logs}"], None), (["--log_dir", self.logs], None),
                           ([], {"PET_LOG_DIR": str(self.logs)}),
                           ([f"--log-dir={self.logs}"], {"PET_LOG_DIR": str(self.program)})):
            self.assert_shown(rf"^logs +{re.escape(str(self.logs))};", self.plan(*words, env=env))
        self.assertFalse(self.logs.exists())

    def test_the_address_of_this_node(self):
        script = self.script('note "$MASTER_ADDR"')
        for words, env in ((["--local-addr=127.0.0.1"], None),
                           (["--local_addr", "127.0.0.1"], None),
                           ([], {"PET_LOCAL_ADDR": "127.0.0.1"}),
                           (["--local-addr=127.0.0.1"], {"PET_LOCAL_ADDR": "127.0.0.2"})):
            self.launch(*words, script, env=env)
        self.assertEqual(self.notes(), ["127.0.0.1"] * 4)

    def test_filters_for_duplicates(self):
        script = self.script("echo one; echo two")
        for words, env in ((["--duplicate-stdout-filters=one"], None),
                           ([], {"PET_DUPLICATE_STDOUT_FILTERS": "one"}),
                           (["--duplicate_stdout_filters", "one"],
                            {"PET_DUPLICATE_STDOUT_FILTERS": "two"})):
            self.launch("--tee=1", *words, script, env=env)
        files = list(self.temporary.rglob("filtered_stdout.log"))
        self.assertEqual([file.read_text() for file in files], ["[default0]:one\n"] * 3)

    def test_a_variable_that_is_empty_is_not_unset(self):
        self.assert_shown(r"role $", self.plan(env={"PET_ROLE": ""}))

    def test_the_number_of_workers_by_word(self):
        text = self.plan("--nproc-per-node=cpu")
        self.assert_shown(rf"^workers +{len(os.sched_getaffinity(0))} on|^workers +1 on", text)
        self.assert_shown(r"^workers +2 on",
                          self.plan("--nproc-per-node=gpu", env={"CUDA_VISIBLE_DEVICES": "0,1"})
                          if os.path.exists("/dev/nvidia1") else self.plan("--nproc-per-node=2"))


class Flags(Options):
    def test_every_flag_on_the_command_line_and_by_variable(self):
        for name, needs, pattern in FLAGS:
            with self.subTest(name):
                default = self.plan(*needs)
                self.assertIsNone(re.search(pattern, default, re.MULTILINE) if name != "run-path"
                                  else None)
                self.assert_shown(pattern, self.plan(*needs, f"--{name}"))
                self.assert_shown(pattern, self.plan(*needs, f"--{name.replace('-', '_')}"))
                for value in ("1", "7", "-1"):
                    self.assert_shown(pattern, self.plan(*needs, env={variable(name): value}))
                self.assert_shown(pattern,
                                  self.plan(*needs, f"--{name}", env={variable(name): "0"}))
                off = self.plan(*needs, env={variable(name): "0"})
                self.assertEqual(re.sub("[0-9a-f-]{36}", "ID", off),
                                 re.sub("[0-9a-f-]{36}", "ID", default))

    def test_passing_the_status_on(self):
        script = self.script("exit 7")
        self.launch("--propagate-exit-code", script, status=7)
        self.launch(script, status=7, env={"PET_PROPAGATE_EXIT_CODE": "1"})
        self.launch("--propagate_exit_code", script, status=7, env={"PET_PROPAGATE_EXIT_CODE": "0"})
        self.launch(script, status=1, env={"PET_PROPAGATE_EXIT_CODE": "0"})

    def test_a_dry_run_starts_nothing_and_leaves_nothing(self):
        script = self.script("note started")
        self.assertIn("$ " + script,
                      self.launch("--dry-run", "--nproc-per-node=3", script).out.text)
        self.assertEqual(self.notes(), [])
        self.assert_no_files()


class Parsing(Options):
    SHOW = 'for word in "$@"; do note "$word"; done'

    def arguments(self, *words):
        self.notes_file.write_text("")
        self.launch(*words)
        return self.notes()

    def test_parsing_stops_at_the_program(self):
        script = self.script(self.SHOW)
        self.assertEqual(self.arguments("--role=x", script, "--n", "3", "--nnodes=9", "-r",
                                        "--help"),
                         ["--n", "3", "--nnodes=9", "-r", "--help"])

    def test_two_dashes_before_or_after_the_program_are_swallowed_once(self):
        script = self.script(self.SHOW)
        self.assertEqual(self.arguments("--", script, "a"), ["a"])
        self.assertEqual(self.arguments(script, "--", "a"), ["a"])
        self.assertEqual(self.arguments(script, "a", "--", "b"), ["a", "--", "b"])

    def test_prefixes_and_short_options(self):
        self.assert_shown(r"^workers +2 on", self.plan("--nproc=2"))
        self.assert_shown(r"redirects 3, tee 1", self.plan("-r", "3", "-t1"))
        self.assert_shown(r"redirects 3, tee 1", self.plan("-r3", "-t", "1"))

    def test_help_and_completion(self):
        agent = self.launch("--help")
        for name in [row[0] for row in SHOWN + REFUSED + FLAGS]:
            self.assertIn(f"--{name}", agent.out.text)
        for shell in ("bash", "zsh", "tcsh"):
            self.assertIn("nproc-per-node", self.launch("--print-completion", shell).out.text)


class Programs(Options):
    def test_python_scripts_run_with_python_and_unbuffered(self):
        self.program.write_text("import os, sys\nopen(os.environ['NOTES'], 'a').write("
                                "f'{sys.argv[1:]} {sys.orig_argv[1]} {os.path.basename(sys.executable)}\\n')\n")
        self.launch(self.program, "a", env={"PATH": os.environ["PATH"]})
        self.assertRegex(self.notes()[0], r"\['a'\] -u python3")

    def test_a_module(self):
        (self.here / "mod.py").write_text("import os\nopen(os.environ['NOTES'], 'a').write(__name__ + '\\n')\n")
        self.launch("-m", "mod", env={"PYTHONPATH": str(self.here), "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(self.notes(), ["__main__"])

    def test_run_path(self):
        self.program.write_text("import os, sys\nopen(os.environ['NOTES'], 'a').write(f'{__name__} {sys.argv[1:]}\\n')\n")
        self.launch("--run-path", self.program, "a")
        self.assertEqual(self.notes(), ["__main__ ['a']"])

    def test_another_interpreter(self):
        other = self.script('note "$*"', "interpreter")
        self.launch(self.program, "a", env={"PYTHON_EXEC": other})
        self.assertEqual(self.notes(), [f"-u {self.program} a"])

    def test_a_script_without_python(self):
        self.program.write_text('#!/bin/sh\necho ran >> "$NOTES"\n')
        self.launch("--no-python", self.program)
        self.assertEqual(self.notes(), ["ran"])

    def test_called_torchrun_it_means_python_unless_told_otherwise(self):
        torchrun = self.folder / "torchrun"
        torchrun.symlink_to(os.path.abspath(launch.BINARY))
        other = self.script('note "python $*"', "interpreter")
        script = self.script('note "program $*"', "program")
        for words in (["--nproc_per_node=1", script, "a"], ["--no_python", script, "a"]):
            agent = launch.Agent(words, environment=self.environment(PYTHON_EXEC=other),
                                 folder=self.here,
                                 name="torchrun", program=[str(torchrun)])
            self.agents.append(agent)
            agent.end(0)
        self.assertEqual(self.notes(), [f"python -u {script} a", "program a"])


if __name__ == "__main__":
    launch.main()
