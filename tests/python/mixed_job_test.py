"""examples/python/mixed_parameter_server under `muster run`: a server in C++, trainers in Python.

Environment, besides that of launch.py:
  MUSTER_PARAMETER_SERVER   the C++ program; without it, build/bin/parameter_server of this source tree
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "run"))
import launch  # noqa: E402

PROGRAM = str(ROOT / "examples" / "python" / "mixed_parameter_server")
SERVER = os.environ.get("MUSTER_PARAMETER_SERVER") or str(ROOT / "build" / "bin" / "parameter_server")
PACKAGE = os.environ.get("PYTHONPATH") or str(ROOT / "build" / "python")


class MixedJob(launch.Case):

    def launch_mixed(self, *words, **options):
        env = {"PYTHONPATH": PACKAGE, "PYTHON": sys.executable, "MUSTER_PARAMETER_SERVER": SERVER}
        return self.launch(*words, env=env, **options)

    def test_a_server_in_c_plus_plus_and_trainers_in_python_get_what_one_process_gets(self):
        agent = self.launch_mixed("--nproc-per-node=3", PROGRAM, "--steps", "50")
        # The server has computed it all alone, in C++, to compare.
        server = re.search(r"worker0: as in one process: (.*)$", agent.out.text, re.MULTILINE)
        self.assertIsNotNone(server, agent.out.text)
        learned = [float(word) for word in server[1].split()]
        for i, value in enumerate(learned):
            self.assertAlmostEqual(value, i + 1, delta=0.1)
        trained = dict(re.findall(r"(worker\d): trained: (.*)$", agent.out.text, re.MULTILINE))
        self.assertEqual(set(trained), {"worker1", "worker2"})
        for text in trained.values():
            self.assertEqual([float(word) for word in text.split()], learned)

    def test_trainers_in_both_languages_train_together(self):
        # Rank 1 is the C++ program again, which is a trainer there.
        choose = 'if [ "$RANK" = 1 ]; then exec "$MUSTER_PARAMETER_SERVER"; fi; exec "$PROGRAM"\n'
        script = self.folder / "choose"
        script.write_text("#!/bin/sh\n" + choose.replace("$PROGRAM", PROGRAM))
        script.chmod(0o755)
        agent = self.launch_mixed("--nproc-per-node=4", str(script))
        alone = dict(re.findall(r"(worker\d): as in one process: (.*)$", agent.out.text, re.MULTILINE))
        self.assertEqual(set(alone), {"worker0", "worker1"}, agent.out.text)
        trained = dict(re.findall(r"(worker\d): trained: (.*)$", agent.out.text, re.MULTILINE))
        self.assertEqual(set(trained), {"worker2", "worker3"}, agent.out.text)

    def test_a_trainer_whose_gradient_does_not_fit_is_told_so(self):
        script = self.folder / "trainer.py"
        script.write_text(BAD_TRAINER)
        choose = self.folder / "choose"
        choose.write_text(f'#!/bin/sh\nif [ "$RANK" = 0 ]; then exec "{SERVER}"; fi\n'
                          f'exec "{sys.executable}" "{script}"\n')
        choose.chmod(0o755)
        # The server finds that the job has not done its work.
        agent = self.launch_mixed("--nproc-per-node=2", str(choose), status=1)
        self.assertIn("trainer 1 cannot bring 3 numbers for step 0 in step 0", agent.out.text)


BAD_TRAINER = """
import muster.rpc as rpc
rpc.init_rpc("worker1", rank=1, world_size=2)
step = rpc.Procedure("step", "(i64,i64,vec<f64>)->vec<f64>")
try:
    rpc.rpc_sync("worker0", step, args=(0, 1, [1, 2, 3]))
except RuntimeError as error:
    print(error, flush=True)
rpc.shutdown()
"""


if __name__ == "__main__":
    launch.main()
