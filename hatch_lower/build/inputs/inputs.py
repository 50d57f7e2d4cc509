"""What the export of a model read: all that must be as it was for the stored result to be used again.

Paths are located (`roots`), so that a checkout in another folder, or a fresh environment, has the same inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hatch_lower.frozen import Frozen

ABSENT = ""
"""What is recorded of what is not there: a variable, a command, a module, a distribution, a folder."""

LISTS = frozenset({"absent", "unknown"})


class RecordedInputs(Frozen):
    """What one export read. Digests are sha256 in hexadecimal; mappings and tuples are sorted in JSON."""

    files: Mapping[str, str]
    """Located path → digest of its contents."""
    absent: tuple[str, ...]
    """Located paths that were looked for and were not there."""
    looks: Mapping[str, str]
    """Located path of which only the kind was asked → `file 123` (its size in bytes), `folder`, `other`; of a link also
    where it leads: `folder through v2`."""
    times: Mapping[str, str]
    """Located path of which the time was asked → the times of modification and of change, in nanoseconds."""
    listings: Mapping[str, str]
    """Located folder that the model's code listed → digest of its sorted names."""
    importable: Mapping[str, str]
    """Located project folder that the import system listed → digest of its importable names."""
    modules: Mapping[str, str]
    """Top-level module name → where it is found: `project/<folder>`, `dist <name>`, `python`, `site`, or nowhere."""
    distributions: Mapping[str, str]
    """Normalised name → `<version> <digest of RECORD>`, of the project itself of its METADATA; empty if it is not
    installed."""
    environment: Mapping[str, str]
    """Variable → what `variables.mark_of` makes of its value. A glob → nothing: all variables that match it were asked
    for, and those that are not named were not set."""
    tools: Mapping[str, str]
    """Command → digest of the executable that `PATH` finds."""
    globs: Mapping[str, str]
    """Declared glob of the project's `inputs` → digest of the sorted located paths that match."""
    unknown: tuple[str, ...]
    """Why these inputs are not all of them; if there is a reason, the result is not used again without an export."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON value that `from_json` reads."""
        return {
            field.name: sorted(set(value)) if field.name in LISTS else dict(sorted(value.items()))
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }

    @classmethod
    def from_json(cls, value: Any) -> RecordedInputs:
        """Return the inputs that `to_json` described.

        Raises:
            ValueError: if it is anything else; another version of this package may have written it.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or sorted(value) != sorted(names):
            raise ValueError(f"recorded inputs are an object of {', '.join(names)}")
        given: dict[str, Any] = {}
        for name in names:
            field: Any = value[name]
            if not isinstance(field, list if name in LISTS else dict):
                raise ValueError(f"recorded inputs have {'a list' if name in LISTS else 'an object'} as `{name}`")
            texts = [*field, *field.values()] if isinstance(field, dict) else field
            if not all(isinstance(text, str) for text in texts):
                raise ValueError(f"recorded inputs hold only texts as `{name}`")
            given[name] = tuple(field) if name in LISTS else field
        return cls(**given)
