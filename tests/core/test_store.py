from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hatch_lower.cache.directory import default_directory
from hatch_lower.cache.key import JointKey, PartitionKey
from hatch_lower.cache.store import MARK_INTERVAL, Store, open_store
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.errors import CacheError

KEY = "ab" * 32
OTHER = "cd" * 32


def make_store(directory: Path, mode: str = "on") -> tuple[Store, list[str]]:
    warnings: list[str] = []
    return Store(directory, mode, warnings.append), warnings


def test_what_is_put_is_got(tmp_path: Path) -> None:
    store, warnings = make_store(tmp_path)
    assert store.get(KEY, "x") is None
    store.put(KEY, {"graph": "1"}, {"size": 3}, [b"abc"])
    assert store.get(KEY, "x") == {"size": 3}
    assert warnings == []


@pytest.mark.parametrize("kind", ["records", "blobs"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "text"])
def test_a_damaged_entry_is_a_miss_is_reported_and_can_be_replaced(tmp_path: Path, kind: str, damage: str) -> None:
    store, warnings = make_store(tmp_path)
    store.put(KEY, {}, {"size": 3}, [b"abc"])
    (path,) = (each for each in (tmp_path / kind).rglob("*") if each.is_file())
    data = path.read_bytes()
    damaged = {
        "flip": data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
        "truncate": data[:-1],
        "empty": b"",
        "text": b"[]",
    }
    path.write_bytes(damaged[damage] if data[:-1] != damaged[damage].rstrip(b"\n") or kind == "blobs" else data[:-3])
    assert store.get(KEY, "x") is None
    assert len(warnings) == 1
    assert "was damaged; it is built again" in warnings[0]
    store.put(KEY, {}, {"size": 3}, [b"abc"])
    assert store.get(KEY, "x") == {"size": 3}


@pytest.mark.parametrize("kind", ["records", "blobs"])
def test_a_pipe_in_the_place_of_an_entry_is_a_miss_and_is_removed(tmp_path: Path, kind: str) -> None:
    store, warnings = make_store(tmp_path)
    store.put(KEY, {}, {"size": 3}, [b"abc"])
    (path,) = (each for each in (tmp_path / kind).rglob("*") if each.is_file())
    path.unlink()
    os.mkfifo(path)
    assert store.read_blob(sha256_bytes(b"abc")) == (b"abc" if kind == "records" else None)
    assert store.get(KEY, "x") is None
    assert ["was damaged; it is built again" in line for line in warnings] == [True]
    store.put(KEY, {}, {"size": 3}, [b"abc"])
    assert store.get(KEY, "x") == {"size": 3}


def test_nothing_but_finished_files_is_left(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path)
    store.put(KEY, {}, {"size": 3}, [b"abc", b"def"])
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("mode", "reads", "writes"),
    [
        ("on", True, True),
        ("off", False, False),
        ("read-only", True, False),
        ("refresh", False, True),
        ("frozen", True, False),
    ],
)
def test_modes(tmp_path: Path, mode: str, reads: bool, writes: bool) -> None:
    make_store(tmp_path)[0].put(KEY, {}, {"size": 3})
    store, _ = make_store(tmp_path, mode)
    assert (store.get(KEY, "x") == {"size": 3}) is reads
    store.put(OTHER, {}, 1)
    assert store.record_path(OTHER).exists() is writes
    assert (store.put_blob(b"abc"), store.holds(sha256_bytes(b"abc"))) == (sha256_bytes(b"abc"), writes)


def test_a_miss_in_a_frozen_cache_is_an_error_that_says_what_missed(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path, "frozen")
    with pytest.raises(CacheError) as caught:
        store.get(KEY, "a partition of `forward` for the backend `aoti`")
    assert str(caught.value) == (
        "the cache is frozen and lacks a result that this build needs\n"
        "  where: a partition of `forward` for the backend `aoti`\n"
        f"  found: no entry {KEY[:16]}… in {tmp_path}\n"
        "  to do: build once with `HATCH_LOWER_CACHE=on`, or let `hatch-lower explain` name the change"
    )


def test_a_directory_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    source = tmp_path / "made"
    source.write_bytes(b"abc")
    store, warnings = make_store(blocked)
    for key in (KEY, OTHER):
        assert store.get(key, "x") is None
        with store.locked([key]):
            store.put(key, {}, {"size": 3}, [b"abc"])
        store.update(key, {}, lambda value: 4)
        assert store.adopt(source, sha256_bytes(b"abc")) == source
    assert warnings == [
        f"the cache {blocked} could not be written: Not a directory; the build goes on without it",
    ]
    assert source.read_bytes() == b"abc"


