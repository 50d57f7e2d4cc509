from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import ConfigError
from hatch_lower.hatch.outside import open_project

SCENARIOS = Path(__file__).parents[1] / "projects"
TABLE = "[tool.hatch.build.targets.wheel.hooks.lower]"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SCENARIOS / "two_methods", tmp_path / "project"))


def edit(root: Path, old: str, new: str) -> None:
    path = root / "pyproject.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_project_is_what_the_hook_would_be_told(root: Path) -> None:
    project = open_project(root)
    assert (project.settings.root, project.settings.name, project.settings.version) == (root, "two-methods", "1.0")
    assert [each.name for each in project.settings.models] == ["two_methods"]
    assert project.settings.recipes[0].backends == (BackendChoice("reference", {}),)
    assert project.view.import_roots == (root / "src",)
    assert "two_methods = two_methods.model:export" in project.view.entry_points
    assert not (root / "dist").exists()


def test_opening_a_project_imports_no_torch(root: Path, modules_after: Callable[[str], set[str]]) -> None:
    opened = f"open_project(Path({str(root)!r}))"
    found = modules_after(f"from pathlib import Path\nfrom hatch_lower.hatch.outside import open_project\n{opened}")
    assert "hatch_lower.hatch.project" in found
    assert "torch" not in found


def test_a_folder_without_a_project(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no project"):
        open_project(tmp_path)


def test_a_project_without_the_hook(root: Path) -> None:
    text = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(text.partition(TABLE)[0])
    with pytest.raises(ConfigError, match="the project does not use hatch-lower"):
        open_project(root)


def test_what_hatchling_refuses_is_said(root: Path) -> None:
    edit(root, 'version = "1.0"', "version = 1")
    with pytest.raises(ConfigError) as caught:
        open_project(root)
    assert caught.value.what == "hatchling cannot read the project"
    assert caught.value.found == "TypeError: Field `project.version` must be a string"


def test_a_wrong_setting_is_said_as_in_a_build(root: Path) -> None:
    edit(root, "backends = []", "backend = []")
    with pytest.raises(ConfigError, match="a setting of the build hook `lower` is wrong"):
        open_project(root)
