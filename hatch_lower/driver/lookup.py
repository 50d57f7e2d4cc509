"""Level 1 of reuse: while all recorded inputs of an export are unchanged, the stored files hold without an export.

```text
record of a `ManifestKey`   entries, newest first: the inputs of an export, and the key of its report
record of a report          the report; its files are blobs of the store
```

A unit (`driver/units.py`) has the same kind of entry, with the key of its recipe record.

A shared cache has the first record in another form, under another key: without the inputs that are meaningless, or
secret, on another machine (`driver/inputs/record.py`).

The build's parent looks results up, without torch; the child process, which recorded the reads, keeps the results.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower import BACKEND_GROUP, DELEGATE_GROUP
from hatch_lower.cache.key import ManifestKey
from hatch_lower.cache.reports import read_model_result, read_report, report_blobs, report_value
from hatch_lower.cache.stats import StatCache
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.config.requirements import names_torch
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.driver.context import BuildContext, ProjectView
from hatch_lower.driver.environment import COMPILER, LOADER, fixed_variables
from hatch_lower.driver.inputs.machine import Distribution, machine_facts, marks_of_project, own_digest
from hatch_lower.driver.inputs.present import InputChange, Present, changes
from hatch_lower.driver.inputs.record import RecordedInputs, received, secret
from hatch_lower.driver.inputs.roots import Roots
from hatch_lower.driver.sources import known_digest
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.results import ModelResult
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.format.record import ModelReport

SCHEMA = 5
SHARED = "shared"  # the component that a shared entry has beside the components of its key here
# kept results of a model: the number of project states to switch between without an export
MOST_ENTRIES = 16
BACKEND_GROUPS = (BACKEND_GROUP.encode(), DELEGATE_GROUP.encode())
# variables of Python with paths: no recorded input depends on the values
PLACES = frozenset(
    {*("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE"), *("PYTHONPYCACHEPREFIX", "PYTHONEXECUTABLE")}
)


Entry = tuple[RecordedInputs, str]  # the recorded inputs of a result, and the key of the result


class LookupResult(Frozen):
    """The earlier results of a model."""

    key: Mapping[str, object]  # components of the `ManifestKey` of its results
    store: Store
    result: ModelResult | None  # the valid result; `None` without one
    # the differences from the nearest earlier result; empty if there is no earlier result
    changes: tuple[InputChange, ...] = ()
    stored: Mapping[str, object] = field(default_factory=dict)
    entry: Entry | None = None

    @property
    def report(self) -> ModelReport | None:
        """The whole report of the valid result. To assemble the report takes longer than the look-up."""
        return None if self.result is None else read_report(self.store, self.stored)


def lookup_of(context: BuildContext) -> ResultLookup:
    settings, store = context.settings, context.store
    ignored = (context.work, store.directory)
    roots = roots_of(settings.root, context.search_path, context.environment, ignored)
    project = marks_of_project(settings.name, settings.version, context.view.metadata)
    return ResultLookup(store, roots, context.environment, project, context.hidden)


def keeps_promises(settings: Settings, result: ModelResult) -> bool:
    """Return whether recipes that promise to run without torch do. If not, an export names the operation that needs
    torch.
    """
    # the promise is in no key
    recipes = [recipe for name, recipe in result.entry["recipes"].items() if name in settings.torch_free]
    return not any(names_torch(text) for recipe in recipes for text in recipe["requirements"])


class ResultLookup:
    """Looks for results that still hold. Every file is looked at once, for all models and all earlier results."""

    def __init__(
        self,
        store: Store,
        roots: Roots,
        environment: Mapping[str, str],
        project: Mapping[str, str] = {},
        hidden: Iterable[str] = (),
    ) -> None:
        self._store = store
        self._roots = roots
        self._environment = environment
        self._stats = open_stats(store)
        self._secret = secret(store.directory, keeps=store.writes)
        self._present = Present(roots, environment, self._secret, self._stats, project, frozenset(hidden))

    def look_up(self, key: Mapping[str, object]) -> LookupResult:
        """Return the newest valid result of a key, or the changes since."""
        own = self._own_entries(key)
        for entry in self._those_that_hold(key, own):
            stored = self._store.find(entry[1])
            result = None if stored is None else read_model_result(self._store, stored)
            if result is not None:
                self._keep(key, own, entry)
                return LookupResult(key, self._store, result, (), stored, entry)
        every = [tuple(changes(inputs, self._present)) for inputs, _ in own]
        return LookupResult(key, self._store, None, min(every, key=len, default=()))

    def find_made(self, key: Mapping[str, object], is_whole: Callable[[str], bool]) -> str:
        """Return the key of the last valid and whole result of a unit; empty without one."""
        own = self._own_entries(key)
        for entry in self._those_that_hold(key, own):
            if is_whole(entry[1]):
                self._keep(key, own, entry)
                return entry[1]
        return ""

    def _own_entries(self, key: Mapping[str, object]) -> list[Entry]:
        return readable_entries(self._store.find(digest_of(key), shared=False))

    def _those_that_hold(self, key: Mapping[str, object], own: Iterable[Entry]) -> Iterator[Entry]:
        for entry in chain(own, self._entries_elsewhere(key)):
            if next(changes(entry[0], self._present), None) is None:
                yield entry

    def _entries_elsewhere(self, key: Mapping[str, object]) -> Iterator[Entry]:
        # asked for when no own entry is of use
        if self._store.remote is not None:
            for inputs, made in readable_entries(self._store.fetch(shared_key(key))):
                yield received(inputs, self._environment, self._secret), made

    def _keep(self, key: Mapping[str, object], own: Sequence[Entry], entry: Entry) -> None:
        if entry not in own:  # keep the shared entry here, too
            add_entry(self._store, key, *entry)

    def save(self) -> None:
        if self._store.writes:
            self._stats.save()

    def key_of(self, settings: Settings, model: ModelSettings, view: ProjectView) -> ManifestKey:
        environment = self._environment
        recipes = [recipe for recipe in settings.recipes if recipe.name in model.recipes]
        machine = machine_facts()
        fixed = fixed_variables(machine["cpu"])
        counted = {name for name in environment if name.startswith("PYTHON") and name not in PLACES}
        counted |= {name for name, value in environment.items() if fixed.get(name, value) != value}
        counted |= set(LOADER) & environment.keys()
        if any(recipe.backends for recipe in recipes):
            counted |= set(COMPILER) & environment.keys()
        return ManifestKey(
            model=model.name,
            export=model.export,
            package=model.package,
            distribution=settings.name,
            recipes=tuple(asdict(recipe) for recipe in recipes),
            check=settings.check_bytes,
            weights=tuple((url, known_digest(url, self._store, self._stats)) for url in model.weights),
            verify_inputs=model.verify_inputs,
            calibrate=model.calibrate,
            kept=tuple(sorted((name, paths) for name, paths in model.kept.items() if name in model.recipes)),
            metric=(model.metric, model.max_drop),
            inputs=settings.inputs,
            strict=settings.strict,
            entry_points=digest_of(view.entry_points),
            roots=tuple(self._located(root) for root in view.import_roots),
            links=tuple((path, self._located(target)) for path, target in view.links),
            later_hooks=view.later_hooks,
            variables=tuple((name, digest_of(environment[name])) for name in sorted(counted)),
            machine=tuple(sorted(machine.items())),
            backends=backend_distributions(
                self._present.distributions.values(),
                {choice.name for recipe in recipes for choice in recipe.backends},
            ),
            code=own_digest(self._stats),
            schema=SCHEMA,
        )

    def _located(self, path: Path) -> str:
        return self._roots.locate(path) or ""


def remember(
    store: Store, key: Mapping[str, object], inputs: RecordedInputs, report: ModelReport, shared: RecordedInputs | None
) -> None:
    """Keep a result with its recorded inputs, unless the inputs are incomplete."""
    if not store.writes or inputs.unknown:
        return
    value = report_value(store, report)
    if value is None:
        return
    report_key = digest_of(["report", SCHEMA, value])
    store.put(report_key, {"kind": "report", "subject": report.model}, value, report_blobs(value))
    remember_made(store, key, inputs, report_key, shared)


def remember_made(
    store: Store, key: Mapping[str, object], inputs: RecordedInputs, made: str, shared: RecordedInputs | None
) -> None:
    """Keep the recorded inputs of a unit, with the key `made` of its record."""
    if not store.writes or inputs.unknown:
        return
    add_entry(store, key, inputs, made)
    if shared is not None and store.remote is not None:
        add_entry(store, key, shared, made, elsewhere=True)


def add_entry(
    store: Store, key: Mapping[str, object], inputs: RecordedInputs, made: str, *, elsewhere: bool = False
) -> None:
    digest = shared_key(key) if elsewhere else digest_of(key)
    entry = {"inputs": encode(inputs), "report": made}

    def add(known: Any) -> object:
        value = store.fetch(digest) if elsewhere else known
        older = value["entries"] if readable_entries(value) else []
        others = [other for other in older if other["inputs"] != entry["inputs"]]
        return {"entries": [entry, *others][:MOST_ENTRIES]}

    components = shared_components(key) if elsewhere else key
    store.update(digest, {"kind": "manifest", "subject": key["model"], **components}, add, shared=elsewhere)


def unit_components(key: ManifestKey, unit: str) -> dict[str, object]:
    """Return the components of a unit's key, made of the components of its model's key."""
    return {**key.components(), "kind": "unit", "subject": unit}


def shared_components(key: Mapping[str, object]) -> dict[str, object]:
    # a shared cache checks that a key is the digest of its components
    return {**key, SHARED: True}


def own_components(components: Mapping[str, object]) -> dict[str, object]:
    """Return the components of the key here, from the components of a shared entry."""
    return {name: value for name, value in components.items() if name != SHARED}


def shared_key(key: Mapping[str, object]) -> str:
    return digest_of(shared_components(key))


def readable_entries(value: Any) -> list[Entry]:
    # another version, or another machine, may have written the entries
    try:
        return [(decode(RecordedInputs, entry["inputs"], ""), str(entry["report"])) for entry in value["entries"]]
    except (KeyError, TypeError, ProgramError):
        return []


def backend_distributions(
    distributions: Iterable[Distribution], named: Collection[str]
) -> tuple[tuple[str, str, str], ...]:
    """Return name, version and digest of the entry points of the distributions that bring the named backends."""
    brought = []
    for distribution in distributions:
        with suppress(OSError), open(f"{distribution.information}/entry_points.txt", "rb") as file:
            text = file.read()
            if any(group in text for group in BACKEND_GROUPS) and brings(text, named):
                brought.append((distribution.name, distribution.version, sha256_bytes(text)))
    return tuple(sorted(brought))


def brings(entry_points: bytes, named: Collection[str]) -> bool:
    """Return whether a file of entry points declares a named backend; so does a file that cannot be read."""
    parser = configparser.ConfigParser(delimiters="=", interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(entry_points.decode())
    except (configparser.Error, UnicodeDecodeError):
        return True
    groups = [group.decode() for group in BACKEND_GROUPS if parser.has_section(group.decode())]
    return any(name in parser[group] for group in groups for name in named)


def open_stats(store: Store) -> StatCache:
    return StatCache(store.directory / "stats.json")


def roots_of(root: Path, search_path: Sequence[Path], environment: Mapping[str, str], ignored: Sequence[Path]) -> Roots:
    """Return the roots by which the child's inputs are located, the same in parent and child."""
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    return Roots(root, tuple(search_path), home, tuple(ignored))
