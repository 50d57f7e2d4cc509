"""Text for people: aligned columns, sizes in KiB, counts with their nouns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table_lines(rows: Sequence[Sequence[str]], indent: int = 0, right: Sequence[int] = ()) -> Iterator[str]:
    """Yield rows of cells as lines with aligned columns; the columns numbered in `right` are aligned to the right.

    Columns that are empty in every row but the first, the header, are left out.
    """
    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])] if len(rows) > 1 else []
    widths = {at: max(len(row[at]) for row in rows) for at in kept}
    for row in rows:
        cells = (row[at].rjust(widths[at]) if at in right else row[at].ljust(widths[at]) for at in kept)
        yield (" " * indent + "  ".join(cells)).rstrip()


def size_text(size: int) -> str:
    """Return a number of bytes with three significant digits: `412 B`, `38.1 KiB`, `1.25 GiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    if unit == "B":
        return f"{size} B"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 node`, `12 nodes`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