def test_a_file_that_cannot_be_read_costs_one_warning(tmp_path: Path) -> None:
    store, warnings = make_store(tmp_path)
    for key in (KEY, OTHER):
        store.record_path(key).mkdir(parents=True)
        assert store.find(key) is None
        store.put(key, {}, 1)
    assert warnings == [f"the cache {tmp_path} could not be read: Is a directory; the build goes on without it"]


def test_a_full_disk_costs_one_warning_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from hatch_lower.cache.store import Store
directory = Path(sys.argv[1])
store = Store(directory, "on", print)
store.put("aa" * 32, {}, 1, [b"small"])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for key in ("bb" * 32, "cc" * 32):
    store.put(key, {}, 2, [bytes(100_000)])
    assert store.get(key, "x") is None
assert store.get("aa" * 32, "x") == 1
store.put("dd" * 32, {}, 3)
assert store.get("dd" * 32, "x") is None
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout == f"the cache {tmp_path} could not be written: File too large; the build goes on without it\n"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        [f"{'aa' * 32}.json", sha256_bytes(b"small")]
    )


def test_adopt_moves_a_file_in_and_leaves_it_where_nothing_is_written(tmp_path: Path) -> None:
    source = tmp_path / "made"
    source.write_bytes(b"abc")
    assert make_store(tmp_path / "cache", "off")[0].adopt(source, "ee" * 32) == source
    adopted = make_store(tmp_path / "cache")[0].adopt(source, "ee" * 32)
    assert adopted.read_bytes() == b"abc"
    assert not source.exists()


@pytest.mark.parametrize("mode", ["on", "off", "frozen", "read-only"])
@pytest.mark.parametrize("raises", [False, True])
def test_a_user_without_a_home_folder_has_no_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, raises: bool
) -> None:
    def user_cache_dir(*args: object, **options: object) -> str:
        if raises:  # as newer versions of platformdirs do
            raise RuntimeError("could not determine the home directory")
        return "~/.cache/hatch-lower"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_cache_dir", user_cache_dir)
    said: list[str] = []
    if mode == "frozen":
        with pytest.raises(CacheError, match="there is no folder for the cache"):
            open_store({"HATCH_LOWER_CACHE": mode}, said.append)
        return
    store = open_store({"HATCH_LOWER_CACHE": mode}, said.append)
    store.put(KEY, {}, 1, [b"abc"])
    reason = "the environment has no `HOME`, and the user has no entry in the password database"
    hint = "set `HATCH_LOWER_CACHE_DIR` to a directory of your own"
    assert said == ([] if mode == "off" else [f"the cache is not used: {reason}; {hint}"])
    assert store.mode == "off"
    assert list(tmp_path.iterdir()) == []


def test_the_environment_chooses_mode_and_directory(tmp_path: Path) -> None:
    environment = {"HATCH_LOWER_CACHE_DIR": str(tmp_path), "HATCH_LOWER_CACHE": "frozen"}
    store = open_store(environment, lambda line: None)
    assert (store.directory, store.mode) == (tmp_path / "v1", "frozen")
    assert default_directory({}).name == "hatch-lower"
    with pytest.raises(CacheError, match="the mode of the cache is unknown"):
        open_store({"HATCH_LOWER_CACHE": "offf"}, lambda line: None)


def test_a_directory_that_everybody_can_write_to_is_not_used(tmp_path: Path) -> None:
    environment = {"HATCH_LOWER_CACHE_DIR": str(tmp_path)}
    open_store(environment, pytest.fail).put(KEY, {}, 1)
    reason = f"every user may write to {tmp_path}"
    hint = "set `HATCH_LOWER_CACHE_DIR` to a directory of your own"
    tmp_path.chmod(0o777)
    warnings: list[str] = []
    store = open_store(environment, warnings.append)
    assert (store.find(KEY), store.writes) == (None, False)
    assert warnings == [f"the cache is not used: {reason}; {hint}"]
    with pytest.raises(CacheError) as caught:
        open_store({**environment, "HATCH_LOWER_CACHE": "frozen"}, pytest.fail)
    assert str(caught.value) == (
        f"the cache is frozen and cannot be trusted\n  where: {tmp_path}\n  found: {reason}\n  to do: {hint}"
    )
    assert open_store({**environment, "HATCH_LOWER_CACHE": "off"}, pytest.fail).find(KEY) is None
    tmp_path.chmod(0o1777)
    assert open_store(environment, pytest.fail).find(KEY) == 1
    (tmp_path / "v1").chmod(0o777)
    open_store(environment, warnings.append)
    assert f"every user may write to {tmp_path / 'v1'}" in warnings[1]


