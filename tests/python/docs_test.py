"""The Python snippets of docs/python.md and README.md, each run by two workers under `muster run`.

A snippet that calls init_rpc, or makes no calls, is a whole program. To any other a start and an
end are added; what it defines is there before the start, as the documentation tells programs to do
it. Words after ```python name the modules that a snippet needs.
"""

import ast
import importlib.util
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "run"))
import launch  # noqa: E402

PACKAGE = os.environ.get("PYTHONPATH") or str(ROOT / "build" / "python")
FENCE = re.compile(r"^```python([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
START = """
import os as _os
_rank = int(_os.environ["RANK"])
rpc.init_rpc(f"worker{_rank}", rank=_rank, world_size=2)
"""


def snippets(name):
    """(line, words behind the fence, text) of each that is about muster."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start()) + 2, match[1].split(), match[2])
            for match in FENCE.finditer(text) if "rpc." in match[2] or "muster" in match[2]]


def program(text):
    """The snippet as a program."""
    if "init_rpc(" in text or "rpc." not in text:
        return text
    tree = ast.parse(text)
    first = [node for node in tree.body if isinstance(node, DEFINITIONS)]
    rest = [node for node in tree.body if not isinstance(node, DEFINITIONS)]
    head, tail = (ast.unparse(ast.Module(nodes, [])) for nodes in (first, rest))
    return f"import muster.rpc as rpc\n{head}\n{START}\n{tail}\nrpc.shutdown()\n"


class Snippets(launch.Case):

    def test_no_snippet_is_overlooked(self):
        for name, fence_count in (("docs/python.md", 16), ("README.md", 1)):
            self.assertGreaterEqual(len(snippets(name)), fence_count, name)


def test_of(name, line, words, text):
    """A test that runs one snippet."""

    def run(self):
        missing = [word for word in words if importlib.util.find_spec(word) is None]
        if missing:
            self.skipTest(f"{name}:{line} needs {', '.join(missing)}")
        file = self.folder / "snippet.py"
        file.write_text(program(text), encoding="utf-8")
        self.launch("--nproc-per-node=2", file,
                    env={"PYTHONPATH": PACKAGE, "PYTHON_EXEC": sys.executable})

    return run


for document in ("README.md", "docs/python.md"):
    for snippet in snippets(document):
        method = f"test_{re.sub(r'[^a-z]', '_', document.lower())}_line_{snippet[0]}_works"
        setattr(Snippets, method, test_of(document, *snippet))


if __name__ == "__main__":
    launch.main()
