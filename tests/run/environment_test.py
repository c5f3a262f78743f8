"""The environment of workers, variable by variable."""

import re
import socket

import launch

WRITE_ENVIRONMENT = """
cat /proc/$$/environ > "$FOLDER/env.$ROLE_NAME.$RANK.tmp"
mv "$FOLDER/env.$ROLE_NAME.$RANK.tmp" "$FOLDER/env.$ROLE_NAME.$RANK"
"""
# A name that means this machine only on this machine is no address for others.
HOST = socket.gethostname() if socket.getfqdn() == "localhost" else socket.getfqdn()
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class Environment(launch.Case):
    maxDiff = None

    def read(self, rank, role="default"):
        data = (self.folder / f"env.{role}.{rank}").read_bytes()
        self.assertTrue(data.endswith(b"\0"))
        return dict(entry.split("=", 1) for entry in data.decode().rstrip("\0").split("\0"))

    def check(self, rank, expected, *, role="default", given=None):
        """The environment is the agent's, `expected`, and what every worker gets: nothing else."""
        got = self.read(rank, role)
        local = expected["LOCAL_RANK"]
        for name, pattern in {
                "MASTER_PORT": r"[1-9]\d{0,4}",
                "MUSTER_WORKER_TOKEN": r"[0-9a-f]{32}\.\d+",
                "MUSTER_AGENT_SOCKET": re.escape(str(self.temporary)) + r"/muster-\w{12}/agent",
                "TORCHELASTIC_ERROR_FILE": r"/.*/" + re.escape(got["TORCHELASTIC_RUN_ID"]) +
                                           rf"_[a-z0-9_]{{8}}/attempt_0/{local}/error\.json",
        }.items():
            self.assertRegex(got.pop(name), rf"\A{pattern}\Z", name)
        if "TORCHELASTIC_RUN_ID" not in expected:
            self.assertRegex(got.pop("TORCHELASTIC_RUN_ID"),
                             r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
        table = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
                 "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                 "NCCL_ASYNC_ERROR_HANDLING": "1", "TORCHELASTIC_SIGNALS_TO_HANDLE": SIGNALS,
                 "MUSTER_ROUND": "0", "ROLE_NAME": role, **self.environment(**(given or {})),
                 **expected}
        self.assertEqual(got, table)

    def places(self, rank, local, local_size, group, group_size, size, role_rank=None,
               role_size=None):
        role_rank = rank if role_rank is None else role_rank
        return {"RANK": str(rank), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(local_size),
                "GROUP_RANK": str(group), "GROUP_WORLD_SIZE": str(group_size),
                "WORLD_SIZE": str(size),
                "ROLE_RANK": str(role_rank), "ROLE_WORLD_SIZE": str(role_size or size)}

    def test_one_node_with_one_worker(self):
        self.launch(self.script(WRITE_ENVIRONMENT))
        self.check(0, {**self.places(0, 0, 1, 0, 1, 1), "MASTER_ADDR": HOST})

    def test_one_node_with_three_workers(self):
        self.launch("--nproc-per-node=3", "--max-restarts=2", self.script(WRITE_ENVIRONMENT))
        for rank in range(3):
            self.check(rank, {**self.places(rank, rank, 3, 0, 1, 3), "MASTER_ADDR": HOST,
                              "OMP_NUM_THREADS": "1", "TORCHELASTIC_MAX_RESTARTS": "2"})
        ports = {self.read(rank)["MASTER_PORT"] for rank in range(3)}
        tokens = {self.read(rank)["MUSTER_WORKER_TOKEN"] for rank in range(3)}
        self.assertEqual((len(ports), len(tokens)), (1, 3))

    def launch_two_nodes(self, first, second, env=None):
        meeting = self.meeting(self.serve(), 2)
        script = self.script(WRITE_ENVIRONMENT)
        for options in (first, second):
            self.start(*meeting, *options, script, env=env)
        self.end_all(0)

    def common(self, **more):
        return {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "job", **more}

    def test_two_nodes_with_one_worker_each(self):
        self.launch_two_nodes([], [])
        for rank in range(2):
            self.check(rank, {**self.places(rank, 0, 1, rank, 2, 2), **self.common()})

    def test_two_nodes_with_three_workers_each(self):
        self.launch_two_nodes(["--nproc-per-node=3"], ["--nproc-per-node=3"])
        for rank in range(6):
            self.check(rank, {**self.places(rank, rank % 3, 3, rank // 3, 2, 6),
                              **self.common(OMP_NUM_THREADS="1")})
        self.assertEqual(len({self.read(rank)["MASTER_PORT"] for rank in range(6)}), 1)

    def test_two_nodes_with_different_numbers_of_workers_and_two_roles(self):
        env = {"OMP_NUM_THREADS": "7"}
        self.launch_two_nodes(["--nproc-per-node=3", "--role=trainer"], ["--role=reader"], env=env)
        names = sorted(path.name for path in self.folder.glob("env.*"))
        reader = int(next(name for name in names if "reader" in name).split(".")[-1])
        self.assertIn(reader, (0, 3))  # first or last: ranks are contiguous on a node
        group = 0 if reader == 0 else 1
        self.check(reader, {**self.places(reader, 0, 1, group, 2, 4, 0, 1), **self.common()},
                   role="reader", given=env)
        for local in range(3):
            rank = local if reader == 3 else local + 1
            self.check(rank,
                       {**self.places(rank, local, 3, 1 - group, 2, 4, local, 3), **self.common()},
                       role="trainer", given=env)

    def test_a_static_rendezvous_gives_ranks_and_address_as_told(self):
        port = launch.muster.free_port()
        script = self.script(WRITE_ENVIRONMENT)
        for rank in (1, 0):
            self.start("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1",
                       f"--master-port={port}", "--rdzv-id=fixed", script)
        self.end_all(0)
        for rank in range(2):
            self.check(rank, {**self.places(rank, 0, 1, rank, 2, 2), "MASTER_ADDR": "127.0.0.1",
                              "TORCHELASTIC_RUN_ID": "fixed"})
            self.assertEqual(self.read(rank)["MASTER_PORT"], str(port))

    def test_what_the_agent_has_is_passed_on_and_kept(self):
        given = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "OMP_NUM_THREADS": "5", "PET_ROLE": "r",
                 "CUDA_VISIBLE_DEVICES": "7,8", "RANK": "99", "EMPTY": "", "LINES": "a\nb=c"}
        self.launch("--nproc-per-node=2", self.script(WRITE_ENVIRONMENT), env=given)
        for rank in range(2):
            self.check(rank, {**self.places(rank, rank, 2, 0, 1, 2), "MASTER_ADDR": HOST},
                       role="r", given=given)

    def test_with_virtual_local_ranks_every_worker_is_the_first_and_sees_one_device(self):
        self.launch("--nproc-per-node=2", "--virtual-local-rank", self.script(WRITE_ENVIRONMENT),
                    "${local_rank}", env={"CUDA_VISIBLE_DEVICES": "4, 6"})
        for rank, device in enumerate(("4", "6")):
            got = self.read(rank)
            self.assertEqual((got["LOCAL_RANK"], got["CUDA_VISIBLE_DEVICES"]), ("0", device))
            self.assertIn(f"/attempt_0/{rank}/error.json", got["TORCHELASTIC_ERROR_FILE"])

    def test_the_store_is_not_offered_when_sharing_is_off(self):
        self.launch(self.script(WRITE_ENVIRONMENT), env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        self.assertEqual(self.read(0)["TORCHELASTIC_USE_AGENT_STORE"], "False")

    def test_the_store_is_offered_and_is_there(self):
        self.launch("--nproc-per-node=2", self.script("""
            endpoint="--endpoint $MASTER_ADDR:$MASTER_PORT"
            "$MUSTER" store set $endpoint "from$RANK" "$RANK" || exit 1
            note "$RANK hears $("$MUSTER" store get $endpoint "from$((1 - RANK))")" """))
        self.assertEqual(sorted(self.notes()), ["0 hears 1", "1 hears 0"])

    def test_the_round_has_a_number_and_a_namespace_of_its_own(self):
        self.launch("--max-restarts=1", self.script("""
            endpoint="--endpoint $MASTER_ADDR:$MASTER_PORT"
            note "round $MUSTER_ROUND finds $("$MUSTER" store check $endpoint key)"
            "$MUSTER" store set $endpoint key 1
            [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]"""))
        self.assertEqual(self.notes(), ["round 0 finds false", "round 1 finds false"])

    def test_without_logs_there_is_no_error_file(self):
        self.launch("--log-dir=/dev/null", self.script(WRITE_ENVIRONMENT))
        self.assertEqual(self.read(0)["TORCHELASTIC_ERROR_FILE"], "")

    def test_arguments_know_the_local_rank(self):
        self.launch("--nproc-per-node=2", self.script('for word in "$@"; do note "$word"; done'),
                    "--x=${local_rank}", "$$y", "${other}", "$local_rank.")
        self.assertEqual(sorted(self.notes()),
                         sorted(["--x=0", "--x=1", "$y", "$y", "${other}", "${other}", "0.", "1."]))

    def test_standard_input_and_working_folder_are_the_agents(self):
        data = self.folder / "input"
        data.write_text("a line\n")
        with open(data, "rb") as stdin:
            self.start(self.script('read -r line; note "$line in $(pwd)"'), stdin=stdin).end(0)
        self.assertEqual(self.notes(), [f"a line in {self.here}"])

    def test_a_worker_has_a_session_of_its_own_and_blocks_no_signal(self):
        self.launch(self.script("""
            read -r pid name state parent group session rest < /proc/$$/stat
            [ $pid = $group ] && [ $pid = $session ] && note own
            note blocked $(grep SigBlk /proc/$$/status | cut -f2)"""))
        self.assertEqual(self.notes(), ["own", "blocked 0000000000000000"])

    def test_a_worker_has_no_descriptors_but_three(self):
        agent = self.launch("ls", "/proc/self/fd")  # the fourth is its own
        self.assertEqual(agent.out.text.split(), ["0", "1", "2", "3"])


if __name__ == "__main__":
    launch.main()