@pytest.mark.parametrize("within", [False, True])
def test_a_directory_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: bool) -> None:
    environment = {"HATCH_LOWER_CACHE_DIR": str(tmp_path)}
    open_store(environment, pytest.fail).put(KEY, {}, 1)
    tmp_path.chmod(0o1777 if within else 0o700)
    if os.getuid() == 0:
        os.chown(tmp_path / "v1" if within else tmp_path, 65534, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    warnings: list[str] = []
    store = open_store(environment, warnings.append)
    assert (store.find(KEY), store.writes, len(warnings)) == (None, False, 1)
    assert "belongs to another user" in warnings[0]


def test_in_a_directory_that_was_made_for_a_group_everything_is_the_groups(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    store, _ = make_store(tmp_path / "v1")
    source = tmp_path / "made"
    source.write_bytes(b"adopted")
    store.adopt(source, sha256_bytes(b"adopted"))
    with store.locked([KEY]):
        store.put(KEY, {}, 1, [b"abc"])
    for path in store.directory.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o2770 if path.is_dir() else 0o660), path


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o177])
def test_what_is_stored_under_any_umask_is_this_users_and_is_found_under_any_other(tmp_path: Path, umask: int) -> None:
    directory = tmp_path / "cache" / "v1"
    source = tmp_path / "made"
    source.write_bytes(b"adopted")
    before = os.umask(umask)
    try:
        store = make_store(directory)[0]
        store.adopt(source, sha256_bytes(b"adopted"))
        with store.locked([KEY]):
            store.put(KEY, {}, 1, [b"abc", sha256_bytes(b"adopted")])
    finally:
        os.umask(before)
    assert make_store(directory)[0].find(KEY) == 1
    for path in (directory.parent, *directory.parent.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_record_that_was_edited_or_is_of_another_key_is_damaged(tmp_path: Path) -> None:
    store, warnings = make_store(tmp_path)
    store.put(KEY, {"torch": "2.13.0"}, 1, [b"abc"])
    record = json.loads(store.record_path(KEY).read_bytes())
    edits = [{"components": {"torch": "2.14.0"}}, {"value": 2}, {"blobs": []}, {"blobs": ["../../../x"]}, {"blobs": 3}]
    for count, edit in enumerate(edits, 1):
        store.record_path(KEY).write_bytes(canonical_json({**record, **edit}))
        assert store.find(KEY) is None
        assert len(warnings) == count
        store.put(KEY, {"torch": "2.13.0"}, 1, [b"abc"])
        assert store.find(KEY) == 1
    store.record_path(OTHER).parent.mkdir()
    store.record_path(OTHER).write_bytes(store.record_path(KEY).read_bytes())
    assert store.find(OTHER) is None


def test_a_record_without_one_of_its_blobs_is_a_miss_that_is_not_reported(tmp_path: Path) -> None:
    store, warnings = make_store(tmp_path)
    store.put(KEY, {}, 1, [b"abc", b"def"])
    store.blob_path(sha256_bytes(b"def")).unlink()
    assert store.find(KEY) is None
    assert warnings == []


def test_blobs_that_are_in_the_store_are_named_by_their_digests(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path / "cache")
    source = tmp_path / "made"
    source.write_bytes(b"adopted")
    digests = [store.put_blob(b"abc"), sha256_bytes(b"adopted")]
    store.adopt(source, digests[1])
    store.put(KEY, {}, 1, digests)
    store.blob_path(digests[1]).write_bytes(b"damaged")
    assert store.find(KEY) is None
    store.put(KEY, {}, 1, digests)  # a result without one of its parts is none
    assert store.find(KEY) is None


def test_a_blob_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path)
    digest = store.put_blob(b"abc")
    assert store.read_blob(digest) == b"abc"
    store.blob_path(digest).write_bytes(b"abd")
    assert store.read_blob(digest) is None
    assert store.read_blob("ee" * 32) is None


def test_a_damaged_blob_is_replaced_when_it_is_stored_again_unread(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path, "refresh")
    store.put(KEY, {}, 1, [b"abc"])
    store.blob_path(sha256_bytes(b"abc")).write_bytes(b"abd")
    store.put(KEY, {}, 1, [b"abc"])
    assert make_store(tmp_path)[0].find(KEY) == 1


