"""Wheels that go on as they are, to a registry or out of one: RECORD and METADATA."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from email.message import Message
from email.parser import HeaderParser

from hatch_lower.canonical import sha256_pieces
from hatch_lower.driver.opened_wheel import OpenedWheel
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import Damage
from hatch_lower.runtime.files import decode_record_digest

RECORD = "RECORD"


def distribution_headers(wheel: OpenedWheel) -> Message:
    """Return the METADATA of a wheel; raise `ProgramError` without a name or a version."""
    headers = HeaderParser().parsestr(wheel.metadata("METADATA") or "")
    for name in ("Name", "Version"):
        if not headers[name]:
            raise ProgramError(
                "the wheel does not say which distribution it is",
                where=str(wheel.path),
                found=f"no field `{name}` in METADATA",
                hint="build the wheel again",
            )
    return headers


def refuse_changed_wheel(wheel: OpenedWheel) -> None:
    """Raise `ProgramError` if the members of a wheel are not those of its RECORD."""
    names = [name for name in wheel.members() if not name.endswith("/")]
    found = record_difference(names, wheel.read, lambda name: sha256_pieces(wheel.pieces(name)))
    if found:
        raise ProgramError(
            "the wheel's files are not those of its RECORD",
            where=str(wheel.path),
            found=found,
            hint="build the wheel again, or fetch it again",
        )


def record_difference(names: Sequence[str], read: Callable[[str], bytes], sha256_of: Callable[[str], str]) -> str:
    """Return the first difference between the files of a wheel and its RECORD; empty if there is none."""
    records = [name for name in names if name.endswith(f".dist-info/{RECORD}") and name.count("/") == 1]
    if len(records) != 1:
        return f"{len(records)} files `{RECORD}` of wheels"
    known = set(names)
    if len(known) < len(names):
        return f"`{next(name for name in names if names.count(name) > 1)}` twice"
    try:
        listed = digests_in_record(read(records[0]).decode(errors="replace"))
    except Damage as damage:
        return damage.found
    listed.pop(records[0], None)
    for name, sha256 in sorted(listed.items()):
        if name not in known:
            return f"no file `{name}`"
        if sha256_of(name) != sha256:
            return f"other contents of `{name}`"
    unlisted = known - listed.keys() - {records[0]}
    return f"`{min(unlisted)}`, which the RECORD does not list" if unlisted else ""


def digests_in_record(text: str) -> dict[str, str]:
    """Return the sha256 of each file in a RECORD, empty for a file without one; raise `Damage` for another form."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) > 1]
    except csv.Error as error:
        raise Damage(f"a RECORD that is no table: {error}") from error
    return {row[0]: decode_record_digest(row[1]) for row in rows}
