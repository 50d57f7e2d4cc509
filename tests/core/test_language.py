"""Docstrings, comments and pages name their nouns; modules and functions stay short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from plain_words import rates_of, sentences_in
from support.venv import REPOSITORY

PACKAGE = REPOSITORY / "hatch_lower"
PAGES = [REPOSITORY / name for name in ("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
MODULE_LINES, FUNCTION_LINES = 400, 60


@pytest.mark.parametrize(("paths", "limit"), [([PACKAGE], 22), (PAGES, 16)], ids=["code", "pages"])
def test_sentences_name_their_nouns(paths: list[Path], limit: float) -> None:
    rates = rates_of(list(sentences_in(paths)))
    assert rates.words > 1000
    assert rates.what <= 1
    assert rates.placeholders <= limit
    assert rates.relative_starts == 0


def test_modules_and_functions_are_short() -> None:
    long = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if (lines := source.count("\n")) > MODULE_LINES:
            long.append(f"{path.relative_to(REPOSITORY)}: {lines} lines")
        long += [
            f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.name} has {length} lines"
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
        ]
    assert long == []
