"""Builds for which there is no space: a correct wheel or one paragraph that says so, and nothing half-made.

A disk is full from a chosen change of a file on, or for one change only; or it is a small one that the kernel makes.
A long run tries every change; for others a few are enough.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.effort import LONG
from support.faults import Known, Place, Supervisor, is_one_paragraph, sample
from support.scenarios import only, sha256, tree
from support.venv import Finished, run

from hatch_lower.cache.contents import repair_store

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

POINTS = 1000 if LONG else 0
ACTIONS = ("full", "once")
NO_SPACE = "No space left on device"
SMALL_DISK = """
mount -t tmpfs -o "size=$SIZE" small "$PLACE" || exit 77
if [ -d "$FILL" ]; then cp -r "$FILL/." "$PLACE"; fi
"$@"
status=$?
find "$PLACE" -mindepth 1 > "$FOUND"
cp -r "$PLACE/." "$COPY"
exit $status
"""
"""A command with a small file system for one of its folders, which is copied before it goes."""


def test_no_space_at_any_change_of_a_build_with_nothing_to_do(
    supervisor: Supervisor, tiny: Known, tmp_path: Path
) -> None:
    place = Place.of("tiny", tmp_path / "place", tiny.cache)
    for action in ACTIONS:
        for number in sample(POINTS or 4, len(tiny.again)):
            struck = supervisor.build(place, action, str(number))
            is_right_or_explained(place, tiny, struck.finished, f"{action} from {number}")
            place.start_over(tiny.cache)
    place.recovers(tiny)


@pytest.mark.long
@pytest.mark.parametrize("action", ACTIONS)
def test_no_space_at_any_change_of_a_first_build(
    supervisor: Supervisor, tiny: Known, tmp_path: Path, action: str
) -> None:
    place = Place.of("tiny", tmp_path / "place")
    for number in sample(POINTS, len(tiny.first)):
        place.start_over()
        struck = supervisor.build(place, action, str(number))
        is_right_or_explained(place, tiny, struck.finished, f"{action} from {number}")
        place.recovers(tiny)


@pytest.mark.parametrize("point", ["1", "rename:/records/"] if POINTS else ["rename:/records/"])
def test_a_cache_without_space_is_done_without(supervisor: Supervisor, tiny: Known, tmp_path: Path, point: str) -> None:
    place = Place.of("tiny", tmp_path / "place")
    struck = supervisor.build(place, "full", point, scope=[place.project.cache])
    assert sha256(only(place.project.dist, "*.whl")) == tiny.wheel
    said = [line for line in struck.finished.stderr.splitlines() if "the build goes on without it" in line]
    assert len(said) == 1, struck.finished.stderr
    assert NO_SPACE in said[0]
    is_right_or_explained(place, tiny, struck.finished, f"full from {point}")


def test_a_work_folder_without_space_is_one_paragraph(supervisor: Supervisor, tiny: Known, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place")
    struck = supervisor.build(place, "full", "open:/default.json", scope=[place.temporary])
    is_right_or_explained(place, tiny, struck.finished, "the plan cannot be written")
    assert struck.finished.status == 1
    place.recovers(tiny)


def test_a_small_disk_for_wheels(tiny: Known, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place", tiny.cache)
    on_small_disks(place, tiny, place.project.dist, ["4k", "8k", "12k", "1m"])


def test_of_a_wheel_that_hatchling_copies_to_a_small_disk_nothing_stays(tiny: Known, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place", tiny.cache)
    (place.project.root / "tiny" / "table.bin").write_bytes(random.Random(1).randbytes(20_000))
    place.project.dist.mkdir()
    finished, found = on_small_disk(place, place.project.dist, "8k")
    assert "unchanged" in finished.output
    assert has_no_space(finished), finished.output
    assert "Traceback" in finished.stderr, "that was hatchling, which copies where it cannot rename"
    assert found == []
    assert place.left() == []


def test_a_small_disk_for_temporary_files(tiny: Known, tmp_path: Path) -> None:
    place = Place.of("tiny", tmp_path / "place", tiny.cache)
    on_small_disks(place, tiny, place.temporary, ["4k", "8k", "1m"])


@pytest.mark.long
@pytest.mark.parametrize("size", ["4k", "32k", "64k", "96k", "128k", "512k"])
def test_a_small_disk_for_the_cache(tiny: Known, tmp_path: Path, size: str) -> None:
    place = Place.of("tiny", tmp_path / "place")
    place.project.cache.mkdir()
    finished, _ = on_small_disk(place, place.project.cache, size)
    assert sha256(only(place.project.dist, "*.whl")) == tiny.wheel, finished.output
    assert finished.stderr.count("the build goes on without it") <= 1, finished.stderr


def on_small_disks(place: Place, known: Known, folder: Path, sizes: list[str]) -> None:
    """Build on disks of several sizes: the last is large enough, the first is not."""
    ends = []
    for size in sizes:
        folder.mkdir(exist_ok=True)
        finished, found = on_small_disk(place, folder, size)
        ends.append(finished.status)
        if folder == place.project.dist:
            assert [sha256(each) for each in found] == [known.wheel] * (finished.status == 0), finished.output
            assert finished.status == 0 or has_no_space(finished), finished.output
        else:
            is_right_or_explained(place, known, finished, f"{size} for {folder.name}")
        place.start_over(known.cache)
    assert ends[0] == 1
    assert ends[-1] == 0


def on_small_disk(place: Place, folder: Path, size: str) -> tuple[Finished, list[Path]]:
    """Build with a file system of `size` bytes for one folder; return what was in it, too."""
    copy = place.root / f"copy of {size}"
    copy.mkdir()
    variables = {"SIZE": size, "PLACE": str(folder), "COPY": str(copy), "FOUND": str(place.root / "found"), "FILL": ""}
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh", *place.project.command()]
    finished = run(words, cwd=place.project.root, environment=place.environment(variables))
    if not (place.root / "found").exists():
        pytest.skip(f"the system does not let a user mount a file system: {finished.stderr.strip()}")
    return finished, sorted(each for each in copy.rglob("*") if each.is_file())


def is_right_or_explained(place: Place, known: Known, finished: Finished, when: str) -> None:
    """See that a build made the right wheel or said in one paragraph that there is no space, and left nothing."""
    wheels = place.wheels()
    if finished.status == 0:
        assert "Traceback" not in finished.output, f"{when}: {finished.output}"
        assert [sha256(each) for each in wheels] == [known.wheel], f"{when}: {finished.output}"
    else:
        assert has_no_space(finished), f"{when}: {finished.output}"
        assert wheels == [], f"{when}: {finished.output}"
    assert place.left() == [], f"{when}: {finished.output}"
    assert tree(place.project.root) == known.sources
    assert repair_store(place.project.cache / "v1") == {}, when
    assert list(place.project.cache.rglob("*.part")) == [], when


def has_no_space(finished: Finished) -> bool:
    """Return whether a build failed for lack of space: in our words, or hatchling at its own work in Python's."""
    if "Traceback" not in finished.output:
        return is_one_paragraph(finished) and NO_SPACE in finished.stderr
    files = [line.split('"')[1] for line in finished.stderr.splitlines() if line.startswith('  File "')]
    return not any("hatch_lower" in each for each in files) and NO_SPACE in finished.stderr.splitlines()[-1]
