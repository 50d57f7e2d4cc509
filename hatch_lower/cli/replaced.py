"""Replacement of a project's own files, as wholes or not at all, with the line ends and links of before."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hatch_lower.driver.signals import uninterrupted
from hatch_lower.errors import PackageError

MARK = "#-above-"  # of a comment that is moved below its heading while tomlkit has the text
ABOVE = re.compile(r"(?P<comments>(?:^[ \t]*#.*\n)+)(?P<heading>^[ \t]*\[.*\n)", re.MULTILINE)
MARKED = re.compile(rf"(?P<heading>^[ \t]*\[.*\n)(?P<comments>(?:^[ \t]*{MARK}.*\n)+)", re.MULTILINE)


def refuse_read_only(*files: Path) -> None:
    """Raise `PackageError` for a file in a folder in which this process cannot replace files."""
    for file in files:
        folder = os.path.dirname(os.path.realpath(file))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PackageError(
                "the folder of a file to write is read-only",
                where=str(file),
                found=f"no permission to write in {folder}",
                hint="run the command without `--write`, or on a writable copy of the project",
            )


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Replace files by new files that are complete on the disk: an interrupt leaves whole files."""
    with ExitStack() as stack:
        parts = {}
        for link, data in contents.items():
            path = Path(os.path.realpath(link))
            beside = stack.enter_context(tempfile.TemporaryDirectory(prefix=".hatch-lower-", dir=path.parent))
            parts[path] = Path(beside, path.name)
            parts[path].write_bytes(data)
            if path.exists():
                shutil.copymode(path, parts[path])
        with uninterrupted():
            for path, part in parts.items():
                part.replace(path)


def edited_text(before: str, edit: Callable[[Any], None]) -> str:
    """Return a TOML text after `edit` has changed its tomlkit document; comments, line ends and empty lines stay.

    tomlkit counts a comment above a heading to the table before: here the comment stays with the heading.
    """
    import tomlkit

    document = tomlkit.parse(ABOVE.sub(mark_comments, before))
    edit(document)
    text = spaced(with_line_ends(tomlkit.dumps(document), before), before)
    return MARKED.sub(r"\g<comments>\g<heading>", text).replace(MARK, "#")


def mark_comments(found: re.Match[str]) -> str:
    comments = [line.replace("#", MARK, 1) for line in found["comments"].splitlines(keepends=True)]
    return found["heading"] + "".join(comments)


def with_line_ends(text: str, before: str) -> str:
    """Return an edited text with the line ends of Windows, if the text had these alone before."""
    is_windows = "\r\n" in before and "\n" not in before.replace("\r\n", "")
    return text.replace("\r\n", "\n").replace("\n", "\r\n") if is_windows else text


def spaced(text: str, before: str) -> str:
    """Return the text with the empty lines before headings that the earlier text has."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        end = line[len(line.rstrip("\r\n")) :]
        if line.startswith("[") and lines and lines[-1].strip() and f"{end}{end}{line}" in before:
            lines.append(end)
        while line.startswith("[") and lines[-2:] == [end, end] and f"{end}{end}{end}{line}" not in before:
            lines.pop()
        lines.append(line)
    return "".join(lines)
