"""Note that hatch-lower's tests have passed with a torch: `python tools/torch_tried.py`, in the environment with it.

What hatch-lower uses of torch's private interfaces stands in `hatch_lower/runtime/torch_private/`. Its `tried.json` has
each name there with the minor versions of torch that it was tried with. A name that this torch lacks is an error,
unless the room looks for the name with `find_part`: the table then notes that the version was tried without the name.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hatch_lower.runtime.torch_private.unimported import ABSENT, numbers

PACKAGE = Path(__file__).parents[1] / "hatch_lower"
ROOM = PACKAGE / "runtime" / "torch_private"
TABLE = ROOM / "tried.json"
OLDER = "older.py"
LIBRARIES = ("torch", "torchgen")
OPERATORS = "torch.ops."  # their names are torch's public ones, in programs and in wheels
OWN = ("self.", "cls.", "aten.", "ops.edge.")  # what begins so is a module's own, or an operator


def is_private(name: str) -> bool:
    """Return whether a dotted name of torch is one that torch does not promise to keep."""
    head, *rest = name.split(".")
    if head not in LIBRARIES or name.startswith(OPERATORS):
        return False
    return head != "torch" or any(is_underscored(part) for part in rest)


def is_underscored(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_of(tree: ast.AST) -> dict[str, int]:
    """Return the private names of torch that a module uses, to a line: dotted ones, and `._x` of objects."""
    known = {local: full for local, full, _ in imported(tree) if full.split(".")[0] in LIBRARIES}
    found = {full: line for _, full, line in imported(tree) if is_private(full)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            chain = dotted(node, known)
            if chain is None:
                found |= {f".{name}": node.lineno for name in attributes(node) if is_underscored(name)}
            elif is_private(chain):
                found.setdefault(chain, node.lineno)
            elif not chain.startswith((*(f"{name}." for name in LIBRARIES), *OWN)):
                found |= {f".{name}": node.lineno for name in chain.split(".")[1:] if is_underscored(name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_dotted(node.value):
            found |= {node.value: node.lineno} if is_private(node.value) else {}
    # what a longer name begins with is said by that
    return {name: line for name, line in found.items() if not any(other.startswith(f"{name}.") for other in found)}


def imported(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name.split(".")[0], node.lineno
                yield "", alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (
                (alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno) for alias in node.names
            )


def dotted(node: ast.expr, known: Mapping[str, str]) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([known.get(node.id, node.id), *reversed(parts)]) if isinstance(node, ast.Name) else None


def attributes(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value


def is_dotted(text: str) -> bool:
    return re.fullmatch(r"[a-z]\w*(?:\.\w*[a-zA-Z]\w*)+", text) is not None


def used() -> list[str]:
    paths = (path for path in ROOM.glob("*.py") if path.name != OLDER)
    return sorted({name for path in paths for name in names_of(ast.parse(path.read_text()))})


def used_with_older() -> list[str]:
    """Return the names that are used with versions before 2.13 only; the table leaves these names out."""
    return sorted(names_of(ast.parse((ROOM / OLDER).read_text())))


def looked_for() -> set[str]:
    """Return the names that only some versions of torch have: the arguments of `find_part`."""
    calls = (node for path in ROOM.glob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return {
        str(argument.value)
        for node in calls
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "find_part"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }


def is_there(name: str) -> bool:
    """Return whether torch as installed has what a dotted name says; attributes of objects are not looked for."""
    if name.startswith("."):
        return True
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def main() -> None:
    import torch

    absent = {name for name in used() if not is_there(name)}
    missing = sorted(absent - looked_for())
    if missing:
        sys.exit(f"torch {torch.__version__} has no {', '.join(missing)}")
    here = ".".join(torch.__version__.split(".")[:2])
    before = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    rows = []
    for name in used():
        versions = {version.removesuffix(ABSENT): version for version in before.get(name, ())}
        versions[here] = f"{here}{ABSENT}" if name in absent else here
        listed = [versions[version] for version in sorted(versions, key=numbers)]
        rows.append(f" {json.dumps(name)}: {json.dumps(listed)}")
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
