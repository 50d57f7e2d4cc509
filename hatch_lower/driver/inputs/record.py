"""The stored inputs of a model's export, with the choice and the digests of environment variables.

A result is reused if all inputs are unchanged.

Paths are located (`roots`), so that a checkout in another folder, or a fresh environment, has the same inputs.

A record may go to other machines. The values of environment variables are stored as digests, keyed with a secret of
this machine's cache. A shared record names only variables that were not set, and variables that `pass-env` names:
their digests are plain, and a reader of the record can compare the digests with guesses. A shared record never has
variables that look like credentials.

Inputs are all variables that were read, by any code. Two kinds of variables are no inputs: variables with the same
value in every build, and variables with paths, unless the project's own code reads the path: the files found there are
recorded. If many variables were read at once, their glob is recorded too: a matching variable that is set later is a
change.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.cache.directory import temporary_beside
from hatch_lower.canonical import read_file, sha256_bytes
from hatch_lower.driver.environment import FRONTENDS, fixed_variables, matches
from hatch_lower.driver.inputs.machine import cpu_capability
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.driver.inputs.recorder import ObservedReads


UNSET = ""
CREDENTIALS = ("TOKEN", "SECRET", "PASSWORD", "KEY")
SECRET_BYTES = 32
RECORDING_VARIABLES = ("HATCH_LOWER_RECORD", "LD_PRELOAD")  # the variables that make a process write the log
# Variables that are set anew in each build
PASSING = frozenset({*RECORDING_VARIABLES, "TMPDIR", "TMP", "TEMP", "PWD", "OLDPWD"})
TOOL = "HATCH_LOWER_*"
PLACES = ("PATH", "HOME", "PYTHON*", TOOL)

# variables of the caller that every build changes, which surprises no user
UNSAID = (*PASSING, *FRONTENDS, "PYTHON*", TOOL, "_", "SHLVL")


def hidden_variables(caller: Mapping[str, str], given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the caller's variables that are missing, or have other values, in the build's child processes."""
    return tuple(
        sorted(name for name, value in caller.items() if given.get(name) != value and not matches(name, UNSAID))
    )


def mark_of(key: bytes, name: str, value: str | None) -> str:
    return UNSET if value is None else hmac.new(key, os.fsencode(f"{name}={value}"), hashlib.sha256).hexdigest()


def is_credential(name: str) -> bool:
    upper = name.upper()
    return any(word in upper for word in CREDENTIALS)


def secret(folder: Path, *, keeps: bool = True) -> bytes:
    """Return this cache's random key, made at the first call; all processes get the same key."""
    path = folder / "secret"
    known = read_secret(path)
    if known is not None:
        return known
    fresh = os.urandom(SECRET_BYTES)
    if not keeps:
        return fresh  # a new key each time, so no recorded value is recognized
    # also in a folder that a group shares: an owner of the key can try out values
    with suppress(OSError), temporary_beside(path, private=True) as part:
        part.write_bytes(fresh)
        publish_secret(part, path)
    return read_secret(path) or fresh


def publish_secret(temporary: Path, path: Path) -> None:
    """Give a finished file its name, unless another process was first with a whole file."""
    try:
        os.link(temporary, path)  # unlike a renaming, the link fails if the name exists
    except OSError:  # or where the file system has no links
        if read_secret(path) is None:
            os.replace(temporary, path)


def read_secret(path: Path) -> bytes | None:
    with suppress(OSError):
        data = read_file(path)
        if len(data) == SECRET_BYTES:
            return data
    return None


def globs_of(observations: ObservedReads) -> tuple[str, ...]:
    """Return the globs whose variables were all read, by this process or a subprocess."""
    return tuple(sorted({*observations.globs, *(["*"] if observations.handed_on else [])}))


def variables_of(observations: ObservedReads) -> frozenset[str]:
    environment = observations.environment
    named = {name for name, is_own in observations.variables.items() if is_own or not matches(name, PLACES)}
    own = [glob for glob, is_own in observations.globs.items() if is_own]
    asked = {name for name in environment if matches(name, own) and not matches(name, [TOOL])}
    asked |= {name for name in environment if matches(name, globs_of(observations)) and not matches(name, PLACES)}
    return frozenset(named | asked) - known_variables(named | asked, environment)


