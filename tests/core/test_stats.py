from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from hatch_lower.cache.stats import LIMIT, StatCache, Times, times_of_devices
from hatch_lower.canonical import sha256_bytes

OLD_NS = 10_000_000_000


class Aged(StatCache):
    """A cache whose files were all written long ago: the real clock is moved on, as a test cannot wait."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path)
        now = time.time_ns
        monkeypatch.setattr("hatch_lower.cache.stats.time.time_ns", lambda: now() + OLD_NS)


def falsify(cache: Path) -> None:
    """Make every digest that a cache file holds a wrong one: whoever believes it can be told from who reads again."""
    stored = json.loads(cache.read_bytes())
    stored["files"] = {path: [*row[:-1], "believed"] for path, row in stored["files"].items()}
    cache.write_text(json.dumps(stored))


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return a file and a saved cache that knows it under a false digest."""
    file, cache = tmp_path / "x", tmp_path / "stats.json"
    file.write_bytes(b"abc")
    stats = Aged(cache, monkeypatch)
    assert stats.digest(file) == sha256_bytes(b"abc")
    stats.save()
    monkeypatch.undo()
    falsify(cache)
    return file, cache


def test_a_file_that_was_not_touched_is_not_read_again(known: tuple[Path, Path]) -> None:
    file, cache = known
    assert StatCache(cache).digest(file) == "believed"


@pytest.mark.parametrize("change", ["contents", "same size", "time alone", "restored time", "replaced"])
def test_a_file_that_was_touched_is_read_again(known: tuple[Path, Path], change: str) -> None:
    file, cache = known
    before = file.stat()
    data = {"contents": b"longer", "time alone": b"abc"}.get(change, b"xyz")
    if change == "replaced":
        other = file.with_name("y")
        other.write_bytes(data)
        os.replace(other, file)
    elif change != "time alone":
        file.write_bytes(data)
    if change in ("restored time", "replaced"):
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert file.stat().st_mtime_ns == before.st_mtime_ns
    elif change == "time alone":
        os.utime(file)
    assert StatCache(cache).digest(file) == sha256_bytes(data)


