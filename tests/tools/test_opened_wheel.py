"""Wheels of many members: their directory is read a few times, whatever they hold."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from support.sides import PLAIN, write_wheel

from hatch_lower.canonical import sha256_bytes
from hatch_lower.cli.page.data import in_wheel
from hatch_lower.driver.contents import find_contents, loadable_places
from hatch_lower.driver.diff.models import compare_models, read_side
from hatch_lower.errors import ProgramError
from hatch_lower.format.manifest import FileEntry


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the wheels that were opened: each time the whole directory is read."""
    opened: list[object] = []

    class Counted(zipfile.ZipFile):
        def __init__(self, file: str, mode: str = "r") -> None:
            super().__init__(file, mode)  # type: ignore[arg-type]
            if mode == "r":
                opened.append(file)

    monkeypatch.setattr(zipfile, "ZipFile", Counted)
    return opened


def wheel(folder: Path, models: int) -> Path:
    named = {f"net{number}": PLAIN for number in range(models)}
    return write_wheel(folder / f"digits-1.{models}-py3-none-any.whl", named)


def test_a_wheel_of_many_files_is_opened_as_often_as_one_of_few(tmp_path: Path, openings: list[object]) -> None:
    counts = set()
    for models in (1, 30):
        path = wheel(tmp_path, models)
        openings.clear()
        assert compare_models(read_side(path), read_side(path)) == []
        (contents,) = find_contents(path)
        assert [contents.model(name).name for name in contents.models]
        with loadable_places(path) as places:
            assert [len(names) for _, _, names in places] == [models]
        look = in_wheel(path)
        assert [look(f"missing{number}") for number in range(models)] == [None] * models
        counts.add(len(openings))
    assert len(counts) == 1


def test_a_wheel_of_many_packages_is_opened_as_often_as_one_of_few(tmp_path: Path, openings: list[object]) -> None:
    counts = set()
    for packages in (1, 30):
        one, path = wheel(tmp_path / "one", 1), tmp_path / f"digits-2.{packages}-py3-none-any.whl"
        with zipfile.ZipFile(one) as read, zipfile.ZipFile(path, "w") as written:
            for name in read.namelist():
                for number in range(packages if "/_lowered/" in name else 1):
                    written.writestr(name.replace("digits/", f"digits{number}/", 1), read.read(name))
        openings.clear()
        assert len(find_contents(path)) == packages
        with loadable_places(path) as places:
            assert len(places) == packages
        counts.add(len(openings))
    assert len(counts) == 1


def test_an_error_names_the_wheel_in_place_of_the_unpacked_folder(tmp_path: Path) -> None:
    path = wheel(tmp_path, 1)
    with pytest.raises(ProgramError) as caught, loadable_places(path) as ((_, folder, _),):
        raise ProgramError("a fault", where=f"{folder.path}/net.json", hint=f"run `hatch-lower fetch {folder.path}`")
    assert str(caught.value) == (
        f"a fault\n  where: {path.name}: digits/_lowered/net.json\n  to do: run `hatch-lower fetch {path}`"
    )


def test_a_file_of_a_wheel_is_mapped_whether_it_is_stored_or_deflated(tmp_path: Path) -> None:
    path = wheel(tmp_path, 1)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("digits/_lowered/deflated", b"a" * 100)
    (contents,) = find_contents(path)
    entry = FileEntry("deflated", 100, sha256_bytes(b"a" * 100))
    assert contents.map(entry) == contents.read(entry) == b"a" * 100
