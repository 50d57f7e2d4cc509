"""Reasons why a model was lowered again, and the results of a project's last build, for `hatch-lower explain`.

The differences of two builds are listed by method, the weightiest first: settings, tools, the graph, weights, names
and example inputs. Without a difference among these, the changed files and variables of level 1 are listed: an edited
comment, for example.

```text
<cache>/v1/history/<sha256 of the project's folder>.json    .log beside it: the last output of its models
```

A history decides nothing: a missing or damaged file, or a file of another version, means "first build".
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from hatch_lower.cache.directory import history_path, write_file
from hatch_lower.canonical import canonical_json, read_file, sha256_bytes
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.diff.forms import Form, differences, read_form
from hatch_lower.driver.diff.words import consequences, key_changes
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.record import MethodRecord, ModelReport, VerifiedMethod
from hatch_lower.format.results import MethodRow
from hatch_lower.frozen import Frozen

FIRST_BUILD = "first build"
NOTHING = "nothing changed"

ReadBlob = Callable[[str], bytes | None]  # returns the blob of a digest, or `None`

SCHEMA = 1
MOST_FILES = 400  # kept files, one or two for each project: its last build, and the output of its models


class ModelHistory(Frozen):
    # the reuse of a model: 1: no export; 2: exported, and not lowered; 3: lowered from the cache alone; 0: at least one
    # partition was compiled
    level: int
    # the changes of recorded inputs, in words (`InputChange.text()`); empty for level 1
    changes: tuple[str, ...] = ()
    # the reasons why inputs are not recorded completely, so that the next build exports again; empty if complete
    unknown: tuple[str, ...] = ()
    # the result of `explain_methods`: by method, the changes; empty for level 1
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: Mapping[str, MethodRecord] = field(default_factory=dict)  # the exported methods, as in the model's report
    # other components of the result's key, as in the model's report
    key: Mapping[str, object] = field(default_factory=dict)
    rows: tuple[MethodRow, ...] = ()  # its rows of the summary
    verified: tuple[VerifiedMethod, ...] = ()  # the methods that were compared with eager
    # the components of the `ManifestKey`, which show changed settings before the next build
    manifest: Mapping[str, object] = field(default_factory=dict)


class BuildHistory(Frozen):
    """The last complete build of a project with at least one export."""

    name: str
    version: str
    models: Mapping[str, ModelHistory]
    path: tuple[str, ...] = ()  # folders and archives of `sys.path` of the build: where its packages were

    def is_here(self) -> bool:
        """Return whether the environment of the build still exists; a build tool may have made the environment for the
        build.
        """
        return all(map(os.path.exists, self.path))


# compared by `explain_methods`: exported methods, and the other components of the result's key
Exported: TypeAlias = "ModelReport | ModelHistory"


def explain_methods(
    before: Exported | None, after: Exported, changes: Sequence[str], read_blob: ReadBlob
) -> dict[str, tuple[str, ...]]:
    """Return the changes of each method of `after`; the first line is for the build's summary."""
    names = dict.fromkeys([*after.methods, *(row.method for row in after.rows)])
    if before is None:
        return dict.fromkeys(names, (FIRST_BUILD,))
    general = key_changes(before.key, after.key)
    rest = consequences(before.key, after.key)
    known = {*before.methods, *(row.method for row in before.rows)}
    explained = {}
    for name in names:
        old, new = before.methods.get(name), after.methods.get(name)
        changed = method_changes(old, new, read_blob) if old and new else []
        own = changed if name in known else ["new method"]
        explained[name] = tuple([*general, *own] or changes or rest or [NOTHING])
    return explained


def method_changes(before: MethodRecord, after: MethodRecord, read_blob: ReadBlob) -> list[str]:
    lines: list[str] = []
    differs = (before.graph, before.names) != (after.graph, after.names)
    old, new = (read_stored_form(method.form, read_blob) if differs else None for method in (before, after))
    if before.graph != after.graph:
        lines += (differences(old, new) if old and new else []) or ["the exported graph"]
    changed = [name for name, digest in after.state.items() if before.state.get(name, digest) != digest]
    if changed:
        count = f"{len(changed)} of {len(after.state)} tensors" if len(after.state) > 1 else "the one tensor"
        lines.append(f"weights{'' if lines else ' only'}: {count}")
    if before.names != after.names and before.graph == after.graph:
        lines.append(f"names{'' if lines else ' only'}: {renamed_text(old, new)}")
    if before.examples != after.examples:
        lines.append("example inputs")
    return lines


def renamed_text(before: Form | None, after: Form | None) -> str:
    pairs = list(zip(before.names, after.names, strict=False)) if before and after else []
    others = [f"{old} → {new}" for old, new in pairs if old != new]
    if not others:
        return "modules or sizes"
    return others[0] if len(others) == 1 else f"{others[0]} and {len(others) - 1} more"


def read_stored_form(digest: str, read_blob: ReadBlob) -> Form | None:
    data = read_blob(digest) if digest else None
    return read_form(data) if data is not None and sha256_bytes(data) == digest else None


def read_history(directory: Path, root: Path) -> BuildHistory | None:
    """Return a project's last build, or `None` without a history."""
    history: BuildHistory | None = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, ProgramError):
        value = json.loads(read_file(history_path(directory, root)))
        if value["schema"] == SCHEMA:
            history = decode(BuildHistory, value["build"], "")
    return history


Environment: TypeAlias = Literal["this", "last build", "gone"]


def in_last_environment(context: BuildContext, last: BuildHistory | None) -> tuple[BuildContext, Environment]:
    """Return a context with the packages of the last build, and the state of its environment; `gone` means this
    process's packages.
    """
    if last is None or not last.path:
        return context, "this"
    return (replace(context, path=last.path), "last build") if last.is_here() else (context, "gone")


def places_of_path() -> tuple[str, ...]:
    return tuple(entry for entry in sys.path if entry and os.path.exists(entry))


def write_history(directory: Path, root: Path, history: BuildHistory) -> None:
    """Keep the history of a complete build; a folder that cannot be written is left unchanged."""
    path = history_path(directory, root)
    with contextlib.suppress(OSError):
        write_file(path, canonical_json({"schema": SCHEMA, "build": encode(history)}))
        ages = sorted((each.stat().st_mtime_ns, each) for each in path.parent.glob("*.*"))
        for _, oldest in ages[:-MOST_FILES]:
            oldest.unlink(missing_ok=True)