@pytest.mark.parametrize("field", range(5))
def test_every_part_of_a_stat_is_compared(known: tuple[Path, Path], field: int) -> None:
    file, cache = known
    stored = json.loads(cache.read_bytes())
    found = file.stat()
    parts = [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    assert stored["files"][str(file)][:5] == parts
    stored["files"][str(file)][field] += 1
    cache.write_text(json.dumps(stored))
    assert StatCache(cache).digest(file) == sha256_bytes(b"abc")


def test_a_file_that_has_just_been_written_is_not_remembered(tmp_path: Path) -> None:
    file, cache = tmp_path / "x", tmp_path / "stats.json"
    file.write_bytes(b"abc")
    stats = StatCache(cache)
    assert stats.digest(file) == sha256_bytes(b"abc")
    stats.save()
    assert not cache.exists()


def test_a_file_with_an_old_time_that_has_just_been_written_is_not_remembered(tmp_path: Path) -> None:
    file, cache = tmp_path / "x", tmp_path / "stats.json"
    file.write_bytes(b"abc")
    os.utime(file, (1, 1))
    stats = StatCache(cache)
    stats.digest(file)
    stats.save()
    assert not cache.exists()


def test_a_file_with_a_servers_times_is_remembered_once_it_was_seen_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, cache = tmp_path / "x", tmp_path / "stats.json"
    file.write_bytes(b"abc")
    monkeypatch.setattr("hatch_lower.cache.stats.times_of_devices", lambda: {file.stat().st_dev: Times.OTHER})
    for now, remembered in ((OLD_NS, False), (OLD_NS + 10**9, False), (OLD_NS + 3 * 10**9, True)):
        moment = time.time_ns() + now  # however old the file looks
        monkeypatch.setattr("hatch_lower.cache.stats.time.time_ns", lambda moment=moment: moment)
        stats = StatCache(cache)
        assert stats.digest(file) == sha256_bytes(b"abc")
        stats.save()
        monkeypatch.undo()
        monkeypatch.setattr("hatch_lower.cache.stats.times_of_devices", lambda: {file.stat().st_dev: Times.OTHER})
        assert (json.loads(cache.read_bytes())["files"][str(file)][-1] != "") == remembered


def test_a_file_of_an_image_is_read_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = tmp_path / "x", tmp_path / "stats.json"
    file.write_bytes(b"abc")
    monkeypatch.setattr("hatch_lower.cache.stats.times_of_devices", lambda: {file.stat().st_dev: Times.FIXED})
    stats = Aged(cache, monkeypatch)
    assert stats.digest(file) == sha256_bytes(b"abc")
    stats.save()
    assert not cache.exists()


def test_the_systems_table_tells_whose_times_a_device_has(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n"
        "28 27 7:0 / /images/a ro,relatime - squashfs /dev/loop0 ro,errors=continue\n"
        "29 27 0:50 / /server rw,relatime - nfs4 server:/export rw,vers=4.2\n"
        "30 27 254:1 /data /bound ro,relatime - xfs /dev/vdb rw\n"
    )
    assert times_of_devices(table) == {
        os.makedev(254, 0): Times.OWN,
        os.makedev(7, 0): Times.FIXED,
        os.makedev(0, 50): Times.OTHER,
        os.makedev(254, 1): Times.OWN,
    }
    assert times_of_devices(tmp_path / "none") is None


def test_a_file_that_is_written_while_it_is_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, cache = tmp_path / "x", tmp_path / "stats.json"
    file.write_bytes(b"abc")
    stats = Aged(cache, monkeypatch)
    made = hashlib.sha256

    class Written:
        def __init__(self) -> None:
            self.real = made()

        def update(self, data: bytes) -> None:
            self.real.update(data)
            with file.open("ab") as stream:
                stream.write(b"d" if file.stat().st_size < 6 else b"")

        def hexdigest(self) -> str:
            return self.real.hexdigest()

    monkeypatch.setattr(hashlib, "sha256", Written)
    stats.digest(file)
    monkeypatch.setattr(hashlib, "sha256", made)
    stats.save()
    assert not cache.exists()
    stats.digest(file)
    stats.save()
    assert cache.exists()


def test_what_another_process_has_added_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "stats.json"
    processes = [Aged(cache, monkeypatch), Aged(cache, monkeypatch)]
    for stats, name in zip(processes, ("a", "b"), strict=True):
        (tmp_path / name).touch()
        stats.digest(tmp_path / name)
        stats.save()
    assert list(json.loads(cache.read_bytes())["files"]) == [str(tmp_path / "b"), str(tmp_path / "a")]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 0, "files": {}}', '{"version": 2, "files": {"/x": [1]}}', '{"version": 2}'],
)
def test_a_damaged_cache_is_an_empty_one(tmp_path: Path, text: str) -> None:
    file, cache = tmp_path / "x", tmp_path / "stats.json"
    file.write_bytes(b"abc")
    cache.write_text(text)
    assert StatCache(cache).digest(file) == sha256_bytes(b"abc")


def test_what_is_no_regular_file_cannot_be_hashed(tmp_path: Path) -> None:
    stats = StatCache(tmp_path / "stats.json")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
        with pytest.raises(OSError, match=r"not a regular file|No such file"):
            stats.digest(path)


def test_a_link_is_known_by_what_it_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, cache = tmp_path / "link", tmp_path / "stats.json"
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    link.symlink_to(tmp_path / "a")
    stats = Aged(cache, monkeypatch)
    assert stats.digest(link) == sha256_bytes(b"a")
    link.unlink()
    link.symlink_to(tmp_path / "b")
    assert stats.digest(link) == sha256_bytes(b"b")


def test_the_cache_stays_small_and_keeps_what_was_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = tmp_path / "x", tmp_path / "stats.json"
    file.write_bytes(b"abc")
    old = {f"/{i}": [0, 0, 0, 0, 0, 0, ""] for i in range(LIMIT + 10)}
    cache.write_text(json.dumps({"version": 2, "files": old}))
    stats = Aged(cache, monkeypatch)
    stats.digest(file)
    stats.save()
    kept = list(json.loads(cache.read_bytes())["files"])
    assert len(kept) == LIMIT
    assert kept[-2:] == [f"/{LIMIT + 9}", str(file)]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"abc")
    stats = Aged(file / "stats.json", monkeypatch)
    stats.digest(file)
    stats.save()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]
