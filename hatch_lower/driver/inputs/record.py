"""The stored inputs of a model's export: a result is reused if all inputs are unchanged.

Paths are located (`roots`), so that a checkout in another folder, or a fresh environment, has the same inputs.

A record may go to other machines. The values of environment variables are stored as digests, keyed with a secret of
this machine's cache. A shared record names only variables that were not set, and variables that `pass-env` names: their
digests are plain, and a reader of the record can compare the digests with guesses. A shared record never has variables
that look like credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from hatch_lower.canonical import sha256_bytes
from hatch_lower.driver.environment import matches
from hatch_lower.driver.inputs.variables import UNSET, is_credential, mark_of
from hatch_lower.frozen import Frozen

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
