"""From observations of an export to recorded inputs: located, without noise, and hashed.

Inputs that are recorded in another way, and files that the process made itself, are left out:

- Files of installed distributions are represented by version and RECORD. A read of metadata alone makes no input (a
search for entry points reads the metadata of every distribution), except of the project's own metadata; a distribution
that was looked up by name is an input.
- A failed look below an entry of the search path, for the import system tries many names: `modules` and `importable`
record where each module is found.
- A folder on the path to a root, because the folder exists wherever the project is built.

Therefore these changes escape: another distribution that adds a module, a data file or an entry point where an
earlier build found no file, if the model's code takes all installed distributions; a file in `site-packages` that was
edited by hand.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import source_from_cache
from pathlib import PurePath

from hatch_lower.cache.stats import FileState
from hatch_lower.driver.environment import LOADER
from hatch_lower.driver.inputs.machine import Owners
from hatch_lower.driver.inputs.present import LINK, PORTIONS, Present, files_matching
from hatch_lower.driver.inputs.record import ABSENT, UNSET, RecordedInputs, globs_of, variables_of
from hatch_lower.driver.inputs.recorder import ObservedReads
from hatch_lower.driver.inputs.roots import SUFFIX_RANKS, Roots, list_folder

NEVER_MODULES = frozenset({"__main__", "__mp_main__", "hatch_lower"})
GRAIN_NS = 20_000_000  # a file system's clock may be behind by a tick of the kernel
COARSE_GRAIN_NS = 2_000_000_000
SECOND_NS = 1_000_000_000
METADATA = (".dist-info", ".egg-info")
NOTHING = FileState(0, 0, 0, 0, 0, 0)  # the state of a path without a file


def collect(
    observations: ObservedReads, present: Present, *, began_ns: int, globs: Sequence[str], tools: Sequence[str]
) -> RecordedInputs:
    """Return observations as recorded inputs; a change since `began_ns` makes the inputs doubtful."""
    roots = present.roots
    collector = Collector(observations, roots, present, began_ns)
    # the order matters: looks leave out files with known contents, and names that `importable` records
    asked = observations.asked
    collector.add_files((*asked.opened, *observations.loaded))
    for glob in globs:
        collector.add_files(map(str, sorted(files_matching(roots.project, glob))))
    collector.add_listings()
    collector.add_looks((*asked.missing, *asked.looked_at, *asked.links, *asked.denied, *collector.not_files))
    collector.add_times()
    collector.add_modules()
    for name in observations.distributions:
        collector.add_distribution(name)
    collector.add_commands()
    inputs = collector.inputs
    inputs.environment.update(dict.fromkeys(globs_of(observations), UNSET))
    inputs.environment.update({name: present.variable(name) for name in variables_of(observations)})
    inputs.tools.update({name: present.tool(name) for name in tools})
    inputs.globs.update({glob: present.glob(glob) for glob in globs})
    unknown = tuple(sorted({*observations.unknown, *collector.reasons}))
    deciding = dict.fromkeys(sorted(observations.deciding), "")
    return replace(inputs, absent=tuple(sorted(collector.absent)), deciding=deciding, unknown=unknown)


def no_inputs() -> RecordedInputs:
    return RecordedInputs({}, (), {}, {}, {}, {}, {}, {}, {}, {}, {}, ())


@dataclass(slots=True)
class Collector:
    observations: ObservedReads
    roots: Roots
    present: Present
    began_ns: int
    owners: Owners = field(init=False)
    # entries of the search path into which distributions are installed, with a final slash
    installed: tuple[str, ...] = field(init=False)
    not_files: list[str] = field(default_factory=list)  # opened paths that are folders, special files or missing
    inputs: RecordedInputs = field(default_factory=no_inputs)
    absent: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        entries = [str(entry) for entry in self.roots.search_path]
        self.owners = Owners(self.present.distributions, entries)
        self.installed = tuple(f"{entry}/" for entry in entries if self.owners.below(entry))

    def add_files(self, paths: Iterable[str]) -> None:
        interpreter = os.path.realpath(sys.executable)
        loaded = frozenset(self.observations.loaded)
        for path in paths:
            source = source_of_bytecode(path)
            if is_metadata(source) and os.path.basename(source) == "METADATA" and self.roots.locate(source) is None:
                self.inputs.distributions.update(self.present.project)  # a build laid the metadata out
            if source in self.observations.made or is_metadata(source) or source == interpreter:
                continue
            owner = self.owners.owner(source)
            if owner is not None:
                self.add_distribution(owner)
                continue
            located = self.roots.locate(source)
            # the interpreter's own library counts with the interpreter, which every key holds
            if located is None or located in self.inputs.files or os.path.basename(source).startswith("libpython"):
                continue
            if os.path.isfile(source):
                self.add_file(source, located)
            elif os.path.exists(source) and not os.path.isdir(source):
                self.doubt(located, "is no regular file")
            elif source not in loaded:
                self.not_files.append(source)  # looked at later
            elif not any(map(os.path.isfile, parents(source))):  # otherwise the path is in an archive
                self.doubt(located, "was removed while the export ran")

    def add_file(self, path: str, located: str) -> None:
        try:
            before = os.stat(path)
            digest = self.present.file(located)
            after = os.stat(path)
        except OSError:
            return self.doubt(located)
        if not digest:
            return self.doubt(located, "could not be read again")
        if self.is_young(before) or not all(
            self.is_same(seen, FileState.of(after)) for seen in self.seen(path, before)
        ):
            self.doubt(located)
        self.inputs.files[located] = digest

    def add_looks(self, paths: Iterable[str]) -> None:
        interpreters = (os.path.dirname(sys.executable), os.path.dirname(os.path.realpath(sys.executable)))
        leading = [*self.roots.search_path, self.roots.project, self.roots.home, *self.roots.ignored, *interpreters]
        above = {parent for path in leading for parent in parents(str(path))}  # there wherever the project is built
        for path in paths:
            if path.startswith(self.installed) or path in above:
                continue
            located = self.roots.locate(path)
            if located is None or (located in self.inputs.files and not os.path.islink(path)):
                continue
            if is_metadata(path) or path.startswith(tuple(f"{folder}/" for folder in interpreters)):
                continue
            state = self.present.look(located)
            made = path in self.observations.made
            if path in self.observations.asked.removed:
                self.doubt(located, "was removed while the export ran")
            elif path in self.observations.asked.folders_made:
                continue
            elif self.was_another(path, ABSENT if made else state):
                self.doubt(located)
            elif made or not state:
                if not self.is_initial(located):
                    self.absent.add(located)
            else:
                self.inputs.looks[located] = state
                asking = (os.lstat, os.stat) if state.startswith("file ") else () if state == "folder" else (os.lstat,)
                if any(self.is_young(ask(path)) for ask in asking):
                    self.doubt(located)

    def was_another(self, path: str, look: str) -> bool:
        """Return whether a path had another file when it was looked at; `look` is the present state."""
        states = (
            FileState.read(text).kind() if text else ABSENT for text in self.observations.asked.states.get(path, ())
        )
        return any(kind != "other" and kind != look.partition(LINK)[0] for kind in states)

    def add_times(self) -> None:
        for path in self.observations.timed:
            located = self.roots.locate(path)
            if located is None or path in self.observations.made or self.owners.owner(path) is not None:
                continue
            times = self.present.time(located)
            if times and not path.startswith(self.installed):
                self.inputs.times[located] = times
                if self.is_young(os.stat(path)):
                    self.doubt(located)

    def is_initial(self, located: str) -> bool:
        """Return whether the import system tries the path in every package: `importable` records these names."""
        folder, _, name = located.rpartition("/")
        stem, _, suffix = name.partition(".")
        return stem == "__init__" and f".{suffix}" in SUFFIX_RANKS and folder in self.inputs.importable

    def add_listings(self) -> None:
        observed = self.observations
        for folder in (*observed.listed, *loader_folders(observed.environment)):
            located = self.roots.locate(folder)
            owners = self.owners.below(folder) if located is not None and located.startswith("site/") else ()
            for owner in owners:
                self.add_distribution(owner)
            if located is None or owners or folder in observed.asked.folders_made:
                continue
            names = self.present.listing(located)
            if not names:
                self.absent.add(located)
                continue
            status = os.stat(folder)
            if self.is_young(status) or self.was_exchanged(folder, status):
                self.doubt(located)
            self.inputs.listings[located] = names
        entries = frozenset(map(str, self.roots.search_path))
        for folder in observed.listed_by_import:
            located = self.roots.locate(folder)
            if located is None or not os.path.isdir(folder):
                continue
            if self.was_exchanged(folder, os.stat(folder)):
                self.doubt(located)
            installed = not located.startswith("project") and (folder in entries or self.owners.below(folder))
            if not installed:
                self.inputs.importable[located] = self.present.importable(located)
                self.look_for_new_modules(folder)

    def look_for_new_modules(self, folder: str) -> None:
        listing = list_folder(folder) if self.is_young(os.stat(folder)) else None
        for name, suffix in (listing.modules if listing is not None else {}).items():
            path = os.path.join(folder, name + suffix.rstrip("/"))
            located = self.roots.locate(path)
            if located is not None and path not in self.observations.made and self.is_young(os.stat(path)):
                self.doubt(located)

    def add_modules(self) -> None:
        for name in self.observations.modules:
            if name in NEVER_MODULES:
                continue
            place = self.present.module(name)
            owners = (owner for portion in place.split(PORTIONS) for owner in self.owners_of_module(portion))
            self.inputs.modules[name] = self.present.module(name, tuple(owners))

    def owners_of_module(self, place: str) -> list[str]:
        path = self.roots.find(place) if place.startswith(("site/", "/", "home/")) else None
        if path is None:
            return []
        owner = self.owners.owner(str(path))
        return [owner] if owner is not None else sorted(self.owners.below(str(path)))

    def add_distribution(self, name: str) -> None:
        if name not in self.inputs.distributions:
            self.inputs.distributions[name] = self.present.distribution(name)

    def add_commands(self) -> None:
        for path in self.observations.asked.executed:
            name = os.path.basename(path)
            located = self.roots.locate(path) if "/" in path else None
            if (located is None and "/" in path) or os.path.realpath(path) == os.path.realpath(sys.executable):
                continue
            # recorded by name if `PATH` finds the same file: another machine has the command in another folder
            if located is None or self.present.tool(name) == self.present.file(located):
                self.inputs.tools[name] = self.present.tool(name)
            else:
                self.add_files([path])

    def seen(self, path: str, at_last: os.stat_result) -> Iterator[FileState]:
        for text in self.observations.asked.states.get(path, ()):
            state = FileState.read(text) if text else NOTHING
            if not stat.S_ISLNK(state.mode):
                yield state
        yield FileState.of(at_last)

    def is_same(self, before: FileState, after: FileState) -> bool:
        """Return whether nobody wrote a file between two looks."""
        if before[:2] in self.observations.linked:  # another hard link changes this time alone
            before = before._replace(changed=after.changed)
        return before == after

    def was_exchanged(self, folder: str, status: os.stat_result) -> bool:
        """Return whether a path had another folder when the folder was listed."""
        states = [FileState.read(text) for text in self.observations.asked.states.get(folder, ()) if text]
        return any(stat.S_ISDIR(state.mode) and state[:2] != (status.st_dev, status.st_ino) for state in states)

    def is_young(self, status: os.stat_result) -> bool:
        # Anyone can set the time of modification: a time in the future proves nothing. Nobody can set the time of
        # change.
        now = time.time_ns()
        times = [(status.st_mtime_ns, now)]
        if (status.st_dev, status.st_ino) not in self.observations.linked:
            times.append((status.st_ctime_ns, sys.maxsize))
        return any(
            moment + (COARSE_GRAIN_NS if moment % SECOND_NS == 0 else GRAIN_NS) >= self.began_ns and moment <= latest
            for moment, latest in times
        )

    def doubt(self, located: str, why: str = "changed while the export ran") -> None:
        self.reasons.add(f"{located.removeprefix('project/').removeprefix('site/')} {why}")


def loader_folders(environment: Mapping[str, str]) -> list[str]:
    # the dynamic loader looks there with system calls of its own, which nobody sees
    return [folder for name in LOADER for folder in environment.get(name, "").split(os.pathsep) if folder]


def source_of_bytecode(path: str) -> str:
    if "/__pycache__/" in path and path.endswith(".pyc"):
        try:
            return source_from_cache(path)
        except ValueError:
            return path
    return path


def is_metadata(path: str) -> bool:
    return any(part.endswith(METADATA) for part in path.split("/"))


def parents(path: str) -> list[str]:
    return [path, *map(str, PurePath(path).parents)]
