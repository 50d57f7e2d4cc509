"""Why a model was lowered again: what differs between two of its builds, the weightiest first, method by method.

Settings come before tools, both before the graph, then weights, names and example inputs. Where none of them differs,
the files and variables that level 1 saw change are named: a comment was edited, say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hatch_lower.build.explain.form import Form, read_form
from hatch_lower.build.explain.forms import differences
from hatch_lower.build.explain.settings import consequences, key_changes
from hatch_lower.canonical import sha256_bytes
from hatch_lower.format.record import MethodRecord
from hatch_lower.format.results import MethodRow

FIRST_BUILD = "first build"
NOTHING = "nothing changed"

ReadBlob = Callable[[str], bytes | None]
"""Returns the blob of a digest, or `None` if there is none."""


class Exported(Protocol):
    """What is compared: a `ModelReport`, or a `ModelHistory`."""

    @property
    def methods(self) -> Mapping[str, MethodRecord]:
        """What was exported, by method."""

    @property
    def rows(self) -> Sequence[MethodRow]:
        """The rows of the summary: they name methods whose exports have no digest."""

    @property
    def key(self) -> Mapping[str, Any]:
        """What else the result depends on."""


def explain_methods(
    before: Exported | None, after: Exported, changes: Sequence[str], read_blob: ReadBlob
) -> dict[str, tuple[str, ...]]:
    """Return for each method of `after` what changed; the first line is for the build's summary.

    Args:
        before: the nearest earlier build of this model; `None` if there is none.
        after: this build.
        changes: what level 1 saw change, in words.
        read_blob: finds the stored forms of the exported graphs; without them a changed graph is only named as such.

    Returns:
        Method to lines; there is always at least one.
    """
    names = dict.fromkeys([*after.methods, *(row.method for row in after.rows)])
    if before is None:
        return dict.fromkeys(names, (FIRST_BUILD,))
    general = key_changes(before.key, after.key)
    rest = consequences(before.key, after.key)
    known = {*before.methods, *(row.method for row in before.rows)}
    explained = {}
    for name in names:
        old, new = before.methods.get(name), after.methods.get(name)
        own = method_changes(old, new, read_blob) if old and new else []
        if name not in known:
            own = ["new method"]
        explained[name] = tuple([*general, *own] or changes or rest or [NOTHING])
    return explained


def method_changes(before: MethodRecord, after: MethodRecord, read_blob: ReadBlob) -> list[str]:
    """Return how one method's exports differ: graph, weights, names, example inputs."""
    lines: list[str] = []
    told = (before.graph, before.names) != (after.graph, after.names)
    old, new = (read_stored(each.form, read_blob) if told else None for each in (before, after))
    if before.graph != after.graph:
        lines += (differences(old, new) if old and new else []) or ["the exported graph"]
    changed = [name for name, digest in after.state.items() if before.state.get(name, digest) != digest]
    if changed:
        count = f"{len(changed)} of {len(after.state)} tensors" if len(after.state) > 1 else "the one tensor"
        lines.append(f"weights{'' if lines else ' only'}: {count}")
    if before.names != after.names and before.graph == after.graph:
        lines.append(f"names{'' if lines else ' only'}: {renamed(old, new)}")
    if before.examples != after.examples:
        lines.append("example inputs")
    return lines


def renamed(before: Form | None, after: Form | None) -> str:
    """Return the first names that differ: `x → image`, and how many more."""
    pairs = list(zip(before.names, after.names, strict=False)) if before and after else []
    others = [f"{old} → {new}" for old, new in pairs if old != new]
    if not others:
        return "modules or sizes"
    return others[0] if len(others) == 1 else f"{others[0]} and {len(others) - 1} more"


def read_stored(digest: str, read_blob: ReadBlob) -> Form | None:
    """Return a stored form, if it is there and whole."""
    data = read_blob(digest) if digest else None
    return read_form(data) if data is not None and sha256_bytes(data) == digest else None
