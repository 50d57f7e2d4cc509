"""Texts of source lines in debug maps, and whether the texts have changed since the build."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from hatch_lower.driver.contents import Contents
from hatch_lower.driver.opened_wheel import open_wheel
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import Damage
from hatch_lower.format.values import read_path
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.classes import editable_folder

MOST_BYTES = 1 << 22  # of a file
WHOLE = 2000  # lines of a file that is shown whole; of longer files the lines around operations are shown
AROUND = 12

Look = Callable[[str], bytes | None]  # returns the contents at a relative path


class SourceText(Frozen):
    """A source file, or the shown parts of the file."""

    state: str  # `same` as in the build, `changed`, `unknown` without a digest, or `missing`
    place: str  # where the text was found, in words
    parts: tuple[tuple[int, str], ...]  # the number of a first line, and the lines from there on


def texts_of(
    named: Mapping[str, Iterable[int]], digests: Mapping[str, str], looks: Sequence[tuple[str, Look]]
) -> dict[str, SourceText]:
    """Return the texts of source files by path; `named` has the lines of operations."""
    return {path: text_of(path, set(lines), digests.get(path), looks) for path, lines in sorted(named.items())}


def text_of(path: str, lines: set[int], digest: str | None, looks: Sequence[tuple[str, Look]]) -> SourceText:
    found: tuple[str, bytes] | None = None
    if is_source(path):
        for place, look in looks:
            data = look(path)
            if data is None:
                continue
            if digest is None or hashlib.sha256(data).hexdigest() == digest:
                return SourceText("unknown" if digest is None else "same", place, parts_of(data, lines))
            found = found or (place, data)
    if found is None:
        return SourceText("missing", "", ())
    return SourceText("changed", found[0], parts_of(found[1], lines))


def is_source(path: str) -> bool:
    # anybody may have written the path, and other people get the page
    try:
        return read_path(path).endswith(".py")
    except Damage:
        return False


def parts_of(data: bytes, lines: set[int]) -> tuple[tuple[int, str], ...]:
    listed = data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    if len(listed) <= WHOLE:
        return ((1, "\n".join(listed)),)
    near = {other for line in lines for other in range(line - AROUND, line + AROUND + 1)}
    parts: list[tuple[int, list[str]]] = []
    for line in sorted(near & set(range(1, len(listed) + 1))):
        if not parts or line != parts[-1][0] + len(parts[-1][1]):
            parts.append((line, []))
        parts[-1][1].append(listed[line - 1])
    return tuple((first, "\n".join(texts)) for first, texts in parts)


def looks_for(target: str | Path, folders: Sequence[Contents], given: Path | None) -> Iterator[tuple[str, Look]]:
    """Yield the places of source files: a given folder, the wheel or distribution, installed packages."""
    if given is not None:
        yield "the given folder", below(given)
    if isinstance(target, Path) and not target.is_dir():
        yield "the wheel", in_wheel(target)
    for name in sorted({contents.manifest.distribution for contents in folders} if isinstance(target, str) else ()):
        try:
            owner = distribution(name)
        except PackageNotFoundError:
            continue
        root = editable_folder(owner)
        if root is not None:
            yield "the project", below(Path(root))
            yield "the project", below(Path(root, "src"))
        yield "the installed distribution", below(Path(str(owner.locate_file(""))))
    for key in ("purelib", "platlib"):
        yield "the packages installed here", below(Path(sysconfig.get_path(key)))


def below(folder: Path) -> Look:
    def look(path: str) -> bytes | None:
        file = folder / path
        try:
            if not file.is_file() or file.stat().st_size > MOST_BYTES:
                return None
            return file.read_bytes()
        except OSError:
            return None

    return look


def in_wheel(wheel: Path) -> Look:
    opened = open_wheel(wheel)
    members = frozenset(opened.members())

    def look(path: str) -> bytes | None:
        try:
            return opened.read(path) if path in members else None
        except ProgramError:
            return None

    return look
