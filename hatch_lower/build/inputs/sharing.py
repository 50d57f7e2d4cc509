"""Recorded inputs that go to other machines, and those that come from them.

Values of environment variables are recorded by digests that are keyed with a secret of this machine's cache. A shared
record names only variables that were not set, and those that the project declares: these by a plain digest, which
whoever reads the record can compare with values that they guess. What looks like a credential is never in one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hatch_lower.build.environment import matches
from hatch_lower.build.inputs.inputs import RecordedInputs
from hatch_lower.build.inputs.variables import UNSET, is_credential, mark_of

PLAIN = "sha256:"
"""Begins a digest that is not keyed. Such a mark equals none of this machine's own, so it is never met by mistake."""
COMMON = ("/bin/", "/etc/", "/lib/", "/lib64/", "/opt/", "/sbin/", "/usr/")
"""Where every machine of a kind has the same things; any other absolute path is a place of this machine."""


def shareable(
    inputs: RecordedInputs, globs: Sequence[str], environment: Mapping[str, str], key: bytes
) -> RecordedInputs | None:
    """Return recorded inputs as they may go to other machines, or `None` if they may not, or mean nothing there.

    Args:
        inputs: as recorded here.
        globs: the variables that the project declares as shareable.
        environment: of the export; a variable that has another value by now is not shared.
        key: the secret of this machine's cache.
    """
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
        if not declared or value is None or mark_of(key, name, value) != mark:
            return None
        marks[name] = plain_mark(name, value)
    return replace(inputs, environment=marks)


def received(inputs: RecordedInputs, environment: Mapping[str, str], key: bytes) -> RecordedInputs:
    """Return inputs that came from another machine as if they had been recorded here.

    Args:
        inputs: made by `shareable` there.
        environment: that the export would have here. What had another value there keeps its mark, which is met by no
            value here.
        key: the secret of this machine's cache.
    """
    marks = {}
    for name, mark in inputs.environment.items():
        value = environment.get(name)
        same = value is not None and mark.startswith(PLAIN) and mark == plain_mark(name, value)
        marks[name] = mark_of(key, name, value) if same else mark
    return replace(inputs, environment=marks)


def plain_mark(name: str, value: str) -> str:
    """Return the mark of a value that any machine can make."""
    return PLAIN + hashlib.sha256(os.fsencode(f"{name}={value}")).hexdigest()
