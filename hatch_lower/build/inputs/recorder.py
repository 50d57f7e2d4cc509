"""What the child process asks of its surroundings while it exports a model.

Python's audit events tell of files that are opened, folders that are listed, processes and the network (`audit`);
`os.environ` and a few functions are exchanged for ones that take notes (`pipeline/environment_reads`, `stand_ins`); the
preloaded library tells the rest, in this process and in those that it starts (`preload`, `log`).

What still escapes: system calls that do not go through the C library; clocks and random numbers of the system; what was
read before the recorder started (`.pth` files, `sitecustomize`) other than modules; what native code of this process
lists that the import system listed, too; a reason to doubt that is found in a fork. Without the library also: what
native code opens, other than safetensors' and torch's own, or looks at, and its `getenv`; there every subprocess is a
reason to doubt the recording.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, ModuleType

from hatch_lower.build.inputs.audit import AuditEvents
from hatch_lower.build.inputs.log import Observed, read_log, unrecorded_programs
from hatch_lower.build.inputs.notes import Notes
from hatch_lower.build.inputs.stand_ins import (
    Exchanged,
    wrap_clocks,
    wrap_forks,
    wrap_looks,
    wrap_metadata,
    wrap_safetensors,
    wrap_times,
    wrap_torch,
)
from hatch_lower.build.inputs.variables import RECORDING_VARIABLES
from hatch_lower.cache.stats import State
from hatch_lower.pipeline.environment_reads import EnvironmentReads


@dataclass(frozen=True, slots=True)
class Observations:
    """What was asked for, by absolute path, in the order in which it was first asked for."""

    read: tuple[str, ...]  # files that were opened to be read, or mapped, whether they were there or not
    loaded: tuple[str, ...]  # files from which modules and native libraries were loaded
    looked: tuple[str, ...]  # paths of which only was asked what is there
    # folders that were listed, but for those that the import system or a reader of metadata listed
    listed: tuple[str, ...]
    listed_by_import: tuple[str, ...]
    made: frozenset[str]  # files and folders that the process wrote or created before it read them
    folders_made: frozenset[str]  # those of them that are folders
    removed: frozenset[str]  # files that were there before and were removed or renamed
    modules: tuple[str, ...]  # top-level modules that were imported or looked for, sorted
    distributions: tuple[str, ...]  # normalised names of distributions that were asked for by name, sorted
    environment: Mapping[str, str]  # all variables as they were in the beginning
    variables: Mapping[str, bool]  # variables that were read → whether the project's own code read them
    globs: Mapping[str, bool]  # globs of which all variables were asked for → whether the project's own code asked
    handed_on: bool  # whether a recorded process was started, which may read any variable
    commands: tuple[str, ...]  # executables that were run: absolute paths, sorted
    unknown: tuple[str, ...]  # reasons why this is not everything, sorted
    timed: tuple[str, ...]  # paths of which the time was asked
    # device and inode of each file that was given one more name, which changes its time of change
    linked: frozenset[tuple[int, int]]
    # path → what was found there at each look, as `State.read` reads it; empty where nothing was there
    states: Mapping[str, tuple[str, ...]]


def loaded_modules() -> tuple[set[str], list[str]]:
    files: list[str] = []
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        origins = (getattr(spec, "origin", None), getattr(module, "__file__", None))
        files.extend(path for path in origins if isinstance(path, str) and os.path.isabs(path))
    return {name.partition(".")[0] for name in list(sys.modules)}, list(dict.fromkeys(files))


def mapped_libraries() -> list[str]:
    """Return the native libraries that are mapped now."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            fields = [line.rstrip("\n").split(None, 5) for line in maps]
    except OSError:
        return []
    mapped = dict.fromkeys(row[5] for row in fields if len(row) == 6 and row[5].startswith("/"))
    return [path for path in mapped if ".so" in os.path.basename(path) and not path.endswith(" (deleted)")]


def folders_of_finders() -> list[str]:
    finders = [finder for finder in list(sys.path_importer_cache.values()) if finder is not None]
    folders = [getattr(finder, "path", None) for finder in finders if getattr(finder, "_path_mtime", -1) != -1]
    return sorted({os.path.abspath(folder) for folder in folders if isinstance(folder, str)})


