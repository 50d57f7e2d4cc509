"""The build hook, through hatchling's own builders, with a stand-in for the lowering itself."""

from __future__ import annotations

import errno
import gc
import hashlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement
from support import wheels

from hatch_lower.cache.store import Store, open_store
from hatch_lower.config.settings import Settings
from hatch_lower.driver.context import BuildContext, ProjectView
from hatch_lower.errors import ConfigError, EntryPointError
from hatch_lower.events import Event
from hatch_lower.format.results import BuildResult, MethodRow, ModelResult, PayloadFile
from hatch_lower.hatch import hooks
from hatch_lower.hatch.tags import NativeFile

PYPROJECT = """
[build-system]
requires = ["hatchling", "hatch-lower"]
build-backend = "hatchling.build"

[project]
name = "digits"
version = "1.0"
dependencies = ["hatch-lower>=0.1", "torch==2.13.*"]

[project.entry-points."hatch_lower.models"]
digits = "digits.model:export"

[tool.hatch.build.targets.wheel.hooks.lower]
"""
TENSOR = bytes(range(256)) * 8


def safetensors(**tensors: bytes) -> bytes:
    return wheels.tensors({name: ("F32", [len(data) // 4], data) for name, data in tensors.items()})


@dataclass
class Lowering:
    """Stands in for `hatch_lower.driver.build.build`: notes how it was called and gives a small payload."""

    files: dict[str, bytes] = field(
        default_factory=lambda: {
            "digits/_lowered/manifest.json": b'{"schema":1}\n',
            "digits/_lowered/digits/constants.safetensors": safetensors(c0=TENSOR),
        }
    )
    requirements: tuple[str, ...] = ("hatch-lower>=0.1", "torch==2.13.*")
    native: tuple[Path, ...] = ()
    error: BaseException | None = None
    damage: bool = False
    beside: bytes = b""
    """Weights for a file beside the wheel."""
    not_compared: str = ""
    blobs: Store | None = None
    """Where the payload is, if not in the folder of the build."""
    calls: list[tuple[Settings, ProjectView]] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def __call__(self, context: BuildContext) -> BuildResult:
        work, reporter = context.work, context.reporter
        self.calls.append((context.settings, context.view))
        self.folders.append(work)
        payload = []
        for number, (path, data) in enumerate(self.files.items()):
            source = work / str(number)
            if self.blobs is not None:
                source = self.blobs.blob_path(self.blobs.put_blob(data))
            source.write_bytes(data)
            payload.append(PayloadFile(path, source, len(data), hashlib.sha256(data).hexdigest()))
            if self.damage:
                source.write_bytes(bytes(len(data)))
        reporter.report(Event("export", "start", "digits"))
        reporter.report(Event("export", "end", "digits", seconds=0.5))
        if self.error is not None:
            raise self.error
        row = MethodRow("digits", "default", "forward", 12, 10, 2, 34567, 1.25, 2, not_compared=self.not_compared)
        return BuildResult(tuple(payload), (row,), {"default": self.requirements}, self.native, self.models(work))

    def models(self, work: Path) -> tuple[ModelResult, ...]:
        """Return a model with weights outside, if there are any."""
        if not self.beside:
            return ()
        source = work / "beside"
        source.write_bytes(bytes(len(self.beside)) if self.damage else self.beside)
        sha256 = hashlib.sha256(self.beside).hexdigest()
        file = PayloadFile(f"digits-digits-{sha256[:16]}.safetensors", source, len(self.beside), sha256)
        outside = {"files": 1, "outside": len(self.beside), "copied": 4, "kept": {"not there": 1234, "elsewhere": 5}}
        return (ModelResult("digits", {"order": [], "recipes": {}}, (), (), (), {}, "2.13.0", {}, outside, (file,)),)


@pytest.fixture
def lowering(monkeypatch: pytest.MonkeyPatch) -> Lowering:
    stand_in = Lowering()
    monkeypatch.setattr("hatch_lower.driver.build.build", stand_in)
    monkeypatch.setattr("hatch_lower.hatch.sbom.remembered_text", lambda subject, store: '{"about": "nothing"}\n')
    return stand_in


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOOKS_ONLY", "NO_HOOKS", "HOOKS_ENABLE", "HOOK_ENABLE_LOWER", "LOCATION", "CLEAN"):
        monkeypatch.delenv(f"HATCH_BUILD_{name}", raising=False)
    for name in ("HATCH_QUIET", "HATCH_VERBOSE", "SOURCE_DATE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


MakeProject = Callable[..., Path]


@pytest.fixture
def make_project(tmp_path: Path) -> MakeProject:
    def make(
        hook: str = "", *, folder: str = "project", package: str = "src/digits", more: str = "", start: str = PYPROJECT
    ) -> Path:
        root = tmp_path / folder
        for name, text in {"__init__.py": "", "model.py": "def export():\n    return None\n"}.items():
            (root / package).mkdir(parents=True, exist_ok=True)
            (root / package / name).write_text(text)
        (root / "pyproject.toml").write_text(f"{start}{hook}\n{more}\n")
        return root

    return make


def manager() -> PluginManager:
    plugins = PluginManager()
    plugins.initialize()
    plugins.initialized = True
    plugins.manager.register(hooks, name="lower")
    return plugins


def build_wheel(root: Path, version: str = "standard", **options: Any) -> Path:
    if version == "editable":
        pytest.importorskip("editables")  # hatchling makes editable wheels with it
    builder = WheelBuilder(str(root), plugin_manager=manager())
    (path,) = builder.build(versions=[version], **options)
    return Path(path)


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def read_from(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("package", "expected"), [("src/digits", "src"), ("digits", ".")])
def test_the_payload_goes_into_the_wheel(
    make_project: MakeProject,
    lowering: Lowering,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    package: str,
    expected: str,
) -> None:
    root = make_project("backends = []\ntimeout = 3", package=package)
    before = tree(root)

    wheel = build_wheel(root)

    assert wheel.name == "digits-1.0-py3-none-any.whl"
    assert names_in(wheel) == [
        "digits/__init__.py",
        "digits/model.py",
        "digits/_lowered/digits/constants.safetensors",
        "digits/_lowered/manifest.json",
        "digits-1.0.dist-info/METADATA",
        "digits-1.0.dist-info/WHEEL",
        "digits-1.0.dist-info/entry_points.txt",
        "digits-1.0.dist-info/sboms/hatch-lower.cdx.json",
        "digits-1.0.dist-info/RECORD",
    ]
    ((settings, view),) = lowering.calls
    assert settings.timeout == 3
    assert settings.root == root
    assert [(model.name, model.package) for model in settings.models] == [("digits", "digits")]
    assert (settings.name, settings.version) == ("digits", "1.0")
    assert "Name: digits\nVersion: 1.0\n" in view.metadata
    assert view.entry_points == "[hatch_lower.models]\ndigits = digits.model:export\n"
    assert view.import_roots == ((root / expected).resolve(),)
    assert view.links == ()
    assert view.packages == ("digits",)
    assert view.later_hooks == ()
    assert tree(root) == {**before, f"dist/{wheel.name}": wheel.read_bytes()}
    assert list((tmp_path / "temporary").iterdir()) == []
    shown = capfd.readouterr()
    assert shown.out == ""
    *lines, last = shown.err.splitlines()
    assert lines == [
        "lower  digits                           export       0.50 s",
        "model   method   recipe   nodes  delegated  partitions   bytes  seconds",
        "digits  forward  default     12         10           2  34,567     1.25  reused",
    ]
    assert re.fullmatch(r"wheel of \d\.\d\d KiB in \d+\.\d s", last)


def test_an_export_does_not_see_the_readme(make_project: MakeProject, lowering: Lowering) -> None:
    start = PYPROJECT.replace('version = "1.0"', 'version = "1.0"\nreadme = "README.md"\nlicense = "MIT"')
    root = make_project(start=start)
    (root / "README.md").write_text("# Digits\n\nof all kinds\n")
    wheel = build_wheel(root)
    metadata = lowering.calls[0][1].metadata
    assert "of all kinds" in read_from(wheel, "digits-1.0.dist-info/METADATA")
    assert "License-Expression: MIT\n" in metadata
    assert "of all kinds" not in metadata


def test_a_damaged_blob_of_the_cache_is_removed(
    make_project: MakeProject, lowering: Lowering, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = open_store({"HATCH_LOWER_CACHE_DIR": str(tmp_path / "cache")}, print)
    lowering.blobs = store
    lowering.damage = True
    root = make_project()
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert "to do: build again: the damaged file was removed" in capfd.readouterr().err
    assert list((root / "dist").iterdir()) == []
    manifest = lowering.files["digits/_lowered/manifest.json"]
    constants = lowering.files["digits/_lowered/digits/constants.safetensors"]
    left = [store.blob_path(hashlib.sha256(each).hexdigest()).exists() for each in (manifest, constants)]
    assert left == [True, False], "what comes first in the wheel is found first"


def test_pip_installs_the_wheel(make_project: MakeProject, lowering: Lowering, tmp_path: Path) -> None:
    wheel = build_wheel(make_project())
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([*command, str(target), str(wheel)], check=True, capture_output=True)
    for path, data in lowering.files.items():
        assert (target / path).read_bytes() == data


def test_two_builds_give_the_same_bytes(make_project: MakeProject, lowering: Lowering) -> None:
    first = build_wheel(make_project(folder="one"))
    second = build_wheel(make_project(folder="two/deeper"))
    assert first.read_bytes() == second.read_bytes()


def test_the_wheel_of_an_unpacked_source_distribution_is_the_same(
    make_project: MakeProject, lowering: Lowering, tmp_path: Path
) -> None:
    root = make_project()
    wheel = build_wheel(root)
    (archive,) = SdistBuilder(str(root), plugin_manager=manager()).build()
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    assert build_wheel(tmp_path / "unpacked" / "digits-1.0").read_bytes() == wheel.read_bytes()


def test_native_code_gives_the_wheel_a_platform(
    make_project: MakeProject, lowering: Lowering, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = NativeFile("x86_64", ("libstdc++.so.6",), {"libstdc++.so.6": ("GLIBCXX_3.4.30",)})
    monkeypatch.setattr("hatch_lower.hatch.tags.read_native_file", lambda path: file)
    lowering.native = (Path("a.so"),)

    wheel = build_wheel(make_project())

    assert wheel.name == "digits-1.0-py3-none-manylinux_2_35_x86_64.whl"
    text = read_from(wheel, "digits-1.0.dist-info/WHEEL")
    assert "Root-Is-Purelib: false\nTag: py3-none-manylinux_2_35_x86_64\n" in text


@pytest.mark.parametrize(
    ("setting", "native", "expected"),
    [
        ('build_data["tag"] = "cp311-cp311-linux_x86_64"', True, "cp311-cp311-linux_x86_64"),
        ('build_data["tag"] = "cp311-cp311-linux_x86_64"', False, "cp311-cp311-linux_x86_64"),
        ('build_data["tag"] = "py311-none-any"', True, "py311-none-manylinux_2_5_x86_64"),
        ('build_data["tag"] = "py311-none-any"', False, "py311-none-any"),
    ],
)
def test_the_tag_of_an_earlier_hook_is_only_narrowed(
    make_project: MakeProject,
    lowering: Lowering,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    native: bool,
    expected: str,
) -> None:
    root = make_project(more="[tool.hatch.build.hooks.custom]")
    write_custom_hook(root, setting)
    monkeypatch.setattr("hatch_lower.hatch.tags.read_native_file", lambda path: NativeFile("x86_64", (), {}))
    lowering.native = (Path("a.so"),) if native else ()
    assert build_wheel(root).name == f"digits-1.0-{expected}.whl"


def write_custom_hook(root: Path, setting: str) -> None:
    (root / "hatch_build.py").write_text(
        "from hatchling.builders.hooks.plugin.interface import BuildHookInterface\n"
        "class Custom(BuildHookInterface):\n"
        "    def initialize(self, version, build_data):\n"
        f"        {setting}\n"
    )


def test_hooks_after_this_one_are_named(make_project: MakeProject, lowering: Lowering) -> None:
    root = make_project(more="[tool.hatch.build.targets.wheel.hooks.custom]")
    write_custom_hook(root, "pass")
    build_wheel(root)
    assert lowering.calls[0][1].later_hooks == ("custom",)


def test_export_code_need_not_be_packaged(make_project: MakeProject, lowering: Lowering) -> None:
    root = make_project(more='[tool.hatch.build.targets.wheel.hooks.lower.models.more]\nexport = "tools.export:more"')
    build_wheel(root)
    assert lowering.calls[0][1].import_roots == (root / "src", root)


def test_development_folders_are_the_import_roots(make_project: MakeProject, lowering: Lowering) -> None:
    root = make_project(more='[tool.hatch.build]\ndev-mode-dirs = ["src", "./other"]')
    build_wheel(root)
    assert lowering.calls[0][1].import_roots == (root / "src", root / "other")


def test_a_rewritten_path_becomes_a_link(make_project: MakeProject, lowering: Lowering) -> None:
    more = '[tool.hatch.build.targets.wheel]\nonly-include = ["lib/impl"]\nsources = {"lib/impl" = "digits"}'
    root = make_project(package="lib/impl", more=more)
    wheel = build_wheel(root)
    assert "digits/model.py" in names_in(wheel)
    assert lowering.calls[0][1].import_roots == ()
    assert lowering.calls[0][1].links == (("digits", root / "lib/impl"),)


def test_a_file_that_an_earlier_hook_includes_becomes_a_link(make_project: MakeProject, lowering: Lowering) -> None:
    root = make_project(more="[tool.hatch.build.hooks.custom]")
    made = root.parent / "made.py"
    made.write_text("")
    write_custom_hook(root, f'build_data["force_include"][{str(made)!r}] = "digits/version.py"')
    build_wheel(root)
    package = root / "src/digits"
    assert lowering.calls[0][1].links == (
        ("digits/__init__.py", package / "__init__.py"),
        ("digits/model.py", package / "model.py"),
        ("digits/version.py", made),
    )


def test_hatchlings_own_keys_are_no_concern_of_ours(make_project: MakeProject, lowering: Lowering) -> None:
    hook = (
        'dependencies = ["numpy"]\nenable-by-default = true\n'
        'require-runtime-dependencies = true\nrequire-runtime-features = ["extra"]\n'
    )
    root = make_project(hook, more='[project.optional-dependencies]\nextra = ["scipy"]')
    builder = WheelBuilder(str(root), plugin_manager=manager())
    assert {"hatch-lower>=0.1", "numpy", "scipy", "torch==2.13.*"} <= set(builder.config.dependencies)
    build_wheel(root)
    assert len(lowering.calls) == 1


def test_a_wheels_build_requires_the_extra_of_that_name(make_project: MakeProject) -> None:
    listed = [Requirement(text) for text in importlib.metadata.requires("hatch-lower") or []]
    extra = {each.name for each in listed if str(each.marker) == 'extra == "build"'}
    assert {"click", "torch"} < extra
    asked = [
        Requirement(text) for text in WheelBuilder(str(make_project()), plugin_manager=manager()).config.dependencies
    ]
    assert {each.name for each in asked} == extra
    assert not any(each.marker for each in asked)


def test_a_source_distribution_requires_nothing_more(make_project: MakeProject) -> None:
    root = make_project()
    project = root / "pyproject.toml"
    project.write_text(project.read_text().replace("targets.wheel.hooks", "hooks"))
    assert SdistBuilder(str(root), plugin_manager=manager()).config.dependencies == []


INCOMPLETE = (
    "hatch-lower: hatch-lower is installed without packages that a build needs\n"
    "  found: `never-published>=2` is not installed\n"
    "  to do: install `hatch-lower[build]`; a build in an isolated environment does so by itself"
)


@pytest.fixture
def incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a package be missing of what hatch-lower builds with."""
    listed = ['never-published>=2; extra == "build"', 'hatchling>=1; extra == "build"', "packaging>=24"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: listed)


@pytest.mark.usefixtures("incomplete")
def test_an_export_without_its_packages_says_what_to_install(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    with pytest.raises(SystemExit):
        build_wheel(make_project())
    assert capsys.readouterr().err.strip().endswith(INCOMPLETE)


@pytest.mark.usefixtures("incomplete")
def test_a_package_that_is_not_found_is_one_to_install(
    make_project: MakeProject, lowering: Lowering, capsys: pytest.CaptureFixture[str]
) -> None:
    lowering.error = ModuleNotFoundError("No module named 'never_published'", name="never_published")
    with pytest.raises(SystemExit):
        build_wheel(make_project())
    assert capsys.readouterr().err.strip().endswith(INCOMPLETE)


def test_a_module_that_is_no_package_to_install_is_told_as_it_is(make_project: MakeProject, lowering: Lowering) -> None:
    lowering.error = ModuleNotFoundError("No module named 'digits'", name="digits")
    with pytest.raises(ModuleNotFoundError, match="digits"):
        build_wheel(make_project())


def test_only_the_hooks_leave_nothing_behind(
    make_project: MakeProject, lowering: Lowering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATCH_BUILD_HOOKS_ONLY", "true")
    root = make_project()
    builder = WheelBuilder(str(root), plugin_manager=manager())
    assert list(builder.build(versions=["standard"])) == []
    del builder
    gc.collect()
    assert len(lowering.calls) == 1
    assert not lowering.folders[0].exists()
    assert list((root / "dist").iterdir()) == []


def test_no_hooks_means_no_payload(
    make_project: MakeProject, lowering: Lowering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATCH_BUILD_NO_HOOKS", "true")
    wheel = build_wheel(make_project())
    assert lowering.calls == []
    assert not any("_lowered" in name for name in names_in(wheel))


@pytest.mark.parametrize("enabled", [False, True])
def test_the_hook_can_be_enabled_by_environment_variable(
    make_project: MakeProject, lowering: Lowering, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    if enabled:
        monkeypatch.setenv("HATCH_BUILD_HOOK_ENABLE_LOWER", "true")
    build_wheel(make_project("enable-by-default = false"))
    assert len(lowering.calls) == enabled


def test_the_global_table_serves_too(make_project: MakeProject, lowering: Lowering) -> None:
    start = PYPROJECT.replace("build.targets.wheel.hooks.lower", "build.hooks.lower")
    root = make_project("timeout = 4", start=start)
    list(SdistBuilder(str(root), plugin_manager=manager()).build())
    assert lowering.calls == []
    build_wheel(root)
    assert lowering.calls[0][0].timeout == 4


@pytest.mark.parametrize("start", ["global", "sdist"])
def test_the_source_distribution_carries_the_inputs(
    make_project: MakeProject, lowering: Lowering, start: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = PYPROJECT
    if start == "global":
        text = text.replace("build.targets.wheel.hooks.lower", "build.hooks.lower")
    more = "[tool.hatch.build.targets.sdist]\nonly-include = ['src']\nskip-excluded-dirs = true\n"
    if start == "sdist":
        more += "[tool.hatch.build.targets.sdist.hooks.lower]\n"
    root = make_project(
        'inputs = ["weights/*.bin", "src/digits/model.py", "top.bin", "more", "none/*"]', start=text, more=more
    )
    (root / ".git").mkdir()
    (root / ".gitignore").write_text("weights/\n*.bin\n")
    (root / "weights/deeper").mkdir(parents=True)
    (root / "more/below").mkdir(parents=True)
    for name in (
        "more/below/d.bin",
        "weights/a.bin",
        "weights/b.txt",
        "weights/deeper/c.bin",
        "top.bin",
        "src/digits/top.bin",
    ):
        (root / name).write_text(name)

    (archive,) = SdistBuilder(str(root), plugin_manager=manager()).build()

    with tarfile.open(archive) as file:
        names = sorted(name.removeprefix("digits-1.0/") for name in file.getnames())
    expected = ["more/below/d.bin", "src/digits/__init__.py", "src/digits/model.py", "top.bin", "weights/a.bin"]
    assert [name for name in names if name.startswith(("more/", "src/", "weights/", "top"))] == expected
    assert lowering.calls == []
    shown = capfd.readouterr()
    assert shown.out == ""
    table = "tool.hatch.build.hooks.lower" if start == "global" else "tool.hatch.build.targets.wheel.hooks.lower"
    assert shown.err == f"hatch-lower: `none/*` in `{table}.inputs` matches no file\n"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("3", "`tool.hatch.build.hooks.lower.inputs` "),
        ('["../w"]', "`tool.hatch.build.hooks.lower.inputs` must hold globs relative to the project and within it, "),
        ('["/w"]', "`tool.hatch.build.hooks.lower.inputs` must hold globs relative to the project and within it, "),
    ],
)
def test_wrong_inputs_fail_the_source_distribution(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str], inputs: str, message: str
) -> None:
    start = PYPROJECT.replace("build.targets.wheel.hooks.lower", "build.hooks.lower")
    root = make_project(f"inputs = {inputs}", start=start)
    with pytest.raises(SystemExit) as caught:
        list(SdistBuilder(str(root), plugin_manager=manager()).build())
    assert caught.value.code == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    what = "the build hook `lower` cannot add files to the source distribution: wrong settings"
    assert shown.err.startswith(f"hatch-lower: {what}\n  found: {message}")
    assert list((root / "dist").iterdir()) == []


@pytest.mark.parametrize("name", ["1", "beside"])
def test_a_file_that_is_removed_while_a_build_runs_is_made_again(
    make_project: MakeProject, lowering: Lowering, name: str
) -> None:
    lowering.beside = b"9 weights"
    root = make_project()
    whole = build_wheel(root).read_bytes()
    lowering.calls.clear()

    class Removing(WheelBuilder):
        def write_metadata(self, *args: Any, **kwargs: Any) -> Any:
            (lowering.folders[-1] / name).unlink()
            next((root / "dist").glob("*.safetensors")).unlink()
            return super().write_metadata(*args, **kwargs)

    (wheel,) = Removing(str(root), plugin_manager=manager()).build(versions=["standard"])
    assert Path(wheel).read_bytes() == whole
    assert [path.read_bytes() for path in (root / "dist").glob("*.safetensors")] == [lowering.beside]
    assert len(lowering.calls) == 2


def test_a_removed_file_that_becomes_another_is_an_error(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    class Removing(WheelBuilder):
        def write_metadata(self, *args: Any, **kwargs: Any) -> Any:
            (lowering.folders[-1] / "1").unlink()
            lowering.files["digits/_lowered/digits/constants.safetensors"] = safetensors(c0=TENSOR, c1=TENSOR)
            return super().write_metadata(*args, **kwargs)

    root = make_project()
    with pytest.raises(SystemExit):
        list(Removing(str(root), plugin_manager=manager()).build(versions=["standard"]))
    assert "differs after being made again" in capfd.readouterr().err
    assert list((root / "dist").iterdir()) == []


WEIGHTS_LINE = (
    "weights of digits: 9 bytes in 1 file outside the wheel, 4 bytes copied at each load, since the file does not align"
    " them; in the wheel 1,234 not there; 5 elsewhere"
)


def test_weights_go_beside_the_wheel_and_are_told_of(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    lowering.beside = b"9 weights"
    root = make_project()
    wheel = build_wheel(root)
    (path,) = (root / "dist").glob("*.safetensors")
    assert path.read_bytes() == lowering.beside
    assert path.stat().st_mode == wheel.stat().st_mode
    assert len(list((root / "dist").iterdir())) == 2
    said = capfd.readouterr().err
    assert WEIGHTS_LINE in said
    assert f"hatch-lower: to be uploaded: {path}" in said
    # what is there already stays, and what is not what it is called is written again
    before = path.stat().st_mtime_ns
    build_wheel(root)
    assert path.stat().st_mtime_ns == before
    path.write_bytes(b"8 weights")
    build_wheel(root)
    assert path.read_bytes() == lowering.beside


def test_a_wheel_whose_weights_cannot_be_written_does_not_stay(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    lowering.beside, lowering.files = b"9 weights", {"digits/_lowered/manifest.json": b"{}"}
    root = make_project()
    name = f"digits-digits-{hashlib.sha256(lowering.beside).hexdigest()[:16]}.safetensors"
    (root / "dist" / name).mkdir(parents=True)
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert "weights could not be written beside the wheel" in capfd.readouterr().err
    assert [path.name for path in (root / "dist").iterdir()] == [name]


def test_an_editable_wheel_has_its_weights_with_it(make_project: MakeProject, lowering: Lowering) -> None:
    pytest.importorskip("editables")
    root = make_project('weights = "https://example.org/model.safetensors"')
    for version, weights in (("editable", ()), ("standard", ("https://example.org/model.safetensors",))):
        build_wheel(root, version)
        settings, _ = lowering.calls[-1]
        assert settings.models[0].weights == weights


def test_an_editable_wheel_has_the_payload(make_project: MakeProject, lowering: Lowering) -> None:
    lowering.native = (Path("a.so"),)
    wheel = build_wheel(make_project(), "editable")
    assert wheel.name == "digits-1.0-py2.py3-none-any.whl"
    assert [name for name in names_in(wheel) if "_lowered" in name] == sorted(lowering.files)


def test_an_eager_editable_wheel_says_where_to_import_the_models(make_project: MakeProject, lowering: Lowering) -> None:
    wheel = build_wheel(make_project('editable = "eager"'), "editable")
    assert lowering.calls == []
    assert [name for name in names_in(wheel) if "_lowered" in name] == ["digits/_lowered/eager.json"]
    text = read_from(wheel, "digits/_lowered/eager.json")
    assert text == '{"models":{"digits":"digits.model:export"},"schema":1}\n'


def known_as(monkeypatch: pytest.MonkeyPatch, **results: object) -> None:
    """Let the cache have these results of the models."""
    found = {name: SimpleNamespace(result=result, entry=None) for name, result in results.items()}
    monkeypatch.setattr("hatch_lower.hatch.editable.look_up", lambda context: found)


@pytest.mark.parametrize("results", [{}, {"digits": None}], ids=["no cache", "nothing known"])
def test_an_editable_wheel_of_an_unknown_model_is_eager_aloud(
    make_project: MakeProject,
    lowering: Lowering,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    results: dict[str, object],
) -> None:
    known_as(monkeypatch, **results)
    wheel = build_wheel(make_project('editable = "known"'), "editable")
    assert lowering.calls == []
    assert [name for name in names_in(wheel) if "_lowered" in name] == ["digits/_lowered/eager.json"]
    assert json.loads(read_from(wheel, "digits/_lowered/eager.json")) == {
        "models": {"digits": "digits.model:export"},
        "reason": "its lowered programs were not known when the project was installed",
        "schema": 2,
    }
    said = [line for line in capfd.readouterr().err.splitlines() if "no lowered programs of `digits` are known" in line]
    assert len(said) == 1
    assert "`hatch build -t wheel` lowers" in said[0]


def test_an_editable_wheel_of_known_models_has_the_programs(
    make_project: MakeProject, lowering: Lowering, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_as(monkeypatch, digits=object())
    wheel = build_wheel(make_project('editable = "known"'), "editable")
    assert [name for name in names_in(wheel) if "_lowered" in name] == sorted(lowering.files)


def test_a_wheel_is_lowered_whatever_an_editable_one_gets(make_project: MakeProject, lowering: Lowering) -> None:
    build_wheel(make_project('editable = "known"'))
    assert len(lowering.calls) == 1


def test_an_eager_editable_wheel_has_the_assets(make_project: MakeProject, lowering: Lowering) -> None:
    root = make_project('editable = "eager"\nmodels.digits.assets = ["words/*"]')
    (root / "words").mkdir()
    (root / "words" / "labels.txt").write_text("zero\n")
    wheel = build_wheel(root, "editable")
    assert read_from(wheel, "digits/_lowered/digits/assets/labels.txt") == "zero\n"
    assert json.loads(read_from(wheel, "digits/_lowered/eager.json"))["assets"] == {
        "digits": {"labels.txt": "digits/assets/labels.txt"}
    }


def test_a_card_that_is_not_valid_is_refused_before_a_model_is_exported(
    make_project: MakeProject, lowering: Lowering, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_project('models.digits.card = "card.json"')
    (root / "card.json").write_text('{"licence": "MIT"}')
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert lowering.calls == []
    assert "`modelCard.licence` is not a field of a model's card" in capsys.readouterr().err


def test_a_source_distribution_has_the_files_and_assets_that_settings_name(
    make_project: MakeProject, lowering: Lowering
) -> None:
    start = PYPROJECT.replace("build.targets.wheel.hooks.lower", "build.hooks.lower")
    named = 'models.digits.verify-inputs = "words/a[1].safetensors"\nmodels.digits.card = "words/card.json"'
    named += (
        '\norder = "measured"\nrecipes.fast.backends = [{ name = "null", choices = { file = "words/choices.json" } }]'
    )
    root = make_project(f'models.digits.assets = ["words/*.txt"]\n{named}', start=start)
    (root / "words").mkdir()
    (root / "words" / "labels.txt").write_text("zero\n")
    (root / "words" / "a[1].safetensors").write_bytes(b"")
    for name in ("card.json", "choices.json"):
        (root / "words" / name).write_text("{}")
    (root / "lowering-times.json").write_text("{}")
    (root / ".gitignore").write_text("words/\nlowering-times.json\n")
    (sdist,) = SdistBuilder(str(root), plugin_manager=manager()).build()
    with tarfile.open(sdist) as archive:
        names = {"labels.txt", "a[1].safetensors", "card.json", "choices.json"}
        assert {f"digits-1.0/words/{name}" for name in names} <= set(archive.getnames())
        assert "digits-1.0/lowering-times.json" in archive.getnames()


def test_an_editable_wheel_can_go_without(make_project: MakeProject, lowering: Lowering, tmp_path: Path) -> None:
    wheel = build_wheel(make_project('editable = "skip"'), "editable")
    assert lowering.calls == []
    assert not any("_lowered" in name for name in names_in(wheel))
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_failing_build_is_one_paragraph(
    make_project: MakeProject, lowering: Lowering, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lowering.error = EntryPointError(
        "The model `digits` cannot be exported", where="src/digits/model.py:1", hint="look"
    )
    root = make_project()

    with pytest.raises(SystemExit) as caught:
        build_wheel(root)

    assert caught.value.code == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.endswith(
        "hatch-lower: The model `digits` cannot be exported\n  where: src/digits/model.py:1\n  to do: look\n"
    )
    assert list((root / "dist").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug"), OSError(errno.ENOSPC, "no space")])
def test_an_interrupted_build_leaves_nothing(
    make_project: MakeProject,
    lowering: Lowering,
    tmp_path: Path,
    error: BaseException,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lowering.error = error
    root = make_project()
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(type(error) if isinstance(error, RuntimeError) else SystemExit) as caught:
        build_wheel(root)
    assert (signal.getsignal(signal.SIGINT) == signal.SIG_IGN) == isinstance(error, KeyboardInterrupt)
    signal.signal(signal.SIGINT, handler)
    if isinstance(error, KeyboardInterrupt):
        assert caught.value.code == 130
        assert capfd.readouterr().err.endswith("\nhatch-lower: interrupted\n")
    assert list((root / "dist").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_module_that_the_export_removes_fails_the_build(
    make_project: MakeProject, lowering: Lowering, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = make_project()

    def build(*arguments: Any, **others: Any) -> BuildResult:
        (root / "src/digits/model.py").unlink()
        return lowering(*arguments, **others)

    monkeypatch.setattr("hatch_lower.driver.build.build", build)
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert capfd.readouterr().err.endswith(
        "hatch-lower: files of the wheel were removed while the models were exported\n"
        "  where: digits\n  found: `src/digits/model.py`\n"
        "  to do: restore the files, and let the model's code remove only files that the code has made\n"
    )
    assert list((root / "dist").iterdir()) == []


def test_a_packaged_file_whose_name_is_no_utf8_fails_the_build(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    root = make_project()
    Path(os.fsdecode(bytes(root / "src/digits") + b"/names\xff.txt")).touch()
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert capfd.readouterr().err.endswith(
        "hatch-lower: a file of the wheel has a name that is not UTF-8\n  where: digits/names\\udcff.txt\n"
        "  to do: rename the file, or add the file to `exclude` under `[tool.hatch.build.targets.wheel]`\n"
    )


def test_a_failure_in_finalize_removes_the_wheel(
    make_project: MakeProject, lowering: Lowering, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lowering.damage = True
    root = make_project()

    with pytest.raises(SystemExit) as caught:
        build_wheel(root)

    assert caught.value.code == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert (
        "hatch-lower: the file for `digits/_lowered/digits/constants.safetensors` is no longer the lowered file"
        in shown.err
    )
    assert list((root / "dist").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_packaged_file_in_the_way_fails_the_build(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    root = make_project()
    (root / "src/digits/_lowered").mkdir()
    (root / "src/digits/_lowered/manifest.json").write_text("{}")
    with pytest.raises(SystemExit):
        build_wheel(root)
    shown = capfd.readouterr().err
    assert "hatch-lower: the project has files where the lowered programs go\n" in shown
    assert "  found: `digits/_lowered/manifest.json`\n" in shown
    assert list((root / "dist").iterdir()) == []
    assert lowering.calls == []


def test_an_old_folder_of_programs_is_refused_by_force_include_too(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    more = '[tool.hatch.build.targets.wheel.force-include]\n"old" = "digits/_lowered/old"'
    root = make_project(more=more)
    (root / "old").mkdir()
    (root / "old/plan.json").write_text("{}")
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert "  found: `digits/_lowered/old/plan.json`\n" in capfd.readouterr().err


@pytest.mark.parametrize("target", [SdistBuilder, WheelBuilder])
def test_a_time_out_of_range_is_one_paragraph(
    make_project: MakeProject,
    lowering: Lowering,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "99999999999")
    start = PYPROJECT.replace("build.targets.wheel.hooks.lower", "build.hooks.lower")
    with pytest.raises(SystemExit):
        list(target(str(make_project(start=start)), plugin_manager=manager()).build())
    assert "environment variable `SOURCE_DATE_EPOCH`" in capfd.readouterr().err


def test_a_wrong_table_fails_the_build(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_wheel(make_project("sed = 3"))
    assert caught.value.code == 1
    assert "`tool.hatch.build.targets.wheel.hooks.lower.sed` is not a setting" in capfd.readouterr().err
    assert lowering.calls == []


def test_missing_dependencies_fail_the_build(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    root = make_project(start=PYPROJECT.replace(', "torch==2.13.*"', ""))
    with pytest.raises(SystemExit):
        build_wheel(root)
    assert "`torch==2.13.*`: not among the dependencies" in capfd.readouterr().err
    assert list((root / "dist").iterdir()) == []


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_missing_dependencies_can_be_added(make_project: MakeProject, lowering: Lowering, version: str) -> None:
    start = PYPROJECT.replace(', "torch==2.13.*"', "")
    wheel = build_wheel(make_project('runtime-requirements = "add"', start=start), version)
    text = read_from(wheel, "digits-1.0.dist-info/METADATA")
    assert "Requires-Dist: hatch-lower>=0.1\nRequires-Dist: torch==2.13.*\n" in text


def test_a_bound_that_is_missing_is_added_with_a_note(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    start = PYPROJECT.replace('"torch==2.13.*"', '"torch"')
    wheel = build_wheel(make_project(start=start))
    assert "Requires-Dist: torch==2.13.*\n" in read_from(wheel, "digits-1.0.dist-info/METADATA")
    line = "hatch-lower: the wheel requires `torch==2.13.*`: `torch` also allows all earlier versions\n"
    assert line in capfd.readouterr().err


def test_requirements_can_be_left_alone(make_project: MakeProject, lowering: Lowering) -> None:
    start = PYPROJECT.replace(', "torch==2.13.*"', "")
    wheel = build_wheel(make_project('runtime-requirements = "off"', start=start))
    assert "torch" not in read_from(wheel, "digits-1.0.dist-info/METADATA")


@pytest.mark.parametrize("folder", ["src/digits", "src/digits/a b[1]"])
def test_weights_that_the_programs_hold_are_left_out(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str], folder: str
) -> None:
    root = make_project()
    path = root / folder / "weights.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(safetensors(weight=TENSOR))
    name = f"{folder.removeprefix('src/')}/weights.safetensors"
    assert name not in names_in(build_wheel(root))
    assert capfd.readouterr().err.count("safetensors") == 1
    kept = make_project("keep-weights = true")
    assert name in names_in(build_wheel(kept))
    assert "safetensors" not in capfd.readouterr().err
    (sdist,) = SdistBuilder(str(root), plugin_manager=manager()).build()
    with tarfile.open(sdist) as archive:
        assert f"digits-1.0/{folder}/weights.safetensors" in archive.getnames()


@pytest.mark.parametrize(
    "more",
    [
        '[tool.hatch.build.targets.wheel]\nartifacts = ["*.safetensors"]',
        '[tool.hatch.build.targets.wheel.force-include]\n"weights.safetensors" = "digits/weights.safetensors"',
    ],
)
def test_weights_that_the_project_packages_by_name_are_kept_and_warned_about(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str], more: str
) -> None:
    root = make_project(more=more)
    (root / ("weights.safetensors" if "force" in more else "src/digits/weights.safetensors")).write_bytes(
        safetensors(weight=TENSOR)
    )
    assert "digits/weights.safetensors" in names_in(build_wheel(root))
    assert "to ship them once" in capfd.readouterr().err


def test_weights_that_are_packaged_again_in_part_are_warned_about(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    more = '[tool.hatch.build.targets.wheel]\nexclude = ["*.md"]'
    root = make_project(more=more)
    (root / "src/digits/weights.safetensors").write_bytes(safetensors(weight=TENSOR, small=b"abcd"))
    assert "digits/weights.safetensors" in names_in(build_wheel(root))
    assert (
        "hatch-lower: `digits/weights.safetensors` is packaged although the lowered programs hold 2,048 bytes of its "
        "tensors already; to ship them once, add to `[tool.hatch.build.targets.wheel]`: "
        'exclude = ["*.md", "src/digits/weights.safetensors"]\n'
    ) in capfd.readouterr().err


def test_patterns_that_match_nothing_are_warned_about(
    make_project: MakeProject, lowering: Lowering, capfd: pytest.CaptureFixture[str]
) -> None:
    more = (
        "[tool.hatch.build.targets.wheel]\n"
        'exclude = ["digits/*.bin", "none/", "none/*.bin", "src/digits/*.bin", "*.md", "**/*.x", "!a/b", "src/**.y"]'
    )
    root = make_project('inputs = ["weights/*", "src/digits/model.py"]', more=more)
    (root / "src/digits/weights.bin").write_text("1")
    build_wheel(root)
    shown = [line for line in capfd.readouterr().err.splitlines() if "matches no file" in line]
    assert shown == [
        "hatch-lower: `weights/*` in `tool.hatch.build.targets.wheel.hooks.lower.inputs` matches no file",
        "hatch-lower: `digits/*.bin` in `tool.hatch.build.targets.wheel.exclude` matches no file;"
        " patterns are relative to the project: write `src/digits/*.bin`",
        "hatch-lower: `none/*.bin` in `tool.hatch.build.targets.wheel.exclude` matches no file",
        "hatch-lower: `src/**.y` in `tool.hatch.build.targets.wheel.exclude` matches no file",
    ]


def test_quiet_is_quiet(
    make_project: MakeProject,
    lowering: Lowering,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HATCH_QUIET", "1")
    build_wheel(make_project())
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_clean_removes_what_a_killed_build_left(make_project: MakeProject, lowering: Lowering) -> None:
    root = make_project()
    stale = root / "dist" / "digits-1.0-py3-none-any.whl.abc.hatch-lower-tmp"
    stale.parent.mkdir()
    stale.write_bytes(b"half")
    builder = WheelBuilder(str(root), plugin_manager=manager())
    assert list(builder.build(versions=["standard"], clean_only=True)) == []
    assert not stale.exists()
    assert lowering.calls == []


def test_registering_the_hook_imports_next_to_nothing() -> None:
    code = (
        "import hatchling.builders.hooks.plugin.interface, hatchling.plugin, sys\n"
        "before = set(sys.modules)\n"
        "import hatch_lower.hatch.hooks\n"
        "print(sorted(name for name in set(sys.modules) - before if name.startswith(('hatch_lower', 'torch'))))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    expected = ["hatch_lower", "hatch_lower.errors", "hatch_lower.hatch", "hatch_lower.hatch.hooks"]
    assert found.strip() == str([*expected, "hatch_lower.hatch.plugin"])


def test_the_hooks_process_imports_no_torch() -> None:
    modules = ("editable", "project", "tags", "terminal", "wheel")
    imports = ", ".join(f"hatch_lower.hatch.{name}" for name in modules)
    code = f"import sys, hatch_lower.driver.build, {imports}\nprint('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "False"


def test_our_errors_are_all_rendered_at_the_door(make_project: MakeProject, lowering: Lowering) -> None:
    lowering.error = ConfigError("Any of ours")
    with pytest.raises(SystemExit):
        build_wheel(make_project())


@pytest.mark.parametrize(("quiet", "shown"), [("0", True), ("1", True), ("2", False)])
def test_a_recipe_that_is_not_compared_is_a_warning_unless_warnings_are_off(
    make_project: MakeProject,
    lowering: Lowering,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    quiet: str,
    shown: bool,
) -> None:
    monkeypatch.setenv("HATCH_QUIET", quiet)
    lowering.not_compared = "no `GPU` here"
    build_wheel(make_project())
    line = (
        "hatch-lower: not compared with eager: digits/default: no `GPU` here;"
        " compare with `hatch-lower check` on a machine with the device\n"
    )
    assert (line in capsys.readouterr().err) == shown
