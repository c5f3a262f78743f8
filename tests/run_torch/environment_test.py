"""The environment of workers, variable by variable, under torchrun and under `muster run`.

Run as a program, by whichever interpreter has the PyTorch version to test. The workers themselves
need no PyTorch.
"""

import json
import re
import socket
import uuid

import jobs
import muster  # from tests/pytorch, by way of jobs

muster.import_distributed()
import torch  # noqa: E402  (after the check above, which explains a missing PyTorch)

IS_OLD = torch.__version__.startswith("1.")
WORKERS = 2

# What only Muster sets.
OURS = {"MUSTER_ROUND", "MUSTER_AGENT_SOCKET", "MUSTER_WORKER_TOKEN"}
# What not every version of torchrun sets; Muster sets it for all of them.
BOTH = {
    "NCCL_ASYNC_ERROR_HANDLING": "1",  # the name in 1.13
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # and in 2.x
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",  # not yet in 1.13
}


def generalize(environment, is_port_chosen, is_id_chosen):
    """`environment` without what is different in every run of the same command."""
    made = dict(environment)
    # The same host, by whichever of its names.
    made["MASTER_ADDR"] = socket.gethostbyname(made["MASTER_ADDR"])
    if is_port_chosen and 0 < int(made["MASTER_PORT"]) < 65536:
        made["MASTER_PORT"] = "PORT"
    run_id = made["TORCHELASTIC_RUN_ID"]
    folder = rf"/{re.escape(run_id)}_\w{{8}}/"
    if is_id_chosen and str(uuid.UUID(run_id)) == run_id:
        made["TORCHELASTIC_RUN_ID"] = "ID"
    made["TORCHELASTIC_ERROR_FILE"] = re.sub(folder, "/ID_RANDOM/", made["TORCHELASTIC_ERROR_FILE"])
    return made


class EnvironmentTest(jobs.TestCase):

    maxDiff = None

    def dump(self, launcher, name, nodes, restarts):
        """Runs a job of as many nodes as there are lists of options; what its workers saw, by
        rank."""
        folder = self.folder / name
        folder.mkdir()
        started = [launcher("--nproc_per_node", WORKERS, "--role", "trainer", "--max_restarts", 3,
                            "--monitor_interval", 0.1, "--log_dir", self.folder / "logs", *options,
                            jobs.HERE / "dump_environment.py", folder, restarts)
                   for options in nodes]
        self.assertEqual(self.finish(*started), [0] * len(started))
        return {int(file.stem): json.loads(file.read_text()) for file in folder.iterdir()}

    def compare(self, *nodes, restarts=0, is_port_chosen=False, is_id_chosen=False,
                differences=None):
        """Runs the job with both; all must be equal but for `differences`, what Muster sets to
        other values. Returns the environment of rank 0."""
        theirs = self.dump(self.torchrun, "torchrun", nodes, restarts)
        ours = self.dump(self.muster_run, "muster", nodes, restarts)
        self.assertEqual(sorted(theirs), list(range(WORKERS * len(nodes))))
        self.assertEqual(sorted(ours), sorted(theirs))
        for rank, environment in ours.items():
            self.assertLessEqual(OURS, set(environment))
            expected = {**BOTH, **generalize(theirs[rank], is_port_chosen, is_id_chosen),
                        **(differences or {})}
            actual = generalize(environment, is_port_chosen, is_id_chosen)
            self.assertEqual({name: value for name, value in actual.items() if name not in OURS},
                             expected, f"rank {rank}")
        return ours[0]

    def test_of_one_node_after_a_restart(self):
        seen = self.compare(["--master_port", muster.free_port()], restarts=1)
        self.assertEqual(seen["TORCHELASTIC_RESTART_COUNT"], "1")
        self.assertEqual(seen["OMP_NUM_THREADS"], "1")

    def test_of_one_node_that_finds_a_port_itself(self):
        if IS_OLD:
            self.skipTest("torchrun 1.13 always takes the same port")
        self.compare([], is_port_chosen=True, is_id_chosen=True)

    def test_of_two_nodes_with_fixed_ranks(self):
        port = muster.free_port()
        self.compare(*(["--nnodes", 2, "--node_rank", rank, "--master_port", port]
                       for rank in range(2)))

    def test_of_two_nodes_that_find_one_another(self):
        endpoint = f"localhost:{muster.free_port()}"
        # torchrun 1.13 leaves it to rank 0 to serve the store of the workers.
        self.compare(*(["--nnodes", 2, "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint,
                        "--rdzv_id", "job"] for _ in range(2)), is_port_chosen=True,
                     differences={"TORCHELASTIC_USE_AGENT_STORE": "True"} if IS_OLD else None)


if __name__ == "__main__":
    jobs.main()
