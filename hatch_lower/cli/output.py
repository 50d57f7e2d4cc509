"""Output of the commands. Text from files of other people reaches a terminal only through these functions."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from hatch_lower.errors import PackageError, printable

Report = dict[str, Any]  # printed by `--json`, and the source of the text output
Contents = TypeVar("Contents")


def show(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines. A line break within a line is escaped."""
    click.echo("\n".join(map(printable, lines)), err=err)


def show_text(text: str) -> None:
    """Print a document with its own line breaks."""
    click.echo("\n".join(map(printable, text.split("\n"))), nl=False)


def show_json(value: object) -> None:
    show(json.dumps(value, indent=2, ensure_ascii=False).split("\n"))


def show_report(report: Contents, as_json: bool, lines: Callable[[Contents], Iterable[str]]) -> None:
    if as_json:
        show_json(report)
    else:
        show(lines(report))


def show_error(error: Exception) -> None:
    first, *rest = map(printable, str(error).split("\n"))
    click.echo("\n".join([f"{click.style('error:', fg='red', bold=True)} {first}", *rest]), err=True)


def write_output_file(path: Path, text: str, noun: str, *, append: bool = False) -> int:
    """Write a file, or append to a file; return the number of written bytes."""
    is_new = not path.exists()
    try:
        with path.open("ab" if append else "wb") as file:
            return file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        if is_new:  # a part of the text is of no use
            with contextlib.suppress(OSError):
                path.unlink()
        raise PackageError(f"the {noun} cannot be written", where=str(path), found=str(error.strerror)) from error


def page(lines: Iterable[str]) -> None:
    """Print lines, through the pager if there are more lines than the terminal has."""
    listed = [printable(line) for line in lines]
    if sys.stdout.isatty() and len(listed) >= shutil.get_terminal_size().lines:
        click.echo_via_pager("\n".join(listed))
    else:
        click.echo("\n".join(listed))


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
