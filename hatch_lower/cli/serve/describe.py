"""The description of a method for a server: names, dtypes and shapes, and the most rows of a call with joined requests.

The method is called here with its packaged example inputs, which gives dtypes and shapes of the outputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hatch_lower.errors import ProgramError
from hatch_lower.format.arguments import LiteralInput, TensorInput
from hatch_lower.format.constants import holds_state
from hatch_lower.format.expression import symbols_in
from hatch_lower.format.graph import DelegateCall, walk_instructions
from hatch_lower.format.manifest import Manifest
from hatch_lower.format.plan import MethodPlan, Plan
from hatch_lower.format.served import ANY, ServedMethod, ServedTensor
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.serving.tensors import checked_dtype, output_names, output_positions, served_inputs

if TYPE_CHECKING:
    from hatch_lower.runtime.loaded import LoadedModel
    from hatch_lower.runtime.serving.method import Arrays, MethodCaller

MOST_ROWS = 1024  # of a batch without a largest size
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
VERSION = r"[A-Za-z0-9.!+-]+"


class Owner(Frozen):
    """The packaged model of a method."""

    distribution: str
    version: str
    model: str
    recipe: str
    device: str
    plan: Plan


class Described(Frozen):
    served: ServedMethod
    owner: Owner
    inputs: Mapping[str, Any]  # examples as NumPy arrays, by name
    outputs: Mapping[str, Any]  # of a call with the examples
    not_batched: str  # the reason why requests are not joined; empty if joined

    @property
    def method(self) -> MethodPlan:
        return self.owner.plan.methods[self.served.method]


def owner_of(manifest: Manifest, model: str, recipe: str, loaded: LoadedModel) -> Owner:
    """Return the owner of a loaded model's methods. Raises `ProgramError` for names not allowed in a server's files."""
    from hatch_lower.runtime.loaded import loaded_plan

    for noun, name in (("distribution", manifest.distribution), ("version", manifest.version), ("recipe", recipe)):
        if re.fullmatch(f"{NAME.pattern}|{VERSION}", name) is None:
            raise ProgramError(
                f"the name of a {noun} is not allowed in a server's files",
                found=f"`{name}`",
                hint="build the wheel again",
            )
    plan = loaded_plan(loaded)
    assert plan is not None, "a model of a wheel has a plan"
    return Owner(manifest.distribution, manifest.version, model, recipe, loaded.device, plan)


def served_name(model: str, method: str) -> str:
    """Return the name of a server's model; raise `ProgramError` for a name that servers do not allow."""
    name = model if method == "forward" else f"{model}_{method}"
    if NAME.fullmatch(name) is None:
        raise ProgramError(
            "the name of a model is not allowed in a server",
            found=f"`{name}`",
            hint="begin the name with a letter of ASCII or a digit, and use only letters, digits, `_`, `.` and `-`",
        )
    return name


def describe_served(owner: Owner, method: str, loaded: LoadedModel, tensors: Mapping[str, Any]) -> Described:
    """Describe a method to a server. `tensors` are the packaged example inputs, of the model's own array library.

    Raises:
        ProgramError: if servers have no dtype for a tensor, the method changes state, or its example inputs are not
            packaged.
        LowerError: if the call fails.
    """
    from hatch_lower.runtime.check import make_call_arguments
    from hatch_lower.runtime.containers import take_apart
    from hatch_lower.runtime.leaves import input_leaves
    from hatch_lower.runtime.loaded import arrays_of
    from hatch_lower.runtime.texts import in_numpy

    plan = owner.plan.methods[method]
    name, where = served_name(owner.model, method), f"model `{owner.model}`, method `{method}`"
    refuse_state(owner.plan, plan, where)
    arrays = arrays_of(loaded)
    inputs = served_inputs(plan, where)
    leaves, reason = input_leaves(method, plan, tensors, arrays)
    if reason:
        raise missing_examples(plan, method, tensors, reason, where)
    arguments, keywords = make_call_arguments(plan, leaves, arrays)
    leaves_of = take_apart(method, plan.outputs, "output")
    results = leaves_of(loaded.methods[method](*arguments, **keywords))
    results = [results[position] for position in output_positions(plan)]
    if not results:
        raise ProgramError(
            "the method returns no tensor and no number",
            where=where,
            found="no outputs, or only `None` and texts",
            hint="choose other methods with `--method`, or another model with `--model`",
        )
    for leaf in results:
        is_tensor = isinstance(leaf, arrays.kind)
        dtype = arrays.dtype_name(leaf) if is_tensor else in_numpy(leaf, arrays).dtype.name
        checked_dtype(dtype, f"{where}, an output")
    given = [
        in_numpy(leaf, arrays)
        for entry, leaf in zip(plan.inputs, leaves, strict=True)
        if not isinstance(entry, LiteralInput)
    ]
    found = [in_numpy(leaf, arrays) for leaf in results]
    names = output_names(plan, {tensor.name for tensor in inputs})
    is_fixed = not plan.symbols
    outputs = tuple(
        ServedTensor(each, array.dtype.name, array.shape if is_fixed else (ANY,) * array.ndim)
        for each, array in zip(names, found, strict=True)
    )
    served = ServedMethod(name, owner.distribution, owner.version, owner.model, owner.recipe, method, inputs, outputs)
    examples = dict(zip((tensor.name for tensor in inputs), given, strict=True))
    described = Described(served, owner, examples, dict(zip(names, found, strict=True)), "")
    return batched(described, loaded)


