"""docs/exir.md: what ExecuTorch's modules define is here, under the same names and arguments, or listed as not here."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import hatch_lower.exir

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "exir.md").read_text()
LISTED = PAGE.split("\n## ")[1].split("\nBeside ExecuTorch's names")[0]
ABSENT = set(re.findall(r"`(exir\.[\w.]+)`", LISTED))
NEW = set(re.findall(r"`(exir\.[\w.]+)`", LISTED.split("| ExecuTorch 1.5 |")[1]))
"""What ExecuTorch 1.4 does not have either."""
MODULES = {module.name for module in pkgutil.walk_packages(hatch_lower.exir.__path__, "hatch_lower.exir.")}
FREE_FORM = {
    "ExecutorchBackendConfig": "takes any option",
    "EdgeOpOverload": "made from torch's overload",
    "EdgeOpOverloadPacket": "made from torch's packet",
    "BackendOpOverload": "made from torch's overload",
    "BackendOpOverloadPacket": "made from torch's packet",
    "_DialectNamespace": "made by `ops`",
    "_OpNamespace": "made by `ops`",
}
"""What has other arguments here, and why."""


def executorch_modules() -> dict[str, Path]:
    """Return the modules of ExecuTorch's `exir` but tests, by the name that they would have here; none is imported."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        return {}
    root = Path(spec.submodule_search_locations[0]) / "exir"
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not {"test", "tests", "generated"} & set(parts):
            found[".".join(("hatch_lower", "exir", *parts)).removesuffix(".__init__")] = path
    return found


EXECUTORCH = executorch_modules()
HAS_NEW = "hatch_lower.exir.native" in EXECUTORCH
needs_executorch = pytest.mark.skipif(not EXECUTORCH, reason="executorch is not installed")


def is_absent(name: str) -> bool:
    """Return whether the page lists a name as not here, itself or the module that it is in."""
    parts = name.removeprefix("hatch_lower.").split(".")
    return any(".".join(parts[:end]) in ABSENT for end in range(2, len(parts) + 1))


def definitions(module: str) -> Iterator[tuple[str, ast.FunctionDef | None]]:
    """Yield the public names of a module of ExecuTorch, those of its classes' methods too, and the functions' text."""
    for node in ast.parse(EXECUTORCH[module].read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node if isinstance(node, ast.FunctionDef) else None
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef) and (inner.name == "__init__" or not inner.name.startswith("_")):
                    yield f"{node.name}.{inner.name}", inner


def here(module: str, name: str) -> Any:
    return reduce(getattr, name.split("."), importlib.import_module(module))


SHARED = [
    (module, name, text)
    for module in sorted(MODULES & EXECUTORCH.keys())
    for name, text in definitions(module)
    if not is_absent(f"{module}.{name}") and not (name.endswith("__init__") and name.split(".")[0] in FREE_FORM)
]


@needs_executorch
def test_the_modules_that_are_not_here_are_listed() -> None:
    assert [name for name in EXECUTORCH if name not in MODULES | {"hatch_lower.exir"} and not is_absent(name)] == []


@needs_executorch
def test_definitions_are_here_with_their_arguments() -> None:
    offenders = {}
    for module, name, text in SHARED:
        try:
            value = here(module, name)
        except AttributeError:
            offenders[f"{module}.{name}"] = "is not here"
            continue
        if text is None or not callable(value):
            continue
        every = (*text.args.args, *text.args.kwonlyargs)
        wanted = [argument.arg for argument in every if argument.arg not in ("self", "cls")]
        own = [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]
        if own[: len(wanted)] != wanted:
            offenders[f"{module}.{name}"] = f"takes {own}, and there {wanted}"
    assert offenders == {}


@needs_executorch
@pytest.mark.parametrize(
    "name", sorted(ABSENT - {"exir.passes"} - (set() if HAS_NEW else NEW))
)  # two of these are here
def test_what_is_listed_as_not_here_is_executorch_s_and_not_here(name: str) -> None:
    full = f"hatch_lower.{name}"
    owner = max((module for module in EXECUTORCH if full.startswith(f"{module}.")), key=len)
    assert any(f"{module}.".startswith(f"{full}.") for module in EXECUTORCH) or full.removeprefix(f"{owner}.") in {
        definition for definition, _ in definitions(owner)
    }
    assert full not in MODULES
    if owner in MODULES:
        with pytest.raises(AttributeError):
            here(owner, full.removeprefix(f"{owner}."))


@pytest.mark.parametrize(
    "name",
    [
        "exir.ExportedProgram",
        "exir.to_edge",
        "exir.program._program._transform",
        "exir.program._program._get_updated_graph_signature",
        "exir.program._program.lift_constant_tensor_pass",
        "exir.backend.backend_api.LoweredBackendModule",
        "exir.backend.backend_details.CompileSpec",
        "exir.backend.backend_details.ExportedProgram",
        "exir.graph_module._get_submodule",
        "exir.dialects._ops._BACKEND_OP_LIB",
        "exir.delegate.executorch_call_delegate",
        "exir.pass_base.PassResult",
        "exir.pass_base.ProxyValue",
    ],
)
def test_a_name_that_backends_import_is_here(name: str) -> None:
    module, _, attribute = f"hatch_lower.{name}".rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)
