"""Every kind of input: changed alone it is noticed alone and named; what does not matter is no change."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from hatch_lower.cache.stats import StatCache
from hatch_lower.driver.inputs.present import InputChange, Present, changes, files_matching
from hatch_lower.driver.inputs.record import RecordedInputs
from hatch_lower.driver.inputs.roots import Roots
from hatch_lower.format.codec import decode, encode

SECRET = b"s" * 32
NATIVE = EXTENSION_SUFFIXES[0]
LIBRARY = Path(os.__file__).parent


@dataclass
class Scene:
    """A project with its environment below one folder, and an export that read some of each."""

    folder: Path
    variables: dict[str, str] = field(default_factory=lambda: {"HF_HOME": "/models", "HF_TOKEN": "t", "EMPTY": ""})

    def __post_init__(self) -> None:
        self.project = self.folder / "work" / "digits"
        self.site = self.folder / "environment" / "site-packages"
        self.editable = self.folder / "other" / "src"
        self.home = self.folder / "home"
        self.archive = self.folder / "modules.zip"
        self.tools = self.folder / "bin"
        self.write("work/digits/src/digits/__init__.py", "")
        self.write("work/digits/src/digits/model.py", "SIZE = 3")
        self.write("work/digits/src/digits/parts/one.py", "")
        self.write("work/digits/src/digits/README.md", "read me")
        self.write("work/digits/weights/digits.safetensors", "123")
        self.write("work/digits/data/labels.txt", "a b c")
        self.write("work/digits/pyproject.toml", "[project]")
        self.write("environment/site-packages/torch/__init__.py", "")
        self.write("environment/site-packages/torch-2.13.0.dist-info/RECORD", "torch/__init__.py,,")
        self.write("environment/site-packages/click.py", "")
        self.write("environment/site-packages/click-8.1.dist-info/RECORD", "click.py,,")
        self.write("environment/site-packages/google/auth/__init__.py", "")
        self.write("environment/site-packages/google_auth-1.0.dist-info/RECORD", "google/auth/__init__.py,,")
        self.write("environment/site-packages/loose.py", "X = 1")
        self.write("environment/site-packages/spare/__init__.py", "")
        self.write("other/src/helper/__init__.py", "")
        self.write("other/src/google/part.py", "")
        self.write("home/.config/model.json", "{}")
        self.write("etc/model.conf", "on")
        self.write("bin/g++", "#!/bin/sh").chmod(0o755)
        with zipfile.ZipFile(self.archive, "w") as archive:
            archive.writestr("zipped/__init__.py", "")

    def write(self, path: str, text: str) -> Path:
        """Write a file, with folders as needed."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def roots(self) -> Roots:
        """Return the roots; the search path has the project's code, the standard library, and three other entries."""
        path = (self.project / "src", LIBRARY, self.site, self.editable, self.archive, self.project)
        return Roots(self.project, path, self.home, (self.folder / "build",))

    def environment(self) -> dict[str, str]:
        """Return the child's environment."""
        return {**self.variables, "PATH": str(self.tools)}

    def stats(self) -> StatCache:
        """Return a new cache of digests."""
        return StatCache(self.folder / "stats.json")

    def present(self) -> Present:
        """Return what is there now."""
        return Present(self.roots(), self.environment(), SECRET, self.stats())

    def outside(self) -> str:
        """Return the path of a file that is below no root."""
        return str(self.folder / "etc" / "model.conf")

    def record(self) -> RecordedInputs:
        """Return what the export read, as it is now."""
        now = self.present()
        files = ["project/src/digits/model.py", "project/weights/digits.safetensors", "site/helper/__init__.py"]
        owners = {"torch": ("torch",), "click": ("click",), "google": ("google-auth",)}
        modules = ["digits", "json", "sys", "torch", "click", "google", "loose", "helper", "zipped", "missing", "os"]
        return RecordedInputs(
            files={
                each: now.file(each) for each in (*files, "site/loose.py", "home/.config/model.json", self.outside())
            },
            absent=("project/weights/extra.bin", "site/torch/local.py", "home/.netrc", f"{self.outside()}.d"),
            looks={each: now.look(each) for each in ("project/pyproject.toml", "project/data", self.outside())},
            times={},
            listings={"project/data": now.listing("project/data")},
            importable={each: now.importable(each) for each in ("project/src", "project/src/digits")},
            modules={each: now.module(each, owners.get(each, ())) for each in modules},
            distributions={each: now.distribution(each) for each in ("torch", "click", "google-auth", "flash-attn")},
            environment={each: now.variable(each) for each in ("HF_HOME", "HF_TOKEN", "EMPTY", "HF_HUB_OFFLINE")},
            tools={each: now.tool(each) for each in ("g++", "clang")},
            globs={"weights/*.safetensors": now.glob("weights/*.safetensors")},
            unknown=(),
        )

    def changes(self, inputs: RecordedInputs) -> list[InputChange]:
        """Return what a new build finds changed."""
        return list(changes(inputs, self.present()))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "scene")


