"""Division of the sides of a measurement into processes: a setting of an engine may be a state of the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hatch_lower.format.constants import DelegateEntry

# Backend to the facts of its delegates that set a state of the process. ExecuTorch has one pool of threads, which the
# first program of the process sets: in one process, programs for 1 and for 2 threads take the same time.
STATES: Mapping[str, tuple[str, ...]] = {"executorch": ("threads",)}

ProcessSettings = Mapping[str, object]  # `executorch.threads` to the number, or to `None` for the engine's default


def process_settings(delegates: Iterable[DelegateEntry]) -> ProcessSettings:
    """Return the settings of the process that a program's delegates make."""
    return {
        f"{entry.backend}.{fact}": entry.info.get(fact) for entry in delegates for fact in STATES.get(entry.backend, ())
    }


def divide(sides: Sequence[str], settings: Mapping[str, ProcessSettings]) -> list[list[str]]:
    """Return groups of sides, each for a process of its own; no two sides of a group differ in a setting."""
    groups: list[tuple[list[str], dict[str, object]]] = []
    for side in sides:
        own = settings.get(side, {})
        for group, made in groups:
            if all(made.get(name, value) == value for name, value in own.items()):
                group.append(side)
                made.update(own)
                break
        else:
            groups.append(([side], dict(own)))
    return [group for group, _ in groups]
