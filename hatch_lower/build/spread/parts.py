"""Parts of units, as a worker makes them, and how a unit says that it needs some.

A unit may ask for parts if its request has an attachment `asked`: the keys, of 32 bytes each, of what it has asked for
before. It is begun again when there is what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hatch_lower.build.process import run_children
from hatch_lower.build.project_view import ProjectView
from hatch_lower.build.protocol import Asking, Request
from hatch_lower.build.spread.asking import BODY, DATA, LACKS, PartBody, read_asked
from hatch_lower.build.spread.protocol import Lack, LacksError, NeedsError, UnitRequest, read_keys
from hatch_lower.build.spread.workplace import Workplace
from hatch_lower.config.settings import Settings
from hatch_lower.errors import LowerError, ProgramError
from hatch_lower.format.codec import decode, read_record, write_record

ASKED = "asked"  # the role of the attachment that says that a unit may ask, and for what it has asked
PART = "part"  # of that with what a part is made from


@contextmanager
def asking(given: Mapping[str, bytes], place: Workplace) -> Iterator[Asking | None]:
    """Give what lets child processes ask for parts, if they may; a `NeedsError` if one of them has ended for that."""
    if ASKED not in given:
        yield None
        return
    folder = place.folder / ASKED
    try:
        yield Asking(folder, read_keys(given[ASKED]))
    except LowerError:
        needs, beside = read_asked(folder)
        if needs:
            raise NeedsError(needs, beside) from None
        raise


def run_part(asked: UnitRequest, given: Mapping[str, bytes], place: Workplace) -> None:
    """Make a part; a `LacksError` if this machine would make another, a `NeedsError` if it needs parts itself."""
    try:
        body: PartBody = decode(PartBody, asked.body, "the part")
    except ProgramError as error:
        raise LacksError(Lack("what was sent with the part", "", error.found)) from error
    folder = place.work / PART
    folder.mkdir(parents=True)
    (place.work / "temporary").mkdir(exist_ok=True)
    write_record(folder / BODY, body)
    (folder / DATA).write_bytes(given[PART])
    settings = Settings(folder, PART, "0", (), (), timeout=body.timeout)
    with asking(given, place) as may_ask:
        request = Request(
            settings=settings,
            model=asked.name,
            folder=folder,
            mode="part",
            asking=may_ask,
            outbox=place.outbox,
        )
        view = ProjectView("", "", (), (), (), ())
        try:
            run_children(place.context(settings, view, place.store, may_ask), [request])
        except LowerError:
            if lacks := read_lacks(folder):
                raise LacksError(*lacks) from None
            raise


def read_lacks(folder: Path) -> tuple[Lack, ...]:
    try:
        return read_record(tuple[Lack, ...], folder / LACKS)
    except FileNotFoundError:
        return ()