def test_the_scene_is_recorded_as_the_documentation_says(scene: Scene) -> None:
    inputs = scene.record()
    assert {**inputs.modules, "zipped": inputs.modules["zipped"][:8]} == {
        "digits": "project/src/digits",
        "json": "python",
        "sys": "python",
        "os": "python",
        "torch": "dist torch",
        "click": "dist click",
        "google": f"dist google-auth + {scene.editable}/google",
        "loose": "site/loose.py",
        "helper": "site/helper",
        "zipped": "archive ",
        "missing": "",
    }
    assert inputs.looks["project/pyproject.toml"] == "file 9"
    assert inputs.looks["project/data"] == "folder"
    assert inputs.distributions["flash-attn"] == inputs.environment["HF_HUB_OFFLINE"] == inputs.tools["clang"] == ""
    assert len({*inputs.environment.values()}) == 4
    assert all(inputs.files.values())


def rewrite_archive(scene: Scene) -> None:
    with zipfile.ZipFile(scene.archive, "w") as archive:
        archive.writestr("zipped/__init__.py", "X = 1")


def replace_with_folder(scene: Scene) -> None:
    (scene.project / "pyproject.toml").unlink()
    (scene.project / "pyproject.toml").mkdir()


def install_torch(scene: Scene) -> None:
    old = scene.site / "torch-2.13.0.dist-info"
    old.rename(old.with_name("torch-2.14.0.dist-info"))


