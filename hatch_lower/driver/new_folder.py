"""A folder of files, written completely or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hatch_lower.errors import PackageError, ProcessError, refused_error


@contextmanager
def folder_in_place(folder: Path, noun: str, option: str = "--to") -> Iterator[Path]:
    """Give an empty folder, which takes the place of `folder` if the block ends without an error.

    Raises:
        PackageError: if `folder` is a file or has files.
        ProcessError: if the system refuses a file.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PackageError(
                f"the folder for the {noun} has other files",
                where=str(folder),
                hint=f"name a new folder with `{option}`",
            )
        above = next(parent for parent in folder.absolute().parents if parent.is_dir())
        with tempfile.TemporaryDirectory(prefix=".hatch-lower-", dir=above) as beside:
            unfinished = Path(beside, "unfinished")  # `beside` is readable for its owner only
            unfinished.mkdir()
            yield unfinished
            folder.parent.mkdir(parents=True, exist_ok=True)
            unfinished.rename(folder)  # an empty folder is replaced
    except OSError as error:
        raise refused_error(error, str(folder)) or ProcessError(
            f"the {noun} cannot be written", where=str(error.filename or folder), found=error.strerror or str(error)
        ) from error
