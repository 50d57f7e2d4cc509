"""The worker's side: make a unit in a folder of its own, and answer.

The same child process as in a local build makes the unit. The worker gets the project's files and the variables that
`pass-env` names; everything else is the worker's own. The results go into a store in the folder, from there into the
answer, and are removed with the folder.
"""

from __future__ import annotations

import json
import os
import re
import socket
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hatch_lower import __version__
from hatch_lower.cache.locks import held_folder
from hatch_lower.cache.outbox import read_outbox
from hatch_lower.cache.remote.policy import own_key
from hatch_lower.cache.remote.signing import SigningKey
from hatch_lower.cache.stats import StatCache
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.requirements import OWN_NAME
from hatch_lower.driver.child_exit import KilledError, cut
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.make_units import make_units, narrowed
from hatch_lower.driver.sources import urls_of
from hatch_lower.driver.spread.answers import write_answer
from hatch_lower.driver.spread.entries import Entry, entry_of
from hatch_lower.driver.spread.facts import compare_facts, facts_here
from hatch_lower.driver.spread.protocol import SENT, Lack, LacksError, UnitAnswer, UnitBody, UnitRequest, read_request
from hatch_lower.driver.spread.snapshot import ABOVE, PROJECT, HostileArchiveError, relocated, unpack
from hatch_lower.driver.spread.workplace import PREFIX, Workplace, open_workplace
from hatch_lower.errors import CacheError, FetchError, LowerError, ProcessError, ProgramError, size_text
from hatch_lower.events import Event, finished_line
from hatch_lower.format.codec import decode

TREE = "tree"  # the folder in which the snapshot is unpacked
MOST_LINES = 400  # of a log: older lines are dropped


class UnwantedError(Exception):
    """The build does not wait for the unit any more."""


class Log:
    """The lines of a unit's log, without the paths of this machine."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._folder: Path | None = None

    def hide(self, folder: Path) -> None:
        """From now on write paths in the project's folder relative to the project, and hide the unit's folder."""
        self._folder = folder

    def report(self, event: Event) -> None:
        if event.state not in ("start", "going"):
            self._lines.append(self.without_paths(cut(finished_line(event))))

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def without_paths(self, text: str) -> str:
        if self._folder is None or str(self._folder) not in text:
            return text
        tree = re.escape(str(self._folder / TREE))
        text = re.sub(rf"{tree}/(?:(?:{ABOVE}/)*{PROJECT}/)?", "", text)
        return text.replace(str(self._folder), "<the unit's folder>")


def run_unit(
    request: bytes, snapshot: bytes, still_wanted: Callable[[], bool] = lambda: True, worker: str = ""
) -> bytes:
    """Make a unit and return the answer; failures are answers too.

    `still_wanted` is called repeatedly: when the result is false, all processes of the unit end. `worker` is the
    engine's name of this worker.
    """
    worker = worker or f"{socket.gethostname()}:{os.getpid()}"
    try:
        asked = read_request(request)
    except ValueError as error:
        return answer_unread(request, worker, error)
    log = Log()
    blank = UnitAnswer(asked.name, asked.key, worker, "made")

    def finish(answer: UnitAnswer, entries: Sequence[Entry] = ()) -> bytes:
        return write_answer(replace(answer, log=log.lines()), entries, asked.secret)

    def poll() -> None:
        if not still_wanted():
            raise UnwantedError

    try:
        with held_folder(PREFIX) as folder:
            log.hide(folder)
            keys, entries = make_unit(asked, snapshot, folder, log, poll)
            return finish(replace(blank, entries=keys), entries)
    except LacksError as error:
        lacks = tuple(replace(lack, found=log.without_paths(lack.found)) for lack in error.lacks)
        return finish(replace(blank, outcome="refused", lacks=lacks))
    except OSError as error:  # a trouble of this machine, which another worker may not have
        found = log.without_paths(f"{error.strerror or error} {error.filename or ''}").strip()
        return finish(replace(blank, outcome="refused", lacks=(Lack("the folder of a unit", "", found),)))
    except Exception as error:
        told = {name: log.without_paths(text) for name, text in told_error(asked, error).to_json().items()}
        return finish(replace(blank, outcome="killed" if isinstance(error, KilledError) else "failed", error=told))


def make_unit(
    asked: UnitRequest, snapshot: bytes, folder: Path, log: Log, poll: Callable[[], None]
) -> tuple[tuple[str, ...], list[Entry]]:
    """Return the keys of a unit's results, and the entries that the build cannot get from a shared cache."""
    if sha256_bytes(snapshot) != asked.snapshot:
        raise LacksError(Lack(SENT, "", "the snapshot has other contents than were sent"))
    place = open_workplace(folder, asked, log, poll)
    found = facts_here(asked.facts, place.environment, StatCache(folder / "stats.json"))
    if lacks := compare_facts(asked.facts, found):
        raise LacksError(*lacks)
    signing_key = key_to_sign_with(asked)
    poll()
    make_recipe(asked, snapshot, place)
    notes = read_outbox(place.outbox)
    wanted = sorted(key for key, state in notes.items() if asked.bring_all or state == "made")
    entries = (entry_of(place.store, key, signing_key) for key in wanted)
    return tuple(sorted(notes)), [entry for entry in entries if entry is not None]


