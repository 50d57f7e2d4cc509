from __future__ import annotations

from pathlib import Path

import pytest

from hatch_lower import __version__
from hatch_lower.cache.stats import StatCache
from hatch_lower.driver.inputs.machine import own_digest


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "hatch_lower"
    for name in ("__init__.py", "recording/preload.c", "schema.json", "recording/check.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def digest(package: Path) -> str:
    return own_digest(StatCache(package.parents[1] / "stats.json"), package)


@pytest.mark.parametrize(
    "name", ["__init__.py", "recording/preload.c", "schema.json", "recording/check.py", "new/x.py"]
)
def test_every_file_of_code_in_a_source_tree_counts(package: Path, name: str) -> None:
    before = digest(package)
    assert before == digest(package)
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("changed")
    changed = digest(package)
    assert changed != before
    (package / name).rename(package / "renamed.py")
    assert digest(package) not in (before, changed)


@pytest.mark.parametrize("name", ["__pycache__/x.py", "notes.md", ".#check.py", "py.typed"])
def test_other_files_do_not_count(package: Path, name: str) -> None:
    before = digest(package)
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("x")
    assert digest(package) == before


def test_of_an_installed_package_its_record_counts(package: Path) -> None:
    tree = digest(package)
    record = package.parent / f"hatch_lower-{__version__}.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("hatch_lower/__init__.py,,")
    installed = digest(package)
    assert installed != tree
    (package / "__init__.py").write_text("edited where it is installed")
    assert digest(package) == installed
    record.write_text("hatch_lower/__init__.py,sha256=x,")
    assert digest(package) not in (tree, installed)


def test_this_package_has_a_digest(tmp_path: Path) -> None:
    stats = StatCache(tmp_path / "stats.json")
    assert len(own_digest(stats)) == 64
    assert own_digest(stats) == own_digest(stats)
