"""The tensors of a method as a server states them: names of letters, dtypes, and shapes with -1 for a dynamic size."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hatch_lower.errors import ProgramError
from hatch_lower.format.arguments import Special, SymbolInput, TensorInput
from hatch_lower.format.plan import MethodPlan, input_paths
from hatch_lower.format.served import ANY, DATATYPES, ServedTensor
from hatch_lower.format.tree import leaf_paths


def served_inputs(plan: MethodPlan, where: str) -> tuple[ServedTensor, ...]:
    names = tensor_names(input_paths(plan), "input", set())
    found = []
    for name, path, entry in zip(names, input_paths(plan), plan.inputs, strict=True):
        if isinstance(entry, SymbolInput):
            found.append(ServedTensor(name, "int64", ()))
        elif isinstance(entry, TensorInput):
            shape = tuple(size if isinstance(size, int) else ANY for size in entry.shape)
            found.append(ServedTensor(name, checked_dtype(entry.dtype, f"{where}, input `{path}`"), shape))
    return tuple(found)


def checked_dtype(dtype: str, where: str) -> str:
    if dtype not in DATATYPES:
        raise ProgramError(
            f"servers have no dtype for {dtype}",
            where=where,
            found=f"they have {', '.join(DATATYPES)}",
            hint="export a method that takes and returns tensors of these dtypes",
        )
    return dtype


def output_positions(plan: MethodPlan) -> list[int]:
    """Return the positions of the outputs that a server can answer: not of `None`, texts and torch's constants."""
    return [at for at, value in enumerate(plan.graph.outputs) if not isinstance(value, str | Special | None)]


def output_names(plan: MethodPlan, used: set[str]) -> list[str]:
    """Return a name for each of the `output_positions`."""
    paths = list(leaf_paths(plan.outputs, ""))
    return tensor_names([paths[at] for at in output_positions(plan)], "output", used)


def tensor_names(paths: Sequence[str], noun: str, used: set[str]) -> list[str]:
    """Return names of letters, digits and underscores for paths such as `batch["image"][0]`, each once."""
    names: list[str] = []
    for path in paths:
        name = re.sub(r"[^A-Za-z0-9_]+", "_", path).strip("_")
        if not name or name[0].isdigit() or name in used:
            name = f"{noun}_{name}".rstrip("_")
        while name in used or name in names:
            name += "_"
        names.append(name)
    return names
