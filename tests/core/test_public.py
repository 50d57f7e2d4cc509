from __future__ import annotations

import importlib
import re
import sys
import tomllib
from importlib.metadata import entry_points, metadata
from pathlib import Path
from pkgutil import resolve_name

import pytest

import hatch_lower
from hatch_lower.errors import LowerError
from hatch_lower.model import Method, Model

ROOT = Path(__file__).parents[2]


def test_the_public_names() -> None:
    assert dir(hatch_lower) == hatch_lower.__all__ == sorted(hatch_lower.__all__)
    for name in hatch_lower.__all__:
        assert getattr(hatch_lower, name) is not None
    assert hatch_lower.Model is Model
    assert hatch_lower.Method is Method
    assert {kind.__name__ for kind in LowerError.__subclasses__()} <= set(hatch_lower.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'hatch_lower' has no attribute 'laod'$"):
        hatch_lower.laod  # noqa: B018


def test_the_version_is_the_distribution_s() -> None:
    assert metadata("hatch-lower")["Version"] == hatch_lower.__version__
    assert f"## {hatch_lower.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.torch
@pytest.mark.parametrize("group", ["hatch", "hatch_lower.backends", "hatch_lower.delegates"])
def test_every_entry_point_of_the_distribution_loads(group: str) -> None:
    ours = [each for each in entry_points(group=group) if each.dist is not None and each.dist.name == "hatch-lower"]
    assert ours
    for each in ours:
        assert each.load() is not None


def test_both_halves_of_every_backend_are_declared() -> None:
    names = [{each.name for each in entry_points(group=f"hatch_lower.{half}")} for half in ("backends", "delegates")]
    assert names[0] == names[1] >= {"aoti", "null", "reference"}


def test_links_between_the_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def section(page: str, heading: str) -> str:
    """Return the text of a page of the repository below a heading of the second level."""
    (text,) = re.findall(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )
    return text


def test_the_names_that_the_documents_call_stable_are_there() -> None:
    groups = {hatch_lower.MODEL_GROUP, hatch_lower.BACKEND_GROUP, hatch_lower.DELEGATE_GROUP}
    names = set(re.findall(r"`(hatch_lower[\w.]+)`", section("docs/python.md", "Stable names")))
    assert names > groups
    for name in names - groups:
        resolve_name(name)


def test_modules_that_declare_checkpoints_import_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "sentence_transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("hatch_lower.huggingface.declare", "hatch_lower.huggingface.sentences"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        assert importlib.import_module(name)


def test_the_pages_say_whether_the_version_is_released() -> None:
    is_released = "not yet released" not in (ROOT / "CHANGELOG.md").read_text()
    for page in ("README.md", "docs/index.md"):
        said = re.findall(
            rf"Version\s+{re.escape(hatch_lower.__version__)} is not yet released", section(page, "Install")
        )
        assert bool(said) != is_released, page


def test_the_first_page_has_the_measured_speeds_of_the_page_of_engines() -> None:
    tables = [
        re.findall(r"<!-- eager -->\n(.*?)<!-- /eager -->", (ROOT / "docs" / name).read_text(), re.DOTALL)
        for name in ("index.md", "engines.md")
    ]
    assert tables[0] == tables[1]
    assert len(tables[0][0].splitlines()) > 3


def test_the_first_pages_have_the_table_of_backends_for_ten_models() -> None:
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/tutorial.md", "docs/engines.md")]
    tables = [re.findall(r"<!-- which -->\n(.*?)<!-- /which -->", page, re.DOTALL) for page in pages]
    assert tables[0] == tables[1] == tables[2]
    (table,) = tables[0]
    assert len(re.findall(r"^\| .* ms \|", table, re.MULTILINE)) == 10
    for page in pages:
        heading = re.search(r"^## (.*)$", page, re.MULTILINE)
        assert heading
        assert heading[1] == "Which backend?"


FIRST_CHANGES = {
    "a setting": "config/tables.py",
    "the wheel's tag": "hatch/tags.py",
    "an operator of a backend": "backends/aoti/support.py",
    "the digest of a constant": "exir/graph/tensors.py",
    "a reason for `explain`": "driver/explain.py",
}


def test_the_place_of_a_first_change_is_two_steps_away() -> None:
    link = "docs/architecture.md#where-to-put-something-new"
    steps = section("CONTRIBUTING.md", "The first change in ten minutes")
    rows = dict(
        re.findall(
            r"^\| (.*?) \| (.*) \|$", section("docs/architecture.md", "Where to put something new"), re.MULTILINE
        )
    )
    assert link in steps
    for change, place in FIRST_CHANGES.items():
        assert change in re.sub(r"\s+", " ", steps)
        assert f"`{place}`" in rows[change]


LATER = {
    "test_experts_need_no_operator_of_transformers_if_they_are_multiplied_in_batches": "needs transformers",
    "test_in_the_window_of_finalize_an_incomplete_wheel_stays_that_everybody_refuses": "kills builds",
    "test_code_for_another_instruction_set_has_that_as_its_reason": "a part of `diff`",
    "test_a_contiguous_output_has_eagers_strides": "`test_each_engine` holds it for each engine that is there",
}
"""Tests that the page of limits names and only a run with `--all` has."""


def test_the_short_run_holds_the_limits() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    tests = "\n".join(path.read_text() for place in options["testpaths"] for path in (ROOT / place).rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "limits.md").read_text())
    assert named
    assert [each for each in named if f"def {each}(" not in tests and each not in LATER] == []


def test_every_test_that_the_documents_name_is_there() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in ("threats.md", "limits.md"):
        text = (ROOT / "docs" / name).read_text()
        assert [each for each in re.findall(r"`(test_\w+)`", text) if f"def {each}(" not in tests] == []
        assert [each for each in re.findall(r"`(tests/[\w/.]+)`", text) if not (ROOT / each).exists()] == []
