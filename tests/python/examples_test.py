"""The Python programs in examples/python under `muster run`, the way in which people start them.

They check themselves where one process can compute the same; here it is checked that they learn,
that all workers take part, and what they say when there are too few.
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "run"))
import launch  # noqa: E402

EXAMPLES = ROOT / "examples" / "python"
PACKAGE = os.environ.get("PYTHONPATH") or str(ROOT / "build" / "python")
SKIPPED = 77  # the exit status that ctest takes for "skipped"


def require(*modules):
    """Ends this program as "skipped" if its interpreter, which runs the examples, lacks one."""
    import importlib

    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"SKIPPED: the examples need {module}, and {sys.executable} has none: {error}")
            sys.exit(SKIPPED)


class Case(launch.Case):

    ENVIRONMENT = {"PYTHONPATH": PACKAGE, "PYTHON_EXEC": sys.executable}

    def example(self, workers, name, *words, status=0):
        """Runs an example to its end; what it printed."""
        agent = self.launch(f"--nproc-per-node={workers}", EXAMPLES / name, *words, status=status,
                            env=self.ENVIRONMENT)
        return agent.out.text if status == 0 else agent.err.text

    def found(self, pattern, text):
        """The groups of what `pattern` matches, as numbers."""
        match = re.search(pattern, text)
        self.assertIsNotNone(match, text)
        return [float(group) for group in match.groups()]

    def assert_ring_was_learned(self, text, updates):
        (before,) = self.found(r"before: loss (\S+),", text)
        made, after, right = self.found(r"after (\d+) updates: loss (\S+), (\S+)% right", text)
        self.assertEqual(made, updates)
        self.assertLess(after, before / 2)
        self.assertGreater(right, 80)

    def assert_pipeline_was_right(self, text):
        first, last = self.found(r"loss (\S+) at first, (\S+) in the end", text)
        self.assertLess(last, first / 2)
        (difference,) = self.found(r"difference to the model in one piece: (\S+)", text)
        self.assertLess(difference, 1e-9)


class Examples(Case):

    def test_a_parameter_server_learns_from_three_trainers(self):
        text = self.example(4, "parameter_server.py", "--steps=300")
        self.assert_ring_was_learned(text, 900)
        for trainer in (1, 2, 3):
            self.assertIn(f"worker{trainer} made 300 steps", text)

    def test_a_batch_of_gradients_is_one_step_as_in_one_process(self):
        text = self.example(4, "batch_updating_parameter_server.py", "--steps=120")
        self.assertIn("as in one process", text)
        self.assertIn("parameters 1.00 2.00 3.00 4.00 5.00 6.00", text)

    def test_one_trainer_is_a_batch(self):
        self.assertIn("as in one process",
                      self.example(2, "batch_updating_parameter_server.py", "--steps=120"))

    def test_an_agent_learns_from_the_games_of_its_observers(self):
        text = self.example(4, "actor_learner.py", "--rounds=300", "--report=50")
        rewards = [float(number) for number in re.findall(r"round \d+: reward (\S+)", text)]
        self.assertEqual(len(rewards), 6, text)
        self.assertLess(rewards[0], 0.5)
        self.assertGreater(rewards[-1], 0.8)
        self.assertIn("2400 batches of 3 observers", text)

    def test_a_pipeline_computes_what_one_piece_does(self):
        self.assert_pipeline_was_right(self.example(3, "pipeline.py", "--steps=80"))

    def test_a_pipeline_of_one_micro_batch_is_one_too(self):
        self.assert_pipeline_was_right(
            self.example(3, "pipeline.py", "--steps=80", "--micro-batches=1"))

    def test_workers_come_leave_and_die_and_no_work_is_lost(self):
        text = self.example(1, "elastic.py", "--end=60000", "--chunk-size=1500")
        self.assertRegex(text, r"worker3 is lost with chunk .*WorkerInfo\(id=3, name=worker3\)")
        self.assertIn("worker3 did 1 chunks", text)
        self.assertRegex(text, r"40 of 40 chunks done by 4 workers, 1 lost on the way")
        self.assertIn("as in one process", text)
        for worker in (1, 2, 4):
            self.assertRegex(text, rf"worker{worker} leaves after \d+ chunks")

    def test_workers_of_two_agents_are_one_job_over_tcp_too(self):
        meeting = self.meeting(self.serve(), 2)
        environment = {**self.ENVIRONMENT, "MUSTER_RPC_NO_SHARED_MEMORY": "1"}
        agents = [self.start(*meeting, "--nproc-per-node=2",
                             EXAMPLES / "batch_updating_parameter_server.py", "--steps=120",
                             env=environment) for _ in range(2)]
        self.end_all(0)
        self.assertIn("as in one process", "".join(agent.out.text for agent in agents))

    def test_too_few_workers_are_told_how_many_it_takes(self):
        for name, wanted in (("parameter_server.py", "at least one trainer"),
                             ("batch_updating_parameter_server.py", "at least one trainer"),
                             ("actor_learner.py", "at least one observer"),
                             ("pipeline.py", "two have a half each")):
            with self.subTest(name):
                self.assertIn(wanted, self.example(1, name, status=1))


if __name__ == "__main__":
    require("numpy")
    launch.main()
