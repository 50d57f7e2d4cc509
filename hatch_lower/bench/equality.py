"""What is equal in two sides byte by byte: all that runs, and the inputs that it is called with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from hatch_lower.bench.figures import Subject
from hatch_lower.bench.side import Side
from hatch_lower.build.contents import Contents

LENGTH_BYTES = 8  # of a safetensors file's header


def contents_of(side: Side, model: str) -> Contents:
    (found,) = (each for each in side.contents if model in each.models)
    return found


def runs_equal(first: Side, second: Side, subject: Subject) -> bool:
    return run_digests(first, subject) == run_digests(second, subject)


def run_digests(side: Side, subject: Subject) -> list[object]:
    model = side.folders[subject.model].manifest.models[subject.model]
    recipe = model.recipes[subject.recipe]
    # the check inputs are what is called with, and a plan names its delegates' files
    files = [recipe.plan, model.constants, model.weights, model.check, *recipe.delegates]
    return [*sorted(file.sha256 for file in files if file is not None), recipe.imports, recipe.target]


def have_other_inputs(sides: Iterable[Side], model: str) -> bool:
    """Return whether the sides have check inputs of a model that are not the same."""
    return len({inputs_digest(side, model) for side in sides} - {""}) > 1


def inputs_digest(side: Side, model: str) -> str:
    """Return a digest of a model's packaged check inputs, without those of its outputs; empty if there are none."""
    contents = contents_of(side, model)
    entry = contents.manifest.models[model].check
    if entry is None:
        return ""
    data = contents.map(entry)
    begin = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    header = json.loads(bytes(data[LENGTH_BYTES:begin]))
    digest = hashlib.sha256()
    for name in sorted(name for name in header if "/input/" in name):
        first, last = header[name].pop("data_offsets")
        digest.update(f"{name} {header[name]}".encode())
        digest.update(data[begin + first : begin + last])
    return digest.hexdigest()
