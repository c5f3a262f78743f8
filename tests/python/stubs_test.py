"""What checkers of types and readers get: hints, stubs and docstrings.

python/muster/_native.pyi says what the native module has: no more, no less, and with which names
of arguments. The public functions that are written in Python say it themselves.
"""

import ast
import importlib
import inspect
import pathlib
import re
import unittest

import muster
import muster._native as native

PACKAGE = pathlib.Path(muster.__file__).parent

# What pybind11 and the language put into classes, or what a stub writes in another way.
NOT_SAID = {
    "__dict__", "__doc__", "__init__", "__module__", "__repr__", "__weakref__", "__enter__",
    "__exit__", "_pybind11_conduit_v1_",
}
# A buffer has methods at run time only from Python 3.12 on.
OF_BUFFERS = {"__buffer__", "__release_buffer__"}


def stub():
    return ast.parse((PACKAGE / "_native.pyi").read_text(encoding="utf-8"))


def definitions(node):
    """Functions, classes and attributes by name, without what is private to the stub."""
    found = {}
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[child.name] = child
        elif isinstance(child, ast.AnnAssign):
            found[child.target.id] = child
    return found


def argument_names(function):
    """Of those that can be given by name."""
    arguments = function.args
    return [one.arg for one in [*arguments.args, *arguments.kwonlyargs] if one.arg != "self"]


def bound_names(value):
    """The names of the arguments in the signature that pybind11 writes; None if it writes none."""
    first = (value.__doc__ or "").strip().partition("\n")[0]
    match = re.fullmatch(r"\w+\((.*)\) -> .*", first)
    if match is None or "*args" in first or "**kwargs" in first:
        return None
    names = re.findall(r"(?:^|, )(\w+): ", match[1])
    return [name for name in names if name != "self" and not re.fullmatch(r"arg\d+", name)]


class Stubs(unittest.TestCase):

    def test_the_package_says_that_it_has_types(self):
        self.assertTrue((PACKAGE / "py.typed").exists())

    def test_it_has_what_the_module_has(self):
        there = {name for name in dir(native) if not name.startswith("__")}
        self.assertEqual(set(definitions(stub())), there)

    def test_classes_have_the_members_that_they_have(self):
        for name, node in definitions(stub()).items():
            kind = getattr(native, name)
            if not isinstance(kind, type) or issubclass(kind, BaseException):
                continue
            with self.subTest(name):
                said = set(definitions(node)) - OF_BUFFERS - NOT_SAID
                self.assertEqual(said, set(vars(kind)) - OF_BUFFERS - NOT_SAID)

    def test_arguments_have_the_names_that_they_have(self):
        def compare(value, node, name):
            bound = bound_names(value)
            if isinstance(node, ast.FunctionDef) and bound is not None:
                with self.subTest(name):
                    self.assertEqual(argument_names(node), bound)

        for name, node in definitions(stub()).items():
            compare(getattr(native, name), node, name)
            if isinstance(node, ast.ClassDef):
                for member, child in definitions(node).items():
                    if member not in OF_BUFFERS:
                        compare(getattr(getattr(native, name), member), child, f"{name}.{member}")


PUBLIC = ("muster.rpc", "muster.rpc.functions", "muster.rpc.backend_registry", "muster.rpc.options",
          "muster.futures")


def public_functions():
    """(name, value) of all that programs may call, methods included, unless it is native."""
    for module in map(importlib.import_module, PUBLIC):
        names = getattr(module, "__all__", None) or vars(module)
        for name in names:
            value = getattr(module, name)
            owner = getattr(value, "__module__", "") or ""
            if name.startswith("_") or not owner.startswith("muster.") or owner == native.__name__:
                continue
            if inspect.isclass(value):
                yield f"{module.__name__}.{name}", value
                for member, function in vars(value).items():
                    if isinstance(function, property):
                        function = function.fget
                    is_public = not member.startswith("_") or member == "__init__"
                    if is_public and inspect.isfunction(function):
                        yield f"{module.__name__}.{name}.{member}", function
            elif inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value


class Hints(unittest.TestCase):

    def test_public_functions_have_hints_and_docstrings(self):
        found = dict(public_functions())
        for expected in ("rpc.rpc_sync", "rpc.RRef.to_here", "futures.wait_all"):
            self.assertIn(f"muster.{expected}", found)
        for name, value in found.items():
            with self.subTest(name):
                if not name.endswith(".__init__"):
                    self.assertTrue(value.__doc__, "no docstring")
                if inspect.isclass(value):
                    continue
                signature = inspect.signature(value)
                bare = [one.name for one in signature.parameters.values()
                        if one.name != "self" and one.annotation is one.empty]
                self.assertEqual(bare, [])
                if not name.endswith(".__init__"):
                    self.assertIsNot(signature.return_annotation, signature.empty)


if __name__ == "__main__":
    unittest.main()