def test_only_digests_name_blobs(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path)
    for name in ("../../../etc/passwd", "AB" * 32, "ab" * 31, ""):
        with pytest.raises(CacheError, match="names a blob by a text that is no digest"):
            store.blob_path(name)


def test_use_is_marked_at_most_hourly_and_only_in_a_store_that_is_written(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path)
    store.put(KEY, {}, 1)
    path = store.record_path(KEY)
    lately, long_ago = time.time() - MARK_INTERVAL / 2, time.time() - 2 * MARK_INTERVAL

    def mark_after(used: float, mode: str) -> float:
        os.utime(path, (used, used))
        assert make_store(tmp_path, mode)[0].find(KEY) == 1
        return path.stat().st_mtime - used

    assert mark_after(lately, "on") == pytest.approx(0, abs=1)
    assert mark_after(long_ago, "on") == pytest.approx(2 * MARK_INTERVAL, abs=60)
    assert mark_after(long_ago, "read-only") == pytest.approx(0, abs=1)
    assert mark_after(long_ago, "frozen") == pytest.approx(0, abs=1)


def test_a_record_that_a_trim_takes_away_while_it_is_read_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, warnings = make_store(tmp_path)
    store.put(KEY, {}, 1, [b"abc"])

    def take_away(_: Store, blob: Path) -> str:
        store.record_path(KEY).unlink()
        return blob.name

    monkeypatch.setattr(Store, "_digest", take_away)
    assert store.find(KEY) is None
    assert warnings == []


def test_update_is_given_the_value_where_the_mode_reads(tmp_path: Path) -> None:
    for mode, seen in (("on", [None]), ("on", [None, 1]), ("read-only", [2]), ("refresh", [None]), ("off", [None])):
        store, _ = make_store(tmp_path, mode)
        given = []

        def change(value: object, given: list[object] = given) -> object:
            given.append(value)
            return 1 if value is None else 2

        store.update(KEY, {}, change)
        assert given == seen[-1:]
    assert make_store(tmp_path)[0].find(KEY) == 1


def test_opening_and_reading_a_store_imports_no_library_for_locks(tmp_path: Path, modules_after: object) -> None:
    code = f"""
from pathlib import Path
from hatch_lower.cache.store import Store
from hatch_lower.cache.contents import maybe_trim
assert Store(Path({str(tmp_path)!r}), "on", print).find("ab" * 32) is None
"""
    assert callable(modules_after)
    assert not {"filelock", "torch", "cryptography", "fsspec", "asyncio"} & modules_after(code)


def test_every_field_of_a_key_is_hashed() -> None:
    fields: dict[str, object] = {
        "graph": "g",
        "state": "s",
        "backend": "b",
        "fingerprint": (("a", "1"),),
        "compile_specs": (("k", "00"),),
        "torch": "2.13.0",
        "interpreter": "3.11.7",
        "system": "Linux x86_64",
        "result_schema": 1,
    }
    assert set(fields) == set(PartitionKey.__dataclass_fields__)
    whole = PartitionKey(**fields)  # type: ignore[arg-type]
    for name, value in fields.items():
        other = (
            value + 1 if isinstance(value, int) else (*value, ("z", "z")) if isinstance(value, tuple) else f"{value}x"
        )
        assert PartitionKey(**{**fields, name: other}).digest() != whole.digest(), name  # type: ignore[arg-type]


def test_the_key_of_joint_partitions_tells_backends_methods_order_and_each_partition_apart() -> None:
    keys = [
        JointKey(backend, partitions).digest()
        for backend, partitions in (
            ("b", (("prefill", "1"), ("decode", "2"))),
            ("c", (("prefill", "1"), ("decode", "2"))),
            ("b", (("decode", "1"), ("prefill", "2"))),
            ("b", (("decode", "2"), ("prefill", "1"))),
            ("b", (("prefill", "1"), ("prefill", "2"))),
            ("b", (("prefill", "1"), ("decode", "3"))),
            ("b", (("prefill", "1"),)),
        )
    ]
    assert len(set(keys)) == len(keys)


def test_a_lock_whose_file_others_close_is_released(tmp_path: Path) -> None:
    store, warnings = make_store(tmp_path)
    for _ in range(2):
        with store.locked([KEY], "partition"):
            (lock,) = tmp_path.rglob("partition-*")
            (descriptor,) = (each for each in range(3, 256) if is_open_as(each, lock))
            os.close(descriptor)
    assert warnings == []


def is_open_as(descriptor: int, path: Path) -> bool:
    """Return whether a descriptor is that of a file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
