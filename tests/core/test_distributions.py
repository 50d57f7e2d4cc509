from __future__ import annotations

import os
from importlib.metadata import distributions
from pathlib import Path

import pytest

from hatch_lower.cache.stats import StatCache
from hatch_lower.canonical import sha256_bytes
from hatch_lower.driver.inputs.machine import (
    distribution_in,
    find_distributions,
    installed_files,
    mark_of_distribution,
)


@pytest.mark.parametrize(
    ("folder", "name", "version"),
    [
        ("torch-2.13.0+cpu.dist-info", "torch", "2.13.0+cpu"),
        ("typing_extensions-4.16.0.dist-info", "typing-extensions", "4.16.0"),
        ("jaraco.classes-3.4.0.dist-info", "jaraco-classes", "3.4.0"),
        ("Old-Name-1.0.dist-info", "old-name", "1.0"),
        ("nvidia_cublas-12.1.dev0.dist-info", "nvidia-cublas", "12.1.dev0"),
        ("digits.egg-info", "digits", ""),
        ("digits-1.2-py3.11.egg-info", "digits", "1.2"),
        ("distro_info-1.5+deb12u1.egg-info", "distro-info", "1.5+deb12u1"),
    ],
)
def test_a_folders_name_says_name_and_version(folder: str, name: str, version: str) -> None:
    found = distribution_in("/site", folder)
    assert found is not None
    assert found == (name, version, "/site", f"/site/{folder}")


@pytest.mark.parametrize("folder", ["torch", "torch.py", "dist-info", ".dist-info", "x.dist-info.bak", "x-1.0.data"])
def test_other_names_are_no_distributions(folder: str) -> None:
    assert distribution_in("/site", folder) is None


def test_the_first_on_the_search_path_wins() -> None:
    found = find_distributions([("/a", ["x-2.0.dist-info"]), ("/b", ["x-1.0.dist-info", "y-1.0.dist-info"])])
    assert {name: (each.version, each.entry) for name, each in found.items()} == {
        "x": ("2.0", "/a"),
        "y": ("1.0", "/b"),
    }


def test_the_environment_of_these_tests_is_seen_as_importlib_sees_it() -> None:
    site = Path(pytest.__file__).parents[1]
    found = find_distributions([(str(site), os.listdir(site))])
    known = {
        each.name.lower().replace("_", "-").replace(".", "-"): each.version for each in distributions(path=[str(site)])
    }
    assert {name: each.version for name, each in found.items()} == known


def test_a_mark_holds_version_and_record(tmp_path: Path) -> None:
    stats = StatCache(tmp_path / "stats.json")
    folder = tmp_path / "x-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: x")
    assert mark_of_distribution(distribution_in(str(tmp_path), folder.name), stats) == f"1.0 {sha256_bytes(b'Name: x')}"
    (folder / "RECORD").write_text("x.py,,")
    assert mark_of_distribution(distribution_in(str(tmp_path), folder.name), stats) == f"1.0 {sha256_bytes(b'x.py,,')}"
    (tmp_path / "y-2.0.egg-info").write_text("Name: y")
    assert mark_of_distribution(distribution_in(str(tmp_path), "y-2.0.egg-info"), stats).startswith("2.0 ")
    assert mark_of_distribution(None, stats) == ""


def test_two_installations_of_one_wheel_have_the_same_mark(tmp_path: Path) -> None:
    by_pip = (
        "../../../bin/tool,sha256=begins-with-one-interpreter,220\n"
        "tool-1.0.dist-info/INSTALLER,sha256=pip,4\ntool-1.0.dist-info/METADATA,sha256=same,90\n"
        "tool-1.0.dist-info/RECORD,,\ntool-1.0.dist-info/REQUESTED,sha256=empty,0\n"
        "tool/__init__.py,sha256=same,12\ntool/__pycache__/__init__.cpython-311.pyc,,\n"
    )
    by_uv = (
        "tool-1.0.dist-info/INSTALLER,sha256=uv,2\ntool/__init__.py,sha256=same,12\n"
        "tool-1.0.dist-info/METADATA,sha256=same,90\ntool-1.0.dist-info/RECORD,,\n"
        "tool-1.0.dist-info/direct_url.json,sha256=here,70\ntool-1.0.dist-info/uv_cache.json,sha256=x,2\n"
        "../../../bin/tool,sha256=begins-with-another,221\n"
    )
    marks = set()
    for number, record in enumerate([by_pip, by_uv, by_pip.replace("\n", "\r\n")]):
        folder = tmp_path / str(number) / "tool-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "RECORD").write_text(record, newline="")
        distribution = distribution_in(str(folder.parent), folder.name)
        marks.add(mark_of_distribution(distribution, StatCache(tmp_path / f"{number}.json")))
    assert len(marks) == 1
    for change in (
        ("same,12", "other,12"),
        ("METADATA,sha256=same", "METADATA,sha256=other"),
        ("../bin/", "../share/"),
    ):
        (folder / "RECORD").write_text(by_pip.replace(*change))
        marks.add(mark_of_distribution(distribution, StatCache(tmp_path / "again.json")))
    assert len(marks) == 4


def test_every_installed_file_has_its_owner(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site-packages"
    folder = site / "x-1.0.dist-info"
    folder.mkdir(parents=True)
    rows = ["x/__init__.py,sha256=abc,12", '"x/a,""b"".py",sha256=abc,1', "../../bin/x,,", f"{tmp_path}/etc/x.conf,,"]
    (folder / "RECORD").write_text("\r\n".join(rows))
    found = find_distributions([(str(site), os.listdir(site))])
    assert installed_files(found.values()) == {
        f"{site}/x/__init__.py": "x",
        f'{site}/x/a,"b".py': "x",
        f"{tmp_path}/bin/x": "x",
        f"{tmp_path}/etc/x.conf": "x",
    }
