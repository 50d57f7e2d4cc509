"""A folder of files, written completely or not at all."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hatch_lower.driver.signals import ending_on_signals, uninterrupted
from hatch_lower.errors import PackageError, ProcessError, refused_error

HIDDEN = ".hatch-lower-"


@contextmanager
def folder_in_place(folder: Path, noun: str, option: str = "--to") -> Iterator[Path]:
    """Give an empty folder, whose files become those of `folder` if the block ends without an error.

    Raises:
        PackageError: if `folder` is a file or has files.
        ProcessError: if the system refuses a file.
    """
    taken = PackageError(
        f"the folder for the {noun} has other files", where=str(folder), hint=f"name a new folder with `{option}`"
    )
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise taken
        # an empty folder may be a volume, a link, or a shell's current folder, which nothing can replace
        is_there = folder.is_dir()
        above = folder if is_there else next(parent for parent in folder.absolute().parents if parent.is_dir())
        with ending_on_signals(), tempfile.TemporaryDirectory(prefix=HIDDEN, dir=above) as beside:
            unfinished = Path(beside, "unfinished")  # `beside` is readable for its owner only
            unfinished.mkdir()
            yield unfinished
            if is_there:
                fill_folder(folder, unfinished, taken)
            else:
                folder.parent.mkdir(parents=True, exist_ok=True)
                unfinished.rename(folder)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:  # another process was faster
            raise taken from error
        raise unwritten_error(error, folder, noun) from error


def fill_folder(folder: Path, unfinished: Path, taken: PackageError) -> None:
    if any(path != unfinished.parent for path in folder.iterdir()):
        raise taken
    with uninterrupted():
        for path in unfinished.iterdir():
            path.rename(folder / path.name)


def unwritten_error(error: OSError, folder: Path, noun: str) -> ProcessError:
    named = str(error.filename2 or error.filename or folder)
    if HIDDEN in named:  # a temporary name says nothing to the reader
        named = f"{folder}{named.rpartition(HIDDEN)[2].partition('unfinished')[2]}"
    return refused_error(OSError(error.errno, error.strerror, named), named) or ProcessError(
        f"the {noun} cannot be written", where=named, found=error.strerror or str(error)
    )
