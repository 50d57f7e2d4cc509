"""Where the constants file is written: once, in the place where it stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hatch_lower.cache.locks import make_held
from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_file
from hatch_lower.errors import BackendError
from hatch_lower.pipeline import package
from hatch_lower.pipeline.emit.constants import WrittenConstants, write_constants
from hatch_lower.pipeline.package import Packager, ProgramFiles

pytestmark = pytest.mark.torch

STORAGES = {"aa": torch.arange(1000.0), "bb": torch.ones(3)}


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_constants_are_written_into_the_store_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "cache", "on", pytest.fail)
    written: list[Path] = []

    def write(path: Path, *contents: Any) -> WrittenConstants:
        written.append(path)
        return write_constants(path, *contents)

    monkeypatch.setattr(package, "write_constants", write)
    for _ in range(2):  # the second time it is there
        packager = Packager(tmp_path / "work", "digits", store)
        entry = packager.write_storages(STORAGES)
        assert entry is not None
        assert packager.source(entry.path) == store.blob_path(entry.sha256)
        assert sha256_file(store.blob_path(entry.sha256)) == entry.sha256
    (path,) = written
    assert path.is_relative_to(store.directory)
    assert not (tmp_path / "work").exists()
    assert [each for each in files_below(tmp_path) if each.suffix == ".part"] == []


@pytest.mark.parametrize("mode", ["off", "read-only", "frozen"])
def test_constants_stay_in_the_folder_if_the_store_is_not_written(tmp_path: Path, mode: str) -> None:
    packager = Packager(tmp_path / "work", "digits", Store(tmp_path / "cache", mode, pytest.fail))
    entry = packager.write_storages(STORAGES)
    assert entry is not None
    assert files_below(tmp_path) == [tmp_path / "work" / entry.path]
    assert packager.source(entry.path) == tmp_path / "work" / entry.path


def test_constants_stay_in_the_folder_if_the_store_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    warnings: list[str] = []
    packager = Packager(tmp_path / "work", "digits", Store(tmp_path / "cache", "on", warnings.append))
    entry = packager.write_storages(STORAGES)
    assert entry is not None
    assert sha256_file(tmp_path / "work" / entry.path) == entry.sha256
    assert len(warnings) == 1
    assert "could not be" in warnings[0]


def test_what_a_killed_build_left_in_the_store_goes_and_what_another_build_writes_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", "on", pytest.fail)
    store.directory.mkdir()
    left, held = store.directory / "constants-0a.part", store.directory / "constants-0b.part"
    left.write_bytes(b"half")
    descriptor = make_held(held)
    assert Packager(tmp_path / "work", "digits", store).write_storages(STORAGES)
    os.close(descriptor)
    assert list(store.directory.glob("*.part")) == [held]


def test_a_file_that_a_backend_takes_away_is_named(tmp_path: Path) -> None:
    packager = Packager(tmp_path, "digits", Store(tmp_path / "cache", "off", pytest.fail))
    plan, debug, blob = (packager.write(name, b"contents") for name in ("default.json", "default.debug.json", "blob"))
    program = ProgramFiles(plan, debug, (blob,), ())
    packager.refuse_changed(program, "model `digits`")
    for change, found in ((lambda path: path.write_bytes(b"less"), "4 bytes instead of 8"), (Path.unlink, "no file")):
        change(packager.source(blob.path))
        with pytest.raises(BackendError) as caught:
            packager.refuse_changed(program, "model `digits`")
        assert str(caught.value) == (
            "a backend has changed a packaged file\n"
            "  where: model `digits`, `digits/blob`\n"
            f"  found: {found}\n"
            "  to do: a run half may only read its blob; report this to the backend's authors, or leave the backend out"
        )
