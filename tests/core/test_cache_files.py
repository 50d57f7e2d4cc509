"""A cache inside a project stays out of its distributions, whatever their patterns say."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.plugin.manager import PluginManager

from hatch_lower.cache.directory import MARKS
from hatch_lower.cache.store import open_store
from hatch_lower.errors import LowerError, PackageError
from hatch_lower.hatch import hooks
from hatch_lower.hatch.cache_files import exclude_cache, leave_out_cache

SECRET = b"the value of a variable"
HOOK = "[tool.hatch.build.hooks.lower]\n"
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "digits"
version = "1.0"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def make(more: str = HOOK, cache: str = ".cache") -> Path:
        root = tmp_path / "project"
        (root / "digits").mkdir(parents=True)
        (root / "build").mkdir()
        (root / "digits/__init__.py").touch()
        (root / "pyproject.toml").write_text(PROJECT + more)
        monkeypatch.chdir(root)
        monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", cache)
        store = open_store({"HATCH_LOWER_CACHE_DIR": cache}, lambda line: None)
        store.mark()
        store.put("0" * 64, {}, 1, [SECRET])
        return root

    return make


def manager() -> PluginManager:
    plugins = PluginManager()
    plugins.initialize()
    plugins.initialized = True
    plugins.manager.register(hooks, name="lower")
    return plugins


def sdist_of(root: Path) -> Path:
    (path,) = SdistBuilder(str(root), plugin_manager=manager()).build()
    return Path(path)


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as file:
        members = [member for member in file.getmembers() if member.isfile()]
        return {member.name: file.extractfile(member).read() for member in members}  # type: ignore[union-attr]


@pytest.mark.parametrize("cache", [".cache", "./build/a b[c]#!", "digits/cache", "."])
@pytest.mark.parametrize(
    "more",
    ["", "skip-excluded-dirs = true\n", 'include = ["*"]\n', 'only-include = ["digits", ".cache", "build", "v1"]\n'],
)
def test_the_source_distribution_leaves_the_cache_out(project: Callable[..., Path], cache: str, more: str) -> None:
    root = project(f"{HOOK}[tool.hatch.build.targets.sdist]\n{more}", cache)
    files = contents(sdist_of(root))
    assert "digits-1.0/digits/__init__.py" in files
    assert not [name for name in files if "/v1/" in name]
    assert SECRET not in files.values()


@pytest.mark.parametrize("cache", ["digits/cache", "digits"])
def test_a_wheel_leaves_the_cache_out(project: Callable[..., Path], cache: str) -> None:
    root = project(HOOK, cache)
    builder = WheelBuilder(str(root), plugin_manager=manager())
    (hook,) = builder.get_build_hooks(str(root / "dist")).values()
    leave_out_cache(hook, builder.get_default_build_data() | {"force_include": {}, "artifacts": []})
    assert [file.relative_path for file in builder.recurse_included_files()] == ["digits/__init__.py"]


@pytest.mark.parametrize(
    "more",
    [
        'artifacts = [".cache"]\n',
        '[tool.hatch.build.targets.sdist.force-include]\n".cache/v1" = "there"\n',
        '[tool.hatch.build.targets.sdist.force-include]\n".cache" = "there"\n',
    ],
)
def test_a_cache_that_the_project_includes_by_name_is_refused(
    project: Callable[..., Path], more: str, capfd: pytest.CaptureFixture[str]
) -> None:
    root = project(f"{HOOK}[tool.hatch.build.targets.sdist]\n{more}")
    with pytest.raises(SystemExit):
        sdist_of(root)
    shown = capfd.readouterr().err
    assert shown.startswith(
        "hatch-lower: the source distribution would contain the cache of hatch-lower, whose records"
    )
    assert "HATCH_LOWER_CACHE_DIR" in shown
    assert list((root / "dist").iterdir()) == []


def test_a_link_to_the_cache_is_refused(project: Callable[..., Path], tmp_path: Path) -> None:
    root = project(HOOK, str(tmp_path / "elsewhere"))
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SystemExit):
        sdist_of(root)


def test_a_cache_of_another_build_is_known_by_its_tag(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project()
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", "/nowhere")
    with pytest.raises(SystemExit):
        sdist_of(root)


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("", True),
        ("[tool.hatch.build.targets.sdist.hooks.lower]\n", False),
        ('[tool.hatch.build.targets.sdist]\nexclude = ["/.cache"]\n', False),
        ('[tool.hatch.build.targets.sdist]\nonly-include = ["digits"]\n', False),
    ],
)
def test_a_wheel_is_refused_where_the_source_distribution_would_hold_the_cache(
    project: Callable[..., Path], more: str, refused: bool, filled: bool
) -> None:
    root = project(f"[tool.hatch.build.targets.wheel.hooks.lower]\n{more}")
    if not filled:
        shutil.rmtree(root / ".cache")
    builder = WheelBuilder(str(root), plugin_manager=manager())
    (hook,) = builder.get_build_hooks(str(root / "dist")).values()
    error: LowerError | None = None
    try:
        leave_out_cache(hook, {"force_include": {}, "artifacts": []})
    except PackageError as caught:
        error = caught
    assert (error is not None) == refused


def test_a_cache_elsewhere_changes_no_pattern(project: Callable[..., Path], tmp_path: Path) -> None:
    config = SdistBuilder(str(project(HOOK, str(tmp_path / "elsewhere")))).config
    before = config.exclude_spec
    exclude_cache(config)
    assert config.exclude_spec is before


def test_the_cache_is_marked_for_backups_and_for_git(project: Callable[..., Path]) -> None:
    folder = project() / ".cache/v1"
    assert {name: (folder / name).read_bytes() for name in MARKS} == MARKS
    assert MARKS["CACHEDIR.TAG"].startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    assert MARKS[".gitignore"] == b"*\n"
