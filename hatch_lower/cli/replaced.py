"""Replacement of a project's own files, as wholes or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from hatch_lower.driver.signals import uninterrupted


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Replace files by new files that are complete on the disk: an interrupt leaves whole files."""
    with ExitStack() as stack:
        parts = {}
        for path, data in contents.items():
            beside = stack.enter_context(tempfile.TemporaryDirectory(prefix=".hatch-lower-", dir=path.parent))
            parts[path] = Path(beside, path.name)
            parts[path].write_bytes(data)
            if path.exists():
                shutil.copymode(path, parts[path])
        with uninterrupted():
            for path, part in parts.items():
                part.replace(path)
