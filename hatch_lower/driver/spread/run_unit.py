"""The worker's side: make a unit in a folder of its own, and answer.

The same child process as in a local build makes the unit. The worker gets the project's files and the variables that
`pass-env` names; everything else is the worker's own. The results go into a store in the folder, from there into the
answer, and are removed with the folder.

A worker's facts are the versions and properties that decide whether its results equal the results of the build.

A worker with other facts would make results under other keys, which the build would not find. So the worker refuses
with a list of its lacks, and another worker gets the unit. All facts are found without torch.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from hatch_lower import BACKEND_GROUP, __version__
from hatch_lower.cache.directory import WRITING, choose_directory
from hatch_lower.cache.entry import read_outbox
from hatch_lower.cache.locks import held_folder
from hatch_lower.cache.remote.policy import own_key
from hatch_lower.cache.remote.signing import SigningKey
from hatch_lower.cache.stats import StatCache
from hatch_lower.cache.store import Store, open_store
from hatch_lower.canonical import sha256_bytes
from hatch_lower.config.requirements import OWN_NAME, own_requirements
from hatch_lower.driver.checkpoints import obtain_checkpoints
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.environment import ALIKE, PASSED, child_environment, matches
from hatch_lower.driver.inputs.machine import cpu_capability, machine_facts, own_digest
from hatch_lower.driver.inputs.preload import built_library
from hatch_lower.driver.protocol import KilledError, cut
from hatch_lower.driver.sources import urls_of
from hatch_lower.driver.spread.protocol import (
    SENT,
    Facts,
    Lack,
    LacksError,
    UnitAnswer,
    UnitBody,
    UnitEntry,
    UnitRequest,
    read_unit_request,
    unit_entry,
    write_unit_answer,
)
from hatch_lower.driver.spread.snapshot import ABOVE, PROJECT, HostileArchiveError, relocated, unpack_snapshot
from hatch_lower.driver.units import make_units, narrowed
from hatch_lower.errors import CacheError, FetchError, LowerError, ProcessError, ProgramError, size_text
from hatch_lower.events import Event, Reporter, finished_line, make_note_reporter
from hatch_lower.format.codec import decode
from hatch_lower.frozen import Frozen

# the facts' names for readers, by the names of `machine_facts`
MACHINE = {"system": "system", "machine": "machine", "libc": "C library", "cpu": "instruction sets", "python": "Python"}
SETS = MACHINE["cpu"]
# backends that run the C++ compiler; other backends name their tools in fingerprints, which are in the keys
COMPILING = frozenset({"aoti", "cuda"})
COMPILERS = ("g++", "clang++")
COMPILER, LINKER = "C++ compiler", "linker"
SECONDS = 20.0  # the time limit of a compiler that prints its version


def facts_wanted(backends: Collection[str]) -> tuple[str, ...]:
    """Return the names of the facts on which units with these backends depend."""
    compilers = (COMPILER, LINKER) if COMPILING.intersection(backends) else ()
    return (*MACHINE.values(), OWN_NAME, *sorted(distributions_of(backends)), *compilers)


def facts_here(names: Collection[str], environment: Mapping[str, str], stats: StatCache) -> Facts:
    """Return the facts of this machine for a child process with an environment; missing facts are left out."""
    known = {MACHINE[name]: text for name, text in machine_facts().items()}
    known[SETS] = " ".join(sorted(ALIKE)) if set(known[SETS].split()) >= ALIKE else known[SETS]
    known[OWN_NAME] = f"{__version__} (code {own_digest(stats)[:16]})"
    if COMPILER in names or LINKER in names:
        known |= compiler_facts(environment)
    facts = {name: known[name] if name in known else distribution_version(name) for name in names}
    return {name: text for name, text in facts.items() if text}


def compare_facts(wanted: Facts, found: Facts) -> tuple[Lack, ...]:
    """Return the wanted facts that the worker lacks or that differ there."""
    return tuple(
        lack_of_sets(text, found.get(name, "")) if name == SETS else Lack(name, text, found.get(name, ""))
        for name, text in wanted.items()
        if found.get(name, "") != text
    )


def lack_of_sets(wanted: str, found: str) -> Lack:
    # a processor has dozens: the differing sets say more than the whole list
    fewer, more = set(wanted.split()) - set(found.split()), set(found.split()) - set(wanted.split())
    return Lack(SETS, " ".join(sorted(fewer)) or "no such set", " ".join(sorted(more)))


def distributions_of(backends: Iterable[str]) -> set[str]:
    """Return the names of torch, of the distributions with these backends, and of the libraries in the backends'
    extras.
    """
    names = {"torch"}
    points = importlib.metadata.entry_points(group=BACKEND_GROUP)
    for backend in backends:
        brought = (point.dist.name for point in points if point.name == backend and point.dist is not None)
        names |= {canonicalize_name(name) for name in brought}
        names |= {canonicalize_name(requirement.name) for requirement in own_requirements([backend])}
    return names - {OWN_NAME}


def distribution_version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def compiler_facts(environment: Mapping[str, str]) -> dict[str, str]:
    named = environment.get("CXX")
    programs = (shutil.which(name, path=environment.get("PATH")) for name in ([named] if named else COMPILERS))
    program = next((program for program in programs if program is not None), None)
    if program is None:
        return {COMPILER: "", LINKER: ""}
    return {
        COMPILER: first_output_line([program, "--version"], environment),
        LINKER: first_output_line([program, "-Wl,--version"], environment),
    }


def first_output_line(command: list[str], environment: Mapping[str, str]) -> str:
    """Return the first line of a program's output, without the program's folder."""
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    line = next(iter((done.stdout or done.stderr).strip().splitlines()), "")
    program, space, rest = line.partition(" ")
    return f"{os.path.basename(program)}{space}{rest}"


PREFIX = "hatch-lower-unit-"  # of folders that are held while a unit is made
TEMPORARY = frozenset({"TMPDIR", "TMP", "TEMP"})


class Workplace(Frozen):
    folder: Path
    work: Path  # for the build
    store: Store  # its shareable entries are the unit's results
    outbox: Path  # lists the results
    reporter: Reporter
    environment: Mapping[str, str]  # of child processes
    poll: Callable[[], None]  # called while child processes run: its exception ends the processes


def open_workplace(folder: Path, request: UnitRequest, reporter: Reporter, poll: Callable[[], None]) -> Workplace:
    cache = {"HATCH_LOWER_CACHE_DIR": str(folder / "cache"), "HATCH_LOWER_CACHE": "on"}
    store = open_store({**os.environ, **cache}, make_note_reporter(reporter, "cache", request.name))
    work = folder / "work"
    work.mkdir()
    sent = {name: value for name, value in request.environment.items() if not is_own_variable(name)}
    given = {**os.environ, **cache, **sent}
    environment = child_environment(given, tuple(sent), sys.path, work / "temporary", cpu_capability())
    lend_library(store, environment)
    return Workplace(folder, work, store, folder / "outbox", reporter, environment, poll)


def lend_library(store: Store, environment: Mapping[str, str]) -> None:
    """Give a unit's store the library that records reads, because a compilation takes a second."""
    # the only file that stays on a worker, in its user's cache
    with contextlib.suppress(OSError, LowerError):
        directory, mode = choose_directory(os.environ, lambda line: None)
        library = built_library(directory.parent, environment) if mode in WRITING else None
        if library is not None:
            folder = store.directory / library.parent.name
            folder.mkdir(parents=True, mode=0o700)
            shutil.copy2(library, folder)


