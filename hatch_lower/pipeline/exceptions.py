"""Exceptions as text: the user's source line at fault, a short description, and exhausted memory recognized."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hatch_lower
from hatch_lower.errors import NO_MEMORY

if TYPE_CHECKING:
    from torch.nn import Module

LINES_KEPT = 12
CHARACTERS_KEPT = 1500
# messages of exhausted memory, beside `MemoryError`: torch's allocator, the system, Python without room for a stack


def user_line(error: BaseException, roots: Sequence[Path]) -> str:
    """Return `file:line` of the innermost frame in the user's own code, below `roots`; empty if no frame is there."""
    for seen in chain_of(error):
        if isinstance(seen, SyntaxError) and seen.filename and is_user_file(Path(seen.filename), roots):
            return f"{relative_to_roots(Path(seen.filename), roots)}:{seen.lineno}"
        for frame in reversed(traceback.extract_tb(seen.__traceback__)):
            if is_user_file(Path(frame.filename), roots):
                return f"{relative_to_roots(Path(frame.filename), roots)}:{frame.lineno}"
    return ""


def line_of(error: BaseException, roots: Sequence[Path], module: Module) -> str:
    """Return the line in the user's own code, else the innermost line in a file with a class of the module's parts."""
    return user_line(error, roots) or class_line(error, module)


def class_line(error: BaseException, module: Module) -> str:
    kinds = {type(part).__module__ for part in module.modules()}
    files = {
        str(getattr(sys.modules.get(name), "__file__", "")): name
        for name in kinds
        if name.partition(".")[0] not in ("torch", "hatch_lower")
    }
    for seen in chain_of(error):
        for frame in reversed(traceback.extract_tb(seen.__traceback__)):
            if name := files.get(frame.filename):
                return f"{name.replace('.', '/')}.py:{frame.lineno}"
    return ""


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its cause or context, the cause of the cause, and so on."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def is_user_file(path: Path, roots: Sequence[Path]) -> bool:
    # an environment with libraries may lie inside the project
    if path.name.startswith("<"):
        return False
    try:
        path = path.resolve()
    except OSError:  # a relative path where the working directory was removed
        return False
    if {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(Path(hatch_lower.__path__[0])):
        return False
    return any(path.is_relative_to(root.resolve()) for root in roots)


def relative_to_roots(path: Path, roots: Sequence[Path]) -> str:
    path = path.resolve()
    for root in roots:
        if path.is_relative_to(root.resolve()):
            return path.relative_to(root.resolve()).as_posix()
    return path.name


def describe_exception(error: BaseException) -> str:
    message = message_of(error).strip()
    return trim_lines(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def message_of(error: BaseException) -> str:
    # `str` of an exception may raise, too
    try:
        return str(error)
    except Exception:
        return ""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or NO_MEMORY.search(message_of(error)) is not None


def refuse_out_of_memory(error: BaseException) -> None:
    """Raise a `MemoryError` if another kind of error says that memory ran out."""
    if is_out_of_memory(error):
        raise MemoryError(str(error)) from error


def trim_lines(text: str) -> str:
    lines = text.strip().splitlines()
    kept = "\n".join(lines[:LINES_KEPT])
    if len(kept) > CHARACTERS_KEPT:
        return kept[:CHARACTERS_KEPT] + " …"
    return kept + "\n…" if len(lines) > LINES_KEPT else kept
