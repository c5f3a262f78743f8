"""The conformance harness itself: it needs no PyTorch, and no Muster."""

import os
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

import host
import scope
import verdict

HERE = Path(__file__).resolve().parent

SUITE = """
def plain():
    return 1

def uses_autograd():
    with dist_autograd.context() as context:
        return context

def asks_for_debug_info():
    return dist_autograd._get_debug_info()

class Common:
    def _helper(self):
        uses_autograd()

    def test_inherited(self):
        plain()

class Suite(Fixture, Common):
    def test_plain(self):
        plain()  # a comment may say dist_autograd.context

    def test_through_a_helper(self):
        self._helper()

    def test_through_its_class(self):
        rpc.rpc_sync("worker1", Suite._helper)

    def test_debug_info(self):
        asks_for_debug_info()

    @skip_if_lt_x_gpu(2)
    def test_gpu(self):
        pass

    def test_profiled(self):
        with torch.autograd.profiler.profile() as p:
            plain()

    def _test_not_one(self):
        pass
"""


class WhichTestsApply(unittest.TestCase):
    def setUp(self):
        self.source = scope.Source(SUITE)

    def reason(self, test):
        return scope.reason_not_applicable(self.source, "Suite", test)

    def test_tests_are_found_with_those_of_base_classes(self):
        self.assertEqual(set(self.source.tests("Suite")), {
            "test_inherited", "test_plain", "test_through_a_helper", "test_through_its_class", "test_debug_info",
            "test_gpu", "test_profiled"})
        self.assertEqual(self.source.test_classes(), ["Suite"])

    def test_what_mentions_nothing_out_of_scope_applies(self):
        for test in ("test_inherited", "test_plain", "test_debug_info"):
            self.assertIsNone(self.reason(test), test)

    def test_what_a_helper_uses_counts_for_the_test(self):
        self.assertEqual(self.reason("test_through_a_helper"), scope.AUTOGRAD)
        self.assertEqual(self.reason("test_through_its_class"), scope.AUTOGRAD)

    def test_decorators_and_attributes_count(self):
        self.assertEqual(self.reason("test_gpu"), scope.CUDA)
        self.assertEqual(self.reason("test_profiled"), scope.PROFILER)


def event(test, status, detail=""):
    return {"id": test, "status": status, "detail": detail, "seconds": 1.0, "log": None}


class Judging(unittest.TestCase):
    def judge(self, events, known="", fails_in_reference="", reference=False, whole=True):
        known = verdict.read_list(known, "known")
        one = verdict.Verdict("2.13.0", reference, whole)
        for entry in events:
            one.add(entry, known, verdict.read_list(fails_in_reference, "reference"))
        one.finish(known, {entry["id"].split(".")[0] for entry in events})
        return one

    def test_all_passed_is_good(self):
        one = self.judge([event("RpcTest.test_a", "passed"), event("RpcTest.test_b", "not applicable", "why")])
        self.assertTrue(one.good)
        self.assertEqual(one.summary(),
                         "conformance (PyTorch 2.13.0): 1 of 1 applicable passed, 0 failed, 1 not applicable")

    def test_nothing_run_is_not_good(self):
        self.assertFalse(self.judge([]).good)

    def test_a_failure_is_not_good(self):
        self.assertFalse(self.judge([event("X.test_a", "failed")]).good)

    def test_a_known_failure_is_good_and_counted_as_failed(self):
        one = self.judge([event("X.test_a", "failed")], known="X.test_a | 2.13 | because")
        self.assertTrue(one.good)
        self.assertIn("0 of 1 applicable passed, 1 failed (1 of them known)", one.summary())

    def test_a_known_failure_of_another_version_is_a_failure(self):
        for versions in ("1.13", "2.1", "2.130"):
            self.assertFalse(self.judge([event("X.test_a", "failed")], known=f"X.test_a | {versions} | because").good)
        self.assertTrue(self.judge([event("X.test_a", "failed")], known="X.test_a | 1.13 2 | because").good)

    def test_a_known_failure_that_passes_or_is_gone_is_wrong(self):
        known = "X.test_a | * | because"
        self.assertFalse(self.judge([event("X.test_a", "passed")], known=known).good)
        self.assertFalse(self.judge([event("X.test_a", "not applicable", "why")], known=known).good)
        self.assertFalse(self.judge([event("X.test_b", "passed")], known=known).good)
        self.assertTrue(self.judge([event("X.test_b", "passed")], known=known, whole=False).good)
        self.assertTrue(self.judge([event("Y.test_b", "passed")], known=known).good)

    def test_what_the_reference_fails_too_is_not_applicable_unless_it_passes(self):
        listed = "X.test_a | 2.13 | no such network"
        one = self.judge([event("X.test_a", "failed"), event("X.test_b", "passed")], fails_in_reference=listed)
        self.assertEqual(one.count()[verdict.NOT_APPLICABLE], 1)
        self.assertTrue(one.good)
        one = self.judge([event("X.test_a", "passed")], fails_in_reference=listed)
        self.assertEqual(one.count()[verdict.PASSED], 1)

    def test_bounds_hold_for_whole_suites(self):
        faulty = [event("FaultyAgentRpcTest.test_a", "failed"), event("FaultyAgentRpcTest.test_b", "passed")]
        known = "FaultyAgentRpcTest.test_a | * | because"
        self.assertFalse(self.judge(faulty, known=known).good)
        self.assertTrue(self.judge(faulty, known=known, whole=False).good)
        self.assertTrue(self.judge(faulty, known=known, reference=True).good)
        many = [event(f"RpcTest.test_{number}", "passed" if number else "failed") for number in range(20)]
        self.assertTrue(self.judge(many, known="RpcTest.test_0 | * | because").good)
        self.assertFalse(self.judge(many[:19], known="RpcTest.test_0 | * | because").good)

    def test_a_list_with_a_line_that_says_less_is_refused(self):
        for text in ("X.test_a", "X.test_a | *", "X.test_a | * |", "X.a | * | b\nX.a | * | c"):
            with self.assertRaises(ValueError):
                verdict.read_list(text, "list")
        self.assertEqual(verdict.read_list("# comment\n\n", "list"), {})

    def test_the_heart_of_a_traceback_is_the_error_of_the_first_worker(self):
        detail = textwrap.dedent("""\
            Traceback (most recent call last):
              File "a.py", line 1, in b
            RuntimeError: Process 1 exited with error code 10 and exception:
            Traceback (most recent call last):
              File "c.py", line 2, in d
            ValueError: the cause

            During handling of the above exception, another exception occurred:

            Traceback (most recent call last):
              File "c.py", line 2, in d
            AssertionError: "this" does not match "that:
            KeyError: quoted"

            Process 2 exited with error code 10 and exception:
            KeyError: another worker
            """)
        self.assertEqual(verdict.heart(detail), 'AssertionError: "this" does not match "that:')
        self.assertEqual(verdict.heart("the process that ran the test died"), "the process that ran the test died")
        self.assertEqual(verdict.heart(""), "no reason given")


