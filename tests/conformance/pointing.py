"""Makes `torch.distributed.rpc` mean `muster.rpc`, in this process and in those forked from it.

PyTorch's suites say `import torch.distributed.rpc as rpc`. Before they are loaded, that name and those
of all its submodules are given to Muster's modules, so the suites' files stay as PyTorch ships them.
"""

import importlib.abc
import importlib.util
import sys
import types
import unittest

REFERENCE = "torch.distributed.rpc"
OURS = "muster.rpc"


def provide_expecttest():
    """PyTorch's test helpers take their base class from `expecttest`, which is seldom installed.

    None of the RPC suites compares with expected output, so the standard base class does.
    """
    try:
        import expecttest  # noqa: F401
        return False
    except ImportError:
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase
        module.ACCEPT = False
        sys.modules["expecttest"] = module
        return True


class Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `torch.distributed.rpc.x` by importing `muster.rpc.x`.

    Only when it is asked for: a backend's module registers the backend by being imported.
    """

    def find_spec(self, fullname, path=None, target=None):
        ours = OURS + fullname[len(REFERENCE):]
        if not fullname.startswith(REFERENCE + ".") or importlib.util.find_spec(ours) is None:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec):
        module = importlib.import_module(OURS + spec.name[len(REFERENCE):])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        # It has been executed under its own name; the machinery has only given it the other's spec.
        module.__spec__ = module.__spec__.loader_state


def refuse(*_arguments, **_keywords):
    raise AssertionError("a test meant for muster.rpc reached PyTorch's own RPC")


def point_at_muster():
    """To be called once, after torch and before any of the suites is imported."""
    import torch
    ours, theirs = importlib.import_module(OURS), importlib.import_module(REFERENCE)
    for name in ("init_rpc", "_init_rpc_backend", "rpc_sync", "rpc_async", "remote"):
        setattr(theirs, name, refuse)
    for name in [name for name in sys.modules if name.startswith(REFERENCE + ".")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Alias())
    sys.modules[REFERENCE] = torch.distributed.rpc = ours


def assert_pointed(modules):
    """Raises if one of the suites' modules has got hold of something of PyTorch's RPC."""
    for module in modules:
        for name, value in vars(module).items():
            home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            if isinstance(home, str) and home.startswith((REFERENCE, "torch._C._distributed_rpc")):
                raise AssertionError(f"{module.__name__}.{name} is PyTorch's own: {value!r}")
