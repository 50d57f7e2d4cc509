"""What is other in a build that is to give the same wheel."""

from __future__ import annotations

import os
import site
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHOICES: Mapping[str, tuple[str, str]] = {
    "TZ": ("NPT-5:45", "NST3:30"),
    "LC_ALL": ("C", "C.UTF-8"),
    "PYTHONHASHSEED": ("4242", "77"),
    "OMP_NUM_THREADS": ("1", "3"),
}
"""Variables and the values that are tried, the first unless the caller has it."""
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "home": ("HOME", "USERPROFILE"),
    "temporary": ("TMPDIR", "TMP", "TEMP"),
    "user-cache": ("XDG_CACHE_HOME", "LOCALAPPDATA"),
    "empty-cache": ("HATCH_LOWER_CACHE_DIR",),
}
"""New folders, and the variables that lead to them."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How a build differs from one that the caller would run.

    Args:
        environment: all its variables.
        umask: its umask; -1 where the system has none.
        places: the paths that only it has, to what they are.
        told: what is varied, with its values, for people.
    """

    environment: Mapping[str, str]
    umask: int
    places: Mapping[str, str]
    told: Mapping[str, str]


def vary(environment: Mapping[str, str], work: Path, project: Path) -> Variation:
    """Return another environment for a build, and make the folders that it names.

    Nothing that was lowered before is used. SOURCE_DATE_EPOCH and all that is not named here stay as they are.
    """
    chosen = {name: first if environment.get(name) != first else second for name, (first, second) in CHOICES.items()}
    chosen["LANG"] = chosen["LC_ALL"]
    places = {str(project): "the rebuild's source folder"}
    for name, variables in FOLDERS.items():
        folder = work / name
        folder.mkdir(mode=0o700)  # whatever the umask: the cache is not one that others may write to
        places[str(folder)] = f"the rebuild's {variables[0]}"
        chosen |= dict.fromkeys(variables, str(folder))
    mask = -1 if os.name == "nt" else 0o077 if current_umask() != 0o077 else 0o022
    fixed = {
        "HATCH_LOWER_CACHE": "off",
        "HATCH_LOWER_REMOTE_CACHE": "off",
        "PYTHONUSERBASE": site.getuserbase(),  # packages installed there are tools of the build, wherever HOME is
    }
    names = (*CHOICES, "HOME", "TMPDIR")
    told = {name: chosen[name] for name in names} | {"source folder": str(project)}
    told |= {"umask": f"{mask:03o}"} if mask >= 0 else {}
    told |= {"cores": "1"} if spare_cores() else {}
    return Variation({**environment, **chosen, **fixed}, mask, places, told)


def current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def spare_cores() -> set[int]:
    if not hasattr(os, "sched_getaffinity"):
        return set()
    return set(sorted(os.sched_getaffinity(0))[:-1])


@contextmanager
def one_core() -> Iterator[None]:
    """Let processes that are started in the block run on one core only, where this system can do that."""
    spare = spare_cores()
    if not spare:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - spare)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
