"""What benchmarks take of the package and of the tests' helpers: they run on demand only, and would rot unseen."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from support.venv import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
MODULES = sorted(path for path in BENCHMARKS.rglob("*.py") if path.relative_to(BENCHMARKS).parts[0] != "projects")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(BENCHMARKS).as_posix())
def test_what_a_benchmark_imports_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("hatch_lower", "support"):
            module = importlib.import_module(node.module)
            missing = [name.name for name in node.names if not is_there(module.__name__, name.name)]
            assert not missing, f"{node.module} has no {', '.join(missing)}"


def is_there(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True
