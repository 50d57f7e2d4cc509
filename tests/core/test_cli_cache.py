from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from hatch_lower.cache.remote.signing import read_key
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.cli.cache import changing
from hatch_lower.cli.entry import main
from hatch_lower.errors import CacheError

HOUR = 3600
JANUARY = 1767272700  # 2026-01-01 13:05 UTC
SCENARIOS = Path(__file__).parents[1] / "projects"


def run(directory: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["cache", *args], env={"HATCH_LOWER_CACHE_DIR": str(directory)})


def shown(directory: Path, *args: str) -> str:
    result = run(directory, *args)
    assert result.exit_code == 0, result.output
    return result.output


def put(store: Store, subject: str, kind: str, blob: bytes, used: int) -> str:
    """Store one result that was last used at a time; return its key."""
    key = digest_of(subject)
    store.put(key, {"kind": kind, "subject": subject}, {"name": subject}, [blob])
    os.utime(store.record_path(key), (used, used))
    return key


def refuse(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache with two partitions, of which one shares its blob, and a report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=25 * 10**10))
    store = Store(tmp_path / "cache" / "v1", "on", refuse)
    put(store, "digits", "report", bytes(2000), JANUARY)
    put(store, "null", "partition", bytes(3000), JANUARY + HOUR)
    put(store, "aoti", "partition", bytes(3000), JANUARY + 2 * HOUR)
    return tmp_path / "cache"


def record_sizes(directory: Path) -> dict[str, int]:
    return {path.stem: path.stat().st_size for path in (directory / "v1" / "records").rglob("*.json")}


def test_info_counts_by_kind(filled: Path) -> None:
    records = sum(record_sizes(filled).values())
    assert shown(filled, "info") == (
        f"folder          {filled}\n"
        "mode            on\n"
        f"size            {(5000 + records) / 1024:.2f} KiB in 3 results and 2 blobs\n"
        "limits          25 GB, 60 days without use\n"
        "last used       2026-01-01 15:05 UTC\n"
        "longest unused  since 2026-01-01 13:05 UTC\n"
        "\n"
        "kind       results  with blobs\n"
        f"partition        2    {kib(filled, 'null', 'aoti', blobs=6000)}\n"
        f"report           1    {kib(filled, 'digits', blobs=2000)}\n"
        "\n"
        "kind       of          size  blobs  last used             key\n"
        f"partition  aoti    {kib(filled, 'aoti', blobs=3000)}      1  2026-01-01 15:05 UTC  {digest_of('aoti')[:16]}\n"
        f"partition  null    {kib(filled, 'null', blobs=3000)}      1  2026-01-01 14:05 UTC  {digest_of('null')[:16]}\n"
        f"report     digits  {kib(filled, 'digits', blobs=2000)}      1  2026-01-01 13:05 UTC  "
        f"{digest_of('digits')[:16]}\n"
    )


def kib(directory: Path, *subjects: str, blobs: int) -> str:
    sizes = record_sizes(directory)
    return f"{(blobs + sum(sizes[digest_of(each)] for each in subjects)) / 1024:.2f} KiB"


def test_info_as_json(filled: Path) -> None:
    report = json.loads(shown(filled, "info", "--json"))
    sizes = record_sizes(filled)
    entries = report.pop("entries")
    assert [(each["kind"], each["subject"], each["whole"]) for each in entries] == [
        ("partition", "aoti", True),
        ("partition", "null", True),
        ("report", "digits", True),
    ]
    assert report == {
        "directory": str(filled),
        "mode": "on",
        "size": 5000 + sum(sizes.values()),
        "blobs": 2,
        "kinds": {
            "partition": {"entries": 2, "size": 6000 + sizes[digest_of("null")] + sizes[digest_of("aoti")]},
            "report": {"entries": 1, "size": 2000 + sizes[digest_of("digits")]},
        },
        "damaged": 0,
        "unreferenced": 0,
        "leftovers": 0,
        "last_used": JANUARY + 2 * HOUR,
        "longest_unused": JANUARY,
        "max_gigabytes": 25.0,
        "max_days": 60,
    }


def test_info_names_what_a_trim_would_remove(filled: Path) -> None:
    store = Store(filled / "v1", "on", refuse)
    store.put_blob(b"alone")
    store.blob_path(store.put_blob(b"damaged")).write_bytes(b"other")
    store.record_path(digest_of("digits")).write_bytes(b"{")
    (filled / "v1" / "records" / ".left.part").write_bytes(b"")
    assert "to be trimmed   1 damaged result, 3 blobs that no result needs, 1 unfinished file\n" in shown(
        filled, "info"
    )


def test_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "cache"
    assert shown(cache, "info") == (
        f"folder          {cache}\n"
        "mode            on\n"
        "size            0 B in 0 results and 0 blobs\n"
        "limits          10 GB, 60 days without use\n"
    )
    assert shown(cache, "repair") == "0 results and 0 blobs are whole\n"
    assert shown(cache, "trim") == "removed nothing; 0 B freed, 0 B left\n"
    assert shown(cache, "clear") == f"0 B freed in {cache}\n"
    assert not cache.exists()