def sent_variables(environment: Mapping[str, str], pass_env: tuple[str, ...]) -> dict[str, str]:
    """Return the variables for workers: named by `pass-env`, without the variables that belong to a machine."""
    return {name: value for name, value in environment.items() if matches(name, pass_env) and not is_own_variable(name)}


def is_own_variable(name: str) -> bool:
    # where things are, Python's, the compiler's, and this tool's own with its secrets
    return matches(name, PASSED) or name in TEMPORARY


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
        asked = read_unit_request(request)
    except ValueError as error:
        return answer_unread(request, worker, error)
    log = Log()
    blank = UnitAnswer(asked.name, asked.key, worker, "made")

    def finish(answer: UnitAnswer, entries: Sequence[UnitEntry] = ()) -> bytes:
        return write_unit_answer(replace(answer, log=log.lines()), entries, asked.secret)

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
) -> tuple[tuple[str, ...], list[UnitEntry]]:
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
    entries = (unit_entry(place.store, key, signing_key) for key in wanted)
    return tuple(sorted(notes)), [entry for entry in entries if entry is not None]


def make_recipe(request: UnitRequest, snapshot: bytes, place: Workplace) -> None:
    """Make a recipe; raise a `LacksError` if another worker may be able to."""
    tree = place.folder / TREE
    try:
        body: UnitBody = decode(UnitBody, request.body, "the unit")
        tree.mkdir()
        settings, view = relocated(body.project, tree)
        unpack_snapshot(snapshot, tree)
        settings.root.mkdir(parents=True, exist_ok=True)
    except (ProgramError, HostileArchiveError) as error:
        raise LacksError(Lack(SENT, "", str(error))) from error
    except OSError as error:
        room = f"room for {size_text(len(snapshot))} of files"
        raise LacksError(Lack(room, "", error.strerror or str(error))) from error
    sources = {}
    context = BuildContext(settings, view, place.work, place.store, place.reporter, place.environment)
    models = narrowed(settings, [body.unit]).models
    try:
        obtain_checkpoints(settings.root, models, place.store, place.reporter)
        if urls := urls_of(models):
            from hatch_lower.driver.weight_sources import obtain_sources

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
        return write_unit_answer(answer, (), str(fields["secret"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return b""