def write_with_the_same_size_and_time(scene: Scene) -> None:
    path = scene.project / "src" / "digits" / "model.py"
    before = path.stat()
    path.write_text("SIZE = 5")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: list[tuple[Callable[[Scene], object], str, str]] = [
    (lambda s: s.write("work/digits/src/digits/model.py", "SIZE = 4"), "file", "src/digits/model.py"),
    (write_with_the_same_size_and_time, "file", "src/digits/model.py"),
    (
        lambda s: s.write("work/digits/weights/digits.safetensors", "124"),
        "file",
        "input weights/digits.safetensors",
    ),
    (lambda s: s.write("other/src/helper/__init__.py", "X = 1"), "file", "helper/__init__.py"),
    (lambda s: s.write("home/.config/model.json", "{ }"), "file", "input ~/.config/model.json"),
    (lambda s: (s.home / ".config/model.json").unlink(), "file", "input ~/.config/model.json is gone"),
    (
        lambda s: s.write("work/digits/weights/extra.bin/x", ""),
        "absent",
        "new folder weights/extra.bin",
    ),
    (lambda s: s.write("environment/site-packages/torch/local.py", ""), "absent", "new file torch/local.py"),
    (lambda s: s.write("home/.netrc", ""), "absent", "new file ~/.netrc"),
    (
        lambda s: s.write("work/digits/pyproject.toml", "[projects]"),
        "look",
        "pyproject.toml: file of 9 bytes → file of 10 bytes",
    ),
    (lambda s: (s.project / "pyproject.toml").unlink(), "look", "pyproject.toml is gone"),
    (replace_with_folder, "look", "pyproject.toml: file of 9 bytes → folder"),
    (lambda s: s.write("work/digits/data/more.txt", ""), "listing", "files in data"),
    (lambda s: s.write("work/digits/data/.hidden", ""), "listing", "files in data"),
    (lambda s: s.write("work/digits/src/digits/tools.py", ""), "importable", "modules in src/digits"),
    (lambda s: s.write(f"work/digits/src/digits/fast{NATIVE}", ""), "importable", "modules in src/digits"),
    (lambda s: s.write("work/digits/src/digits/fast.abi3.so", ""), "importable", "modules in src/digits"),
    (lambda s: s.write("work/digits/src/digits/old.pyc", ""), "importable", "modules in src/digits"),
    (lambda s: s.write(f"work/digits/src/digits/model{NATIVE}", ""), "importable", "modules in src/digits"),
    (lambda s: s.write("work/digits/src/digits/model/__init__.py", ""), "importable", "modules in src/digits"),
    (lambda s: s.write("work/digits/src/digits/parts/__init__.py", ""), "importable", "modules in src/digits"),
    (lambda s: s.write("work/digits/src/digits/space/x.txt", ""), "importable", "modules in src/digits"),
    (lambda s: s.write("work/digits/src/other.py", ""), "importable", "modules in src"),
    (lambda s: s.write("work/digits/json.py", ""), "", ""),
    (lambda s: s.write("work/digits/missing/x.txt", ""), "module", "new module missing"),
    (lambda s: s.write("environment/site-packages/missing.py", ""), "module", "new module missing"),
    (rewrite_archive, "module", "module zipped"),
    (lambda s: s.archive.unlink(), "module", "module zipped is gone"),
    (lambda s: shutil.rmtree(s.site / "google"), "module", "module google: google-auth + /"),
    (lambda s: s.write("other/src/google/__init__.py", ""), "module", "module google: google-auth + /"),
    (install_torch, "distribution", "torch 2.13.0 → 2.14.0"),
    (
        lambda s: s.write("environment/site-packages/torch-2.13.0.dist-info/RECORD", "x"),
        "distribution",
        "torch 2.13.0: other files or metadata",
    ),
    (
        lambda s: s.write("environment/site-packages/flash_attn-2.0.dist-info/RECORD", ""),
        "distribution",
        "flash-attn 2.0 was installed",
    ),
    (lambda s: s.variables.update(HF_HOME="/other"), "variable", "variable HF_HOME"),
    (lambda s: s.variables.pop("HF_HOME"), "variable", "variable HF_HOME is no longer set"),
    (lambda s: s.variables.pop("HF_TOKEN"), "variable", "variable HF_TOKEN is no longer set"),
    (lambda s: s.variables.update(HF_TOKEN="another"), "variable", "variable HF_TOKEN"),
    (lambda s: s.variables.pop("EMPTY"), "variable", "variable EMPTY is no longer set"),
    (lambda s: s.variables.update(HF_HUB_OFFLINE=""), "variable", "variable HF_HUB_OFFLINE is set now"),
    (lambda s: s.write("bin/g++", "#!/bin/bash"), "tool", "command g++"),
    (lambda s: (s.tools / "g++").unlink(), "tool", "command g++ is gone"),
    (lambda s: s.write("bin/clang", "").chmod(0o755), "tool", "command clang is there now"),
    (
        lambda s: s.write("work/digits/weights/second.safetensors", ""),
        "glob",
        "files that match weights/*.safetensors",
    ),
]


@pytest.mark.parametrize(("change", "kind", "text"), CHANGES)
def test_a_change_alone_is_noticed_alone_and_named(
    scene: Scene, change: Callable[[Scene], object], kind: str, text: str
) -> None:
    inputs = scene.record()
    assert scene.changes(inputs) == []
    change(scene)
    changes = scene.changes(inputs)
    assert [each.kind for each in changes] == ([kind] if kind else [])
    for each in changes:
        assert each.text().startswith(text)
        assert each.text() == text or kind == "module"
        assert each.before != each.after
    again = replace(scene.record(), absent=())
    assert scene.changes(again) == []