def test_info_marks_a_damaged_result(filled: Path) -> None:
    Store(filled / "v1", "on", refuse).record_path(digest_of("digits")).write_bytes(b"{")
    os.utime(filled / "v1" / "records" / digest_of("digits")[:2] / f"{digest_of('digits')}.json", (JANUARY, JANUARY))
    assert shown(filled, "info").endswith(
        "kind       of        size  blobs  last used             key               state\n"
        f"partition  aoti  {kib(filled, 'aoti', blobs=3000)}      1  2026-01-01 15:05 UTC  {digest_of('aoti')[:16]}\n"
        f"partition  null  {kib(filled, 'null', blobs=3000)}      1  2026-01-01 14:05 UTC  {digest_of('null')[:16]}\n"
        f"other                 1 B      0  2026-01-01 13:05 UTC  {digest_of('digits')[:16]}  damaged\n"
    )
    assert [each["whole"] for each in json.loads(shown(filled, "info", "--json"))["entries"]] == [True, True, False]


def test_trim_keeps_what_fits(filled: Path) -> None:
    freed = record_sizes(filled)[digest_of("digits")] + record_sizes(filled)[digest_of("null")]
    now = int(time.time())
    os.utime(Store(filled / "v1", "on", refuse).record_path(digest_of("aoti")), (now, now))
    text = shown(filled, "trim", "--max-gigabytes", "0")
    left = 5000 + record_sizes(filled)[digest_of("aoti")]
    assert text == f"removed 2 results; {freed} B freed, {left / 1024:.2f} KiB left\n"
    assert list(record_sizes(filled)) == [digest_of("aoti")]


def test_trim_by_age(filled: Path) -> None:
    text = shown(filled, "trim", "--max-days", "1", "--max-gigabytes", "1")
    assert text.startswith("removed 3 results; ")
    assert record_sizes(filled) == {}


def test_repair_removes_what_is_damaged(filled: Path) -> None:
    store = Store(filled / "v1", "on", refuse)
    assert shown(filled, "repair") == "3 results and 2 blobs are whole\n"
    (blob,) = (path for path in (filled / "v1" / "blobs").rglob("*") if path.is_file() and path.stat().st_size == 2000)
    blob.write_bytes(bytes(1999) + b"1")
    record = store.record_path(digest_of("digits"))
    result = run(filled, "repair")
    assert result.exit_code == 1
    assert result.output == (
        f"removed {blob.relative_to(filled / 'v1').as_posix()}: the contents do not match the name\n"
        f"removed {record.relative_to(filled / 'v1').as_posix()}: 1 of its 1 blobs are damaged or missing\n"
        "2 results and 1 blob are whole\n"
    )
    assert not blob.exists()
    assert not record.exists()
    assert shown(filled, "repair") == "2 results and 1 blob are whole\n"


def test_clear_removes_what_is_ours_and_nothing_else(filled: Path) -> None:
    freed = 5000 + sum(record_sizes(filled).values()) + 7
    for name in ("v0", "v2x", "mine"):
        (filled / name).mkdir()
        (filled / name / "file").write_bytes(b"1234567")
    (filled / "v7").write_bytes(b"a file")
    (filled / "v8").symlink_to(filled / "mine")
    assert shown(filled, "clear") == f"{freed / 1024:.2f} KiB freed in {filled}\n"
    assert sorted(each.name for each in filled.iterdir()) == ["mine", "v1", "v2x", "v7", "v8"]
    assert [each for each in (filled / "v1").rglob("*") if each.is_file()] == []
    assert (filled / "mine" / "file").exists()


def test_a_refusal_of_the_file_system_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path))
    with pytest.raises(CacheError) as caught, changing() as directory:
        (directory / "missing").rmdir()
    assert str(caught.value) == (
        f"the cache could not be changed\n  where: {tmp_path / 'v1' / 'missing'}\n  found: No such file or directory"
    )


def test_an_unknown_mode_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cache", "info"], env={"HATCH_LOWER_CACHE": "maybe"})
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the mode of the cache is unknown\n")


def test_keygen_prints_a_pair(tmp_path: Path) -> None:
    lines = shown(tmp_path, "keygen").splitlines()
    assert lines[0] == "# secret: only for the environment of the builds that push"
    assert len(read_key(lines[1].removeprefix("HATCH_LOWER_SIGNING_KEY="), "")) == 32
    assert lines[2:5] == ["", "# public: for pyproject.toml", "[tool.hatch.build.hooks.lower.cache]"]
    assert len(read_key(lines[5].removeprefix('public-keys = ["').removesuffix('"]'), "")) == 32
    assert len(lines) == 6
    assert lines[1].partition("=")[2] not in lines[5]
