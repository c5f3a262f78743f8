"""examples/parameter_server under `muster run`: the way in which programs that use RPC are started.

Environment, besides that of launch.py:
  MUSTER_PARAMETER_SERVER   the example; without it, build/bin/parameter_server of this source tree
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "run"))
import launch  # noqa: E402

PROGRAM = os.environ.get("MUSTER_PARAMETER_SERVER") or str(
    ROOT / "build" / "bin" / "parameter_server")

# Dies in the first round when all are at work, and does its work in the second.
DIES_ONCE = """
if [ "$MUSTER_ROUND" = 0 ]; then
  if [ "$RANK" != 2 ]; then exec "$PROGRAM" --steps 1000000000; fi
  "$PROGRAM" --steps 1000000000 > "$FOLDER/first" &
  while ! grep -q "one of" "$FOLDER/first"; do sleep 0.02; done
  kill -KILL $!
  exit 1
fi
exec "$PROGRAM"
"""


class ParameterServer(launch.Case):

    def assert_trained(self, agents, world_size):
        """Every worker has checked its parameters, and all have the same, to the last digit."""
        text = "".join(agent.out.text for agent in agents)
        found = dict(re.findall(r"(worker\d+): as in one process: (.*)$", text, re.MULTILINE))
        self.assertEqual(set(found), {f"worker{rank}" for rank in range(world_size)}, text)
        self.assertEqual(len(set(found.values())), 1, text)
        # The data was made with the parameters 1, 2, 3 …
        learned = [float(word) for word in found["worker0"].split()]
        for i, value in enumerate(learned):
            self.assertAlmostEqual(value, i + 1, delta=0.1)

    def test_four_workers_of_one_agent_end_with_what_one_process_computes(self):
        agent = self.launch("--nproc-per-node=4", PROGRAM)
        self.assert_trained([agent], 4)

    def test_one_trainer_is_enough(self):
        agent = self.launch("--nproc-per-node=2", PROGRAM)
        self.assert_trained([agent], 2)

    def test_a_server_without_trainers_says_what_is_missing(self):
        agent = self.launch("--nproc-per-node=1", PROGRAM, status=1)
        self.assertIn("at least one trainer", agent.err.text)

    def test_workers_of_two_agents_train_together(self):
        meeting = self.meeting(self.serve(), 2)
        agents = [self.start(*meeting, "--nproc-per-node=2", PROGRAM) for _ in range(2)]
        self.end_all(0)
        self.assert_trained(agents, 4)

    def test_the_last_to_leave_waits_until_late_answers_have_arrived(self):
        for count in (2, 3):
            agent = self.launch(f"--nproc-per-node={count}", PROGRAM,
                                env={"MUSTER_FAULTS": "delay:SCRIPT_RET:for=20ms"})
            self.assert_trained([agent], count)

    def test_a_worker_that_is_killed_at_work_does_not_disturb_the_next_round(self):
        script = self.script(DIES_ONCE)
        agent = self.launch("--nproc-per-node=3", "--max-restarts=1", script,
                            env={"PROGRAM": PROGRAM})
        self.assert_trained([agent], 3)


if __name__ == "__main__":
    launch.main()
