"""Sample files: real inputs for methods, in safetensors.

A tensor's key is `METHOD/CASE/PATH`; `CASE/PATH` gives it to every method that has such an input, and `PATH` alone is
of case 0. `CASE` is a number, `PATH` leads to the input as in `format.plan.input_paths`: `image`, `boxes[0]`. An input
that is an integer is a 0-d tensor of int64. What the graph was specialised for (numbers, `None`) is not in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from hatch_lower.errors import InputError, ProgramError, SampleError, nearest
from hatch_lower.format.inputs import LiteralInput
from hatch_lower.format.plan import MethodPlan, input_paths
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.analysis import bind_symbols
from hatch_lower.runtime.check import input_leaves, stored_arrays
from hatch_lower.runtime.mapped import ConstantsFile
from hatch_lower.runtime.refusals import Refusals
from hatch_lower.runtime.torch_arrays import ARRAYS

# a dictionary's key may hold a slash, too, but stands behind a bracket
CASE = re.compile(r"(?:(?P<method>[^/\[]*)/)?(?P<case>[0-9]{1,18})/")  # what a key may have before the path
WRITE = "write it with `safetensors.torch.save_file`, under keys such as `forward/0/image`: method, case and input"


class Sample(Frozen):
    name: str  # what an error calls it: `samples.safetensors, case 3`
    values: Mapping[str, Tensor]  # by path; mapped from the file


def sample_paths(method: MethodPlan) -> list[str]:
    """Return the paths of a method's inputs that a sample has: tensors and integers."""
    paths = zip(input_paths(method), method.inputs, strict=True)
    return [path for path, entry in paths if not isinstance(entry, LiteralInput)]


def read_samples(path: Path, methods: Mapping[str, Sequence[str]]) -> Mapping[str, tuple[Sample, ...]]:
    """Return each method's samples by case; `methods` have the paths of `sample_paths`. Faults are a `SampleError`."""
    found: dict[str, dict[int, dict[str, Tensor]]] = {name: {} for name in methods}
    for key, tensor in read_file(path).items():
        head = CASE.match(key)
        method, case, leaf = (None, 0, key) if head is None else (head["method"], int(head["case"]), key[head.end() :])
        where = f"{path.name}: {key!r:.80}"
        for name in methods_with(where, method, leaf, methods):
            values = found[name].setdefault(case, {})
            if leaf in values:
                raise SampleError(
                    "a sample file has two values for one input",
                    where=where,
                    found=f"another key for `{leaf}` of `{name}` in case {case}",
                    hint="name methods in all keys of this case, or in none",
                )
            values[leaf] = tensor
    if not any(found.values()):
        raise SampleError("a sample file is empty", where=str(path), hint=WRITE)
    for name, cases in found.items():
        for case, values in cases.items():
            if missing := [leaf for leaf in methods[name] if leaf not in values]:
                raise SampleError(
                    "a sample lacks an input of its method",
                    where=f"{path.name}, case {case} of `{name}`",
                    found=f"no `{missing[0]}`",
                    hint=f"write all of {', '.join(f'`{name}/{case}/{leaf}`' for leaf in methods[name])}; a key"
                    " without a method is for every method that has such an input",
                )
    return {
        name: tuple(Sample(f"{path.name}, case {case}", values) for case, values in sorted(cases.items()))
        for name, cases in found.items()
    }


def read_file(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise SampleError("there is no such sample file", where=str(path), hint=WRITE)
    try:
        found: Mapping[str, Tensor] = stored_arrays(ConstantsFile(path, str(path)), str(path), ARRAYS)
    except ProgramError as error:
        raise SampleError("a sample file cannot be read", where=error.where, found=error.found, hint=WRITE) from error
    return found


def methods_with(where: str, method: str | None, leaf: str, methods: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the methods that a key is for; `method` is what it says, if it says any."""
    if method is not None and method not in methods:
        raise SampleError("a sample is for a method that is not there", where=where, hint=nearest(method, methods))
    owners = [name for name in methods if method in (None, name) and leaf in methods[name]]
    if not owners:
        known = dict.fromkeys(known for name in methods if method in (None, name) for known in methods[name])
        raise SampleError(
            "a sample is for an input that is not there",
            where=where,
            found=f"`{leaf}`{f' of `{method}`' if method is not None else ''}",
            hint=f"{nearest(leaf, known)}; keys are `METHOD/CASE/INPUT`, `CASE/INPUT` or `INPUT`",
        )
    return owners


def sample_leaves(name: str, method: MethodPlan, sample: Sample) -> list[object]:
    """Return the flat inputs of one call of a packaged method; a `SampleError` if they do not fit it."""
    paths = enumerate(input_paths(method))
    tensors = {f"{name}/input/{index}": sample.values[path] for index, path in paths if path in sample.values}
    leaves, reason = input_leaves(name, method, tensors, ARRAYS)
    if reason:
        raise misfit(sample.name, reason, "give it as the method was exported for it")
    check_leaves(name, method, leaves, sample.name)
    return leaves


def check_leaves(name: str, method: MethodPlan, leaves: Sequence[object], where: str) -> None:
    refusals = Refusals(name, method, ARRAYS, input_paths(method), bind_symbols(method.inputs))
    try:
        refusals.check_values(*leaves)
    except InputError as error:
        raise misfit(where, f"{error.found}; {error.what}", error.hint) from error


def misfit(where: str, found: str, hint: str) -> SampleError:
    return SampleError("a sample does not fit its method", where=where, found=found, hint=hint)
