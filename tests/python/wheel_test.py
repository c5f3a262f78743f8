"""What `pip install .` makes: a wheel, built by tools/python_wheel, and a job with nothing but it.

Skipped, and loudly, where pip cannot get what the build needs.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # the exit status that ctest takes for "skipped"
# Far more than any of them needs: passing it means "hangs".
BUILD_SECONDS = 3000
PATIENCE_SECONDS = 240

# Nothing of the build folder may be found by what was installed.
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("PYTHONPATH", "MUSTER_BIN", "PYTHON_EXEC", "VIRTUAL_ENV")}

# Every worker says from where it has the package, and what the other answers. It does so with one
# write: the interpreter runs with -u, and `print` would write each word, and the line's end, by itself,
# so that the lines of two workers could end up within one another.
PROGRAM = """
import os, sys
import muster.rpc as rpc

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
answer = rpc.rpc_sync(f"worker{1 - rank}", divmod, args=(100 + rank, 7))
sys.stdout.write(f"answer {rank} {answer} {os.path.dirname(rpc.__file__)} {sys.executable}\\n")
rpc.shutdown()
"""

FIND_HANDLER = """
import importlib.metadata
for entry in importlib.metadata.distribution("muster").entry_points:
    if entry.group == "torchrun.handlers":
        print(entry.name, "=", entry.value)
"""


def run(*words, **options):
    """What it printed. It must end well."""
    done = subprocess.run([str(word) for word in words], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=PATIENCE_SECONDS, **options)
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="muster-wheel-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        built = subprocess.run([ROOT / "tools/python_wheel", sys.executable, cls.folder], env=ENVIRONMENT,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", timeout=BUILD_SECONDS)
        if built.returncode == SKIPPED:
            print(built.stdout)
            sys.stdout.flush()
            folder.cleanup()
            os._exit(SKIPPED)
        assert built.returncode == 0, built.stdout[-20000:]
        cls.scripts = cls.folder / "venv/bin"
        wheels = list((cls.folder / "dist").iterdir())
        assert len(wheels) == 1, wheels
        cls.wheel = wheels[0]
        cls.version = re.search(r"project\(muster VERSION ([0-9.]+)",
                                (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]

    def test_is_for_this_interpreter_and_machine_alone(self):
        tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        machine = os.uname().machine
        self.assertEqual(self.wheel.name, f"muster-{self.version}-{tag}-{tag}-linux_{machine}.whl")

    def test_has_the_package_and_nothing_else(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = set(wheel.namelist())
        package = ROOT / "python"
        sources = {str(path.relative_to(package)) for path in (package / "muster").rglob("*")
                   if path.is_file() and "__pycache__" not in path.parts}
        modules = {name for name in names if re.fullmatch(r"muster/_native\.[^/]*\.so", name)}
        self.assertEqual(len(modules), 1)
        metadata = {name for name in names if name.startswith(f"muster-{self.version}.dist-info/")}
        self.assertEqual(names - metadata, sources | modules | {"muster/bin/muster"})
        self.assertTrue({"muster/py.typed", "muster/_native.pyi"} <= names)

    def test_has_no_debug_information(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            natives = [name for name in wheel.namelist() if name.endswith((".so", "/bin/muster"))]
            self.assertEqual(len(natives), 2)
            for name in natives:
                self.assertNotIn(b".debug_info", wheel.read(name), name)

    def test_torchrun_finds_its_rendezvous_handler(self):
        said = run(self.scripts / "python", "-c", FIND_HANDLER)
        self.assertEqual(said, "muster = muster.elastic._torch_plugin:handler\n")

    def test_the_program_runs(self):
        self.assertIn(self.version, run(self.scripts / "muster", "--version"))

    def test_a_job_of_two_workers_calls_one_another(self):
        program = self.folder / "program.py"
        program.write_text(PROGRAM)
        # The environment is not active: the program knows for which interpreter it was installed.
        said = run(self.scripts / "muster", "run", "--nproc-per-node", "2", program, cwd=self.folder)
        answers = sorted(line for line in said.splitlines() if line.startswith("answer"))
        self.assertEqual(len(answers), 2, said)
        for rank, answer in enumerate(answers):
            self.assertIn(f"answer {rank} {divmod(100 + rank, 7)} {self.folder / 'venv'}/", answer)
            self.assertEqual(os.path.dirname(answer.split()[-1]), str(self.scripts), answer)


if __name__ == "__main__":
    unittest.main()
