"""docs/exir.md: everything of ExecuTorch's that it lists is where it says, and takes the arguments that it gives."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[1] / "docs" / "exir.md"
ROW = re.compile(r"^\| `(exir[\w.]*)` \| `([\w.]+)(?:\((.*)\))?` \| `([\w.]+)(?::([\w.]+))?` \|$", re.MULTILINE)


def rows() -> list[tuple[str, str | None, str, str]]:
    """Return ExecuTorch's name, its arguments as Python text, and the module and name here of each row."""
    listed = PAGE.read_text().split("\n## ")[1]
    assert listed.startswith("Where the names are")
    found = list(ROW.finditer(listed))
    assert len(found) == len(re.findall(r"^\| `", listed, re.MULTILINE)), "a row has another form"
    return [(f"{row[1]}.{row[2]}", row[3], row[4], row[5] or row[2]) for row in found]


def found(module: str, name: str) -> Any:
    return reduce(getattr, name.split("."), importlib.import_module(module))


def arguments(text: str) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names and defaults of arguments."""
    definition = ast.parse(f"def function({text}): ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    yield from ((each.arg, default) for each, default in zip(given.args, defaults, strict=True))
    if given.kwarg is not None:
        yield given.kwarg.arg, None


ROWS = rows()


def test_each_name_is_listed_once() -> None:
    names = [name for name, *_ in ROWS]
    assert sorted(set(names)) == sorted(names)
    assert len(names) > 80


@pytest.mark.parametrize(("name", "text", "module", "here"), ROWS, ids=[row[0] for row in ROWS])
def test_a_name_is_where_the_page_says(name: str, text: str | None, module: str, here: str) -> None:
    value = found(module, here)
    if text is None:
        return
    parameters = [each for each in inspect.signature(value).parameters.values() if each.name != "self"]
    listed = list(arguments(text))
    assert [each.name for each in parameters[: len(listed)]] == [argument for argument, _ in listed]
    assert all(each.default is not each.empty for each in parameters[len(listed) :])
    for parameter, (_, default) in zip(parameters, listed, strict=False):
        if isinstance(default, ast.Constant):
            assert parameter.default == default.value
        elif default is not None:  # a new list or mapping each time
            assert parameter.default is not parameter.empty
