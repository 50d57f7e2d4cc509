"""It is reproducible: what is built depends on the sources and the tools, on nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.scenarios import Project, copy_project, only, sha256
from support.venv import run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

ONE = {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C", "OMP_NUM_THREADS": "1"}
OTHER = {"PYTHONHASHSEED": "4242", "TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "2"}


def wheel_under(project: Project, umask: int, variables: dict[str, str]) -> str:
    """Return the digest of the wheel that is built under another umask and environment."""
    before = os.umask(umask)
    try:
        return sha256(project.wheel({**variables, "TMPDIR": str(new_folder(project.root.parent / "temporary"))}))
    finally:
        os.umask(before)


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def copy_in_another_order(name: str, folder: Path) -> Project:
    """Copy a scenario with its files made in the opposite order, so that folders list them differently."""
    project = copy_project(name, folder)
    for path in sorted((path for path in project.root.rglob("*") if path.is_file()), reverse=True):
        again = path.with_name(f"{path.name}.again")
        shutil.copyfile(path, again)
        path.unlink()
        again.rename(path)
    return project


@pytest.mark.parametrize("name", ["mixed", "two_methods"])
def test_another_folder_time_zone_hash_seed_umask_and_locale_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    first = copy_project(name, new_folder(tmp_path / "a"))
    second = copy_in_another_order(name, new_folder(tmp_path / "another-longer-folder"))
    assert wheel_under(first, 0o022, ONE) == wheel_under(second, 0o077, OTHER)


def test_the_cache_warm_cold_and_off_gives_the_same_bytes(tmp_path: Path) -> None:
    project = copy_project("mixed", tmp_path)
    cold = sha256(project.wheel())
    warm = sha256(project.wheel({"HATCH_LOWER_CACHE": "frozen"}))
    off = sha256(project.wheel({"HATCH_LOWER_CACHE": "off"}))
    assert cold == warm == off


def test_the_wheel_of_the_unpacked_sdist_equals_the_trees(tmp_path: Path) -> None:
    project = copy_project("two_methods", tmp_path)
    # Weights are often ignored by git; `inputs` carries them into the sdist all the same.
    (project.root / ".gitignore").write_text("*.txt\n")
    from_tree = sha256(project.wheel())
    sdist = new_folder(tmp_path / "sdist")
    Project(project.root, sdist, project.cache).build("sdist").check()
    archive = only(sdist, "*.tar.gz")
    run(["tar", "-xzf", archive, "-C", sdist]).check()
    unpacked = Project(sdist / archive.name.removesuffix(".tar.gz"), tmp_path / "again", tmp_path / "cache-again")
    assert sha256(unpacked.wheel()) == from_tree
