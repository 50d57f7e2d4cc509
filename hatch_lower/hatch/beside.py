"""Files of weights beside the wheel, for uploading: the wheel says only what they are called and hold."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.cache.locks import make_held, remove_abandoned
from hatch_lower.canonical import PIECE, open_file, sha256_file
from hatch_lower.errors import PackageError
from hatch_lower.hatch.wheel import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from hatch_lower.format.results import PayloadFile


def write_beside(wheel: Path, files: Sequence[PayloadFile]) -> list[Path]:
    """Write files into the folder of a wheel, each whole or not at all; return where they are."""
    folder = wheel.parent
    try:
        mode = stat.S_IMODE(wheel.stat().st_mode)
        for file in files:
            if not is_there(folder / file.path, file):
                write_file(folder, file, mode)
    except OSError as error:
        raise PackageError(
            "weights could not be written beside the wheel",
            where=str(error.filename or folder),
            found=error.strerror or str(error),
            hint="see that there is space left, and build again",
        ) from error
    return [folder / file.path for file in files]


def is_there(path: Path, file: PayloadFile) -> bool:
    try:
        return path.stat().st_size == file.size and sha256_file(path) == file.sha256
    except OSError:
        return False


def write_file(folder: Path, file: PayloadFile, mode: int) -> None:
    target = folder / file.path
    remove_abandoned(folder, f"{file.path}.*{TEMPORARY_SUFFIX}")
    temporary = target.with_name(f"{target.name}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
    number = make_held(temporary)
    try:
        digest = hashlib.sha256()
        with os.fdopen(number, "wb", closefd=False) as written, open_file(file.source) as source:
            while piece := source.read(PIECE):
                digest.update(piece)
                written.write(piece)
        if digest.hexdigest() != file.sha256:
            raise PackageError(
                f"the file for `{file.path}` no longer holds what was lowered: the cache is damaged",
                where=str(file.source),
                hint="delete this file and build again",
            )
        temporary.chmod(mode)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(number)
