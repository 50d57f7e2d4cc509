"""What the export of a model read, as it is stored: all that must be as it was for the result to be used again.

Paths are located (`roots`), so that a checkout in another folder, or a fresh environment, has the same inputs.

A record may go to other machines. Values of environment variables are in it by digests that are keyed with a secret of
this machine's cache. A shared record has only variables that were not set, and variables that the project's `pass-env`
names, by a plain digest: a reader of the record can compare the digest with guesses. A variable whose name looks like a
credential's is never in a shared record.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from hatch_lower.build.environment import matches
from hatch_lower.build.inputs.variables import UNSET, is_credential, mark_of
from hatch_lower.canonical import sha256_bytes
from hatch_lower.frozen import Frozen

ABSENT = ""  # what is recorded of what is not there: a variable, a command, a module, a distribution, a folder
# Begins a digest that is not keyed. Such a mark equals none of this machine's own, so it is never met by mistake.
PLAIN = "sha256:"
# Where every machine of a kind has the same things; any other absolute path is a place of this machine
COMMON = ("/bin/", "/etc/", "/lib/", "/lib64/", "/opt/", "/sbin/", "/usr/")


class RecordedInputs(Frozen):
    """What one export read. Digests are sha256 in hexadecimal; tuples are sorted."""

    files: dict[str, str]  # located path → digest of its contents
    absent: tuple[str, ...]  # located paths that were looked for and were not there
    # located path of which only the kind was asked → `file 123` (its size in bytes), `folder`, `other`; of a link also
    # where it leads: `folder through v2`
    looks: dict[str, str]
    # located path of which the time was asked → the times of modification and of change, in nanoseconds
    times: dict[str, str]
    listings: dict[str, str]  # located folder that the model's code listed → digest of its sorted names
    # located project folder that the import system listed → digest of its importable names
    importable: dict[str, str]
    # top-level module name → where it is found: `project/<folder>`, `dist <name>`, `python`, `site`, or nowhere
    modules: dict[str, str]
    # normalised name → `<version> <digest of RECORD>`, of the project itself of its METADATA; empty if it is not
    # installed
    distributions: dict[str, str]
    # Variable → what `variables.mark_of` makes of its value. A glob → nothing: all variables that match it were asked
    # for, and those that are not named were not set.
    environment: dict[str, str]
    tools: dict[str, str]  # command → digest of the executable that `PATH` finds
    globs: dict[str, str]  # declared glob of the project's `inputs` → digest of the sorted located paths that match
    # why these inputs are not all of them; if there is a reason, the result is not used again without an export
    unknown: tuple[str, ...]
    # variables of the project's code, and of libraries not known to ask for their own settings only → nothing
    deciding: dict[str, str] = field(default_factory=dict)


def shareable(
    inputs: RecordedInputs, globs: Sequence[str], environment: Mapping[str, str], key: bytes
) -> RecordedInputs | None:
    """Return recorded inputs as they may go to other machines, or `None` if they may not, or mean nothing there."""
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
        # a variable that has another value by now cannot be told in the words of others
        if not declared or value is None or mark_of(key, name, value) != mark:
            return None
        marks[name] = plain_mark(name, value)
    return replace(inputs, environment=marks)


def received(inputs: RecordedInputs, environment: Mapping[str, str], key: bytes) -> RecordedInputs:
    """Return inputs that came from another machine as if they had been recorded here."""
    marks = {}
    for name, mark in inputs.environment.items():
        value = environment.get(name)
        same = value is not None and mark.startswith(PLAIN) and mark == plain_mark(name, value)
        # what had another value there keeps its mark, which is met by no value here
        marks[name] = mark_of(key, name, value) if same else mark
    return replace(inputs, environment=marks)


def plain_mark(name: str, value: str) -> str:
    return PLAIN + sha256_bytes(os.fsencode(f"{name}={value}"))
