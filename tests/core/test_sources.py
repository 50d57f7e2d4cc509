"""Source lines and module paths in the debug map."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hatch_lower.pipeline.emit.sources import SourceRoots, exported_op, module_path

pytestmark = pytest.mark.torch

SITE = Path(sysconfig.get_path("purelib"))
TORCH = Path(torch.__file__).parent
LIBRARY = Path(sysconfig.get_path("stdlib"))


def trace(*paths: Path | str) -> str:
    lines = [f'  File "{path}", line {number}, in forward\n    return x' for number, path in enumerate(paths, 1)]
    return "Traceback\n" + "\n".join(lines)


def node(**meta: Any) -> Any:
    return SimpleNamespace(meta=meta)


def test_the_innermost_frame_of_the_project(tmp_path: Path) -> None:
    roots = SourceRoots(path for path in (tmp_path, tmp_path / "src", LIBRARY))
    model, block = tmp_path / "src" / "digits" / "model.py", tmp_path / "src" / "digits" / "block.py"
    assert roots.source(trace(model, block, TORCH / "nn" / "modules" / "linear.py")) == "digits/block.py:2"
    assert roots.source(trace(model, LIBRARY / "functools.py", "<eval_with_key>.3")) == "digits/model.py:1"
    assert roots.source(trace(tmp_path / "tools.py")) == "tools.py:1"


def test_installed_packages_count_but_torch_does_not() -> None:
    roots = SourceRoots()
    model = SITE / "transformers" / "models" / "bert.py"
    assert roots.source(trace(model, TORCH / "nn" / "linear.py")) == "transformers/models/bert.py:1"
    assert roots.source(trace(TORCH / "nn" / "linear.py", "torch/fx/passes/runtime_assert.py")) == ""


def test_a_file_outside_all_roots_has_no_folder() -> None:
    assert SourceRoots().source(trace("/somewhere/else/model.py")) == "model.py:1"


def test_no_trace() -> None:
    assert SourceRoots().source(None) == ""
    assert SourceRoots().source("") == ""


def test_module_paths() -> None:
    stack = {"a": ("", "Net"), "b": ("layers.0", "Block")}
    assert module_path(node(nn_module_stack=stack)) == "layers.0"
    marker = ("_empty_nn_module_stack_from_metadata_hook",) * 2
    assert module_path(node(nn_module_stack={**stack, marker[0]: marker})) == "layers.0"
    assert module_path(node(nn_module_stack={marker[0]: marker})) == ""
    assert module_path(node()) == ""


def test_the_exported_operator() -> None:
    root = SimpleNamespace(target="aten.linear.default", from_node=[])
    later = SimpleNamespace(target="aten.addmm.default", from_node=[root])
    assert exported_op(node(from_node=[later])) == "aten.linear.default"
    assert exported_op(node(from_node=[SimpleNamespace(target="<built-in function getitem>", from_node=[])])) == ""
    assert exported_op(node()) == ""