class Recorder:
    """Takes notes from `start` to `stop`; there is one in a process, for an audit hook cannot be removed."""

    def __init__(self, project_roots: Sequence[Path], log: Path | None) -> None:
        self._roots = tuple(
            f"{spelling(root)}/" for root in project_roots for spelling in (os.path.abspath, os.path.realpath)
        )
        self._notes = Notes(log)
        self._events = AuditEvents(self._notes)
        self._environment = EnvironmentReads(self.is_own, self._wrote_variable)
        self._own_writes: dict[str, int] = {}
        self._initial: Mapping[str, str] = {}
        self._started = 0
        # begin and end, in the preloaded library's log, of what was written while notes were taken
        self._stopped: int | None = None
        self._exchanged = Exchanged()
        # where the project's own code asked for the time or for random numbers of the system, and for which
        self.clocks: dict[str, None] = {}
        self._finder = NotingFinder(self._notes.modules)

    def start(self) -> None:
        self._initial = dict(os.environ)
        self._started = self._notes.begin()
        self._events.active = True
        self._environment.start()
        sys.meta_path.insert(0, self._finder)
        wrap_safetensors(self._exchanged, self._notes.note_read)
        wrap_clocks(self._exchanged, self._note_clock)
        wrap_forks(self._exchanged, self._events.on_fork_exec)
        wrap_metadata(self._exchanged, self._notes.note_distribution)
        if self._notes.log is None:
            wrap_looks(self._exchanged, self._notes.note_look)
        wrap_times(self._exchanged, self._notes.note_time, self._notes.note_scan)
        sys.addaudithook(self._events.hear)

    def stop(self) -> None:
        self._stopped = self._notes.log_size()
        self._events.active = False
        self._environment.stop()
        self._exchanged.restore()
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)

    def wrap_torch(self) -> None:
        """Watch torch's native readers too, once torch has been imported."""
        wrap_torch(self._exchanged, self._notes.note_read)

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Take no notes of what is read inside, nor let processes that are started inside write any."""
        # what is written inside is noted all the same: whoever reads it later reads no input
        active, self._environment.active = self._environment.active, False
        with self._notes.unwatched():
            hidden = {name: os.environ[name] for name in RECORDING_VARIABLES if name in os.environ}
            for name in hidden:
                del os.environ[name]
            os.environ.update(preloaded_by_others(hidden))
            try:
                yield
            finally:
                os.environ.update(hidden)
                self._environment.active = active

    def observations(self) -> Observations:
        """Return what has been noted so far, here and in the log of the preloaded library."""
        # The notes know what code asks, the log has native code, other processes, and the order of reads and writes.
        # Neither has the other's times, so for each question it is said which one is believed.
        notes, environment = self._notes, self._environment
        with notes.silent():
            modules, loaded = loaded_modules()
            libraries = mapped_libraries()
            log = self._read_log()
            reasons = reasons_of(log)
            # without the library nobody tells which entries of a listed folder were looked at
            entries = entries_of(notes.scanned) if notes.log is None else log.looked_at
        # Read or made: a file that this export wrote first is no input, and which came first the log knows best, as it
        # has the writes of everyone. In one case it does not: to it, a new file that is opened to append may have had
        # contents. Python's event comes before the file is there, so `created` knows that there were none.
        written_first = set(log.written) - set(log.opened)
        read = dict.fromkeys(
            [
                *(path for path in notes.read if path not in written_first),
                *(path for path in log.opened if path not in notes.created),
            ]
        )
        # Who listed: the log does not know. What the import system and readers of metadata list is recorded in another
        # way, so their listings are taken out of it. A program that this one started may have listed the same folder
        # for its names; that counts where it is the project's own, for every interpreter lists the others on its way.
        by_import = {**notes.listed_by_import, **dict.fromkeys(folders_of_finders())}
        listed_here = by_import.keys() | notes.listed_by_metadata
        by_programs = {path for path in log.listed_by_programs if self.is_own(f"{path}/")}
        listed_elsewhere = (path for path in log.listed if path not in listed_here or path in by_programs)
        return Observations(
            read=tuple(read),
            loaded=tuple(dict.fromkeys([*loaded, *libraries])),
            looked=tuple(dict.fromkeys([*notes.looked, *log.missing, *log.looked_at, *log.links, *log.denied])),
            listed=tuple(dict.fromkeys([*notes.listed, *listed_elsewhere])),
            listed_by_import=tuple(by_import),
            made=frozenset((notes.made | written_first) - read.keys()),
            folders_made=frozenset(notes.folders_made),
            removed=frozenset(notes.removed),
            modules=tuple(sorted(notes.modules | modules)),
            distributions=tuple(sorted(notes.distributions)),
            environment=self._initial,
            # `os.environ` says whose code read a variable; `getenv` of native code is nobody's own
            variables={**dict.fromkeys(log.variables, False), **environment.names},
            globs=environment.globs,
            handed_on=notes.handed_on or bool(log.executed),
            commands=log.executed,
            unknown=tuple(sorted({*notes.unknown, *reasons})),
            # entries of `os.scandir` tell times without another call, so all of a scanned folder count
            timed=tuple(
                dict.fromkeys(
                    [*notes.timed, *log.timed, *(path for path in entries if os.path.dirname(path) in notes.scanned)]
                )
            ),
            linked=frozenset(State.read(state)[:2] for state in (*notes.linked, *log.linked)),
            states=states_of(notes, log),
        )

    def _read_log(self) -> Observed:
        log = self._notes.log
        if log is None:
            return Observed()
        observed = read_log(log, self._started, self._stopped)
        # a variable that this process set itself is no input, unless native code had asked for it before
        own = self._own_writes.keys() & set(observed.variables)
        data = log.read_bytes() if own else b""
        own = {name for name in own if not names_variable(data[self._started : self._own_writes[name]], name)}
        return replace(observed, variables=tuple(name for name in observed.variables if name not in own))

    def is_own(self, file: str) -> bool:
        """Return whether a source file is the project's own code; an environment in its folder is not."""
        root = next((root for root in self._roots if file.startswith(root)), None)
        return root is not None and not {"site-packages", "dist-packages"} & set(file[len(root) :].split("/"))

    def _note_clock(self, frame: FrameType, what: str) -> None:
        file = frame.f_code.co_filename
        if self.is_own(file) and not self._notes.paused:
            root = next(root for root in self._roots if file.startswith(root))
            self.clocks.setdefault(f"{file[len(root) :]}:{frame.f_lineno} {what}")

    def _wrote_variable(self, name: str) -> None:
        self._own_writes[name] = self._notes.log_size()


