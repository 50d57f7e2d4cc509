"""What others that read wheels say of ours: Python, twine, check-wheel-contents, pip and uv.

A wheel of this size has no need of zip64; one that is made with a lower limit has what a wheel of 4 GiB has. One that
is really that large is made in a long run (needs 20 GiB of disk).
"""

from __future__ import annotations

import csv
import io
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.effort import LONG
from support.scenarios import copy_project
from support.venv import Finished, run

from hatch_lower.canonical import recorded_digest, sha256_file
from hatch_lower.format.results import PayloadFile
from hatch_lower.hatch.wheel import append_payload

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

WHEEL = "tiny-1.0-py3-none-any.whl"
LARGE = (1 << 32) + 12_345

TOOLS: dict[str, list[str]] = {
    "zipfile": [sys.executable, "-m", "zipfile", "-t"],
    "twine": [sys.executable, "-m", "twine", "check"],
    "check-wheel-contents": ["check-wheel-contents", "--no-config"],
}
INSTALLERS: dict[str, list[str]] = {
    "pip": [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile"],
    "uv": ["uv", "pip", "install", "--no-deps", "--offline", "--no-cache", "--python", sys.executable],
}


@pytest.fixture(scope="module", params=["as built", "native", "zip64", *(["4 GiB"] if LONG else [])])
def wheel(
    request: pytest.FixtureRequest, built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The wheels of the smallest scenario and of one with native code, and one with another payload and a low limit."""
    if request.param == "as built":
        yield built("tiny")
        return
    if request.param == "native":
        yield built("mixed")
        return
    folder = tmp_path_factory.mktemp("large")
    path = copy_project("tiny", folder).wheel({"HATCH_BUILD_NO_HOOKS": "1"})
    huge = request.param == "4 GiB"
    payload = [
        make_file(folder / "payload", "tiny/_lowered/tiny/constants.safetensors", LARGE if huge else 300_000),
        make_file(folder / "payload", "tiny/_lowered/tiny/default.json", 500),
        make_file(folder / "payload", "tiny/_lowered/tiny/empty", 0),
    ]
    with pytest.MonkeyPatch.context() as patch:
        if not huge:
            patch.setattr(zipfile, "ZIP64_LIMIT", 1000)
        append_payload(path, payload)
    yield path
    shutil.rmtree(folder)


def make_file(folder: Path, path: str, size: int) -> PayloadFile:
    """Return a payload file with bytes at its beginning and its end, and nothing but zeros between."""
    source = folder / path.replace("/", "-")
    folder.mkdir(exist_ok=True)
    with source.open("wb") as file:
        file.write(path.encode()[:size])
        file.truncate(size)
        if size > 1000:
            file.seek(size - 10)
            file.write(b"0123456789")
    return PayloadFile(path, source, size, sha256_file(source))


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_that_check_wheels_find_nothing(wheel: Path, tool: str) -> None:
    done = run([*TOOLS[tool], wheel]).check()
    assert {
        "zipfile": "Done testing",
        "twine": "PASSED",
        "check-wheel-contents": f"{wheel}: OK",
    }[tool] in done.output


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installers_unpack_every_file_as_record_has_it(wheel: Path, installer: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(installer, wheel, site).check()
    for name, digest, size in recorded(wheel):
        path = site / name
        assert (path.stat().st_size, recorded_digest(sha256_file(path))) == (size, digest), name
    shutil.rmtree(site)


def install(installer: str, wheel: Path, site: Path) -> Finished:
    """Install a wheel into a folder."""
    return run([*INSTALLERS[installer], "--target", site, wheel])


def recorded(wheel: Path) -> list[tuple[str, str, int]]:
    """Return path, digest and size of each file that RECORD lists with a digest: all but itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(io.StringIO(archive.read(name).decode())))
        assert sorted(row[0] for row in rows) == sorted(archive.namelist())
    files = [(path, digest, int(size)) for path, digest, size in rows if path != name]
    assert any("/_lowered/" in path for path, *_ in files)
    return files


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installers_refuse_a_payload_that_was_changed(
    built: Callable[[str], Path], installer: str, tmp_path: Path
) -> None:
    """The checksums that we write are looked at: a flipped bit of a stored member does not get through."""
    wheel = tmp_path / WHEEL
    data = bytearray(built("tiny").read_bytes())
    with zipfile.ZipFile(built("tiny")) as archive:
        entry = archive.getinfo("tiny/_lowered/manifest.json")
    data[entry.header_offset + 30 + len(entry.filename) + entry.file_size // 2] ^= 1
    wheel.write_bytes(data)
    done = install(installer, wheel, tmp_path / "site")
    assert done.status != 0
    assert "CRC" in done.output or "Bad" in done.output, done.output


def test_members_of_the_payload_are_as_hatchlings_own(wheel: Path) -> None:
    """Dates, permissions, system and flags; and the payload is in order, before the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.infolist()
    ours = [entry for entry in entries if "/_lowered/" in entry.filename]
    own = {entry.filename: entry for entry in entries if "/_lowered/" not in entry.filename}
    module = next(each for name, each in own.items() if name.endswith("/__init__.py"))
    for entry in ours:
        assert entry.date_time == module.date_time
        assert entry.external_attr == module.external_attr
        assert (entry.create_system, entry.flag_bits) == (module.create_system, module.flag_bits)
        assert stat.S_IMODE(entry.external_attr >> 16) == 0o644
        assert (entry.compress_type == zipfile.ZIP_STORED) is not entry.filename.endswith(".json")
    assert [entry.filename for entry in ours] == sorted(entry.filename for entry in ours)
    metadata = [index for index, entry in enumerate(entries) if ".dist-info/" in entry.filename]
    assert metadata == list(range(len(entries) - len(metadata), len(entries)))
    assert entries[-1].filename.endswith("/RECORD")


def test_the_payload_has_the_date_that_is_asked_for(tmp_path: Path) -> None:
    wheel = copy_project("tiny", tmp_path).wheel({"HATCH_BUILD_NO_HOOKS": "1", "SOURCE_DATE_EPOCH": "1600000000"})
    append_payload(wheel, [make_file(tmp_path / "payload", "tiny/_lowered/manifest.json", 500)])
    with zipfile.ZipFile(wheel) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2020, 9, 13, 12, 26, 40)}
