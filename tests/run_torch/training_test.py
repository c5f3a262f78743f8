"""examples/train_ddp.py, a training written for torchrun, on two agents with two workers each.

Run as a program, by whichever interpreter has the PyTorch version to test. Whatever happens to a
job, it must end with the parameters of a training that nothing happened to.
"""

import contextlib
import io
import itertools
import os
import re
import runpy
import signal
import sys
import tempfile
import unittest.mock

import jobs
import muster  # from tests/pytorch, by way of jobs

muster.import_distributed()
import torch  # noqa: E402  (after the check above, which explains a missing PyTorch)

SCRIPT = str(jobs.EXAMPLES / "train_ddp.py")
STEPS = 80
SAVE_EVERY = 5
# Time enough for the test to act long before the last step.
PAUSE_SECONDS = 0.05


def train_undisturbed():
    """The parameters that the script arrives at in this process, alone."""
    server = muster.Server()
    try:
        with tempfile.TemporaryDirectory(prefix="muster-torch-") as folder:
            checkpoint = os.path.join(folder, "model.pt")
            alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": server.host,
                     "MASTER_PORT": str(server.port), "TORCHELASTIC_RESTART_COUNT": "0",
                     "TORCHELASTIC_USE_AGENT_STORE": "True"}
            words = [SCRIPT, "--checkpoint", checkpoint, "--steps", str(STEPS)]
            with unittest.mock.patch.dict(os.environ, alone), \
                    unittest.mock.patch.object(sys, "argv", words), \
                    contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path(SCRIPT, run_name="__main__")
            return torch.load(checkpoint)["model"]
    finally:
        server.stop()


class TrainingTest(jobs.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.expected = train_undisturbed()

    def setUp(self):
        super().setUp()
        self.server = muster.Server()
        self.addCleanup(self.server.stop)
        self.checkpoint = self.folder / "model.pt"

    def agent(self, *options, pause=PAUSE_SECONDS):
        return self.muster_run(
            "--nnodes", "1:2", "--nproc-per-node", "2", "--rdzv-backend", "muster",
            "--rdzv-endpoint", self.server.endpoint, "--rdzv-id", "training", "--tee", "3",
            *options, SCRIPT, "--checkpoint", self.checkpoint, "--steps", STEPS,
            "--save-every", SAVE_EVERY, "--pause", pause)

    def agents(self, *options, **more):
        """Two of them, of which the second comes during the last call of the first."""
        return [self.agent(*options, **more), self.agent(*options, **more)]

    def wait_until_saved(self, at_least):
        return int(self.wait_for_line(r"saved step (\d+)$",
                                      lambda found: int(found[1]) >= at_least)[1])

    def wait_until_begun(self, world_size, after):
        """Until so many workers go on, not before that step; the step after which they do."""
        return int(self.wait_for_line(rf"{world_size} workers begin after step (\d+)$",
                                      lambda found: int(found[1]) >= after)[1])

    def wait_until_saved_by_all(self):
        """Until four workers have saved something, and gone on from there."""
        saved = self.wait_until_saved(self.wait_until_begun(4, after=0) + SAVE_EVERY)
        self.wait_for_line(rf"step {saved + 1} loss")
        return saved

    def agent_of(self, rank, agents):
        """The process that was started; the worker's parent is a child of it."""
        guard = jobs.Process(self.workers()[rank].parent).parent
        return next(agent for agent in agents if agent.pid == guard)

    def check_history(self):
        """No step is left out, none that had been saved is done again; returns the sizes of the
        groups that took part, one after the other."""
        sizes, step, saved = [], 0, 0
        for line in self.read_log().splitlines():
            if found := re.search(r"(\d+) workers begin after step (\d+)$", line):
                sizes.append(int(found[1]))
                step = int(found[2])
                # Of what was saved just before a kill the word may be lost.
                self.assertGreaterEqual(step, saved)
                self.assertEqual(step % SAVE_EVERY, 0)
                saved = step
            elif found := re.search(r"saved step (\d+)$", line):
                saved = int(found[1])
                self.assertEqual(saved, step)
            elif found := re.search(r"step (\d+) loss", line):
                step += 1
                self.assertEqual(int(found[1]), step)
        self.assertEqual((step, saved), (STEPS, STEPS))
        return [size for size, _ in itertools.groupby(sizes)]

    def check_result(self):
        saved = torch.load(self.checkpoint)
        self.assertEqual(saved["step"], STEPS)
        self.assertEqual(sorted(saved["model"]), sorted(self.expected))
        for name, value in self.expected.items():
            # How many workers add up the gradients, in which order, shows in the last digits.
            torch.testing.assert_close(saved["model"][name], value, rtol=0, atol=1e-9)

    def test_it_ends_as_it_does_with_one_worker(self):
        self.assertEqual(self.finish(*self.agents(pause=0)), [0, 0])
        self.check_history()
        self.check_result()

    def test_it_is_a_training_for_torchrun(self):
        launcher = self.torchrun(
            "--nproc_per_node", 2, "--monitor_interval", 0.1, "--master_port", muster.free_port(),
            SCRIPT, "--checkpoint", self.checkpoint, "--steps", STEPS, "--save-every", SAVE_EVERY)
        self.assertEqual(self.finish(launcher), [0])
        self.check_history()
        self.check_result()

    def test_a_killed_worker_costs_one_restart_and_nothing_that_was_saved(self):
        agents = self.agents("--max-restarts", "1")
        saved = self.wait_until_saved_by_all()
        os.kill(self.workers()[3].pid, signal.SIGKILL)
        self.wait_until_begun(4, after=saved)
        self.assertEqual(self.finish(*agents), [0, 0])
        self.check_history()
        self.check_result()

    def test_a_killed_agent_is_done_without_and_costs_no_restart(self):
        agents = self.agents()
        saved = self.wait_until_saved_by_all()
        # The one that also serves the store through which the workers find one another.
        killed = self.agent_of(0, agents)
        agent = self.workers()[0].parent
        lost = [worker.pid for worker in self.workers().values() if worker.parent == agent]
        self.assertEqual(len(lost), 2)
        os.kill(agent, signal.SIGKILL)
        killed.wait()
        self.wait_until_begun(2, after=saved)
        self.assertFalse({process.pid for process in jobs.processes_with(self.token)} & set(lost),
                         "workers have survived their agent")
        agents.remove(killed)
        self.assertEqual(self.finish(*agents), [0])
        self.assertEqual(self.check_history()[-2:], [4, 2])
        self.check_result()

    def test_agents_may_leave_and_others_come_and_it_costs_no_restart(self):
        agents = self.agents()
        saved = self.wait_until_saved_by_all()
        leaving = self.agent_of(0, agents)
        leaving.send_signal(signal.SIGTERM)
        resumed = self.wait_until_begun(2, after=saved)
        self.assertEqual(self.finish(leaving), [1])
        agents.remove(leaving)
        saved = self.wait_until_saved(resumed + SAVE_EVERY)
        agents.append(self.agent())
        self.wait_until_begun(4, after=saved)
        self.assertEqual(self.finish(*agents), [0, 0])
        self.assertEqual(self.check_history()[-3:], [4, 2, 4])
        self.check_result()


if __name__ == "__main__":
    jobs.main()
