from __future__ import annotations

from pathlib import Path

import pytest

from hatch_lower.cache.key import PartitionKey
from hatch_lower.cache.store import Store, default_directory, open_store
from hatch_lower.errors import CacheError

KEY = "ab" * 32


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
    other = "cd" * 32
    assert (store.get(KEY, "x") == {"size": 3}) is reads
    store.put(other, {}, 1)
    assert store.record_path(other).exists() is writes


def test_a_miss_in_a_frozen_cache_is_an_error_that_says_what_missed(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path, "frozen")
    with pytest.raises(CacheError) as caught:
        store.get(KEY, "a partition of `forward` for the backend `aoti`")
    assert str(caught.value) == (
        "the cache is frozen and does not hold what this build needs\n"
        "  where: a partition of `forward` for the backend `aoti`\n"
        f"  found: no entry {KEY[:16]}… in {tmp_path}\n"
        "  to do: build once with `HATCH_LOWER_CACHE=on`, or find out what changed since the last build"
    )


def test_a_directory_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    store, warnings = make_store(blocked)
    store.put(KEY, {}, {"size": 3})
    assert len(warnings) == 1
    assert "could not be written" in warnings[0]


def test_adopt_moves_a_file_in_and_leaves_it_where_nothing_is_written(tmp_path: Path) -> None:
    source = tmp_path / "made"
    source.write_bytes(b"abc")
    assert make_store(tmp_path / "cache", "off")[0].adopt(source, "ee" * 32) == source
    adopted = make_store(tmp_path / "cache")[0].adopt(source, "ee" * 32)
    assert adopted.read_bytes() == b"abc"
    assert not source.exists()


def test_the_environment_chooses_mode_and_directory(tmp_path: Path) -> None:
    environment = {"HATCH_LOWER_CACHE_DIR": str(tmp_path), "HATCH_LOWER_CACHE": "frozen"}
    store = open_store(environment, lambda line: None)
    assert (store.directory, store.mode) == (tmp_path / "v1", "frozen")
    assert default_directory({}).name == "hatch-lower"
    with pytest.raises(CacheError, match="the cache has no such mode"):
        open_store({"HATCH_LOWER_CACHE": "offf"}, lambda line: None)


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
