"""examples/torch_tensors under `muster run`: tensors of libtorch cross without a copy.

The example itself compares addresses whenever a tensor is sent or received, and fails the call
when one was copied; here it is seen that it has done so, for as many tensors as were sent.

Environment, besides that of launch.py:
  MUSTER_TORCH_TENSORS   the example; without it, build/bin/torch_tensors of this source tree
  MUSTER_NO_LIBTORCH     why it was not built
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "run"))
import launch  # noqa: E402
import muster  # noqa: E402

PROGRAM = os.environ.get("MUSTER_TORCH_TENSORS") or str(ROOT / "build" / "bin" / "torch_tensors")
FLOAT_BYTES = 4
FEATURE_COUNT = 256
# A batch, a transposed view, the last rows; one row and no rows travel in the head of the frame.
LARGE_PER_WORKER = 3
CHECKS_PER_WORKER = 5


class TorchTensors(launch.Case):

    def assert_in_place(self, agent, worker_count, row_count):
        """All tensors that are large enough left from where they were, and stayed where they came."""
        text = agent.out.text
        self.assertEqual(text.count(": right\n"), CHECKS_PER_WORKER * worker_count, text)
        floats = FEATURE_COUNT * (2 * row_count + row_count - row_count // 4)
        for name, count, peers in [("worker0", LARGE_PER_WORKER * worker_count, worker_count)] + [
                (f"worker{rank}", LARGE_PER_WORKER, 1) for rank in range(1, worker_count + 1)]:
            size = FLOAT_BYTES * floats * peers
            # As many bytes go as come: the layer does not change the size of a batch.
            for what in ("were sent from the memory of libtorch", "are where they were received"):
                line = f"{name}: {count} tensors, {size} bytes, {what}"
                self.assertRegex(text, rf"(?m){re.escape(line)}$")

    def test_tensors_are_sent_from_where_they_are_and_stay_where_they_are_received(self):
        agent = self.launch("--nproc-per-node=2", PROGRAM)
        self.assert_in_place(agent, 1, 1024)

    def test_three_workers_send_at_once(self):
        agent = self.launch("--nproc-per-node=4", PROGRAM, "--rows", "4000")
        self.assert_in_place(agent, 3, 4000)


if __name__ == "__main__":
    missing = os.environ.get("MUSTER_NO_LIBTORCH")
    if missing or not os.path.exists(PROGRAM):
        print(f"SKIPPED: {missing or PROGRAM + ' is not built'}; see tools/packages", flush=True)
        sys.exit(muster.SKIPPED)
    launch.main()
