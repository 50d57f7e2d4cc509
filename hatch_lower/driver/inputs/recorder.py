"""The recorder of a child process: all reads of an export.

Python's audit events report opened files, listed folders, processes and the network (`audit`). `os.environ` and a few
functions are exchanged for stand-ins that take notes (`pipeline/environment_reads`, `stand_ins`). The preloaded
library reports the rest, in this process and its subprocesses (`preload`, `log`).

The recorder misses: system calls past the C library; clocks and random numbers of the system; reads before the
recorder started (`.pth` files, `sitecustomize`), except modules; folders that native code of this process lists and
the import system listed, too. Without the library the recorder also misses: a reason to doubt that is found in a
fork; files that native code opens, except through safetensors and torch, or looks at; and `getenv` in native code.
There every subprocess is a reason to doubt the recording.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType

from hatch_lower.cache.stats import FileState
from hatch_lower.driver.inputs.audit import NETWORK_USED, AuditEvents, Notes
from hatch_lower.driver.inputs.log import Kind, Observed, unrecorded_programs
from hatch_lower.driver.inputs.record import RECORDING_VARIABLES
from hatch_lower.driver.inputs.stand_ins import (
    Exchanged,
    wrap_clocks,
    wrap_forks,
    wrap_library_search,
    wrap_looks,
    wrap_metadata,
    wrap_safetensors,
    wrap_times,
    wrap_torch,
)
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.environment_reads import EnvironmentReads


class ObservedReads(Frozen):
    """The reads of an export, by absolute path."""

    asked: Observed
    loaded: tuple[str, ...]  # files from which modules and native libraries were loaded
    # listed folders, except by the import system or a reader of metadata
    listed: tuple[str, ...]
    listed_by_import: tuple[str, ...]
    made: frozenset[str]  # files and folders that the process wrote or created before the first read
    modules: tuple[str, ...]  # top-level modules that were imported or looked for, sorted
    distributions: tuple[str, ...]  # normalized names of distributions that were asked for by name, sorted
    environment: Mapping[str, str]  # all variables as they were in the beginning
    variables: Mapping[str, bool]  # by variable: whether the project's own code read the variable
    deciding: frozenset[str]  # variables that may decide about the model
    # by glob whose variables were all read: whether the project's own code read the variables
    globs: Mapping[str, bool]
    handed_on: bool  # whether a recorded process was started, which may read any variable
    unknown: tuple[str, ...]  # reasons why this is not everything, sorted
    timed: tuple[str, ...]  # paths whose times were asked
    # device and inode of each file with a new hard link, which changes its time of change
    linked: frozenset[tuple[int, int]]


def loaded_modules() -> tuple[set[str], list[str]]:
    files: list[str] = []
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        origins = (getattr(spec, "origin", None), getattr(module, "__file__", None))
        files.extend(path for path in origins if isinstance(path, str) and os.path.isabs(path))
    return {name.partition(".")[0] for name in list(sys.modules)}, list(dict.fromkeys(files))


def mapped_libraries() -> list[str]:
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
    """Takes notes from `start` to `stop`; once in a process, because an audit hook cannot be removed."""

    def __init__(self, project_roots: Sequence[Path], log: Path | None) -> None:
        self._roots = tuple(
            f"{spelling(root)}/" for root in project_roots for spelling in (os.path.abspath, os.path.realpath)
        )
        self._notes = Notes(log)
        self._note_read = partial(self._notes.note, Kind.OPENED)
        self._events = AuditEvents(self._notes)
        self._environment = EnvironmentReads(self.is_own, self._notes.note_variable_set)
        self._initial: Mapping[str, str] = {}
        self._exchanged = Exchanged()
        # where the project's own code asked for the time or for random numbers of the system, and for which
        self.clocks: dict[str, None] = {}
        self._finder = NotingFinder(self._notes.modules)

    def start(self) -> None:
        self._initial = dict(os.environ)
        self._notes.begin()
        self._events.active = True
        self._environment.start()
        sys.meta_path.insert(0, self._finder)
        wrap_safetensors(self._exchanged, self._note_read)
        wrap_clocks(self._exchanged, self._note_clock)
        wrap_forks(self._exchanged, self._events.on_fork_exec)
        wrap_library_search(self._exchanged, self._note_read, self._notes.silent)
        wrap_metadata(self._exchanged, self._notes.note_distribution)
        if self._notes.log is None:
            wrap_looks(self._exchanged, partial(self._notes.note, Kind.LOOKED_AT))
        wrap_times(self._exchanged, partial(self._notes.note, Kind.TIMED), self._notes.note_scan)
        sys.addaudithook(self._events.hear)

    def stop(self) -> None:
        self._notes.end()
        self._events.active = False
        self._environment.stop()
        self._exchanged.restore()
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)

    def wrap_torch(self) -> None:
        """Watch torch's native readers too, once torch has been imported."""
        wrap_torch(self._exchanged, self._note_read)

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Inside the block, take no notes of reads, nor let new subprocesses take notes."""
        # writes inside the block are noted all the same: a later read is no input
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

    def observations(self) -> ObservedReads:
        notes, environment, asked = self._notes, self._environment, self._notes.observed()
        with notes.silent():
            modules, loaded = loaded_modules()
            libraries = mapped_libraries()
            programs = [f"a subprocess ran that cannot be watched: {program}" for program in unrecorded_programs(asked)]
            # without the library nobody tells which entries of a listed folder were looked at
            entries = paths_in_folders(notes.scanned) if notes.log is None else asked.looked_at
        # The import system and readers of metadata are recorded in another way, so their listings are taken out. A
        # subprocess may have listed the same folder for its names; the listing counts if the folder is the project's
        # own, because every interpreter lists the other folders on its way.
        by_import = dict.fromkeys([*asked.listed_by_import, *folders_of_finders()])
        not_by_code = by_import.keys() | set(asked.listed_by_metadata)
        by_programs = {path for path in asked.listed_by_programs if self.is_own(f"{path}/")}
        listed = (path for path in asked.listed if path not in not_by_code or path in by_programs)
        # entries of `os.scandir` tell times without another call, so all of a scanned folder count
        timed = (path for path in entries if os.path.dirname(path) in notes.scanned)
        return ObservedReads(
            asked=asked,
            loaded=tuple(dict.fromkeys([*loaded, *libraries])),
            listed=tuple(dict.fromkeys([*asked.listed_by_code, *listed])),
            listed_by_import=tuple(by_import),
            made=asked.made(),
            modules=tuple(sorted(notes.modules | modules)),
            distributions=tuple(sorted(notes.distributions)),
            environment=self._initial,
            # `os.environ` names the code that read a variable; `getenv` of native code has no owner
            variables={**dict.fromkeys(asked.variables, False), **environment.names},
            deciding=frozenset(environment.deciding),
            globs=environment.globs,
            handed_on=notes.handed_on or bool(asked.executed),
            unknown=sorted_reasons(
                {*asked.incomplete, *programs, *(f"{NETWORK_USED}{host}" for host in asked.network)}
            ),
            timed=tuple(dict.fromkeys([*asked.timed, *timed])),
            linked=frozenset(FileState.read(state)[:2] for state in asked.linked),
        )

    @contextlib.contextmanager
    def variables_watched(self) -> Iterator[None]:
        """Inside the block, note only the names of variables."""
        self._environment.start()
        try:
            yield
        finally:
            self._environment.stop()

    @property
    def asked_for_all(self) -> bool:
        """Whether the project's own code went through all variables."""
        return self._environment.globs.get("*", False)

    def asked_of(self, hidden: Sequence[str]) -> list[str]:
        """Return which of some variables were asked for so far, and may decide about the model."""
        return sorted(self._environment.deciding.intersection(hidden))

    def is_own(self, file: str) -> bool:
        """Return whether a source file is the project's own code; an environment in its folder is not."""
        root = next((root for root in self._roots if file.startswith(root)), None)
        return root is not None and not {"site-packages", "dist-packages"} & set(file[len(root) :].split("/"))

    def _note_clock(self, frame: FrameType, what: str) -> None:
        file = frame.f_code.co_filename
        if self.is_own(file) and not self._notes.paused:
            root = next(root for root in self._roots if file.startswith(root))
            self.clocks.setdefault(f"{file[len(root) :]}:{frame.f_lineno} {what}")


def sorted_reasons(reasons: Collection[str]) -> tuple[str, ...]:
    """Return the reasons sorted, with all uses of the network in a single reason."""
    used = {reason.removeprefix(NETWORK_USED) for reason in reasons if reason.startswith(NETWORK_USED)}
    hosts = {name.rpartition(":")[0].strip("[]") for name in used}  # a connection names the host and the port
    network = [f"{NETWORK_USED}{', '.join(sorted(used - hosts))}"] if used else []
    return tuple(sorted({*network, *(reason for reason in reasons if not reason.startswith(NETWORK_USED))}))


class NotingFinder:
    """A finder that finds no module: the import system asks for every module, also in `importlib.util.find_spec`."""

    def __init__(self, modules: set[str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if "." not in name:
            self._modules.add(name)


def paths_in_folders(folders: set[str]) -> list[str]:
    entries = []
    for folder in sorted(folders):
        with contextlib.suppress(OSError):
            entries += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return entries


def preloaded_by_others(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `LD_PRELOAD` without the recording library, which is the first entry."""
    libraries = variables.get("LD_PRELOAD", "")
    if "HATCH_LOWER_RECORD" in variables:
        libraries = libraries.partition(":")[2]
    return {"LD_PRELOAD": libraries} if libraries else {}