def new_variables(recorded: Iterable[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Return the variables of an environment that match a recorded glob and are not recorded themselves."""
    globs = [name for name in recorded if "*" in name]
    names = {name for name in environment.keys() - set(recorded) if matches(name, globs) and not matches(name, PLACES)}
    return frozenset(names - known_variables(names, environment)) if names else frozenset()


def known_variables(names: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """Return the variables that are never inputs: the build sets their values, always alike or for itself."""
    fixed = fixed_variables(cpu_capability())
    return {name for name in names if name in PASSING or (name in fixed and environment.get(name) == fixed[name])}


ABSENT = ""  # the state of a missing variable, command, module, distribution or folder
# The prefix of a digest without a key. The mark differs from all marks of this machine, so no value matches by mistake.
PLAIN = "sha256:"
# Where every machine of a kind has the same things; any other absolute path is a place of this machine
COMMON = ("/bin/", "/etc/", "/lib/", "/lib64/", "/opt/", "/sbin/", "/usr/")


class RecordedInputs(Frozen):
    """The reads of an export. Digests are sha256 in hexadecimal; tuples are sorted."""

    files: dict[str, str]  # located path → digest of its contents
    absent: tuple[str, ...]  # located paths that were looked for and were not there
    # by located path whose kind alone was asked: `file 123` (its size in bytes), `folder`, `other`; for a link also its
    # target: `folder through v2`
    looks: dict[str, str]
    # by located path whose times were asked: the times of modification and of change, in nanoseconds
    times: dict[str, str]
    listings: dict[str, str]  # located folder that the model's code listed → digest of its sorted names
    # located project folder that the import system listed → digest of its importable names
    importable: dict[str, str]
    # by top-level module name: `project/<folder>`, `dist <name>`, `python`, `site`, or empty
    modules: dict[str, str]
    # by normalized name: `<version> <digest of RECORD>`, for the project itself of its METADATA; empty if not installed
    distributions: dict[str, str]
    # By variable: the result of `variables.mark_of` for the value. By glob: an empty text: all matching variables were
    # read, and matching variables without an entry were not set.
    environment: dict[str, str]
    tools: dict[str, str]  # command → digest of the executable that `PATH` finds
    globs: dict[str, str]  # declared glob of the project's `inputs` → digest of the sorted located paths that match
    # reasons why the inputs are incomplete; with a reason, the result is not reused without an export
    unknown: tuple[str, ...]
    # variables read by the project's code, or by libraries that may read more than their own settings; the values are
    # empty
    deciding: dict[str, str] = field(default_factory=dict)
    # the names of the machine's accelerators, where a recipe is not compared for want of a device; else `None`
    accelerators: str | None = None


def shareable(
    inputs: RecordedInputs, globs: Sequence[str], environment: Mapping[str, str], key: bytes
) -> RecordedInputs | None:
    """Return recorded inputs for other machines, or `None` if they are secret or meaningless there."""
    places = [*inputs.files, *inputs.absent, *inputs.looks, *inputs.times, *inputs.listings, *inputs.importable]
    if inputs.unknown or any(path.startswith("/") and not path.startswith(COMMON) for path in places):
        return None
    marks = {}
    for name, mark in inputs.environment.items():
        if mark == UNSET:
            marks[name] = mark
            continue
        value = environment.get(name)
        declared = matches(name, globs) and not is_credential(name)
        # the present value differs from the recorded value, which is not known any more
        if not declared or value is None or mark_of(key, name, value) != mark:
            return None
        marks[name] = plain_mark(name, value)
    return replace(inputs, environment=marks)


def received(inputs: RecordedInputs, environment: Mapping[str, str], key: bytes) -> RecordedInputs:
    """Return inputs from another machine as if recorded here."""
    marks = {}
    for name, mark in inputs.environment.items():
        value = environment.get(name)
        same = value is not None and mark.startswith(PLAIN) and mark == plain_mark(name, value)
        # a variable with another value there keeps its mark, which no value here matches
        marks[name] = mark_of(key, name, value) if same else mark
    return replace(inputs, environment=marks)


def plain_mark(name: str, value: str) -> str:
    return PLAIN + sha256_bytes(os.fsencode(f"{name}={value}"))
