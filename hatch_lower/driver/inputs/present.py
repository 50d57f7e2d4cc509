"""The present state, in the terms of `RecordedInputs`, its comparison with recorded inputs, and the changes in
words. The recording and the comparison ask the same questions here. Every answer is found once. The same object
checks all stored results of a build.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Concatenate, ParamSpec

from hatch_lower.cache.stats import FileState, StatCache
from hatch_lower.canonical import sha256_bytes
from hatch_lower.driver.inputs.machine import (
    Distribution,
    find_accelerators,
    find_distributions,
    mark_of_distribution,
)
from hatch_lower.driver.inputs.record import ABSENT, RecordedInputs, mark_of, new_variables
from hatch_lower.driver.inputs.roots import (
    Listing,
    Roots,
    importable_kinds,
    is_built_in,
    list_archive,
    list_folder,
    module_places,
    spellings,
    standard_library,
)
from hatch_lower.frozen import Frozen

PORTIONS = " + "  # between the places of a namespace package
LINK = " through "  # between the state of a link's path and the link's target
# the place of modules that this package gives to the export: its own modules, and modules made for the build
PROVIDED = "hatch-lower"
Subject = ParamSpec("Subject")


def remembered(method: Callable[Concatenate[Present, Subject], str]) -> Callable[Concatenate[Present, Subject], str]:
    """Let a method of `Present` find each answer once: all stored results of a build ask about the same files."""

    def answer(self: Present, /, *subject: Subject.args, **named: Subject.kwargs) -> str:
        key = (method.__name__, *subject, *named.items())
        if key not in self._answers:
            self._answers[key] = method(self, *subject, **named)
        return self._answers[key]

    return answer


@dataclass(eq=False, repr=False)
class Present:
    """The present inputs of an export."""

    roots: Roots
    environment: Mapping[str, str]
    secret: bytes
    stats: StatCache
    project: Mapping[str, str] = field(default_factory=dict)  # the result of `marks_of_project`
    hidden: frozenset[str] = frozenset()  # variables of the user that are not passed on

    def __post_init__(self) -> None:
        self._entries = tuple(map(str, self.roots.search_path))
        self._import_folders = frozenset(map(os.path.realpath, self._entries))
        self._library = frozenset(prefix for folder in standard_library() for prefix in spellings(folder))
        self._list = cache(list_entry)
        self._answers: dict[tuple[object, ...], str] = {}

    @cached_property
    def distributions(self) -> Mapping[str, Distribution]:
        listings = ((entry, self._list(entry)) for entry in self._entries)
        return find_distributions((entry, listing.names) for entry, listing in listings if listing)

    @remembered
    def file(self, located: str) -> str:
        return self._digest(self.roots.find(located))

    @remembered
    def look(self, located: str) -> str:
        """Return `file 123`, `folder` or `other`, with a link's target; empty if the path is missing."""
        path, status = self.roots.find(located), self._ask(located, os.lstat)
        if path is None or status is None:
            return ABSENT
        if not stat.S_ISLNK(status.st_mode):
            return FileState.of(status).kind()
        target = os.readlink(path)
        named = (self.roots.locate(target) or "") if os.path.isabs(target) else target
        try:
            return f"{FileState.of(os.stat(path)).kind()}{LINK}{named}"
        except OSError:
            return f"other{LINK}{named}"

    @remembered
    def time(self, located: str) -> str:
        status = self._ask(located, os.stat)
        return ABSENT if status is None else f"{status.st_mtime_ns} {status.st_ctime_ns}"

    @remembered
    def listing(self, located: str) -> str:
        path = self.roots.find(located)
        if path is None or (listing := self._list(str(path))) is None:
            return ABSENT
        return digest_of_names(f"{name}/" if name in listing.folders else name for name in listing.names)

    @remembered
    def importable(self, located: str) -> str:
        path = self.roots.find(located)
        if path is None or (listing := self._list(str(path))) is None:
            return ABSENT
        namespaces = os.path.realpath(path) not in self._import_folders
        return digest_of_names(importable_kinds(str(path), listing, namespaces=namespaces))

    @remembered
    def module(self, name: str, owners: tuple[str, ...] = ()) -> str:
        """Return where a top-level module is found: `project/src/digits`, `site/mod.py`, `dist click`, `python`."""
        if is_built_in(name):
            return "python"
        places = module_places(name, self._entries, self._list)
        return PORTIONS.join(self._place(entry, path, owners) for entry, path in places)

    @remembered
    def distribution(self, name: str) -> str:
        """Return `<version> <digest of RECORD>`; for the project itself, the recorded mark of its metadata first."""
        installed = mark_of_distribution(self.distributions.get(name), self.stats)
        return f"{self.project[name]} {installed}".rstrip() if name in self.project else installed

    @remembered
    def accelerators(self) -> str:
        return find_accelerators()

    def variable(self, name: str) -> str:
        return mark_of(self.secret, name, self.environment.get(name))

    def asked_variables(self, recorded: Mapping[str, str]) -> Mapping[str, str]:
        """Return the recorded variables without globs, and the set variables that match a glob."""
        return {
            **{name: mark for name, mark in recorded.items() if "*" not in name},
            **dict.fromkeys(new_variables(recorded, self.environment), ABSENT),
        }

    @remembered
    def tool(self, name: str) -> str:
        return self._digest(shutil.which(name, path=self.environment.get("PATH", "")))

    @remembered
    def glob(self, pattern: str) -> str:
        located = {self.roots.locate(path) for path in files_matching(self.roots.project, pattern)}
        return digest_of_names(sorted(path for path in located if path is not None))

    def _digest(self, path: str | Path | None) -> str:
        try:
            return self.stats.digest(path) if path is not None else ABSENT
        except (OSError, ValueError):
            return ABSENT

    def _ask(self, located: str, ask: Callable[[Path], os.stat_result]) -> os.stat_result | None:
        path = self.roots.find(located)
        try:
            return ask(path) if path is not None else None
        except (OSError, ValueError):  # a name with a zero byte
            return None

    def _place(self, entry: str, path: str, owners: tuple[str, ...]) -> str:
        if entry in self._library:
            return "python"
        # a distribution counts as a whole, by its RECORD: the folder adds no information
        for owner in owners:
            distribution = self.distributions.get(owner)
            if distribution is not None and distribution.entry == entry:
                return f"dist {owner}"
        if not os.path.isdir(entry):
            return f"archive {self.stats.digest(entry)}"
        return self.roots.locate(path) or PROVIDED


