"""Real inputs: the calls of a model's methods that its setting `verify-inputs` names.

Real inputs are read and checked before lowering. A file has the format of `runtime.samples`; a function is called with
the name of each method, and returns or yields the arguments of a call per item.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings, is_sample_file
from hatch_lower.errors import EntryPointError, LowerError, SampleError
from hatch_lower.exir.graph.tensors import tensor_digest
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.arguments import LiteralInput
from hatch_lower.format.plan import MethodPlan
from hatch_lower.format.tree import count_leaves
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.discover import EntryPoint, find_value, raised_error
from hatch_lower.pipeline.emit.signature import signature_of
from hatch_lower.pipeline.random_inputs import InputCase, case_of, copied_tensor, example_case
from hatch_lower.pipeline.sandbox import export_guard
from hatch_lower.runtime.samples import check_leaves, read_samples, sample_leaves, sample_paths
from hatch_lower.runtime.torch_private import tensors

MOST = 1000  # limit of calls that a function may give for a method: a generator may have no end
GIVE = "yield a tuple of the positional arguments, or a dict of all arguments by name, for each call"


class RealInputs(Frozen):
    source: str  # the setting's text: `samples.safetensors`, `digits.data:samples`
    cases: tuple[InputCase, ...]

    def digest(self) -> str:
        return digest_of([[leaf_text(leaf) for leaf in case.leaves()] for case in self.cases])

    def notes(self) -> Iterator[str]:
        """Yield warnings about inputs that weaken the comparison, such as NaN."""
        odd = [case.name for case in self.cases if any(map(has_nan, case.leaves()))]
        if odd:
            others = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            yield f"{odd[0]}{others} contain NaN: outputs that are NaN on both sides count as equal"


def leaf_text(leaf: object) -> str:
    return tensor_digest(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)


def has_nan(leaf: object) -> bool:
    if not isinstance(leaf, torch.Tensor) or not (leaf.dtype.is_floating_point or leaf.dtype.is_complex):
        return False
    return bool((leaf != leaf).any()) if leaf.element_size() > 1 else bool(leaf.float().isnan().any())


def read_real_inputs(
    model: ModelSettings, source: CapturedModel, root: Path, setting: str = "verify-inputs"
) -> dict[str, RealInputs]:
    """Return a setting's real inputs by method, for the methods that have any; raise `SampleError` without any."""
    given, methods = getattr(model, setting.replace("-", "_")), source.methods
    entry = EntryPoint(model.name, given, root, setting=setting)
    cases = file_cases(root / given, methods) if is_sample_file(given) else function_cases(entry, methods)
    found = {name: RealInputs(given, own) for name, own in cases.items() if own}
    if not found:
        raise SampleError(
            "no method has real inputs",
            where=f"model `{model.name}`, `{setting}`",
            found=f"`{given}` has no inputs",
            hint=GIVE if not is_sample_file(given) else f"write inputs under keys such as `{methods[0].name}/0/…`",
        )
    return found


def file_cases(path: Path, methods: Sequence[CapturedMethod]) -> dict[str, tuple[InputCase, ...]]:
    signatures = {method.name: method_signature(method) for method in methods}
    samples = read_samples(path, {name: sample_paths(each) for name, each in signatures.items()})
    return {
        method.name: tuple(
            case_of(method, sample.name, own_leaves(sample_leaves(method.name, signatures[method.name], sample)))
            for sample in samples[method.name]
        )
        for method in methods
    }


def function_cases(entry: EntryPoint, methods: Sequence[CapturedMethod]) -> dict[str, tuple[InputCase, ...]]:
    with export_guard(entry.model), process_restored():
        function = find_value(entry)
        if not callable(function):
            found = f"a value of type `{type(function).__name__}`"
            hint = f"name a function that takes the name of a method; {GIVE}"
            raise SampleError("real inputs must come from a function", where=entry.where(), found=found, hint=hint)
        return {method.name: cases_from_function(method, function, entry) for method in methods}


