"""The cache directory as somebody else on the machine may have prepared it: what they can write to is not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hatch_lower.cache.directory import PARTS, reason_to_distrust
from hatch_lower.cache.store import Store, open_store
from hatch_lower.driver.inputs.preload import built_library
from hatch_lower.errors import CacheError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and permissions are POSIX's")
as_root = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root may give files away")

KEY = "ab" * 32
NOBODY = 65534


def opened(directory: Path, mode: str = "on") -> tuple[Store, list[str]]:
    warnings: list[str] = []
    environment = {"HATCH_LOWER_CACHE_DIR": str(directory), "HATCH_LOWER_CACHE": mode}
    return open_store(environment, warnings.append), warnings


def refused(directory: Path, reason: str) -> None:
    store, warnings = opened(directory)
    assert (store.mode, store.find(KEY)) == ("off", None)
    assert warnings == [
        f"the cache is not used: {reason}; set `HATCH_LOWER_CACHE_DIR` to a directory of your own",
    ]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a cache with something in each of its folders."""
    directory = tmp_path / "cache"
    store, warnings = opened(directory)
    with store.locked([KEY]):
        store.put(KEY, {}, 1, [b"abc"])
    (directory / "v1" / "preload").mkdir(mode=0o700)
    assert sorted(path.name for path in (directory / "v1").iterdir()) == sorted(PARTS)
    assert opened(directory)[0].find(KEY) == 1
    assert warnings == []
    return directory


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
@pytest.mark.parametrize("part", ["", *PARTS])
def test_a_folder_of_the_cache_that_everybody_can_write_to(cache: Path, part: str, mode: int) -> None:
    folder = cache / "v1" / part
    folder.chmod(mode)
    refused(cache, f"every user may write to {folder}")


@as_root
@pytest.mark.parametrize("part", ["", "v1", *(f"v1/{each}" for each in PARTS)])
def test_a_folder_of_the_cache_that_is_another_users(cache: Path, part: str) -> None:
    os.chown(cache / part, NOBODY, -1)
    refused(cache, f"{cache / part} belongs to another user")


def test_a_folder_above_the_cache_that_everybody_can_write_to(cache: Path) -> None:
    cache.parent.chmod(0o777)
    refused(cache, f"every user may write to {cache.parent}")
    cache.parent.chmod(0o1777)
    assert opened(cache)[0].find(KEY) == 1


@as_root
def test_what_another_user_has_put_where_everybody_can_write(cache: Path, tmp_path: Path) -> None:
    """The owner of a link or folder there can have it lead elsewhere once it has been looked at."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to(cache)
    assert opened(link)[0].find(KEY) == 1
    os.lchown(link, NOBODY, -1)
    refused(link, f"{link} belongs to another user")
    theirs = shared / "folder"
    (theirs / "cache").mkdir(parents=True)
    os.chown(theirs, NOBODY, -1)
    refused(theirs / "cache", f"{theirs} belongs to another user")
    mine = tmp_path / "mine"
    mine.symlink_to(link)
    refused(mine, f"{link} belongs to another user")


def test_links_of_ones_own_are_followed_one_by_one(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "up").symlink_to("../second")
    (tmp_path / "second").symlink_to(cache)
    assert opened(tmp_path / "folder" / "up")[0].find(KEY) == 1
    (tmp_path / "circle").symlink_to("circle")
    assert reason_to_distrust(tmp_path / "circle") is None
    store, warnings = opened(tmp_path / "circle")
    store.put(KEY, {}, 1)
    assert store.find(KEY) is None
    assert len(warnings) == 1


@pytest.mark.parametrize("there", [False, True])
def test_a_cache_that_is_not_there_yet_where_everybody_can_write(tmp_path: Path, there: bool) -> None:
    tmp_path.chmod(0o1777)
    directory = tmp_path if there else tmp_path / "cache"
    reason = f"every user may write to {tmp_path}, and the cache does not exist yet"
    assert reason_to_distrust(directory) == reason
    assert opened(directory, "read-only")[0].mode == "off"
    with pytest.raises(CacheError, match="and the cache does not exist yet"):
        opened(directory, "frozen")
    store, warnings = opened(directory)
    assert (store.mode, warnings) == ("on", [])
    assert stat.S_IMODE((directory / "v1").stat().st_mode) == 0o700, "it is made before anybody else makes it"
    assert opened(directory, "frozen")[0].mode == "frozen"


def test_nothing_is_made_before_it_is_needed_where_nobody_else_can_write(tmp_path: Path) -> None:
    assert opened(tmp_path / "cache")[0].find(KEY) is None
    assert not (tmp_path / "cache").exists()


def test_the_preloaded_library_is_made_for_this_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        library = built_library(tmp_path / "cache")
    finally:
        os.umask(before)
    if library is None:
        pytest.skip("the library cannot be built here")
    for path in (library, library.parent, library.parent.parent, tmp_path / "cache"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert reason_to_distrust(tmp_path / "cache") is None


def test_a_preloaded_library_that_somebody_else_may_have_written_is_built_again(tmp_path: Path) -> None:
    library = built_library(tmp_path)
    if library is None:
        pytest.skip("the library cannot be built here")
    for kind in ("open", "group", "link", "owner"):
        library.unlink()
        if kind == "link":
            library.symlink_to(tmp_path / "other")
        library.write_bytes(b"not a library")
        library.chmod({"open": 0o702, "group": 0o720}.get(kind, 0o700))
        if kind == "owner":
            if os.getuid() != 0:
                return
            os.chown(library, NOBODY, -1)
        assert built_library(tmp_path) == library
        assert library.read_bytes().startswith(b"\x7fELF"), kind
        assert (library.is_symlink(), stat.S_IMODE(library.lstat().st_mode)) == (False, 0o700)