def list_entry(path: str) -> Listing | None:
    listing = list_folder(path)
    return list_archive(path) if listing is None and os.path.isfile(path) else listing


def files_matching(root: Path, glob: str) -> set[Path]:
    # a folder that matches stands for all files below
    return {below for match in root.glob(plain_stars(glob)) for below in (match, *match.rglob("*")) if below.is_file()}


def plain_stars(glob: str) -> str:
    """Return a glob in which `**` beside other characters is `*`, as in git; pathlib refuses `**.bin` before 3.13."""
    return "/".join(part if part == "**" else re.sub(r"\*{2,}", "*", part) for part in glob.split("/"))


def digest_of_names(names: Iterable[str]) -> str:
    return sha256_bytes("\0".join(names).encode("utf-8", "surrogateescape"))


class InputChange(Frozen):
    """A changed input; a path as `subject` is located."""

    kind: str
    subject: str
    before: str
    after: str

    def text(self) -> str:
        """Return the change in a few words, for a table: `digits/model.py`, `torch 2.13.0 → 2.14.0`."""
        return TEXTS[self.kind](self)


def changes(inputs: RecordedInputs, present: Present) -> Iterator[InputChange]:
    """Yield the changes of recorded inputs, the most telling first; each input is examined when its turn comes."""
    yield from (InputChange("unknown", reason, "", "") for reason in sorted(inputs.unknown))
    yield from compare_inputs("distribution", inputs.distributions, present.distribution)
    yield from compare_inputs("file", inputs.files, present.file)
    yield from compare_inputs(
        "module", inputs.modules, lambda name: present.module(name, owners_in(inputs.modules[name]))
    )
    yield from compare_inputs("absent", dict.fromkeys(inputs.absent, ABSENT), present.look)
    yield from compare_inputs("look", inputs.looks, present.look)
    yield from compare_inputs("time", inputs.times, present.time)
    yield from compare_inputs("glob", inputs.globs, present.glob)
    yield from compare_inputs("listing", inputs.listings, present.listing)
    yield from compare_inputs("importable", inputs.importable, present.importable)
    yield from compare_inputs("tool", inputs.tools, present.tool)
    if inputs.accelerators is not None and inputs.accelerators != present.accelerators():
        yield InputChange("accelerators", "", inputs.accelerators, present.accelerators())
    yield from (InputChange("hidden", name, "", name) for name in inputs.deciding if name in present.hidden)
    yield from compare_inputs("variable", present.asked_variables(inputs.environment), present.variable)


