"""What is said of weights outside a wheel: by `inspect`, by `diff`, and in the figures of `bench`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.lowered import floats
from support.weights import checkpoint, write_outside

from hatch_lower.canonical import sha256_bytes
from hatch_lower.cli.main import main
from hatch_lower.cli.measure.exact import model_figures
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.driver.contents import find_contents

FIRST, SECOND = "https://example.org/1.safetensors", "https://example.org/2.safetensors"
EVEN = checkpoint({"a": floats(1.0, 2.0), "b": floats(3.0, 4.0)})
ODD = checkpoint({"c": floats(5.0, 6.0)}, shift=1)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, *files: Any, **inside: Any) -> Path:
        return write_outside(tmp_path / name, dict(zip((FIRST, SECOND), files, strict=False)), inside=inside or None)

    return write


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code in (0, 1), result.output
    return result.stdout


def test_inspect_names_each_source_and_what_is_in_the_wheel(write: Write) -> None:
    folder = write("folder", EVEN, ODD, d=floats(7.0, 8.0))
    (report,) = json.loads(run("inspect", folder, "--json"))
    model = report["models"]["digits"]
    assert model["constants"]["tensors"] == 1
    assert model["outside"] == [
        {"url": url, "size": len(file.data), "sha256": sha256_bytes(file.data), "tensors": tensors, "used": used,
         "copied": copied}
        for url, file, tensors, used, copied in ((FIRST, EVEN, 2, 16, 0), (SECOND, ODD, 1, 8, 8))
    ]  # fmt: skip
    lines = run("inspect", folder).splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("  weights ")]
    assert lines[at].endswith("in 1 tensor in the wheel")
    assert lines[at + 1 : at + 3] == [
        f"  outside     16 B in 2 tensors: {FIRST}",
        f"  outside     8 B in 1 tensor, 8 B copied at each load: {SECOND}",
    ]


def test_inspect_of_a_model_with_all_weights_outside(write: Write) -> None:
    text = run("inspect", write("folder", EVEN))
    assert "  weights     none in the wheel\n  outside     16 B in 2 tensors" in text


def test_diff_names_sources_that_differ_and_tensors(write: Write) -> None:
    other = checkpoint({"a": floats(1.0, 2.0), "b": floats(3.0, 5.0)})
    first, second = write("first", EVEN), write("second", other)
    assert json.loads(run("diff", first, write("again", EVEN), "--json"))["equal"]
    changes = json.loads(run("diff", first, second, "--json"))["changes"]
    assert {"/".join(change["place"]) for change in changes} == {
        "models/digits/files/places of weights",
        f"models/digits/sources of weights/{FIRST}",
        "models/digits/tensors/w1",
        "models/digits/recipes/default/files/plan",
    }


def test_weights_that_are_not_aligned_count_as_copied(write: Write) -> None:
    (contents,) = find_contents(write("folder", EVEN, ODD, d=floats(7.0, 8.0)))
    figures = dict(model_figures(contents, "digits", {}))
    assert figures[FigureSubject("digits", "default")]["copied-constants"] == 1