class Sample(unittest.TestCase):
    """What the tests below run in processes of their own."""

    def passes(self):
        print("said by the test")

    def fails(self):
        self.fail("on purpose")

    def skips(self):
        self.skipTest("no reason")

    def dies(self):
        os.kill(os.getpid(), 9)

    def fails_at_length(self):
        self.fail("x" * 1_000_000)

    def hangs_with_a_child(self):
        os.fork()
        print(os.getpid(), flush=True)
        while True:
            time.sleep(100)


class RunningATest(unittest.TestCase):
    def run_one(self, name, limit=60):
        with tempfile.TemporaryDirectory() as folder:
            running = host.Running("suite", Sample, name, Path(folder), limit)
            while True:
                answer = running.watch()
                if answer:
                    return answer, (Path(folder) / f"Sample.{name}" / "log").read_text()
                time.sleep(0.01)

    def test_what_it_says_of_itself_is_reported(self):
        for name, status, detail in (("passes", "passed", ""), ("fails", "failed", "on purpose"),
                                     ("skips", "skipped", "no reason"), ("dies", "failed", "died"),
                                     ("fails_at_length", "failed", "xxx")):
            answer, log = self.run_one(name)
            self.assertEqual(answer["status"], status, name)
            self.assertIn(detail, answer["detail"])
        self.assertEqual(self.run_one("passes")[1], "said by the test\n")

    def test_one_that_does_not_end_is_killed_with_all_it_started(self):
        answer, log = self.run_one("hangs_with_a_child", limit=0.5)
        self.assertEqual(answer["status"], "failed")
        self.assertIn("did not end within 0.5 s", answer["detail"])
        pids = [int(line) for line in log.splitlines() if line.isdigit()]
        self.assertEqual(len(pids), 2)
        deadline = time.monotonic() + 30
        for pid in pids:
            while not is_gone(pid):
                self.assertLess(time.monotonic(), deadline, f"process {pid} is still there")
                time.sleep(0.01)


def is_gone(pid):
    """Whether a process has ended; nobody may have collected it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


class Pointing(unittest.TestCase):
    """With two small packages in the places of PyTorch's and Muster's."""

    FILES = {
        "torch/__init__.py": "",
        "torch/distributed/__init__.py": "",
        "torch/distributed/rpc/__init__.py": "from . import api\ndef init_rpc(): return 'theirs'\n",
        "torch/distributed/rpc/api.py": "def thing(): return 'theirs'\n",
        "torch/distributed/rpc/extra.py": "",
        "muster/__init__.py": "",
        "muster/rpc/__init__.py": "def init_rpc(): return 'ours'\n",
        "muster/rpc/api.py": "def thing(): return 'ours'\n",
        "muster/rpc/unasked.py": "raise AssertionError",
        "suite.py": "import torch.distributed.rpc as rpc\nfrom torch.distributed.rpc.api import thing\n",
    }

    def run_script(self, script):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in self.FILES.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], text=True, capture_output=True,
                                  timeout=60, env={**os.environ, "PYTHONPATH": f"{folder}:{HERE}"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_names_of_pytorch_lead_to_muster(self):
        self.run_script("""
            import torch.distributed.rpc, pointing, sys
            theirs = torch.distributed.rpc
            pointing.point_at_muster()
            import suite, muster.rpc.api
            assert suite.rpc is torch.distributed.rpc is muster.rpc
            assert suite.rpc.init_rpc() == suite.thing() == "ours"
            assert sys.modules["torch.distributed.rpc.api"] is muster.rpc.api
            assert muster.rpc.api.__spec__.name == muster.rpc.api.__name__ == "muster.rpc.api"
            assert not hasattr(muster.rpc, "unasked")
            pointing.assert_pointed([suite])
            try:
                import torch.distributed.rpc.extra
            except ImportError:
                pass
            else:
                raise SystemExit("what Muster lacks was found")
            try:
                theirs.init_rpc()
            except AssertionError:
                pass
            else:
                raise SystemExit("PyTorch's own was reached")
            """)

    def test_a_suite_loaded_too_early_is_noticed(self):
        self.run_script("""
            import suite, pointing
            pointing.point_at_muster()
            try:
                pointing.assert_pointed([suite])
            except AssertionError:
                pass
            else:
                raise SystemExit("not noticed")
            """)


if __name__ == "__main__":
    unittest.main()
