"""What is wrong around a build: folders that cannot be written, clocks that go back, another release on its cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.faults import Known, Place, compiled, nothing_stays
from support.scenarios import LEFT_OUT, only, sha256, tree
from support.venv import REPOSITORY, Finished, run

from hatch_lower.cache.contents import StoreLimits, maybe_trim, survey
from hatch_lower.cache.entry import make_record
from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

CALL = "import sys; from hatch_lower.cli.entry import main; main(sys.argv[1:])"
FORMS = (
    *("driver/lookup.py", "cache/reports.py", "cache/stats.py", "driver/explain.py", "pipeline/package.py"),
    *("exir/lowering/stored_results.py", "hatch/tags.py"),
)
"""Modules with the versions of the forms in which things are stored."""
READ_ONLY = """
for folder in $FOLDERS; do
    mount --bind "$folder" "$folder" && mount -o remount,bind,ro "$folder" || exit 77
done
"$@"
"""
FAILING_HOOK = """
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FailingHook(BuildHookInterface):
    def finalize(self, version, build_data, artifact_path):
        raise SystemExit("this hook fails after the wheel is written")
"""


@pytest.fixture
def place(tiny: Known, tmp_path: Path) -> Place:
    """The scenario `tiny`, of which everything is known."""
    return Place.of("tiny", tmp_path / "place", tiny.cache)


def read_only(place: Place, *folders: Path, variables: dict[str, str] | None = None) -> Finished:
    """Build with folders that nobody can write to, the system's administrator neither."""
    environment = {**place.environment(variables), "FOLDERS": " ".join(map(str, folders))}
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh", *place.project.command()]
    finished = run(words, cwd=place.project.root, environment=environment)
    if finished.status == 77:
        pytest.skip(f"the system does not let a user mount a file system: {finished.stderr.strip()}")
    return finished


