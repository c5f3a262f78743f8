"""What `make install` makes: programs outside of this source tree are built with it and run.

The program, the commands and the lines for CMake are those of README.md. What was installed is moved
before it is used: nothing in it may name the place where it was built or installed first.

Environment:
  MUSTER_BUILD   the build folder that is installed; without it, build of this source tree
  CXX            the compiler of that build; without it, g++
"""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("MUSTER_BUILD") or ROOT / "build")
# Far more than any of it needs: passing it means "hangs".
PATIENCE_SECONDS = 600
LIBRARIES = {"base", "wire", "net", "store", "rpc", "rref", "worker"}
ALONE = {"rpc.h", "failures/recorder.h", "failures/recorder_c.h", "watchdog/socket.h", "watchdog/message.h"}

CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES CXX)
{snippet}
foreach(example IN ITEMS {examples})
  add_executable(${{example}} "{root}/examples/${{example}}.cpp")
  target_link_libraries(${{example}} PRIVATE muster::muster)
endforeach()
"""
EXAMPLES = "parameter_server store_client worker"


def snippet(language, word):
    """The one snippet of README.md in that language that has the word."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = [match[1] for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
             if word in match[1]]
    assert len(found) == 1, (language, word, found)
    return found[0]


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="muster-install-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        first, cls.prefix = cls.folder / "first", cls.folder / "moved"
        cls.environment = {**os.environ, "PATH": f"{cls.prefix / 'bin'}:{os.environ['PATH']}",
                           "PKG_CONFIG_PATH": str(cls.prefix / "lib/pkgconfig")}
        cls.environment.pop("DESTDIR", None)
        cls.run_command("cmake", "--install", BUILD, "--prefix", first)
        first.rename(cls.prefix)
        (cls.folder / "pi.cpp").write_text(snippet("cpp", "int main"), encoding="utf-8")

    @classmethod
    def run_command(cls, *words, **options):
        """What it printed. It must end well."""
        done = subprocess.run([str(word) for word in words], env=cls.environment, cwd=cls.folder,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=PATIENCE_SECONDS, **options)
        assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def assert_is_pi(self, output):
        # Four million darts: a deviation of 0.005 is six times the expected one.
        self.assertRegex(output, r"(?m)^pi is about 3\.1[34]\d\d$")
        self.assertAlmostEqual(float(output.split()[-1]), 3.1416, delta=0.005)

    def test_what_is_there(self):
        headers = {str(path.relative_to(self.prefix / "include/muster"))
                   for path in (self.prefix / "include").rglob("*") if path.is_file()}
        wanted = ALONE | {str(path.relative_to(ROOT / "muster")) for library in LIBRARIES
                          for path in (ROOT / "muster" / library).glob("*.h") if not path.name.endswith("_test.h")}
        self.assertEqual(headers, wanted)
        rest = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*")
                if path.is_file() and "include" not in path.parts}
        self.assertEqual(rest, {
            "bin/muster", "lib/libmuster.a", "lib/pkgconfig/muster.pc", "lib/cmake/muster/muster-config.cmake",
            "lib/cmake/muster/muster-config-version.cmake", "lib/cmake/muster/muster-targets.cmake",
            "lib/cmake/muster/muster-targets-relwithdebinfo.cmake", "share/bash-completion/completions/muster",
            "share/zsh/site-functions/_muster"})

    def test_all_headers_compile_with_nothing_but_what_was_installed(self):
        includes = sorted(path.relative_to(self.prefix / "include")
                          for path in (self.prefix / "include").rglob("*.h"))
        (self.folder / "all.cpp").write_text("".join(f"#include <{name}>\n" for name in includes), encoding="utf-8")
        self.run_command("sh", "-c", '"${CXX:-g++}" -Wall -Wextra -Werror -fsyntax-only all.cpp '
                                     "$(pkg-config --cflags muster)")

    def test_the_program_of_the_readme_is_built_with_pkg_config_and_run(self):
        compile_it, run_it = snippet("sh", "pkg-config").splitlines()
        self.run_command("sh", "-c", compile_it)
        self.assert_is_pi(self.run_command("sh", "-c", run_it))
        needed = self.run_command("readelf", "--dynamic", "pi")
        libraries = set(re.findall(r"NEEDED.*\[(.*?)\.so", needed))
        self.assertLessEqual(libraries, {"libfmt", "libstdc++", "libgcc_s", "libm", "libc", "ld-linux-x86-64",
                                         "ld-linux-aarch64"})

    def test_programs_are_built_with_cmake_and_run(self):
        project = self.folder / "project"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(
            snippet=snippet("cmake", "find_package").replace(" pi.cpp", f' "{self.folder}/pi.cpp"'),
            examples=EXAMPLES, root=ROOT), encoding="utf-8")
        self.run_command("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                         "-DCMAKE_BUILD_TYPE=Release")
        self.run_command("cmake", "--build", project / "build", "--parallel", "2")
        run = ("muster", "run", "--nproc-per-node=4")
        self.assert_is_pi(self.run_command(*run, project / "build/pi"))
        trained = self.run_command(*run, project / "build/parameter_server")
        self.assertEqual(trained.count("as in one process"), 4, trained)
        # It tells its agent that it is alive, and the recorder says why it failed.
        self.run_command(*run, project / "build/worker", "--steps", "2", "--pause", "0")

    def test_completions_are_those_of_the_program(self):
        for shell, path in (("bash", "share/bash-completion/completions/muster"),
                            ("zsh", "share/zsh/site-functions/_muster")):
            self.assertEqual((self.prefix / path).read_text(encoding="utf-8"),
                             self.run_command("muster", "completion", shell))


if __name__ == "__main__":
    unittest.main()
