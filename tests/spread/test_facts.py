"""What a worker is, told without torch, and what it says that it has not."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hatch_lower.cache.stats import StatCache
from hatch_lower.driver.spread.run_unit import COMPILER, LINKER, compare_facts, facts_here, facts_wanted


def test_facts_are_those_on_which_a_recipe_s_results_depend(tmp_path: Path) -> None:
    names = facts_wanted(["onnxruntime", "aoti"])
    facts = facts_here(names, os.environ, StatCache(tmp_path / "stats.json"))
    assert facts["torch"] == importlib.metadata.version("torch")
    assert facts["hatch-lower"].startswith(importlib.metadata.version("hatch-lower"))
    assert {"system", "machine", "Python", "onnxruntime", "numpy"} <= set(names)
    assert set(facts) <= set(names)
    assert not {COMPILER, LINKER, "onnxruntime"} & set(facts_wanted(["reference"]))
    assert facts == facts_here(names, os.environ, StatCache(tmp_path / "stats.json"))


@pytest.mark.parametrize(
    ("sets", "told"), [("avx avx2 avx512f fma", "avx2 fma"), ("avx sse2", "avx sse2"), ("asimd sve", "asimd sve")]
)
def test_processors_that_a_build_uses_alike_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: str, told: str
) -> None:
    machine = {"system": "", "machine": "", "libc": "", "cpu": sets, "python": ""}
    monkeypatch.setattr("hatch_lower.driver.spread.run_unit.machine_facts", lambda: machine)
    stats = StatCache(tmp_path / "stats.json")
    assert facts_here(["instruction sets", "system"], {}, stats) == {"instruction sets": told}


def test_the_compiler_is_told_by_its_first_line_without_its_folder(tmp_path: Path) -> None:
    for name, line in (("g++", "g++ (Own) 99.1"), ("wrong", "")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho '{tmp_path}/{line}'\necho more\n")
        program.chmod(0o755)
    stats = StatCache(tmp_path / "stats.json")
    names = (COMPILER, LINKER)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert facts_here(names, path, stats)[COMPILER] == "g++ (Own) 99.1"
    assert facts_here(names, {"PATH": str(tmp_path / "nothing")}, stats) == {}
    assert facts_here(names, {**path, "CXX": "no-such-compiler"}, stats) == {}, "the one that is named is meant"


@pytest.mark.torch
def test_the_compiler_is_the_one_that_the_backend_would_run(tmp_path: Path) -> None:
    from hatch_lower.backends.aoti.configuration import parse_options
    from hatch_lower.backends.aoti.library import choose_compiler

    versions = choose_compiler(parse_options({}).isa).versions()
    facts = facts_here([COMPILER, LINKER], os.environ, StatCache(tmp_path / "stats.json"))
    assert facts == {COMPILER: versions["compiler"], LINKER: versions["linker"]}


def test_a_worker_says_what_it_has_otherwise_and_what_it_has_not() -> None:
    wanted = {"torch": "2.13.0", "C++ compiler": "g++ 12", "instruction sets": "avx avx2 fma", "Python": "3.12"}
    found = {"torch": "2.12.0", "instruction sets": "avx avx2 amx", "Python": "3.12", "openvino": "1"}
    assert [lack.text() for lack in compare_facts(wanted, found)] == [
        "has torch 2.12.0, where 2.13.0 is wanted",
        "has no C++ compiler, where g++ 12 is wanted",
        "has instruction sets amx, where fma is wanted",
    ]
    assert compare_facts(wanted, wanted) == ()
    more = compare_facts({"instruction sets": "avx"}, {"instruction sets": "avx avx2"})
    assert [lack.text() for lack in more] == ["has instruction sets avx2, where no such set is wanted"]


def test_facts_import_no_torch(modules_after: Callable[[str], set[str]]) -> None:
    code = """
import os
from pathlib import Path
import hatch_lower.driver.spread.run_unit
from hatch_lower.driver.spread.run_unit import facts_here, facts_wanted
from hatch_lower.cache.stats import StatCache
facts_here(facts_wanted(["aoti", "openvino"]), os.environ, StatCache(Path(os.devnull)))
"""
    assert not {"torch", "openvino"} & modules_after(code)


@pytest.mark.parametrize("names", [["none-such"], []])
def test_a_backend_that_is_not_installed_adds_nothing(names: list[str]) -> None:
    assert facts_wanted(names) == facts_wanted([])