def compare_inputs(kind: str, recorded: Mapping[str, str], now: Callable[[str], str]) -> Iterator[InputChange]:
    for subject, before in sorted(recorded.items()):
        after = now(subject)
        if before != after:
            yield InputChange(kind, subject, before, after)


def owners_in(place: str) -> tuple[str, ...]:
    return tuple(portion[5:] for portion in place.split(PORTIONS) if portion.startswith("dist "))


def located_text(located: str) -> str:
    """Return a located path for people: relative to the project if inside."""
    root, _, rest = located.partition("/")
    if root == "project":
        return rest or "the project's folder"
    if root == "home":
        return f"~/{rest}" if rest else "~"
    return rest if root == "site" else located


def say_file(change: InputChange) -> str:
    path = located_text(change.subject)
    named = path if path.endswith((".py", ".pyi")) else f"input {path}"
    return named if change.after else f"{named} is gone"


def say_folder(change: InputChange, what: str) -> str:
    path = located_text(change.subject)
    return f"{what} in {path}" if change.after else f"{path} is gone"


def say_absent(change: InputChange) -> str:
    kind = change.after.partition(" ")[0]
    return f"new {kind if kind != 'other' else 'entry'} {located_text(change.subject)}"


def say_look(change: InputChange) -> str:
    path = located_text(change.subject)
    if not change.after:
        return f"{path} is gone"
    before, after = (look_text(look) for look in (change.before, change.after))
    return f"{path}: {before} → {after}"


def look_text(look: str) -> str:
    """Return `file of 123 bytes` for `file 123`."""
    here, link, target = look.partition(LINK)
    kind, _, size = here.partition(" ")
    return f"file of {size} bytes{link}{target}" if size else f"{kind}{link}{target}"


def say_module(change: InputChange) -> str:
    name, before, after = change.subject, change.before, change.after
    if not after:
        return f"module {name} is gone"
    if not before:
        return f"new module {name}"
    if before == "python":
        return f"new module {name} shadows the standard library's"
    if before.startswith("dist ") and PORTIONS not in before and after.startswith(("project", "site", "home", "/")):
        return f"new module {name} shadows that of {before[5:]}"
    old, new = place_words(before), place_words(after)
    return f"module {name}" if old == new else f"module {name}: {old} → {new}"


def place_words(place: str) -> str:
    portions = place.split(PORTIONS)
    return PORTIONS.join(
        portion if portion.startswith("site/") and len(portions) > 1 else portion_words(portion) for portion in portions
    )


def portion_words(place: str) -> str:
    kind, _, name = place.partition(" ")
    if kind == "dist":
        return name
    return {"python": "the standard library", "archive": "an archive"}.get(kind, located_text(place))


def say_distribution(change: InputChange) -> str:
    before, after = change.before.partition(" ")[0], change.after.partition(" ")[0]
    if not change.before:
        return f"{change.subject} {after} was installed"
    if not change.after:
        return f"{change.subject} {before} is no longer installed"
    if before == after:
        return f"{change.subject} {before}: other files or metadata"
    return f"{change.subject} {before} → {after}"


def say_named(change: InputChange, noun: str, came: str, went: str) -> str:
    name = f"{noun} {change.subject}"
    return f"{name} {came}" if not change.before else name if change.after else f"{name} {went}"


TEXTS: Mapping[str, Callable[[InputChange], str]] = {
    "accelerators": lambda change: f"accelerators of the machine: {change.before or 'none'} → {change.after or 'none'}",
    "absent": say_absent,
    "distribution": say_distribution,
    "file": say_file,
    "glob": lambda change: f"files that match {change.subject}",
    "hidden": lambda change: f"variable {change.subject} is set, and `pass-env` does not name it",
    "importable": lambda change: say_folder(change, "modules"),
    "listing": lambda change: say_folder(change, "files"),
    "look": say_look,
    "module": say_module,
    "time": lambda change: f"the time of {located_text(change.subject)}",
    "tool": lambda change: say_named(change, "command", "is there now", "is gone"),
    "unknown": lambda change: change.subject,
    "variable": lambda change: say_named(change, "variable", "is set now", "is no longer set"),
}
