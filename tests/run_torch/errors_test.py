"""How failures of workers get from PyTorch to the agent: its error files, and its timers.

Run as a program, by whichever interpreter has the PyTorch version to test.
"""

import unittest

import jobs
import muster  # from tests/pytorch, by way of jobs

try:
    import torch.distributed.elastic.timer as timer
except ImportError:
    timer = None


class ErrorsTest(jobs.TestCase):

    def test_the_report_shows_what_pytorchs_recorder_wrote(self):
        launcher = self.muster_run("--standalone", jobs.HERE / "fails.py")
        self.assertEqual(self.finish(launcher), [1])
        log = self.read_log()
        report = log[log.index("fails.py FAILED"):]
        self.assertIn("ValueError: the loss is not a number", report)
        self.assertRegex(report, r'File ".*fails\.py", line \d+, in step')
        self.assertRegex(report, r"rank\s*: 0 \(local_rank: 0\)")
        self.assertRegex(report, r"exitcode\s*: 1 ")
        self.assertRegex(report, r"error_file\s*: .*/attempt_0/0/error\.json")

    @unittest.skipIf(not hasattr(timer, "FileTimerClient"), "this PyTorch has no file timers")
    def test_a_worker_that_pytorchs_timer_finds_hanging_is_killed_and_restarted(self):
        launcher = self.muster_run("--standalone", "--max-restarts", "1", jobs.HERE / "hangs.py",
                                   TORCHELASTIC_ENABLE_FILE_TIMER="1", LOGLEVEL="INFO")
        self.assertEqual(self.finish(launcher), [0])
        log = self.read_log()
        self.assertEqual([line for line in log.splitlines() if line.startswith("life")],
                         ["life 0", "life 1"])
        self.assertRegex(log, r"rank 0 .* signal 9 .* timer .* expired")


if __name__ == "__main__":
    muster.import_distributed()
    jobs.main()
