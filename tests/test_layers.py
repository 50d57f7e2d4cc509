"""The layers of DESIGN, checked from the imports: a module imports from lower layers and its own package only."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "hatch_lower"

LAYERS = (
    {"abandoned", "errors", "digest", "events"},
    {"config", "config_card", "config_table", "config_schema"}
    | {"debug", "environment", "format", "model", "surroundings"},
    {"requirements", "results"},
    {"provenance", "runtime", "cache", "records", "recording"},
    {"graph", "explain"},
    {"backend", "edge"},
    {"lowering"},
    {"export", "program"},
    {
        "assets",
        "audit",
        "backends",
        "build",
        "children",
        "endings",
        "exporting",
        "fresh",
        "guarded",
        "pipeline",
        "recapture",
        "reports",
        "reuse",
    }
    | {"saving", "strict", "suspects", "unchanged", "verifying", "watching", "worker"},
    {"hatch", "testing"},
    {"comparing", "rebuilding"},
    {"cli"},
)
LAYER = {name: height for height, names in enumerate(LAYERS) for name in names}
# modules of one layer that are no folders may use each other, without circles; folders of one layer may not
SINGLE_MODULES = {
    "config",
    "config_card",
    "config_table",
    "config_schema",
    "model",
    "build",
    "children",
    "pipeline",
    "worker",
}
SINGLE_MODULES |= {
    "assets",
    "audit",
    "endings",
    "exporting",
    "fresh",
    "guarded",
    "recapture",
    "reports",
    "reuse",
    "strict",
    "suspects",
    "unchanged",
    "verifying",
    "watching",
}
# the run half of a shipped backend is loaded in the installed wheel: it stands on the runtime alone
RUN_HALF_MAY_IMPORT = {"errors", "digest", "format", "runtime"}
NO_TORCH = {
    "abandoned",
    "assets",
    "errors",
    "digest",
    "events",
    "config",
    "config_card",
    "config_table",
    "config_schema",
    "debug",
}
NO_TORCH |= {"environment", "format", "model", "surroundings", "cache", "records", "recording", "explain"}
NO_TORCH |= {
    "audit",
    "build",
    "children",
    "endings",
    "exporting",
    "hatch",
    "cli",
    "reports",
    "requirements",
    "results",
    "suspects",
    "unchanged",
}
NO_TORCH |= {"watching"}
NO_TORCH |= {"comparing", "provenance", "rebuilding"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(tree: ast.AST, *, lazy: bool) -> Iterator[str]:
    """Yield the modules that are imported; without `lazy` only those imported when the module itself is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        elif not is_type_checking(node):
            yield from imports_of(node, lazy=lazy)


def part(module: str) -> str:
    """Return the package's own part of a module's name: `runtime` of `hatch_lower.runtime.load`."""
    return f"{module}.".split(".")[1]


def own_imports(module: str, *, lazy: bool) -> list[str]:
    tree = ast.parse(MODULES[module].read_text())
    names = set(imports_of(tree, lazy=lazy)) - {module}
    return sorted(name for name in names if name.split(".")[0] == "hatch_lower")


def outer_imports(module: str, *, lazy: bool) -> set[str]:
    return {name.split(".")[0] for name in imports_of(ast.parse(MODULES[module].read_text()), lazy=lazy)}


def test_every_module_has_a_layer() -> None:
    assert {part(module) for module in MODULES} - {""} == set(LAYER)


@pytest.mark.parametrize("module", [name for name in MODULES if name != "hatch_lower"])
def test_a_module_imports_from_lower_layers(module: str) -> None:
    for name in own_imports(module, lazy=True):
        here, there = part(module), part(name)
        neighbours = here == there or {here, there} <= SINGLE_MODULES
        assert not there or LAYER[there] < LAYER[here] or (LAYER[there] == LAYER[here] and neighbours), (
            f"{module} (layer {LAYER[here]}) imports {name} (layer {LAYER[there]})"
        )


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {module: set(own_imports(module, lazy=True)) for module in MODULES if module != "hatch_lower"}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(("outer", "owner"), [("hatchling", "hatch"), ("click", "cli")])
def test_one_owner_for_each_host(outer: str, owner: str) -> None:
    importers = {part(module) for module in MODULES if outer in outer_imports(module, lazy=True)}
    assert importers == {owner}


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) in NO_TORCH or name.endswith(".api")])
def test_torch_is_not_imported_where_a_build_must_be_light(module: str) -> None:
    assert "torch" not in outer_imports(module, lazy=False)


@pytest.mark.parametrize("module", [name for name in MODULES if name.endswith(".run")])
def test_a_run_half_stands_on_the_runtime(module: str) -> None:
    own = {part(name) for name in own_imports(module, lazy=True) if not name.startswith(module.rpartition(".")[0])}
    assert own <= RUN_HALF_MAY_IMPORT
