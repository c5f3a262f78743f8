"""What must not compile does not, with a text that says why, and what stands beside it does.

Environment:
  CXX   the compiler; g++ without it
"""

import concurrent.futures
import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(__file__).resolve().parent / "refused"
MARK = "// refused"


def compile_text(text):
    """Whether it compiles, and what the compiler says."""
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", f"-I{ROOT}", "-xc++", "-"]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace")
    return done.returncode == 0, done.stdout


class Refused(unittest.TestCase):
    def test_views_are_refused_where_they_would_outlive_what_they_point_into(self):
        lines = (FOLDER / "views.cpp").read_text().splitlines()
        marked = [number for number, line in enumerate(lines) if line.endswith(MARK)]
        # All that is not marked, and what is marked one by one.
        texts = ["\n".join(line for number, line in enumerate(lines)
                           if number == kept or not line.endswith(MARK))
                 for kept in (None, *marked)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            (is_good, said), *refused = pool.map(compile_text, texts)
        self.assertTrue(is_good, said)
        self.assertTrue(refused)
        for number, (compiles, said) in zip(marked, refused):
            with self.subTest(lines[number]):
                self.assertFalse(compiles)
                self.assertIn("would outlive what it points into", said)


if __name__ == "__main__":
    unittest.main()