def test_a_field_of_the_inputs_is_left_out_of_no_comparison(scene: Scene) -> None:
    inputs = scene.record()
    for name, kind in {
        "files": "file",
        "looks": "look",
        "listings": "listing",
        "importable": "importable",
        "modules": "module",
        "distributions": "distribution",
        "environment": "variable",
        "tools": "tool",
        "globs": "glob",
    }.items():
        recorded = getattr(inputs, name)
        for subject in recorded:
            other = replace(inputs, **{name: {**recorded, subject: "something else"}})
            assert [(each.kind, each.subject) for each in scene.changes(other)] == [(kind, subject)]
    absent = replace(inputs, absent=("project/src", "site/torch", "home/.config"))
    assert [each.text() for each in scene.changes(absent)] == [
        "new folder ~/.config",
        "new folder src",
        "new folder torch",
    ]
    timed = replace(inputs, times={"project/data": "another"})
    assert [(each.kind, each.subject) for each in scene.changes(timed)] == [("time", "project/data")]
    unknown = replace(inputs, unknown=("the export opened a socket",))
    assert [each.text() for each in scene.changes(unknown)] == ["the export opened a socket"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("work/digits/src/json.py", "new module json shadows the standard library's"),
        ("work/digits/src/json/__init__.py", "new module json shadows the standard library's"),
        (f"work/digits/src/click{NATIVE}", "new module click shadows that of click"),
        ("work/digits/src/torch/__init__.py", "new module torch shadows that of torch"),
        ("work/digits/src/loose.py", "module loose: loose.py → src/loose.py"),
        ("work/digits/src/missing.py", "new module missing"),
    ],
)
def test_a_module_of_the_project_that_hides_another_is_named_first(scene: Scene, path: str, text: str) -> None:
    inputs = scene.record()
    scene.write(path, "")
    assert [(each.kind, each.text()) for each in scene.changes(inputs)] == [
        ("module", text),
        ("importable", "modules in src"),
    ]


def test_a_module_that_hides_a_loose_one_of_the_environment_is_noticed(scene: Scene) -> None:
    inputs = scene.record()
    scene.write("environment/site-packages/helper.py", "")
    assert [each.text() for each in scene.changes(inputs)] == ["module helper: helper → helper.py"]


def test_a_distribution_that_is_gone_takes_its_modules_along(scene: Scene) -> None:
    inputs = scene.record()
    shutil.rmtree(scene.site / "click-8.1.dist-info")
    (scene.site / "click.py").unlink()
    assert [each.text() for each in scene.changes(inputs)] == [
        "click 8.1 is no longer installed",
        "module click is gone",
    ]


def test_a_distribution_that_is_found_in_another_entry_is_the_same(scene: Scene) -> None:
    inputs = scene.record()
    for name in ("click.py", "click-8.1.dist-info"):
        shutil.move(scene.site / name, scene.editable / name)
    assert scene.changes(inputs) == []


def test_a_frozen_module_cannot_be_hidden(scene: Scene) -> None:
    inputs = scene.record()
    scene.write("work/digits/sys.py", "")
    assert scene.changes(inputs) == []


def touch(scene: Scene) -> None:
    for path in scene.folder.rglob("*"):
        os.utime(path, (1, 1))


NO_CHANGES: list[Callable[[Scene], object]] = [
    touch,
    lambda s: s.write("work/digits/src/digits/README.md", "read more"),
    lambda s: s.write("work/digits/src/digits/NOTES.md", ""),
    lambda s: s.write("work/digits/src/digits/data.txt", ""),
    lambda s: s.write("work/digits/src/digits/.hidden.py", ""),
    lambda s: s.write("work/digits/src/digits/.cache/x.py", ""),
    lambda s: s.write("work/digits/src/digits/.py", ""),
    lambda s: s.write("work/digits/src/digits/a.b.py", ""),
    lambda s: s.write("work/digits/zipped/__init__.py", ""),
    lambda s: s.write("work/digits/src/digits/__pycache__/model.cpython-311.pyc", ""),
    lambda s: s.write("work/digits/src/digits/model.pyc", ""),
    lambda s: s.write("work/digits/src/digits/old.cpython-20.so", ""),
    lambda s: s.write("work/digits/data/__pycache__/x", ""),
    lambda s: s.write("work/digits/data/labels.txt", "other contents of a file that was only listed"),
    lambda s: s.write("work/digits/dist/digits-1.0.whl", ""),
    lambda s: s.write("work/digits/src/space/x.txt", ""),
    lambda s: s.write("environment/site-packages/unused.py", ""),
    lambda s: s.write("environment/site-packages/unused-1.0.dist-info/RECORD", ""),
    lambda s: s.write("environment/site-packages/torch/__pycache__/x.pyc", ""),
    lambda s: s.variables.update(UNUSED="1"),
    lambda s: s.variables.update(dict(reversed(s.variables.items()))),
    lambda s: (s.project / "src/digits/model.py").chmod(0o600),
    lambda s: s.write("work/digits/weights/notes.txt", ""),
    lambda s: (s.folder / "bin/other").symlink_to("g++"),
]


@pytest.mark.parametrize("change", NO_CHANGES)
def test_what_does_not_matter_is_no_change(scene: Scene, change: Callable[[Scene], object]) -> None:
    inputs = scene.record()
    change(scene)
    assert [each.text() for each in scene.changes(inputs)] == []