def missing_examples(
    plan: MethodPlan, method: str, tensors: Mapping[str, Any], reason: str, where: str
) -> ProgramError:
    needed = [f"{method}/input/{at}" for at, entry in enumerate(plan.inputs) if isinstance(entry, TensorInput)]
    return ProgramError(
        "the method cannot be described to a server without its example inputs",
        where=where,
        found=reason,
        hint="export a method that takes the integer as a tensor, or for one value"
        if tensors.keys() >= set(needed)
        else "build the wheel with a larger `check-megabytes`",
    )


def refuse_state(plan: Plan, method: MethodPlan, where: str) -> None:
    changing = {constant.storage for constant in plan.constants.values() if constant.mutable}
    called = [
        plan.delegates[instruction.delegate]
        for _, instruction in walk_instructions(method.graph)
        if isinstance(instruction, DelegateCall)
    ]
    own = any(
        holds_state(each) or changing & {plan.constants[name].storage for name in each.constants} for each in called
    )
    changed = [f"`{name}`" for name, _ in method.mutations]
    if method.input_mutations:
        changed.append("its arguments")
    if own or changed:
        raise ProgramError(
            "the method changes state, which all clients of a server would share",
            where=where,
            found=", ".join(changed) or "state in a delegate",
            hint="choose other methods with `--method`, or another model with `--model`; or export a method that takes "
            "the state and returns it",
        )


def batched(described: Described, loaded: LoadedModel) -> Described:
    """Return the description with the most rows of joined requests, or with the reason against joining requests."""
    method, served = described.method, described.served
    symbol = batch_symbol(method)
    if symbol is None:
        reason = "its tensors do not all have the same dynamic first dimension, which starts at 1 or 0"
    else:
        reason = joined_reason(described, loaded)
    if symbol is None or reason:
        return replace(described, not_batched=reason)
    outputs = served.outputs
    if len(method.symbols) == 1:  # then other sizes are fixed
        shapes = {name: (ANY, *array.shape[1:]) for name, array in described.outputs.items()}
        outputs = tuple(replace(each, shape=shapes[each.name]) for each in outputs)
    rows = min(method.symbols[symbol].max or MOST_ROWS, MOST_ROWS)
    return replace(described, served=replace(served, outputs=outputs, batch=rows))


def batch_symbol(method: MethodPlan) -> str | None:
    """Return the symbol of the first dimension of all inputs, if the symbol is in no other dimension."""
    entries = [entry for entry in method.inputs if not isinstance(entry, LiteralInput)]
    if not entries or not all(isinstance(entry, TensorInput) and entry.shape for entry in entries):
        return None
    shapes = [entry.shape for entry in entries if isinstance(entry, TensorInput)]
    first = shapes[0][0]
    if not isinstance(first, str) or any(shape[0] != first for shape in shapes):
        return None
    if any(first in symbols_in(size) for shape in shapes for size in shape[1:]):
        return None
    symbol = method.symbols[first]
    return first if symbol.min <= 1 and (symbol.max is None or symbol.max > 1) else None


def joined_reason(described: Described, loaded: LoadedModel) -> str:
    """Compare a call with two different rows with a call for each row; return the reason against joining requests."""
    import numpy as np

    from hatch_lower.runtime.serving.method import MethodCaller

    if any(not array.ndim for array in described.outputs.values()):
        return "an output has no dimensions"
    if any(not len(array) for array in described.inputs.values()):
        return "the example inputs have no rows"
    caller = MethodCaller(described.served, loaded)
    failed = "the example inputs are too alike to tell whether rows of a call influence each other"
    for numbers in (np.random.default_rng(0), None):
        other = {name: another_row(array, numbers) for name, array in described.inputs.items()}
        if any(not np.array_equal(array[:1], other[name]) for name, array in described.inputs.items()):
            try:
                return row_influence(caller, described.inputs, other)
            except Exception as error:  # the values may be out of the method's range, and an engine may raise anything
                failed = f"a call with other rows fails: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return failed


def row_influence(caller: MethodCaller, examples: Arrays, other: Arrays) -> str:
    """Compare a call with two rows with a call for each row; return the difference, or no text."""
    import numpy as np

    from hatch_lower.runtime.numbers import Tolerance, number_difference

    one = {name: array[:1] for name, array in examples.items()}
    both = caller.call({name: np.concatenate([one[name], other[name]]) for name in one})
    for position, row in enumerate((one, other)):
        for name, alone in caller.call(row).items():
            joined = both[name][position : position + 1]
            if alone.shape[0] != 1 or both[name].shape[0] != 2 or alone.shape != joined.shape:
                return f"the output `{name}` has another number of rows than the inputs"
            tolerance = Tolerance().widened([alone.dtype.name])
            if number_difference(alone, joined, tolerance)[0]:
                return f"rows of a call influence each other in the output `{name}`"
    return ""


def another_row(rows: Any, numbers: Any) -> Any:
    """Return a row of other values than the first: the next row, or the same values in another order.

    With a generator of `numbers`, floats are larger than in the first row.
    """
    import numpy as np

    first, following = rows[:1], rows[1:2]
    if rows.dtype.kind == "f" and numbers is not None:
        return (first + numbers.random(first.shape) / 2).astype(rows.dtype)
    if len(following) and not np.array_equal(first, following):
        return following
    return np.roll(first.reshape(-1), 1).reshape(first.shape)
