"""Which tests of PyTorch's RPC suites ask for something that Muster has.

A test is *not applicable* only if it is about something outside the scope of `muster.rpc`. Every rule
here carries the reason that the report gives. Rules look at what a test's source mentions, with
everything that it calls in its own file, so they hold for versions of PyTorch that nobody has read;
nothing here looks at whether a test passes.
"""

import ast
import re
from dataclasses import dataclass, field

SUITES_PACKAGE = "torch.testing._internal.distributed"


@dataclass(frozen=True)
class Suite:
    """One name for `--suite`: test classes of PyTorch, and the backend they run on."""

    module: str
    classes: tuple
    backend: str = "tensorpipe"  # or "faulty": which of PyTorch's two fixtures the classes are combined with


SUITES = {
    "faulty": Suite("rpc.faulty_agent_rpc_test", ("FaultyAgentRpcTest",), "faulty"),
    "rpc": Suite("rpc.rpc_test", ("RpcTest",)),
    "tensorpipe": Suite("rpc.rpc_test", ("TensorPipeAgentRpcTest",)),
    "cuda": Suite("rpc.rpc_test", ("CudaRpcTest", "TensorPipeAgentCudaRpcTest")),
    "parameter_server": Suite("rpc.examples.parameter_server_test", ("ParameterServerTest",)),
    "reinforcement_learning": Suite(
        "rpc.examples.reinforcement_learning_rpc_test", ("ReinforcementLearningRpcTest",)),
}

AUTOGRAD = "distributed autograd is out of scope"
PROFILER = "it looks at the calls through PyTorch's profiler, which is out of scope"
CUDA = "it needs a GPU; handing CUDA streams over is out of scope"
TORCHSCRIPT = "remote references and calls inside TorchScript are out of scope"

# Suites that PyTorch has for RPC and that are about nothing else than what is out of scope. They are
# counted in the report, from their sources, and not loaded.
OUT_OF_SCOPE = {
    "rpc.dist_autograd_test": AUTOGRAD,
    "rpc.dist_optimizer_test": "the distributed optimizer is out of scope (it is made of distributed autograd)",
    "rpc.jit.rpc_test": TORCHSCRIPT,
    "rpc.jit.rpc_test_faulty": TORCHSCRIPT,
    "rpc.jit.dist_autograd_test": AUTOGRAD,
    "nn.api.remote_module_test": "RemoteModule is out of scope",
    "ddp_under_dist_autograd_test": AUTOGRAD,
}

# What a test's source mentions, as dotted names -> the reason why it is not applicable.
MENTIONS = (
    # `_get_debug_info` is left in: a program that asks for debug information gets those keys, too.
    (re.compile(r"dist_autograd\.(?!_get_debug_info$).+"), AUTOGRAD),
    (re.compile(r"_profile|(torch\.)?(autograd\.)?profiler(_legacy)?\..+|torch\.profiler\..+"
                r"|rpc\._server_process_global_profile|_build_rpc_profiling_key"), PROFILER),
)
DECORATORS = (
    (re.compile(r"skip_if_lt_x_gpu|skip_if_no_gpu"), CUDA),
)


def dotted(node):
    """`a.b.c` for the expression that says so; None for any other."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join(reversed([*parts, node.id]))


@dataclass
class Function:
    """What one function of a file mentions: dotted names in its body, names in its decorators."""

    mentions: set = field(default_factory=set)
    decorators: set = field(default_factory=set)


def read_function(definition):
    function = Function()
    for decorator in definition.decorator_list:
        for node in ast.walk(decorator):
            function.decorators.add(dotted(node))
    for statement in definition.body:
        for node in ast.walk(statement):
            function.mentions.add(dotted(node))
    function.mentions.discard(None)
    function.decorators.discard(None)
    return function


class Source:
    """The functions and classes of one file, by name, from its text alone."""

    def __init__(self, text):
        self.functions = {}  # name -> Function
        self.classes = {}  # name -> ({method: Function}, [names of bases])
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions[node.name] = read_function(node)
            elif isinstance(node, ast.ClassDef):
                methods = {entry.name: read_function(entry) for entry in node.body
                           if isinstance(entry, (ast.FunctionDef, ast.AsyncFunctionDef))}
                self.classes[node.name] = (methods, [dotted(base) for base in node.bases])

    def method(self, class_name, name):
        """The method `name` as `class_name` has or inherits it within this file; None if it does not."""
        methods, bases = self.classes.get(class_name, ({}, []))
        if name in methods:
            return methods[name]
        found = (self.method(base, name) for base in bases)
        return next((method for method in found if method), None)

    def tests(self, class_name):
        """The names of the test methods of a class, inherited ones too, in the order of the file."""
        methods, bases = self.classes.get(class_name, ({}, []))
        inherited = [name for base in bases for name in self.tests(base)]
        own = [name for name in methods if name.startswith("test") and name not in inherited]
        return inherited + own

    def test_classes(self):
        """The classes that a runner would run: those with tests that no other class here extends."""
        extended = {base for _, bases in self.classes.values() for base in bases}
        return [name for name in self.classes if self.tests(name) and name not in extended]

    def reached(self, class_name, test):
        """Everything that a test runs in this file: itself, the methods and the functions it names."""
        seen, waiting = {}, [("self." + test, self.method(class_name, test))]
        while waiting:
            name, function = waiting.pop()
            if function is None or name in seen:
                continue
            seen[name] = function
            for mention in function.mentions:
                head, _, rest = mention.partition(".")
                if rest and head in ("self", class_name):
                    method = rest.split(".")[0]
                    waiting.append(("self." + method, self.method(class_name, method)))
                else:
                    waiting.append((head, self.functions.get(head)))
        return list(seen.values())


def reason_not_applicable(source, class_name, test):
    """Why a test is out of scope, or None."""
    reached = source.reached(class_name, test)
    for pattern, reason in DECORATORS:
        if any(pattern.fullmatch(name) for function in reached for name in function.decorators):
            return reason
    for pattern, reason in MENTIONS:
        if any(pattern.fullmatch(name) for function in reached for name in function.mentions):
            return reason
    return None
