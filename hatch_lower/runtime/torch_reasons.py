"""The parts of a plan that need torch: all except delegates that take NumPy arrays and operators that NumPy has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from hatch_lower.format.arguments import Input, LiteralInput, Special, TensorInput, constants_in, literal_text
from hatch_lower.format.graph import (
    DelegateCall,
    Instruction,
    OpCall,
    arguments_in,
    list_arguments,
    outputs_in,
    walk_instructions,
)
from hatch_lower.format.plan import MethodPlan, Plan, input_paths
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.numpy_arrays import OTHERS
from hatch_lower.runtime.numpy_operators import CONVERSION, runs_on_numpy

NUMPY = "numpy>=1.26"
ML_DTYPES = "ml_dtypes>=0.5"  # the first version with all 8-bit floats of torch
TORCH = "torch>=2.11"
PLAN_READER = "hatch-lower>=0.1"  # the first version that can read the plans of this version

UNKNOWN = "complex32"  # torch's only dtype that neither NumPy nor `ml_dtypes` has


class TorchReason(Frozen):
    method: str  # empty if the recipe itself needs torch
    path: str  # of the instruction, as in a debug map; empty if no instruction is the reason
    what: str


def torch_reasons(plan: Plan, numpy_delegates: Collection[str], imports: Sequence[str] = ()) -> tuple[TorchReason, ...]:
    """Return the reasons why a program cannot run without torch; empty if torch is not needed."""
    # `numpy_delegates`: backends that take and return NumPy arrays; `imports`: modules that register torch operators
    reasons = [TorchReason("", "", f"the module `{module}`, which registers torch operators") for module in imports]
    for name, method in plan.methods.items():
        reasons += [TorchReason(name, "", what) for what in reasons_of_inputs(method)]
        # NumPy converts no array of a dtype that it has from `ml_dtypes`
        converts = OTHERS.isdisjoint(dtypes_of(method, plan))
        reasons += [
            TorchReason(name, path, what)
            for path, instruction in walk_instructions(method.graph)
            for what in reasons_of_instruction(instruction, plan, numpy_delegates, converts=converts)
        ]
        if any(plan.constants[constant].dtype == UNKNOWN for constant in constants_in(outputs_in(method.graph))):
            reasons.append(TorchReason(name, "", f"an output of dtype {UNKNOWN}"))
    return tuple(reasons)


def reasons_of_inputs(method: MethodPlan) -> Iterator[str]:
    for path, entry in zip(input_paths(method), method.inputs, strict=True):
        if isinstance(entry, LiteralInput) and isinstance(entry.value, Special):
            yield f"the input `{path}`, which is {literal_text(entry.value)}"
        if isinstance(entry, TensorInput) and entry.dtype == UNKNOWN:
            yield f"the input `{path}` of dtype {UNKNOWN}"


def reasons_of_instruction(
    instruction: Instruction, plan: Plan, numpy_delegates: Collection[str], *, converts: bool
) -> Iterator[str]:
    match instruction:
        case OpCall():
            if not runs_on_numpy(instruction) or (instruction.op == CONVERSION and not converts):
                yield f"`{instruction.op}`"
        case DelegateCall():
            backend = plan.delegates[instruction.delegate].backend
            if backend not in numpy_delegates:
                yield f"the delegate `{backend}`"
            elif any(entry.dtype == UNKNOWN for entry in list_call_tensors(instruction)):
                yield f"{UNKNOWN} in a call of the delegate `{backend}`"
    if any(plan.constants[name].dtype == UNKNOWN for name in constants_in(list_arguments(instruction))):
        yield f"a constant of dtype {UNKNOWN}"


def array_requirements(plan: Plan, *, needs_torch: bool) -> tuple[str, ...]:
    """Return the requirements of a program except its delegates' libraries: torch, or NumPy and perhaps `ml_dtypes`."""
    if needs_torch:  # without NumPy: a delegate's library that calls NumPy requires NumPy itself
        return (TORCH,)
    dtypes = {dtype for method in plan.methods.values() for dtype in dtypes_of(method, plan)}
    return (NUMPY,) if OTHERS.isdisjoint(dtypes) else (ML_DTYPES, NUMPY)


def dtypes_of(method: MethodPlan, plan: Plan) -> Iterator[str]:
    """Yield the dtypes of a method's arrays, except constants that are only bound to delegates."""
    entries = [entry for entry in method.inputs if isinstance(entry, TensorInput)]
    for _, instruction in walk_instructions(method.graph):
        entries += list_call_tensors(instruction) if isinstance(instruction, DelegateCall) else ()
    yield from (entry.dtype for entry in entries)
    yield from (plan.constants[name].dtype for name in constants_in(arguments_in(method.graph)))


def list_call_tensors(call: DelegateCall) -> Iterator[TensorInput]:
    entries: Iterable[Input | None] = (*call.inputs, *call.outputs)
    return (entry for entry in entries if isinstance(entry, TensorInput))