def test_a_project_that_was_moved_to_another_users_machine_is_the_same(scene: Scene, tmp_path: Path) -> None:
    here = scene.record()
    there = Scene(tmp_path / "another" / "place")
    outside, google = scene.outside(), "google"
    portable = replace(
        here,
        files={path: digest for path, digest in here.files.items() if path != outside},
        looks={path: look for path, look in here.looks.items() if path != outside},
        modules={name: place for name, place in here.modules.items() if name not in (google, "zipped")},
    )
    assert [each.text() for each in there.changes(portable)] == []


def test_inputs_that_went_through_json_are_the_same(scene: Scene) -> None:
    stored = json.loads(json.dumps(encode(scene.record())))
    assert scene.changes(decode(RecordedInputs, stored, "")) == []


def test_another_cache_recognizes_no_value_but_what_is_not_set(scene: Scene) -> None:
    inputs = scene.record()
    present = Present(scene.roots(), scene.environment(), b"t" * 32, scene.stats())
    assert [each.subject for each in changes(inputs, present)] == ["EMPTY", "HF_HOME", "HF_TOKEN"]
    assert "/models" not in json.dumps(encode(inputs))


def test_the_first_change_is_that_which_tells_most(scene: Scene) -> None:
    inputs = scene.record()
    assert scene.changes(inputs) == []
    scene.write("work/digits/src/digits/tools.py", "")
    scene.write("work/digits/src/digits/model.py", "import tools")
    scene.variables["HF_HOME"] = "/other"
    kinds = [each.kind for each in scene.changes(inputs)]
    assert kinds == ["file", "importable", "variable"]
    install_torch(scene)
    assert scene.changes(inputs)[0].text() == "torch 2.13.0 → 2.14.0"


def test_many_records_are_checked_with_one_look_at_each_thing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = scene.record()
    read: list[str] = []
    digest = StatCache.digest
    monkeypatch.setattr(StatCache, "digest", lambda self, path: read.append(str(path)) or digest(self, path))
    present = scene.present()
    others = [replace(inputs, environment={f"V{i}": "x"}) for i in range(16)]
    assert all(list(changes(each, present)) for each in others)
    assert list(changes(inputs, present)) == []
    assert len(read) == len(set(read))


def test_names_that_are_not_text_are_compared(scene: Scene) -> None:
    inputs = scene.record()
    name = os.fsencode(scene.project / "data") + b"/\xff"
    with open(name, "w"):
        pass
    assert [each.text() for each in scene.changes(inputs)] == ["files in data"]


def test_a_file_of_which_only_the_size_was_asked_may_have_other_contents_of_that_size(scene: Scene) -> None:
    inputs = replace(scene.record(), files={})
    scene.write("etc/model.conf", "of")
    assert scene.changes(inputs) == []
    scene.write("etc/model.conf", "off")
    assert [each.text() for each in scene.changes(inputs)] == [f"{scene.outside()}: file of 2 bytes → file of 3 bytes"]


def test_modules_are_found_where_the_import_system_finds_them() -> None:
    search_path = tuple(Path(entry) for entry in sys.path if entry)
    roots = Roots(Path("/nowhere"), search_path, Path("/nowhere/nobody"), ())
    now = Present(roots, {}, SECRET, StatCache(Path("/nowhere/stats.json")))
    names = [
        *sorted(sys.stdlib_module_names),
        "pytest",
        "hatchling",
        "hatch_lower",
        "nowhere",
        "six_nine",
        "not-a-name",
    ]
    found = {name for name in names if now.module(name)}
    assert found == {name for name in names if importlib.util.find_spec(name) is not None}
    assert {now.module(name) for name in found & sys.stdlib_module_names} == {"python"}


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("weights/**.bin", {"weights/a.bin"}),
        ("weights/**", {"weights/a.bin", "weights/more/b.bin"}),
        ("**/b**", {"weights/more/b.bin"}),
        ("weights/***", {"weights/a.bin", "weights/more/b.bin"}),
    ],
)
def test_declared_files_are_alike_in_every_version_of_python(tmp_path: Path, glob: str, expected: set[str]) -> None:
    for name in ("weights/a.bin", "weights/more/b.bin", "c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert {path.relative_to(tmp_path).as_posix() for path in files_matching(tmp_path, glob)} == expected
