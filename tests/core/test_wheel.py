"""Putting a payload into a finished wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hatch_lower.cache import stats
from hatch_lower.cache.store import LARGE, Store, open_store
from hatch_lower.errors import PackageError
from hatch_lower.format.results import PayloadFile
from hatch_lower.hatch.wheel import TEMPORARY_SUFFIX, append_payload, read_archive, remove_temporaries

NAME = "digits-1.0-py3-none-any.whl"
INFO = "digits-1.0.dist-info"
DATE = (2020, 2, 2, 0, 0, 0)


def make_wheel(directory: Path, extra: dict[str, bytes] | None = None) -> Path:
    members = {"digits/__init__.py": b"value = 1\n" * 50, **(extra or {})}
    members |= {
        f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: digits\nVersion: 1.0\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [[name, row_digest(data), str(len(data))] for name, data in members.items()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*rows, [f"{INFO}/RECORD", "", ""]])
    members[f"{INFO}/RECORD"] = text.getvalue().encode()
    path = directory / NAME
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def row_digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def make_file(directory: Path, path: str, data: bytes) -> PayloadFile:
    source = directory / hashlib.sha256(path.encode()).hexdigest()
    source.write_bytes(data)
    return PayloadFile(path, source, len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
def payload(tmp_path: Path) -> list[PayloadFile]:
    directory = tmp_path / "cache"
    directory.mkdir()
    return [
        make_file(directory, "digits/_lowered/manifest.json", b'{"schema":1}\n'),
        make_file(directory, "digits/_lowered/digits/constants.safetensors", bytes(range(256)) * 10_000),
        make_file(directory, "digits/_lowered/empty", b""),
        make_file(directory, "digits/_lowered/größe.json", b"{}\n"),
    ]


@pytest.fixture
def dist(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "dist"
    directory.mkdir()
    yield directory
    assert not list(directory.glob(f"*{TEMPORARY_SUFFIX}"))


def check_record(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode()))}
        assert list(rows) == archive.namelist()
        assert rows.pop(f"{INFO}/RECORD") == ["", ""]
        for name, row in rows.items():
            data = archive.read(name)
            assert row == [row_digest(data), str(len(data))]


def test_the_payload_is_between_the_package_and_its_metadata(dist: Path, payload: list[PayloadFile]) -> None:
    path = make_wheel(dist)
    before = path.read_bytes()
    members = {member.filename: member for member in read_archive(path)[0]}

    append_payload(path, payload)

    check_record(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [
            "digits/__init__.py",
            "digits/_lowered/digits/constants.safetensors",
            "digits/_lowered/empty",
            "digits/_lowered/größe.json",
            "digits/_lowered/manifest.json",
            f"{INFO}/METADATA",
            f"{INFO}/WHEEL",
            f"{INFO}/RECORD",
        ]
        for file in payload:
            entry = archive.getinfo(file.path)
            assert archive.read(entry) == file.source.read_bytes()
            is_document = file.path.endswith(".json")
            assert entry.compress_type == (zipfile.ZIP_DEFLATED if is_document else zipfile.ZIP_STORED)
            assert entry.date_time == DATE
            assert entry.external_attr >> 16 == stat.S_IFREG | 0o644
        for name in ("digits/__init__.py", f"{INFO}/METADATA"):
            old, new = members[name], archive.getinfo(name)
            size = 30 + len(name) + old.compress_size
            after = path.read_bytes()[new.header_offset :][:size]
            assert after == before[old.header_offset :][:size]
            assert new.external_attr == old.external_attr


def test_the_same_wheel_and_payload_give_the_same_bytes(dist: Path, payload: list[PayloadFile]) -> None:
    path = make_wheel(dist)
    append_payload(path, payload)
    first = path.read_bytes()

    old = os.umask(0o077)
    try:
        append_payload(make_wheel(dist), payload[::-1])
    finally:
        os.umask(old)

    assert path.read_bytes() == first


def test_the_wheel_keeps_its_mode(dist: Path, payload: list[PayloadFile]) -> None:
    path = make_wheel(dist)
    path.chmod(0o644)
    append_payload(path, payload)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_pip_installs_the_wheel(dist: Path, payload: list[PayloadFile], tmp_path: Path) -> None:
    path = make_wheel(dist)
    append_payload(path, payload)
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([*command, str(target), str(path)], check=True, capture_output=True)
    for file in payload:
        assert (target / file.path).read_bytes() == file.source.read_bytes()


def test_large_members_have_their_sizes_in_eight_bytes(
    dist: Path, payload: list[PayloadFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_wheel(dist)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1_000)
    append_payload(path, payload)

    check_record(path)
    data = path.read_bytes()
    assert b"PK\x06\x06" in data
    assert b"PK\x06\x07" in data
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("digits/_lowered/digits/constants.safetensors").extract_version == 45
        assert archive.getinfo("digits/__init__.py").extract_version == 20
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([*command, str(target), str(path)], check=True, capture_output=True)
    assert (target / payload[1].path).read_bytes() == payload[1].source.read_bytes()


def test_a_second_wheel_of_the_package_metadata_is_left_alone(dist: Path, payload: list[PayloadFile]) -> None:
    path = make_wheel(dist, {"digits/_vendor/other-2.0.dist-info/METADATA": b"Name: other\n"})
    append_payload(path, payload)
    check_record(path)


@pytest.mark.parametrize("change", ["flipped", "truncated"])
def test_a_damaged_cache_entry_removes_the_wheel(dist: Path, payload: list[PayloadFile], change: str) -> None:
    path = make_wheel(dist)
    damaged = payload[1]
    data = damaged.source.read_bytes()
    damaged.source.write_bytes(data[:-1] if change == "truncated" else bytes([data[0] ^ 1]) + data[1:])

    with pytest.raises(PackageError) as caught:
        append_payload(path, payload)

    digest = hashlib.sha256(damaged.source.read_bytes()).hexdigest()
    assert str(caught.value) == (
        "the file for `digits/_lowered/digits/constants.safetensors` is no longer the lowered file: "
        "the cache is damaged\n"
        f"  where: {damaged.source}\n"
        f"  found: {damaged.source.stat().st_size} bytes with sha256 {digest} instead of "
        f"{damaged.size} bytes with sha256 {damaged.sha256}\n"
        "  to do: delete this file and build again"
    )
    assert list(dist.iterdir()) == []


def test_a_path_that_is_taken_is_refused(dist: Path, payload: list[PayloadFile]) -> None:
    path = make_wheel(dist, {"digits/_lowered/manifest.json": b"{}"})

    with pytest.raises(PackageError) as caught:
        append_payload(path, payload)

    assert str(caught.value) == (
        "the wheel already has a file `digits/_lowered/manifest.json`, which is the path of a lowered program\n"
        "  where: tool.hatch.build.targets.wheel\n"
        '  to do: add `"digits/_lowered/manifest.json"`, as it is called in the source tree, to `exclude` under '
        "`[tool.hatch.build.targets.wheel]`, or take it out of `force-include`"
    )
    assert list(dist.iterdir()) == []


def test_a_wheel_without_record_is_refused(dist: Path, payload: list[PayloadFile]) -> None:
    path = dist / NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("digits/__init__.py", "")

    with pytest.raises(PackageError) as caught:
        append_payload(path, payload)

    assert str(caught.value) == (
        "the payload cannot be added to a wheel without a RECORD\n"
        f"  where: {NAME}\n"
        f"  to do: see which build hook removes `{INFO}/RECORD`"
    )
    assert list(dist.iterdir()) == []


def test_a_missing_payload_file_removes_the_wheel(dist: Path, payload: list[PayloadFile]) -> None:
    path = make_wheel(dist)
    payload[2].source.unlink()

    with pytest.raises(PackageError) as caught:
        append_payload(path, payload)

    assert str(caught.value) == (
        "the payload could not be written into the wheel\n"
        f"  where: {NAME}\n"
        f"  found: [Errno 2] No such file or directory: '{payload[2].source}'\n"
        "  to do: build again: the file was removed while this build ran"
    )
    assert list(dist.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_any_exception_removes_the_wheel(
    dist: Path, payload: list[PayloadFile], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    path = make_wheel(dist)
    monkeypatch.setattr("zipfile.ZipFile.writestr", fail)  # the last that is written before the directory
    with pytest.raises(type(error)):
        append_payload(path, payload)
    assert list(dist.iterdir()) == []


def test_a_failing_rename_removes_the_wheel_and_the_temporary(
    dist: Path, payload: list[PayloadFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = make_wheel(dist)
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(PackageError, match="the payload could not be written into the wheel"):
        append_payload(path, payload)
    assert list(dist.iterdir()) == []


def test_only_our_own_temporaries_are_removed(dist: Path) -> None:
    kept = make_wheel(dist)
    (dist / f"{NAME}.x1y2{TEMPORARY_SUFFIX}").write_bytes(b"half a wheel")
    remove_temporaries(dist)
    assert list(dist.iterdir()) == [kept]


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, PayloadFile]:
    """A large file in the cache, whose times are old enough."""
    monkeypatch.setattr(stats, "DOUBTFUL_NS", -60_000_000_000)
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    store = open_store(os.environ, pytest.fail)
    data = bytes(range(256)) * (LARGE // 256)
    digest = store.put_blob(data)
    return store, PayloadFile("digits/weights", store.blob_path(digest), len(data), digest)


def test_a_large_file_of_the_cache_is_known_to_be_whole_once_it_is_in_a_wheel(
    dist: Path, large: tuple[Store, PayloadFile]
) -> None:
    store, file = large
    append_payload(make_wheel(dist), [file], store)
    assert list(json.loads((store.directory / "verified.json").read_bytes())["files"]) == [str(file.source)]


def test_the_checksum_of_a_large_file_of_the_cache_is_computed_once(
    dist: Path, large: tuple[Store, PayloadFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_wheel(dist)
    append_payload(path, [large[1]], large[0])
    first = path.read_bytes()

    path = make_wheel(dist)
    monkeypatch.setattr("hatch_lower.hatch.wheel.CHUNK", 1 << 25)
    computed: list[int] = []

    def crc32(data: bytes, start: int = 0) -> int:
        computed.append(len(data))
        return zlib.crc32(data, start)

    monkeypatch.setattr("hatch_lower.hatch.wheel.zlib", SimpleNamespace(**{**vars(zlib), "crc32": crc32}))
    append_payload(path, [large[1]], large[0])
    assert path.read_bytes() == first
    assert large[1].size not in computed
    check_record(path)


@pytest.mark.parametrize("damage", ["the file", "the checksum"])
def test_damage_to_a_large_file_or_its_checksum_is_noticed(
    dist: Path, large: tuple[Store, PayloadFile], damage: str
) -> None:
    warnings: list[str] = []
    store, file = replace(large[0], warn=warnings.append), large[1]
    append_payload(make_wheel(dist), [file], store)
    (record,) = (path for path in store.directory.rglob("*.json") if b'"crc32":' in path.read_bytes())
    path = make_wheel(dist)
    if damage == "the checksum":
        record.write_bytes(record.read_bytes().replace(b'"crc32":', b'"crc32":1'))
        append_payload(path, [file], store)
        check_record(path)
        assert warnings == [f"the cache entry {record} was damaged; it is built again"]
        return
    with file.source.open("r+b") as blob:
        blob.write(b"x")
    with pytest.raises(PackageError, match="the cache is damaged"):
        append_payload(path, [file], store)
    assert not path.exists()
    assert not file.source.exists()
