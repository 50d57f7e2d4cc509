"""The rooms, checked from the imports: a module imports from its own room and from the rooms below it only."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hatch_lower"

PAGE = PACKAGE.parent / "docs" / "architecture.md"


def read_layers(page: str) -> tuple[set[str], ...]:
    """Return the rooms of each floor, the lowest first, from the block `text floors` of the architecture page."""
    (block,) = re.findall(r"```text floors\n(.*?)```", page, re.DOTALL)
    rows = [line.split() for line in reversed(block.splitlines())]
    assert [number for number, *_ in rows] == [str(number) for number in range(1, len(rows) + 1)]
    return tuple(set(rooms) for _, *rooms in rows)


LAYERS = read_layers(PAGE.read_text())
LAYER = {name: height for height, names in enumerate(LAYERS) for name in names}
WORDS = LAYERS[0]
"""Modules that every room uses; they may use each other."""
# the run half of a shipped backend is loaded in the installed wheel: it stands on the runtime alone
RUN_HALF_MAY_IMPORT = {"errors", "canonical", "format", "runtime"}
LONGEST_CHAIN = 18  # modules of which each imports the next
SHARED_NAMES = 40  # names of interfaces, such as `load_timed` of each engine, may stand in several modules
NO_TORCH = WORDS | {"config", "format", "cache", "driver", "hatch", "cli"}


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
    if module == "hatch_lower.__main__":  # the command by another name
        return "cli"
    return f"{module}.".split(".")[1]


@cache
def imported(module: str, *, lazy: bool) -> frozenset[str]:
    return frozenset(imports_of(ast.parse(MODULES[module].read_text()), lazy=lazy))


def own_imports(module: str, *, lazy: bool) -> list[str]:
    names = imported(module, lazy=lazy) - {module}
    return sorted(name for name in names if name.split(".")[0] == "hatch_lower")


def outer_imports(module: str, *, lazy: bool) -> set[str]:
    return {name.split(".")[0] for name in imported(module, lazy=lazy)}


def test_every_module_has_a_layer() -> None:
    assert {part(module) for module in MODULES} - {""} == set(LAYER)


def test_the_architecture_page_describes_every_room() -> None:
    described = set(re.findall(r"^\| `(\w+)/` \|", PAGE.read_text(), re.MULTILINE))
    assert described == set(LAYER) - WORDS


def test_the_architecture_page_names_files_that_are_there() -> None:
    names = re.findall(r"`([\w/]+(?:/|\.py|\.md|\.toml))`", PAGE.read_text())
    assert len(names) > 30
    assert [name for name in names if not any((root / name).exists() for root in (PACKAGE, PACKAGE.parent))] == []


def may_import(here: str, there: str) -> bool:
    """Return whether modules of one room may import modules of another one."""
    neighbours = here == there or {here, there} <= WORDS
    return not there or LAYER[there] < LAYER[here] or (LAYER[there] == LAYER[here] and neighbours)


def test_modules_import_from_lower_layers() -> None:
    pairs = [(module, name) for module in MODULES.keys() - {"hatch_lower"} for name in own_imports(module, lazy=True)]
    assert len(pairs) > 1000
    offenders = sorted(f"{a} imports {b}" for a, b in pairs if not may_import(part(a), part(b)))
    assert offenders == []


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {module: set(own_imports(module, lazy=True)) for module in MODULES if module != "hatch_lower"}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_longest_chain_of_imports_is_readable() -> None:
    graph = {module: own_imports(module, lazy=False) for module in MODULES}
    chains: dict[str, list[str]] = {}
    for module in graphlib.TopologicalSorter(graph).static_order():
        below = max((chains[name] for name in graph.get(module, ()) if name in chains), key=len, default=[])
        chains[module] = [module, *below]
    longest = max(chains.values(), key=len)
    assert 10 < len(longest) <= LONGEST_CHAIN, longest


def test_few_names_are_defined_in_several_modules() -> None:
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert len(places) > 3000
    shared = sorted(f"{name}: {', '.join(modules)}" for name, modules in places.items() if len(modules) > 1)
    assert len(shared) <= SHARED_NAMES, shared


@pytest.mark.parametrize(("outer", "owner"), [("hatchling", "hatch"), ("click", "cli")])
def test_one_owner_for_each_host(outer: str, owner: str) -> None:
    importers = {part(module) for module in MODULES if outer in outer_imports(module, lazy=True)}
    assert importers == {owner}


def test_torch_is_not_imported_where_a_build_must_be_light() -> None:
    light = [name for name in MODULES if part(name) in NO_TORCH]
    private = "hatch_lower.runtime.torch_private."
    behind = {
        (module, name) for module in light for name in own_imports(module, lazy=False) if name.startswith(private)
    }
    pairs = behind | {(module, module) for module in light}
    assert len(pairs) > 150
    offenders = sorted(f"{a}: {b}" for a, b in pairs if "torch" in outer_imports(b, lazy=False))
    assert offenders == []


def test_run_halves_stand_on_the_runtime() -> None:
    call, library = "hatch_lower.backends.call_map", "hatch_lower.backends.native_library"
    shared = {call: (), library: (call,)}
    halves = [name for name in MODULES if name in shared or name.endswith(".run")]
    assert len(halves) > 5
    offenders = []
    for module in halves:
        engine = f"{module.rpartition('.')[0]}."
        allowed = shared.get(module, (*shared, engine))
        own = [name for name in own_imports(module, lazy=True) if not name.startswith(allowed)]
        offenders += [f"{module} imports {name}" for name in own if part(name) not in RUN_HALF_MAY_IMPORT]
    assert offenders == []


@pytest.mark.parametrize("page", [PAGE, PACKAGE.parent / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_a_page_names_files_and_modules_that_are_there(page: Path) -> None:
    folders = f"hatch_lower|tests|tools|docs|benchmarks|{'|'.join(sorted(LAYER.keys() - WORDS))}"
    named = set(re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text()))
    modules = set(re.findall(r"python -m (hatch_lower[\w.]*)", page.read_text()))
    assert named
    assert [
        name for name in sorted(named) if not any((root / name).exists() for root in (PACKAGE, PACKAGE.parent))
    ] == []
    assert modules <= MODULES.keys()