def test_a_project_and_a_home_with_the_cache_that_cannot_be_written(tiny: Known, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place")
    place.project.cache.mkdir()
    variables = {"HOME": str(place.project.cache)}
    finished = read_only(place, place.project.root, place.project.cache, variables=variables).check()
    assert sha256(only(place.project.dist, "*.whl")) == tiny.wheel
    assert finished.stderr.count("the build goes on without it") == 1, finished.stderr
    assert tree(place.project.root) == tiny.sources
    assert list(place.project.cache.iterdir()) == []


def test_a_full_cache_that_cannot_be_written_is_used(tiny: Known, place: Place) -> None:
    before = tree(place.project.cache)
    finished = read_only(place, place.project.root, place.project.cache).check()
    assert "unchanged" in finished.output
    assert "goes on without it" not in finished.output
    assert sha256(only(place.project.dist, "*.whl")) == tiny.wheel
    assert tree(place.project.cache) == before


@pytest.mark.parametrize("which", ["temporary", "dist"])
def test_a_folder_of_the_build_that_cannot_be_written_is_one_paragraph(place: Place, which: str) -> None:
    folder = {"temporary": place.temporary, "dist": place.project.dist}[which]
    folder.mkdir(exist_ok=True)
    finished = read_only(place, folder)
    assert list(folder.iterdir()) == []
    assert place.left() == []
    if which == "temporary":  # Python takes another folder where the one that is named cannot be written
        finished.check()
    else:
        assert finished.status == 1
        assert "Read-only file system" in finished.stderr


def test_a_hook_that_fails_after_the_wheel_is_written_leaves_no_wheel_without_payload(
    tiny: Known, place: Place
) -> None:
    hook = place.root / "hook.py"
    hook.write_text(FAILING_HOOK)
    table = "[tool.hatch.build.targets.wheel.hooks.lower]"
    custom = '[tool.hatch.build.targets.wheel.hooks.custom]\npath = "../hook.py"\n\n'
    place.project.edit("pyproject.toml", table, custom + table)
    finished = place.build()
    assert "this hook fails" in finished.output
    assert place.wheels() == []
    hook.write_text(FAILING_HOOK.replace("raise", "return"))
    place.build().check()
    whole = only(place.project.dist, "*.whl")
    assert sha256(whole) == tiny.wheel
    hook.write_text(FAILING_HOOK.replace("finalize", "initialize").replace(", artifact_path", ""))
    assert "this hook fails" in place.build().output
    assert sha256(whole) == tiny.wheel, "one that was whole before stays"


@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_that_was_set_back_or_forward_since_the_last_build(tiny: Known, place: Place, days: int) -> None:
    clock = with_clock(place, 86400 * days)
    assert "unchanged" in place.build(clock).check().output
    place.recovers(tiny)
    model = place.project.root / "tiny" / "model.py"
    dated = model.stat()
    place.project.edit("tiny/model.py", "torch.relu", "torch.tanh")  # as long as before
    os.utime(model, ns=(dated.st_atime_ns, dated.st_mtime_ns))
    command = [sys.executable, "-c", CALL, "explain"]
    explained = run(command, cwd=place.project.root, environment=place.environment(clock)).check()
    assert "tiny: will be exported again, for 1 reason" in explained.stdout
    assert "tiny/model.py" in explained.stdout


def test_a_trim_with_a_clock_that_was_set_back_removes_nothing(tiny: Known, place: Place) -> None:
    directory = place.project.cache / "v1"
    before = tree(directory)
    moment = time.time() - 400 * 86400
    os.utime(directory / "trimmed", (moment - 172800, moment - 172800))
    trimmed = maybe_trim(Store(directory, "on", pytest.fail), StoreLimits(0, 1.0), moment)
    assert trimmed is not None
    assert (trimmed.records, trimmed.blobs) == (0, 0)
    assert tree(directory) == before
    assert "unchanged" in place.build().check().output


def test_a_clock_that_goes_back_at_each_look_at_it(tiny: Known, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place")
    table = "[tool.hatch.build.targets.wheel.hooks.lower]\n"
    place.project.edit("pyproject.toml", table, f'{table}pass-env = ["LD_PRELOAD"]\n')
    finished = place.build(with_clock(place, 0, -60)).check()
    assert "Traceback" not in finished.output
    assert sha256(only(place.project.dist, "*.whl")) == tiny.wheel
    assert place.left() == []
    nothing_stays(place.project.cache / "v1")


def with_clock(place: Place, ahead: int, step: int = 0) -> dict[str, str]:
    """Return the variable that gives a build, and its child if it is passed, another clock."""
    folder = place.root / f"clock {ahead} {step}".replace(" ", "_")
    folder.mkdir(exist_ok=True)
    options = ("-shared", "-fPIC", f"-DSHIFT={ahead}", f"-DSTEP={step}")
    return {"LD_PRELOAD": str(compiled("clock.cpp", folder, *options))}


def test_a_newer_release_on_the_same_cache(tiny: Known, place: Place) -> None:
    newer = {"PYTHONPATH": str(newer_release(place.root / "newer"))}
    wheels: dict[bool, str] = {}
    entries: dict[str, int] = {}
    for is_newer in (True, False, True, False):
        finished = place.build(newer if is_newer else {}).check()
        assert "Traceback" not in finished.output
        assert "damaged" not in finished.output
        made = only(place.project.dist, "*.whl")
        assert wheels.setdefault(is_newer, sha256(made)) == sha256(made)
        with ZipFile(made) as archive:
            manifest = archive.read("tiny/_lowered/manifest.json")
        assert (b'"9.0.0"' in manifest) == is_newer
        stored = {each.key: each.blobs for each in survey(place.project.cache / "v1").entries}
        assert entries.keys() <= stored.keys(), "no release removes what the other has stored"
        assert not entries or "unchanged" in finished.output
        entries = stored
    assert wheels[False] == tiny.wheel
    nothing_stays(place.project.cache / "v1")


def test_records_in_a_form_that_a_newer_release_has_are_built_again(tiny: Known, place: Place) -> None:
    directory = place.project.cache / "v1"
    for path in sorted(directory.glob("records/*/*.json")):
        record = json.loads(path.read_bytes())
        value = {"schema": 99, "entries": {"form": "new"}, "report": 1}
        path.write_bytes(canonical_json(make_record(path.stem, record["components"], value, record["blobs"])))
    finished = place.build().check()
    assert "Traceback" not in finished.output
    assert sha256(only(place.project.dist, "*.whl")) == tiny.wheel
    assert "unchanged" in place.build().check().output
    place.recovers(tiny)


def newer_release(folder: Path) -> Path:
    """Copy this package: a later version, with another form of all that it stores."""
    package = shutil.copytree(REPOSITORY / "hatch_lower", folder / "hatch_lower", ignore=LEFT_OUT)
    for path in [package / "__init__.py", *(package / each for each in FORMS)]:
        text = path.read_text()
        edited = re.sub(
            r"(?m)^((?:\w+_)?(?:SCHEMA|VERSION)) = (\d+)$", lambda found: f"{found[1]} = 90 + {found[2]}", text
        )
        edited = re.sub(r'(?m)^__version__ = ".*"$', '__version__ = "9.0.0"', edited)
        assert edited != text, path
        path.write_text(edited)
    return folder
