"""Methods that one engine computes whole: a server's own backend can run the engine's model without hatch-lower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_lower.backends.call_map import call_result
from hatch_lower.cli.serve.describe import Described
from hatch_lower.format.arguments import TensorInput, Value, is_contiguous
from hatch_lower.format.constants import DelegateEntry
from hatch_lower.format.graph import DelegateCall, PythonCall
from hatch_lower.format.plan import MethodPlan
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.files import PackagedFolder

ENGINE = "onnxruntime"


class WholeModel(Frozen):
    """A delegate that computes a method, and the public names of the values in its model."""

    entry: DelegateEntry
    names: Mapping[str, str]


def find_whole(described: Described) -> WholeModel | str:
    """Return the delegate that computes a method alone, or the reason why a server's backend must not run it."""
    method = described.method
    calls = [each for each in method.graph.instructions if not isinstance(each, PythonCall) or each.op != "getitem"]
    if len(calls) != 1 or not isinstance(calls[0], DelegateCall):
        return f"the method has {len(calls)} instructions, and a server's backend runs one delegate"
    entry = described.owner.plan.delegates[calls[0].delegate]
    if reason := engine_reason(entry):
        return reason
    if reason := sizes_reason(described):
        return reason
    names = served_value_names(described, calls[0], entry)
    if names is None:
        return "inputs or outputs of the method are not those of the delegate"
    return WholeModel(entry, names)


def engine_reason(entry: DelegateEntry) -> str:
    if entry.backend != ENGINE:
        return f"the run half of `{entry.backend}` computes with settings of its own"
    providers = entry.info.get("providers")
    if providers != ["CPUExecutionProvider"]:
        return "the recipe chooses execution providers"
    return ""


def sizes_reason(described: Described) -> str:
    """Return the reason why a server would not refuse all tensors that the method refuses."""
    served, symbols = described.served, described.method.symbols
    if len(symbols) > (1 if served.batch else 0):
        return "the runtime checks dynamic sizes, which the server does not"
    tensors = [entry for entry in described.method.inputs if isinstance(entry, TensorInput)]
    if len(tensors) != len(served.inputs):
        return "the method takes integers"
    if not all(map(is_contiguous, tensors)):
        return "the method takes tensors with other strides"
    if any(0 in tensor.shape for tensor in (*served.inputs, *served.outputs)):
        return "a tensor has the size 0, which Triton does not know"
    least = 2 if served.batch else 1
    if any(len(tensor.shape) < least for tensor in (*served.inputs, *served.outputs)):
        return "a tensor has no dimensions besides the batch's"
    return ""


def served_value_names(described: Described, call: DelegateCall, entry: DelegateEntry) -> dict[str, str] | None:
    """Return the public names of the model's inputs and outputs; `None` if the delegate's tensors are others."""
    served = described.served
    inputs = argument_names(described, call, entry.info)
    outputs = result_names(described.method, [tensor.name for tensor in served.outputs], entry.info)
    if sorted(inputs.values()) != sorted(tensor.name for tensor in served.inputs):
        return None
    return {**inputs, **outputs} if len(outputs) == len(served.outputs) else None


def argument_names(described: Described, call: DelegateCall, info: Mapping[str, Any]) -> dict[str, str]:
    """Return the method's inputs by the model's names; an input that the method computes has the name ""."""
    pairs = zip(described.method.graph.inputs, described.method.inputs, strict=True)
    slots = [slot for slot, each in pairs if isinstance(each, TensorInput)]
    public = dict(zip(slots, (tensor.name for tensor in described.served.inputs), strict=True))
    given = {position: call.args[position] for position in info["passed"]}
    return {f"x{at}": public.get(each.slot, "") if isinstance(each, Value) else "" for at, each in given.items()}


def result_names(method: MethodPlan, names: Sequence[str], info: Mapping[str, Any]) -> dict[str, str]:
    """Return the method's outputs by the model's names; empty if the model has other results."""
    items = {each.out: each.args[1] for each in method.graph.instructions if isinstance(each, PythonCall)}
    found: dict[str, str] = {}
    for value, name in zip(method.graph.outputs, names, strict=True):
        item = items.get(value.slot) if isinstance(value, Value) else None
        result = info["outputs"][item] if type(item) is int else None
        if type(result) is not int:
            return {}
        found[f"y{result}"] = name
    return found if len(found) == len({*map(repr, map(call_result, info["outputs"]))}) else {}


def write_whole(folder: Path, packaged: PackagedFolder, described: Described, whole: WholeModel) -> str:
    """Write the engine's model into a folder and run the model; return the reason why the model is not served."""
    from hatch_lower.backends.onnxruntime.standalone import difference, has_integer_products, write_standalone
    from hatch_lower.runtime.load import open_constants
    from hatch_lower.runtime.numpy_arrays import ARRAYS

    model = (packaged.path / whole.entry.file).read_bytes()
    if has_integer_products(model):
        return "the model multiplies integers, for which the run half sets ONNX Runtime to exact products"
    plan = described.owner.plan
    constants = open_constants(packaged, described.owner.model)
    contents = () if constants is None else constants.spans(plan.storages)
    spans = dict(enumerate(map(ARRAYS.span, plan.storages, contents)))
    bound: Any = whole.entry.info["bound"]
    weights = {position: ARRAYS.view(plan.constants[whole.entry.constants[position]], spans) for position in bound}
    write_standalone(folder, model, whole.names, weights)
    return difference(folder, described.inputs, described.outputs)
