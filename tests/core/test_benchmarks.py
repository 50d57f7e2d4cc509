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


def test_the_table_of_architectures_has_each_refusal_and_each_reason_of_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "scripts"))
    table = importlib.import_module("architectures_table")
    refused = {
        "error": "torch.export cannot capture it\n  where: model `a`, method `forward`, vilt.py:9\n  found: a\n  branch"
    }
    outside = ["2 nodes from aten.ne.Scalar at roberta.py:87: openvino: int64"]
    cut = {"partitions": {"forward": 2}, "outside": {"forward": outside}, "largest": 1e-7, "unequal": []}
    wrong = {**cut, "partitions": {"forward": 1}, "unequal": ["3 rows, `logits`: 1.0e-01"]}
    results = {
        "BertForSequenceClassification": {"portable": wrong, "openvino": cut},
        "ViltForQuestionAnswering": {"portable": refused, "openvino": refused},
    }
    lines = list(table.lines_of(results, "torch 2.13"))
    assert "- `openvino`: 1 of 2 build, and equal transformers; 0 of 1 in one partition" in lines
    assert "| `BertForSequenceClassification` | differs | not tried | not tried | 2 |" in lines
    assert "| `ViltForQuestionAnswering` | refused | not tried | not tried | refused |" in lines
    assert "- `BertForSequenceClassification`: with `portable`, 3 rows, `logits`: 1.0e-01" in lines
    assert "- `ViltForQuestionAnswering`: torch.export cannot capture it, `vilt.py:9`: a branch" in lines
    assert "- `BertForSequenceClassification`: `aten.ne.Scalar`: openvino: int64" in lines
