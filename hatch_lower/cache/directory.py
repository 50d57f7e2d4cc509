"""The directory of the cache: its place, the test whether native code from this directory can be trusted, and files
that exist completely or not at all. Only this user can enter the folders. In a folder that has the set-group-ID
bit (`chmod 2770`), the group can enter new folders and write new files, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from hatch_lower.canonical import read_file, sha256_bytes
from hatch_lower.errors import CacheError

LEFTOVER = ".part"  # suffix of unfinished files; an old file with this suffix was left by a killed process

ATTEMPTS = 5  # at making a folder that a trim may remove while the folder is still empty

Result = TypeVar("Result")


def make_folder(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for parent in reversed(missing):
        with contextlib.suppress(FileExistsError):
            parent.mkdir(mode=0o700)
            # the umask may have removed bits of the mode
            parent.chmod(0o2770 if is_group_shared(parent.parent) else 0o700)


def is_group_shared(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_ISGID)


def file_mode(folder: Path) -> int:
    return 0o660 if is_group_shared(folder) else 0o600


def in_folder(folder: Path, action: Callable[[], Result]) -> Result:
    for _ in range(ATTEMPTS - 1):  # a trim may remove the empty folder in between
        with contextlib.suppress(FileNotFoundError):
            make_folder(folder)
            return action()
    make_folder(folder)
    return action()


@contextlib.contextmanager
def temporary_beside(path: Path, *, private: bool = False) -> Iterator[Path]:
    folder = path.parent
    handle, name = in_folder(folder, lambda: tempfile.mkstemp(prefix=".", suffix=LEFTOVER, dir=folder))
    os.close(handle)
    try:
        if not private:  # a private file is closed to other users from the start: `mkstemp` makes files so
            os.chmod(name, file_mode(folder))
        yield Path(name)
    finally:
        with contextlib.suppress(FileNotFoundError):  # renamed by the caller
            os.unlink(name)


def write_file(path: Path, data: bytes) -> None:
    with temporary_beside(path) as part:
        part.write_bytes(data)
        os.replace(part, path)


def move_file(source: Path, path: Path) -> None:
    def move() -> None:
        source.chmod(file_mode(path.parent))
        os.replace(source, path)

    try:
        in_folder(path.parent, move)
    except OSError as error:
        if error.errno != errno.EXDEV:  # another file system
            raise
        with temporary_beside(path) as part:
            shutil.copyfile(source, part)
            os.replace(part, path)


def remove_unused(path: Path, seen: os.stat_result) -> bool:
    """Remove a file unless it was marked as used or replaced since `seen`; return whether the file was removed."""
    # aside first: a build that marks the file as used after this step finds no file, and so treats the entry as missing
    aside = path.with_name(f".{path.name}-{os.getpid()}{LEFTOVER}")
    try:
        os.rename(path, aside)
        now = aside.stat()
        if (now.st_ino, now.st_mtime_ns) != (seen.st_ino, seen.st_mtime_ns) and not path.exists():
            os.rename(aside, path)
            return False
        aside.unlink()
    except OSError:  # another trim was faster, or the file system refuses: the next trim tries again
        return False
    return True


MODES = ("on", "off", "read-only", "refresh", "frozen")
WRITING = ("on", "refresh")

VERSION = "v1"  # the folder for this layout: another version of hatch-lower may use another layout
# folders within; `cache/directory.py` makes the folders for results, for this user or a group alone
PARTS = ("blobs", "locks", "preload", "records")
# files that keep the cache out of backups and out of git; the first line of a tag is the same in all programs
TAG = "CACHEDIR.TAG"
MARKS = {
    TAG: b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of hatch-lower; see https://bford.info/cachedir/\n",
    ".gitignore": b"*\n",
}
HINT = "set `HATCH_LOWER_CACHE_DIR` to a directory of your own"
MOST_LINKS = 40  # on the way to the cache; more links are taken for a circle


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return the cache directory; raise `CacheError` for a user without a home folder, as in some containers."""
    named = environment.get("HATCH_LOWER_CACHE_DIR")
    if named:
        return Path(named)
    import platformdirs

    with contextlib.suppress(RuntimeError):  # raised by a platformdirs that looks for the home folder itself
        found = Path(platformdirs.user_cache_dir("hatch-lower", appauthor=False))
        if found.is_absolute():
            return found
    raise CacheError(
        "there is no folder for the cache",
        found="the environment has no `HOME`, and the user has no entry in the password database",
        hint=HINT,
    )


