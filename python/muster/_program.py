"""The program `muster` of an installed package."""

from __future__ import annotations

import os
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "muster")
    # What Python programs are run with, whether or not the environment that this is in is active.
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(program, ["muster", *sys.argv[1:]])
