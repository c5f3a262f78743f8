"""Shows that every rule of tools/lint fires, and that it stays silent on what is allowed."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def load_lint():
    loader = importlib.machinery.SourceFileLoader("muster_lint", str(ROOT / "tools" / "lint"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("muster_lint", loader))
    sys.modules["muster_lint"] = module
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


lint = load_lint()


class LintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("tools/library_map.txt", (ROOT / "tools/library_map.txt").read_text())

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def lines(self, check):
        return sorted({(finding.path, finding.line) for finding in check(self.root)})


class IncludeMap(LintTest):
    def found(self, name, *headers):
        self.write(name, "".join(f'#include "muster/{header}"\n' for header in headers))
        return [headers[line - 1] for path, line in self.lines(lint.check_include_map)
                if path == name]

    def test_refuses_an_include_that_points_up(self):
        self.assertEqual(self.found("muster/base/a.h", "base/b.h", "wire/c.h"), ["wire/c.h"])

    def test_refuses_a_neighbour_that_is_not_in_the_map(self):
        self.assertEqual(self.found("muster/agent/a.cpp", "rpc/peer.h", "store/table.h"),
                         ["rpc/peer.h"])

    def test_allows_single_headers_and_nothing_else_of_that_library(self):
        self.assertEqual(self.found("muster/rendezvous/a.cpp", "store/store.h", "store/table.h"),
                         ["store/table.h"])

    def test_lets_only_tests_and_benchmarks_use_sim(self):
        self.assertEqual(self.found("muster/store/a.cpp", "sim/clock.h"), ["sim/clock.h"])
        self.assertEqual(self.found("examples/a.cpp", "sim/clock.h"), ["sim/clock.h"])
        self.assertEqual(self.found("muster/store/a_test.cpp", "sim/clock.h"), [])
        self.assertEqual(self.found("muster/sim/a.cpp", "sim/clock.h", "store/store.h"), [])
        self.assertEqual(self.found("tests/sim/a.cpp", "sim/clock.h", "agent/supervisor.h"), [])
        self.assertEqual(self.found("bench/a.cpp", "sim/clock.h"), [])

    def test_refuses_a_library_that_is_not_in_the_map(self):
        self.assertEqual(self.found("muster/extra/a.cpp", "base/b.h"), ["base/b.h"])

    def test_refuses_umbrella_headers_inside_libraries(self):
        self.assertEqual(self.found("muster/rpc/a.cpp", "rpc.h"), ["rpc.h"])
        self.assertEqual(self.found("muster/rpc.h", "rpc/peer.h"), [])

    def test_stays_silent_where_a_comment_gives_the_reason(self):
        self.write("muster/base/a.h",
                   '#include "muster/wire/c.h"  // lint: allow include-map: moving\n')
        self.assertEqual(self.lines(lint.check_include_map), [])


class CoAwait(LintTest):
    def check_snippet(self, snippet, name):
        text = (HERE / "bad" / snippet).read_text()
        self.write(name, text)
        expected = [(name, number) for number, line in enumerate(text.splitlines(), 1)
                    if line.endswith("// bad")]
        self.assertEqual(self.lines(lint.check_co_await), expected)

    def test_finds_each_temporary_and_nothing_else(self):
        self.check_snippet("co_await.cpp", "muster/store/a.cpp")

    def test_finds_defaulted_parameters_and_capturing_lambdas(self):
        self.check_snippet("coroutines.h", "muster/store/a.h")


class Format(LintTest):
    def test_finds_a_file_that_clang_format_would_change(self):
        if not shutil.which("clang-format-14"):
            with self.assertRaises(lint.Skip):
                lint.check_format(self.root)
            return
        self.write(".clang-format", (ROOT / ".clang-format").read_text())
        self.write("muster/base/good.cpp", "int* f(int* x) { return x; }\n")
        self.write("muster/base/bad.cpp", "int *f(int *x) { return x; }\n")
        self.assertEqual(self.lines(lint.check_format), [("muster/base/bad.cpp", 1)])


class Headers(LintTest):
    def test_finds_a_header_that_needs_another_first(self):
        self.write("muster/base/good.h", "#pragma once\n#include <string>\nstd::string f();\n")
        self.write("muster/base/bad.h", "#pragma once\nstd::string g();\n")
        self.assertEqual(self.lines(lint.check_headers), [("muster/base/bad.h", 1)])

    def test_looks_again_when_an_included_header_changes(self):
        self.write("muster/base/inner.h", "#pragma once\n#include <string>\n")
        self.write("muster/base/outer.h",
                   '#pragma once\n#include "muster/base/inner.h"\nstd::string f();\n')
        self.assertEqual(self.lines(lint.check_headers), [])
        self.write("muster/base/inner.h", "#pragma once\n")
        self.assertEqual(self.lines(lint.check_headers), [("muster/base/outer.h", 1)])


class Text(LintTest):
    def test_finds_paths_of_one_machine(self):
        for folder in ("wo" "rk", "ro" "ot", "ho" "me"):
            self.write("notes.md", f"fine\nsee /{folder}/someone\n"
                       f"https://a.example/{folder}/x ${{x}}/{folder}/\n")
            self.assertEqual(self.lines(lint.check_text), [("notes.md", 2)])

    def test_finds_a_todo_without_a_condition(self):
        name = "muster/base/a.cpp"
        self.write(name, "// TODO: later\n// TODO(when leases exist): drop it\n// FIXME\n")
        self.assertEqual(self.lines(lint.check_text), [(name, 1), (name, 3)])

    def test_finds_a_header_without_pragma_once(self):
        self.write("muster/base/good.h", "// What it is.\n#pragma once\n")
        self.write("muster/base/bad.h", "int f();\n")
        self.assertEqual(self.lines(lint.check_text), [("muster/base/bad.h", 1)])


class Program(LintTest):
    def test_exits_with_an_error_only_when_there_are_findings(self):
        (self.root / "tools").mkdir(exist_ok=True)
        shutil.copy(ROOT / "tools/lint", self.root / "tools/lint")
        run = [sys.executable, "tools/lint", "text", "include-map"]
        environment = dict(os.environ, GIT_CEILING_DIRECTORIES=str(self.root.parent))
        good = subprocess.run(run, cwd=self.root, env=environment, capture_output=True, text=True)
        self.assertEqual((good.returncode, good.stdout), (0, "ok text\nok include-map\n"),
                         good.stderr)
        self.write("muster/base/a.h", '#pragma once\n#include "muster/net/b.h"\n')
        bad = subprocess.run(run, cwd=self.root, env=environment, capture_output=True, text=True)
        self.assertEqual(bad.returncode, 1)
        self.assertIn("muster/base/a.h:2: base may not use net/b.h\nFAILED include-map", bad.stdout)


if __name__ == "__main__":
    unittest.main()
