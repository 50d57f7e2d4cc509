"""What the last build of a project did and why: `hatch-lower explain` reads here what the build's parent wrote.

```text
<cache>/v1/history/<sha256 of the project's folder>.json    .log beside it: what its models last printed
```

It explains and decides nothing: a file that is missing, damaged or of another version means "first build".
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_lower.cache.directory import history_path
from hatch_lower.cache.files import write_file
from hatch_lower.canonical import canonical_json, read_file
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.record import MethodRecord
from hatch_lower.format.results import MethodRow

SCHEMA = 1
MOST_FILES = 400
"""Files that are kept, one or two a project: its last build, and what its models printed."""


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """One model in the last build.

    Args:
        level: how far the build came with it: 1: nothing was exported; 2: exported, and nothing lowered; 3: lowered
            from the cache alone; 0: something was lowered.
        changes: every change of what its export had read, in words (`Change.text()`); empty for level 1.
        unknown: why its inputs are not known completely, so that the next build exports it again; empty if they are.
        reasons: method to what changed, as `compare.explain_methods` says; empty for level 1.
        methods: what was exported, as in the model's report.
        key: what else the result depends on, as in the model's report.
        manifest: the components of the `ManifestKey`, to tell before the next build which settings are others.
        rows: its rows of the summary.
    """

    level: int
    changes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: Mapping[str, MethodRecord] = field(default_factory=dict)
    key: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[MethodRow, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuildHistory:
    """The last build of a project that exported something and came to its end.

    Args:
        name: of the distribution.
        version: of the distribution.
        models: by name.
    """

    name: str
    version: str
    models: Mapping[str, ModelHistory]


def read_history(directory: Path, root: Path) -> BuildHistory | None:
    """Return a project's last build, or `None` if nothing is known of one.

    Args:
        directory: the store's, `Store.directory`.
        root: the project's folder.
    """
    try:
        value = json.loads(read_file(history_path(directory, root)))
        if value["schema"] != SCHEMA:
            return None
        history: BuildHistory = decode(BuildHistory, value["build"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return history


def write_history(directory: Path, root: Path, history: BuildHistory) -> None:
    """Remember a build that came to its end; a folder that cannot be written is left as it is.

    Args:
        directory: the store's, `Store.directory`; call this only if `Store.writes`.
        root: the project's folder.
        history: what was done.
    """
    path = history_path(directory, root)
    with contextlib.suppress(OSError):
        write_file(path, canonical_json({"schema": SCHEMA, "build": encode(history)}))
        forget_oldest(path.parent)


def forget_oldest(folder: Path) -> None:
    """Delete the files of the projects that were built longest ago, so that few are left."""
    ages = sorted((each.stat().st_mtime_ns, each.name) for each in folder.glob("*.*"))
    for _, name in ages[:-MOST_FILES]:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
