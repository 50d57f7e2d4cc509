"""Sample files: real inputs for methods, in safetensors.

A tensor's key is `METHOD/CASE/PATH`. `CASE/PATH` is for every method with an input of this path; `PATH` alone is for
case 0. `CASE` is a number, `PATH` is the path of the input as in `format.plan.input_paths`: `image`, `boxes[0]`. An
integer is a 0-d tensor of int64. Literals for which the graph is specialized (numbers, `None`) are not in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from hatch_lower.errors import InputError, ProgramError, SampleError, nearest
from hatch_lower.format.arguments import LiteralInput
from hatch_lower.format.plan import MethodPlan, input_paths
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.leaves import input_leaves, stored_arrays
from hatch_lower.runtime.mapped import ConstantsFile
from hatch_lower.runtime.refusals import ArgumentRefusals
from hatch_lower.runtime.torch_arrays import ARRAYS

# the part of a key before the path; a dictionary's key in the path may also hold a slash, but only after a bracket
CASE = re.compile(r"(?:(?P<method>[^/\[]*)/)?(?P<case>[0-9]{1,18})/")
WRITE = "write the file with `safetensors.torch.save_file`, with keys like `forward/0/image`: method, case and input"


class Sample(Frozen):
    name: str  # for messages: `samples.safetensors, case 3`
    values: Mapping[str, Tensor]  # by path; mapped from the file


def sample_paths(method: MethodPlan) -> list[str]:
    """Return the paths of the inputs in a method's samples: tensors and integers."""
    paths = zip(input_paths(method), method.inputs, strict=True)
    return [path for path, entry in paths if not isinstance(entry, LiteralInput)]


def read_samples(path: Path, methods: Mapping[str, Sequence[str]]) -> Mapping[str, tuple[Sample, ...]]:
    """Return the samples of each method, by case. Raises `SampleError`. `methods`: the paths of `sample_paths`."""
    found: dict[str, dict[int, dict[str, Tensor]]] = {name: {} for name in methods}
    for key, tensor in read_sample_file(path).items():
        head = CASE.match(key)
        method, case, leaf = (None, 0, key) if head is None else (head["method"], int(head["case"]), key[head.end() :])
        where = f"{path.name}: {key!r:.80}"
        for name in methods_with(where, method, leaf, methods):
            values = found[name].setdefault(case, {})
            if leaf in values:
                raise SampleError(
                    "a sample file has two values for the same input",
                    where=where,
                    found=f"another key for `{leaf}` of `{name}` in case {case}",
                    hint="name methods either in all keys of this case or in no key",
                )
            values[leaf] = tensor
    if not any(found.values()):
        raise SampleError("a sample file is empty", where=str(path), hint=WRITE)
    for name, cases in found.items():
        for case, values in cases.items():
            if missing := [leaf for leaf in methods[name] if leaf not in values]:
                raise SampleError(
                    "a sample lacks an input of the method",
                    where=f"{path.name}, case {case} of `{name}`",
                    found=f"no `{missing[0]}`",
                    hint=f"write all of {', '.join(f'`{name}/{case}/{leaf}`' for leaf in methods[name])}; a key"
                    " without a method is for every method with an input of that path",
                )
    return {
        name: tuple(Sample(f"{path.name}, case {case}", values) for case, values in sorted(cases.items()))
        for name, cases in found.items()
    }


def read_sample_file(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise SampleError("the sample file does not exist", where=str(path), hint=WRITE)
    try:
        found: Mapping[str, Tensor] = stored_arrays(ConstantsFile(path, str(path)), str(path), ARRAYS)
    except ProgramError as error:
        raise SampleError("a sample file cannot be read", where=error.where, found=error.found, hint=WRITE) from error
    return found


def methods_with(where: str, method: str | None, leaf: str, methods: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the methods that a key is for; `method` is the method in the key, or `None`."""
    if method is not None and method not in methods:
        raise SampleError("a sample is for an unknown method", where=where, hint=nearest(method, methods))
    owners = [name for name in methods if method in (None, name) and leaf in methods[name]]
    if not owners:
        known = dict.fromkeys(known for name in methods if method in (None, name) for known in methods[name])
        raise SampleError(
            "a sample is for an unknown input",
            where=where,
            found=f"`{leaf}`{f' of `{method}`' if method is not None else ''}",
            hint=f"{nearest(leaf, known)}; keys are `METHOD/CASE/INPUT`, `CASE/INPUT` or `INPUT`",
        )
    return owners


def sample_leaves(name: str, method: MethodPlan, sample: Sample) -> list[object]:
    """Return the flat inputs of a sample for a packaged method. Raises `SampleError` if the sample does not fit."""
    paths = enumerate(input_paths(method))
    tensors = {f"{name}/input/{index}": sample.values[path] for index, path in paths if path in sample.values}
    leaves, reason = input_leaves(name, method, tensors, ARRAYS)
    if reason:
        raise misfit(sample.name, reason, "write the sample with the inputs that the method was exported for")
    check_leaves(name, method, leaves, sample.name)
    return leaves


def check_leaves(name: str, method: MethodPlan, leaves: Sequence[object], where: str) -> None:
    try:
        ArgumentRefusals(name, method, ARRAYS).check_values(*leaves)
    except InputError as error:
        raise misfit(where, f"{error.found}; {error.what}", error.hint) from error


def misfit(where: str, found: str, hint: str) -> SampleError:
    return SampleError("a sample does not fit the method", where=where, found=found, hint=hint)
