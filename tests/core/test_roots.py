from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import hatch_lower
from hatch_lower.driver.inputs.roots import Roots, standard_library


class Places:
    """Folders as a build has them, below one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "work" / "digits"
        self.environment = folder / "environment" / "lib" / "site-packages"
        self.editable = folder / "other" / "src"
        self.home = folder / "home"
        self.build = folder / "build"
        for path in (self.project / "src", self.environment, self.editable, self.home, self.build / "links"):
            path.mkdir(parents=True)

    def roots(self) -> Roots:
        path = (self.build / "links", self.project / "src", self.environment, self.editable, self.project)
        return Roots(self.project, (*path[:2], Path(json.__file__).parents[1], *path[2:]), self.home, (self.build,))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_paths_are_located_by_their_root_and_found_again(places: Places) -> None:
    roots = places.roots()
    for path, located in [
        (places.project, "project"),
        (places.project / "src" / "digits.py", "project/src/digits.py"),
        (places.environment / "torch" / "__init__.py", "site/torch/__init__.py"),
        (places.editable / "other.py", "site/other.py"),
        (places.home, "home"),
        (places.home / ".cache" / "x", "home/.cache/x"),
        (Path("/etc/digits.conf"), "/etc/digits.conf"),
        (places.editable, str(places.editable)),
        (places.project.parent / "digits2", str(places.project.parent / "digits2")),
    ]:
        assert roots.locate(path) == located
        if located.startswith("site/"):
            assert roots.find(located) is None
            path.parent.mkdir(exist_ok=True)
            path.touch()
        assert roots.find(located) == path


def test_a_project_that_was_moved_has_the_same_located_paths(tmp_path: Path) -> None:
    here, there = Places(tmp_path / "here"), Places(tmp_path / "there")
    for name in ("project", "environment", "editable", "home"):
        located = here.roots().locate(getattr(here, name) / "a" / "b")
        assert located == there.roots().locate(getattr(there, name) / "a" / "b")
        assert located is not None


def test_what_is_kept_in_memory_is_an_input(places: Places) -> None:
    roots = places.roots()
    assert roots.locate("/dev/shm/data/weights.pt") == "/dev/shm/data/weights.pt"
    assert roots.find("/dev/shm/data/weights.pt") == Path("/dev/shm/data/weights.pt")
    assert roots.locate("/dev/shm") == "/dev/shm"
    for name in ("torch_weights.pt", "sem.images.npy", "psm_data", "torch_4711_1_0/weights.pt", "sem.mp-x/data.bin"):
        assert roots.locate(f"/dev/shm/{name}") == f"/dev/shm/{name}"


def test_the_standard_library_this_package_and_what_the_system_makes_up_are_no_inputs(places: Places) -> None:
    roots = places.roots()
    none = [
        json.__file__,
        Path(json.__file__).parents[1] / "lib-dynload" / "_x.so",
        Path(hatch_lower.__file__).parent / "driver" / "inputs" / "roots.py",
        "/proc/cpuinfo",
        "/sys/devices/system/cpu/online",
        "/dev/urandom",
        "/dev/shm/sem.mp-x4_k2abc",
        "/dev/shm/psm_1f2e3d4c",
        "/dev/shm/torch_4711_1234567890_0",
        "/dev/shm/__KMP_REGISTERED_LIB_4711_0",
        places.build / "temporary" / "x",
        places.project / "src" / "__pycache__" / "digits.cpython-311.pyc",
        places.project / "__pycache__",
    ]
    assert [path for path in none if roots.locate(path) is not None] == []


def test_a_standard_library_holds_other_peoples_packages_that_are_not_in_it(places: Places) -> None:
    path = Path(standard_library()[0]) / "site-packages" / "x.py"
    located = places.roots().locate(path)
    assert located == str(path)
    assert os.path.dirname(os.__file__) in standard_library()
    assert {entry for entry in sys.path if entry.endswith(".zip")} <= set(standard_library())


def test_what_an_ignored_folder_links_to_is_an_input(places: Places) -> None:
    package = places.project / "code"
    package.mkdir()
    (places.build / "links" / "digits").symlink_to(package)
    roots = places.roots()
    assert roots.locate(places.build / "links" / "digits" / "model.py") == "project/code/model.py"
    assert roots.locate(places.build / "links" / "model.py") is None


def test_an_environment_inside_the_project_or_a_temporary_folder_is_an_environment(tmp_path: Path) -> None:
    project = tmp_path / "digits"
    for site in (project / ".venv" / "lib" / "python3.11" / "site-packages", tmp_path / "t" / "e" / "site-packages"):
        roots = Roots(project, (site, project), tmp_path / "home", (tmp_path / "t",))
        assert roots.locate(site / "torch" / "x.py") == "site/torch/x.py"
        assert roots.locate(site.parents[1] / "x") in (None, f"project/.venv/{site.parents[1].name}/x")


def test_what_an_earlier_entry_hides_is_located_by_its_absolute_path(places: Places) -> None:
    hidden, hiding = places.editable / "x.py", places.environment / "x.py"
    hidden.touch()
    roots = places.roots()
    assert roots.locate(hidden) == "site/x.py"
    hiding.touch()
    assert roots.locate(hiding) == "site/x.py"
    assert roots.locate(hidden) == str(hidden)
    hiding.unlink()
    assert roots.find("site/x.py") == hidden


def test_a_root_that_is_reached_through_a_link_is_known_by_both_paths(places: Places, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(places.project)
    roots = Roots(link, (), places.home, ())
    assert roots.locate(link / "x") == roots.locate(places.project / "x") == "project/x"


def test_a_path_that_goes_up_is_followed_as_the_system_does(places: Places, tmp_path: Path) -> None:
    (places.project / "data").symlink_to(places.editable)
    roots = places.roots()
    (places.editable.parent / "x").touch()
    assert roots.locate(f"{places.project}/data/../x") == str(places.editable.parent / "x")
    assert roots.locate(f"{places.project}/src/../x") == "project/x"