class NotingFinder:
    """A finder that finds nothing: it hears of every module that is looked for, also by `importlib.util.find_spec`."""

    def __init__(self, modules: set[str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if "." not in name:
            self._modules.add(name)


def entries_of(folders: set[str]) -> list[str]:
    entries = []
    for folder in sorted(folders):
        with contextlib.suppress(OSError):
            entries += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return entries


def states_of(notes: Notes, log: Observed) -> dict[str, tuple[str, ...]]:
    states = {path: tuple(texts) for path, texts in notes.states.items()}
    states.update(log.states)
    states.update({path: (*states.get(path, ()), "") for path in log.missing})
    return states


def names_variable(records: bytes, name: str) -> bool:
    return b"\0V%s\0" % os.fsencode(name) in b"\0" + records


def reasons_of(log: Observed) -> list[str]:
    programs = [f"a subprocess ran that cannot be watched: {program}" for program in unrecorded_programs(log)]
    return [*programs, *(f"the network was used: {address}" for address in log.network), *log.incomplete]


def preloaded_by_others(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `LD_PRELOAD` without the library that records, which is the first where there is one."""
    libraries = variables.get("LD_PRELOAD", "")
    if "HATCH_LOWER_RECORD" in variables:
        libraries = libraries.partition(":")[2]
    return {"LD_PRELOAD": libraries} if libraries else {}
