"""examples/actor_learner under `muster run`, with and without messages that go wrong on purpose.

Environment, besides that of launch.py:
  MUSTER_ACTOR_LEARNER   the example; without it, build/bin/actor_learner of this source tree
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "run"))
import launch  # noqa: E402

PROGRAM = os.environ.get("MUSTER_ACTOR_LEARNER") or str(ROOT / "build" / "bin" / "actor_learner")

FAULTS = "seed=7 fail:RREF_*:first=2 delay:*:p=0.05:for=5ms reorder:RREF_*:p=0.3"


class ActorLearner(launch.Case):

    def run_group(self, world_size, **env):
        """What the learner says, line by line."""
        agent = self.launch(f"--nproc-per-node={world_size}", PROGRAM, env=env)
        lines = re.findall(r"worker0: (.*)$", agent.out.text, re.MULTILINE)
        self.assertEqual(len(lines), 3, agent.out.text)
        self.assertNotIn("Leaking", agent.err.text)
        self.assertEqual("go wrong on purpose" in agent.err.text, bool(env), agent.err.text)
        return lines

    def assert_learned(self, line, mean):
        """Actor k is after k, 2k, 3k …; `mean`: of the actors."""
        self.assertTrue(line.startswith("learned "), line)
        learned = [float(word) for word in line.split()[1:]]
        self.assertEqual(len(learned), 4, line)
        for i, value in enumerate(learned):
            self.assertAlmostEqual(value, mean * (i + 1), delta=1e-9)

    def test_two_actors_teach_a_learner_and_leave_nothing(self):
        learned, at_work, in_the_end = self.run_group(3)
        self.assert_learned(learned, 1.5)
        self.assertEqual(at_work, "1 owned, 2 forks")
        self.assertEqual(in_the_end, "0 owned, 0 forks")

    def test_every_actor_has_one_reference_to_the_policy(self):
        learned, at_work, in_the_end = self.run_group(6)
        self.assert_learned(learned, 3)
        self.assertEqual(at_work, "1 owned, 5 forks")
        self.assertEqual(in_the_end, "0 owned, 0 forks")

    def test_messages_that_fail_and_come_late_change_nothing_to_the_last_digit(self):
        self.assertEqual(self.run_group(3, MUSTER_FAULTS=FAULTS), self.run_group(3))

    def test_control_messages_that_are_sent_twice_and_late_change_nothing(self):
        faults = "seed=3 duplicate:RREF_*:p=0.5 delay:RREF_*:p=0.5:for=20ms"
        self.assertEqual(self.run_group(3, MUSTER_FAULTS=faults), self.run_group(3))

    def test_connections_that_every_control_message_cuts_cost_only_time(self):
        faults = "disconnect:RREF_FORK_REQUEST,RREF_CHILD_ACCEPT,RREF_USER_DELETE,RREF_FORK_CANCEL"
        self.assertEqual(self.run_group(3, MUSTER_FAULTS=faults), self.run_group(3))

    def test_acknowledgements_that_are_lost_with_their_connections_cost_only_time(self):
        faults = "seed=7 disconnect:RREF_*:p=0.2"
        self.assertEqual(self.run_group(3, MUSTER_FAULTS=faults), self.run_group(3))

    def test_a_learner_without_actors_says_what_is_missing(self):
        agent = self.launch("--nproc-per-node=1", PROGRAM, status=1)
        self.assertIn("at least one actor", agent.err.text)


if __name__ == "__main__":
    launch.main()