def cases_from_function(
    method: CapturedMethod, function: Callable[[str], object], entry: EntryPoint
) -> tuple[InputCase, ...]:
    try:
        return tuple(calls_of(method, function(method.name), entry))
    except (LowerError, KeyboardInterrupt):
        raise
    except BaseException as error:
        refused = raised_error(error, entry, f"the function gave no real inputs for method `{method.name}`")
        hint = (
            refused.hint or f"the build calls `{entry.export}` with the name of a method as the only argument; {GIVE}"
        )
        raise EntryPointError(refused.what, where=refused.where, found=refused.found, hint=hint) from error


def calls_of(method: CapturedMethod, value: object, entry: EntryPoint) -> Iterator[InputCase]:
    """Yield the calls that a function gives; a copy of each, as the next call may reuse the memory."""
    if not isinstance(value, Iterable) or isinstance(value, str | torch.Tensor):
        what = "a function of real inputs returned a value that is not a sequence of calls"
        raise SampleError(what, where=entry.where(), found=f"a value of type `{type(value).__name__}`", hint=GIVE)
    for number, call in enumerate(value):
        if number == MOST:
            found = f"more than {MOST} calls of `{method.name}`"
            raise SampleError("too many real inputs", where=entry.where(), found=found, hint="give fewer calls")
        yield call_case(method, f"{entry.export}, call {number}", call)


def call_case(method: CapturedMethod, name: str, call: object) -> InputCase:
    """Return the checked arguments of a call; arguments that the graph is specialized for may be omitted."""
    where, example, known = f"{name}, method `{method.name}`", example_case(method), method_signature(method)
    arguments = example.named(example.args, example.kwargs)
    fixed = fixed_parameters(known)
    given: dict[str, object] = {}
    if isinstance(call, Mapping):
        given = {str(key): value for key, value in call.items()}
    elif isinstance(call, tuple | list):
        given = dict(zip([*example.parameters, *range(len(call))], call, strict=False))
    else:
        found = f"a value of type `{type(call).__name__}`"
        raise SampleError("a real input is not a call", where=where, found=found, hint=GIVE)
    missing = [name for name in arguments if name not in given and name not in fixed]
    if missing or given.keys() - arguments.keys():
        listed = ", ".join(f"`{name}`" for name in arguments)
        found = f"no `{missing[0]}`" if missing else f"{len(call)} arguments; the method takes {listed}"
        raise SampleError("a call has other arguments than its method", where=where, found=found, hint=GIVE)
    values = {**arguments, **given}
    for parameter, value in values.items():
        if tensors.tree_flatten(value)[1] != tensors.tree_flatten(arguments[parameter])[1]:
            raise SampleError(
                "an argument has another structure than the example's",
                where=f"{where}, `{parameter}`",
                found=f"a value of type `{type(value).__name__}`",
                hint="nest containers and tensors as in the example inputs of the method",
            )
    leaves = tensors.tree_leaves(
        (tuple(values[name] for name in example.parameters), {name: values[name] for name in example.kwargs})
    )
    check_leaves(method.name, known, leaves, where)
    return case_of(method, name, own_leaves(leaves))


def own_leaves(leaves: Iterable[object]) -> list[object]:
    # copies, so that no change of the file and no model code alters the compared inputs, which the key contains
    return [copied_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def fixed_parameters(signature: MethodPlan) -> set[str]:
    """Return the parameters whose leaves are all literals that the graph is specialized for."""
    entries = iter(signature.inputs)
    held = {
        parameter.name: list(itertools.islice(entries, count_leaves(parameter.tree)))
        for parameter in signature.parameters
    }
    return {name for name, each in held.items() if all(isinstance(entry, LiteralInput) for entry in each)}


def method_signature(method: CapturedMethod) -> MethodPlan:
    return signature_of(method.program, method.parameters, method.dimensions, f"method `{method.name}`")