def history_path(directory: Path, root: Path) -> Path:
    return directory / "history" / f"{sha256_bytes(os.fsencode(os.path.realpath(root)))}.json"


def choose_directory(environment: Mapping[str, str], warn: Callable[[str], None]) -> tuple[Path, str]:
    """Return the folder of this version in the cache directory, and the mode: `off` for an untrusted directory."""
    mode = environment.get("HATCH_LOWER_CACHE", "on")
    if mode not in MODES:
        raise CacheError(
            "the mode of the cache is unknown",
            where="environment variable `HATCH_LOWER_CACHE`",
            found=f"`{mode}`",
            hint="use one of " + ", ".join(f"`{name}`" for name in MODES),
        )
    try:
        parent = default_directory(environment)
    except CacheError as error:
        if mode == "frozen":
            raise
        if mode != "off":
            warn(f"the cache is not used: {error.found}; {HINT}")
        return Path(os.devnull, VERSION), "off"
    reason = None if mode == "off" else reason_to_distrust(parent)
    if reason and mode in WRITING and not (parent / VERSION).exists():
        # made now and checked again, so that in a folder for everybody no other user makes the cache first
        with contextlib.suppress(OSError):
            make_folder(parent / VERSION)
        reason = reason_to_distrust(parent)
    if reason and mode == "frozen":
        raise CacheError("the cache is frozen and cannot be trusted", where=str(parent), found=reason, hint=HINT)
    if reason:
        warn(f"the cache is not used: {reason}; {HINT}")
        mode = "off"
    return parent / VERSION, mode


def mark_directory(directory: Path) -> None:
    """Write the files `MARKS` into the folder of this version, unless the tag exists."""
    if not (directory / TAG).exists():
        for name, data in sorted(MARKS.items()):
            write_file(directory / name, data)


def is_marked(folder: Path) -> bool:
    """Return whether a folder holds the tag of a cache of hatch-lower."""
    try:
        return read_file(folder / TAG) == MARKS[TAG]
    except OSError:
        return False


def reason_to_distrust(directory: Path) -> str | None:
    # The directory's owner, who must be this user or root, may give a group write permission. On the way to the
    # directory, links followed, a folder may be writable for every user only with the sticky bit, as `/tmp` is, and
    # only if the next step on the way belongs to this user or root. No folder of the cache may be writable for every
    # user.
    if not hasattr(os, "getuid"):
        return None
    trusted = (os.getuid(), 0)
    above: Path | None = None  # the folder that holds the next step, if writable for every user
    try:
        for step in walk_path(directory):
            status = step.lstat()
            if above is not None and status.st_uid not in trusted:  # the owner of the step can still replace the step
                return f"{step} belongs to another user"
            above = None
            if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
                if not status.st_mode & stat.S_ISVTX:
                    return f"every user may write to {step}"
                above = step
        return reason_within(directory, trusted)
    except FileNotFoundError:
        return None if above is None else f"every user may write to {above}, and the cache does not exist yet"
    except OSError:  # an inaccessible folder cannot be read or written either: reading and writing report this
        return None


def reason_within(directory: Path, trusted: Collection[int]) -> str | None:
    top = directory.stat()
    if top.st_uid not in trusted:
        return f"{directory} belongs to another user"
    is_open = bool(top.st_mode & stat.S_IWOTH)
    is_shared = bool(top.st_mode & stat.S_IWGRP) and not is_open
    version = directory / VERSION
    for folder in (version, *(version / part for part in PARTS)):
        try:
            status = folder.stat()
        except FileNotFoundError:
            if folder == version and is_open:
                return f"every user may write to {directory}, and the cache does not exist yet"
            continue
        # members of the directory's group make folders of their own in a shared cache
        if not is_shared and status.st_uid not in trusted:
            return f"{folder} belongs to another user"
        if status.st_mode & stat.S_IWOTH:
            return f"every user may write to {folder}"
    return None


def walk_path(path: Path) -> Iterator[Path]:
    """Yield each folder and each link on the way to a path, from the root on, following links step by step."""
    absolute = path.absolute()
    here, left = Path(absolute.anchor), list(reversed(absolute.parts[1:]))
    links = 0
    yield here
    while left:
        part = left.pop()
        if part == "..":
            here = here.parent
            continue
        step = here / part
        yield step
        if not step.is_symlink():
            here = step
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(f"too many links on the way to {path}")
        target = Path(os.readlink(step))
        here = Path(target.anchor) if target.anchor else here
        left += reversed(target.parts[1:] if target.anchor else target.parts)
