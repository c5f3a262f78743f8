"""Jobs that fail under `muster run`: whom the report names, and with what."""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "run"))
import launch  # noqa: E402

PACKAGE = os.environ.get("PYTHONPATH") or str(ROOT / "build" / "python")

# worker1 fails while worker0 waits for it, and takes longer to end than worker0 does.
PROGRAM = """
import atexit, os, pathlib, select

rank = int(os.environ["RANK"])
folder = pathlib.Path(os.environ["FOLDER"])

@atexit.register  # before that of RPC, so it runs after it
def linger():
    if rank == 0:
        return
    try:
        other = os.pidfd_open(int((folder / "pid").read_text()))
    except ProcessLookupError:
        return  # it has ended
    if not select.select([other], [], [], 60)[0]:
        os._exit(9)

import muster.rpc as rpc

def wait_for_ever():
    import threading
    threading.Event().wait(600)

if rank == 0:
    (folder / "pid").write_text(str(os.getpid()))
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)

def main():
    if rank == 0:
        rpc.rpc_sync("worker1", wait_for_ever, timeout=0)
    else:
        raise ValueError("there is no file for shard 7")

RUN
"""


class FailingJob(launch.Case):

    def report_of(self, run):
        program = self.folder / "program.py"
        program.write_text(PROGRAM.replace("RUN", run))
        agent = self.launch("--nproc-per-node=2", program, status=1,
                            env={"PYTHONPATH": PACKAGE, "PYTHON_EXEC": sys.executable})
        report = agent.err.text
        cause = re.search(r"Root Cause.*", report, re.DOTALL)
        self.assertIsNotNone(cause, report)
        return cause[0]

    def test_names_the_worker_that_raised_and_not_the_one_that_lost_it(self):
        cause = self.report_of("main()")
        self.assertIn("rank      : 1", cause)
        self.assertIn("ValueError: there is no file for shard 7", cause)

    def test_keeps_what_the_program_has_recorded_itself(self):
        run = """
from muster.elastic.errors import record

@record
def first():
    main()

try:
    first()
except ValueError:
    raise RuntimeError("what came of it")
"""
        cause = self.report_of(run)
        self.assertIn("rank      : 1", cause)
        self.assertIn("ValueError: there is no file for shard 7", cause)
        self.assertNotIn("what came of it", cause)


if __name__ == "__main__":
    launch.main()
