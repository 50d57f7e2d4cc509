"""Data is never run: the package has no pickle, evaluates no data, and imports and loads code in few known places."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hatch_lower"
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

BUILTIN = ("eval", "exec", "compile", "__import__")
FORBIDDEN = (
    *(f"builtins.{name}" for name in BUILTIN),
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve", "yaml"),
    *("code", "codeop", "imp", "pty", "runpy", "types.FunctionType", "os.system", "os.popen"),
    *("torch.load", "torch.jit", "torch.hub", "torch.package", "torch.export.load", "torch.classes"),
    *("torch.ops.load_library", "torch._C._aoti", "numpy.load", "ctypes", "importlib.import_module"),
    *("jinja2", "sympy.sympify", "sympy.parse_expr", "sympy.parsing", "xml", "fsspec"),
    "pkgutil.resolve_name",
    *("importlib.util.module_from_spec", "importlib.util.spec_from_file_location"),
)
"""Whatever turns data into code, loads code, or interprets a text; a name stands for all that is in it."""

GENERATED = {"builtins.compile", "builtins.exec"}
IMPORTS, NAMED, LIBRARIES = {"importlib.import_module"}, {"pkgutil.resolve_name"}, {"ctypes"}
ALLOWED = {
    # a function made from the checked fields of a plan
    "runtime/executor.py": GENERATED,
    # the package's own names, the project's code, an eager model's, and classes of installed packages for outputs
    "__init__.py": IMPORTS,
    "exir/__init__.py": IMPORTS,
    "pipeline/discover.py": IMPORTS,
    "runtime/eager.py": IMPORTS,
    "runtime/classes.py": IMPORTS,
    # the modules that register operators: torch's own, and those that an installed wheel names
    "runtime/torch_operators.py": IMPORTS,
    "runtime/selection.py": IMPORTS,
    # our own modules of the two libraries of arrays
    "runtime/arrays.py": IMPORTS,
    "pipeline/fresh_process.py": IMPORTS,
    "pipeline/metric_process.py": IMPORTS,
    # the module of torch that registers operators of a namespace
    "exir/dialects/_ops.py": IMPORTS,
    # the executor that the settings name; what workers of Dask evaluate is a constant that imports our own module
    "driver/spread/executors/any.py": NAMED,
    "driver/spread/executors/dask.py": {"builtins.eval", *NAMED},
    # a URL that has been looked at, and whether a file system is one of folders
    "urls.py": {"fsspec"},
    "cache/remote/transport.py": {"fsspec"},
    # models that OpenVINO has written, or that begin as these do: without a document type, and so without entities
    "backends/openvino/convert.py": {"xml"},
    "backends/openvino/timed.py": {"xml"},
    # asks the C library to give back what was freed
    "backends/testing/memory.py": LIBRARIES,
    # whether the engine's libraries are there; the kit's own names, and the backend that its caller names
    "backends/onnxruntime/compile.py": IMPORTS,
    "backends/testing/__init__.py": IMPORTS,
    "backends/testing/determinism.py": IMPORTS,
    # the program of an installed wheel, its digest and the permissions of its place compared before
    "runtime/torch_private/inductor.py": {"torch._C._aoti"},
    # the kernels of a library that the same build has compiled, interpreted in a process of their own, and the messages
    # of this process
    "runtime/torch_private/kernel_interpreter.py": {*GENERATED, *LIBRARIES},
    "runtime/torch_private/handles.py": {*LIBRARIES, "torch._C._aoti"},
    "backends/cuda/interpreted.py": {*LIBRARIES, "torch.load"},
    # the text of an error, from a library that is open
    "runtime/torch_private/older.py": LIBRARIES,
    # the definitions of kernels that inductor has written in this process
    "runtime/torch_private/gpu_stand_ins.py": {"builtins.exec"},
    "runtime/torch_private/kernel_times.py": {"builtins.exec"},
    # what an installed run half names as the function that loads a blob to be timed
    "runtime/timing.py": IMPORTS,
    # libraries that are in the process already, and a tensor's memory
    "backends/aoti/openmp.py": LIBRARIES,
    "backends/aoti/timed.py": LIBRARIES,
    "exir/graph/tensors.py": LIBRARIES,
    "driver/inputs/audit.py": LIBRARIES,
    "driver/inputs/strict.py": LIBRARIES,
    "driver/inputs/preload.py": LIBRARIES,
    # watches how torch's modules search for a library
    "driver/inputs/stand_ins.py": LIBRARIES,
}
"""What may be where, and why."""


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for an attribute of a name, or nothing."""
    if isinstance(node, ast.Name):
        return node.id
    base = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if isinstance(node, ast.Attribute) and base else ""


def names_used(source: str) -> Iterator[str]:
    """Yield the full names of what a module imports, calls or passes on; a local name hides the builtin one."""
    tree = ast.parse(source)
    bound = {each: f"builtins.{each}" for each in BUILTIN}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    # a module whose name stands in the code is imported as any other
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call) and each.args)
    named = {id(each.func) for each in calls if isinstance(each.args[0], ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) in named and dotted(node) == "importlib.import_module":
            continue
        if isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = dotted(node).partition(".")
            if first in bound:
                yield f"{bound[first]}{dot}{rest}"


def forbidden_in(source: str) -> set[str]:
    """Return the names in a module that turn data into code, or load code."""
    used = set(names_used(source))
    return {name for name in FORBIDDEN if any(f"{each}.".startswith(f"{name}.") for each in used)}


def test_code_comes_from_data_nowhere_but_where_it_is_known() -> None:
    found = {module: forbidden_in((PACKAGE / module).read_text()) for module in MODULES}
    assert {module: names for module, names in found.items() if names} == ALLOWED


def test_every_exception_is_for_a_module_that_exists() -> None:
    assert set(ALLOWED) <= set(MODULES)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("eval('1')", {"builtins.eval"}),
        ("run = exec", {"builtins.exec"}),
        ("import builtins as b\nb.eval('1')", {"builtins.eval"}),
        ("import torch as t\nt.load('x')", {"torch.load"}),
        ("from torch import load as read", {"torch.load"}),
        ("def f():\n    from pickle import loads", {"pickle"}),
        ("import yaml.loader", {"yaml"}),
        ("import sympy\nsympy.sympify('1')", {"sympy.sympify"}),
        ("import torch.jit", {"torch.jit"}),
        ("import re\nre.compile('x')\nliteral_eval('1')", set()),
        ("model.eval()", set()),
        ("import importlib\nimportlib.import_module('a.b')", set()),
        ("import importlib\nimportlib.import_module(name)", {"importlib.import_module"}),
    ],
)
def test_what_this_test_finds(source: str, found: set[str]) -> None:
    assert forbidden_in(source) == found