def make_recipe(request: UnitRequest, snapshot: bytes, place: Workplace) -> None:
    """Make a recipe; raise a `LacksError` if another worker may be able to."""
    tree = place.folder / TREE
    try:
        body: UnitBody = decode(UnitBody, request.body, "the unit")
        tree.mkdir()
        settings, view = relocated(body.project, tree)
        unpack(snapshot, tree)
        settings.root.mkdir(parents=True, exist_ok=True)
    except (ProgramError, HostileArchiveError) as error:
        raise LacksError(Lack(SENT, "", str(error))) from error
    except OSError as error:
        room = f"room for {size_text(len(snapshot))} of files"
        raise LacksError(Lack(room, "", error.strerror or str(error))) from error
    sources = {}
    context = BuildContext(settings, view, place.work, place.store, place.reporter, place.environment)
    if urls := urls_of(narrowed(settings, [body.unit]).models):
        from hatch_lower.driver.weight_sources import obtain_sources

        try:
            sources = obtain_sources(context, urls)
        except FetchError as error:  # another worker may reach the server
            raise LacksError(Lack(f"weights at {error.where}", "", f"{error.what}: {error.found}")) from error
    for answer in make_units(context, [body.unit], sources, place.outbox, place.poll):
        if any(place.store.find_record(key) is None for key in answer.recipes.values()):
            raise LacksError(Lack("room for the results", "", "the unit's store could not be written"))


def key_to_sign_with(asked: UnitRequest) -> SigningKey | None:
    try:
        own = own_key(os.environ)
    except CacheError as error:  # an invalid key, or no library to sign with
        raise LacksError(Lack("the key for signatures", "", f"{error.what}: {error.found}")) from error
    found = "" if own is None else own.key_id()
    if asked.signers and found not in asked.signers:
        raise LacksError(Lack("key for signatures", " or ".join(asked.signers), found))
    return own


def told_error(asked: UnitRequest, error: Exception) -> LowerError:
    if isinstance(error, LowerError):
        return error
    if isinstance(error, UnwantedError):
        return ProcessError("the unit was cancelled", where=asked.name)
    return ProcessError(
        "a worker failed unexpectedly",
        where=asked.name,
        found="".join(traceback.format_exception(error)[-4:]),
        hint="this is a fault in hatch-lower; please report it with the whole output",
    )


def answer_unread(request: bytes, worker: str, error: ValueError) -> bytes:
    """Refuse a request that this version cannot read; return no bytes if name, key or secret cannot be read."""
    lack = Lack(f"a {OWN_NAME} that reads the request", "", f"{OWN_NAME} {__version__} does not: {error}")
    try:
        fields = json.loads(request)
        answer = UnitAnswer(str(fields["name"]), str(fields["key"]), worker, "refused", lacks=(lack,))
        return write_answer(answer, (), str(fields["secret"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return b""
