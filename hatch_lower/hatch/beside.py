"""Files of weights beside the wheel, for uploading: the wheel says only what they are called and hold."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.canonical import PIECE, is_file_of, open_file
from hatch_lower.errors import PackageError
from hatch_lower.hatch.wheel import replacing

if TYPE_CHECKING:
    from hatch_lower.format.results import PayloadFile


def write_beside(wheel: Path, files: Sequence[PayloadFile]) -> list[Path]:
    """Write files into the folder of a wheel, each whole or not at all; return where they are."""
    folder = wheel.parent
    try:
        mode = stat.S_IMODE(wheel.stat().st_mode)
        for file in files:
            if not is_file_of(folder / file.path, file.size, file.sha256):
                write_file(folder / file.path, file, mode)
    except OSError as error:
        raise PackageError(
            "weights could not be written beside the wheel",
            where=str(error.filename or folder),
            found=error.strerror or str(error),
            hint="see that there is space left, and build again",
        ) from error
    return [folder / file.path for file in files]


def write_file(target: Path, file: PayloadFile, mode: int) -> None:
    digest = hashlib.sha256()
    with replacing(target, mode) as written, open_file(file.source) as source:
        while piece := source.read(PIECE):
            digest.update(piece)
            written.write(piece)
        if digest.hexdigest() != file.sha256:
            raise PackageError(
                f"the file for `{file.path}` no longer holds what was lowered: the cache is damaged",
                where=str(file.source),
                hint="delete this file and build again",
            )
