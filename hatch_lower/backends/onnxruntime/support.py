"""The operations that ONNX Runtime computes as eager does.

`operators.json` lists the combinations of dtypes for which an operator's translation gives eager's results on ONNX
Runtime's CPU kernels. `tools/onnxruntime_operators.py` writes the file: the tool runs calls of every operator that
torch's exporter translates.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from hatch_lower.backends.engine_partitioner import (
    INTEGERS,
    ZERO_FACTOR,
    why_not_dimension,
    why_not_target,
    why_not_tensors,
)
from hatch_lower.backends.interpolation import NEAREST, why_not_interpolation, why_not_places
from hatch_lower.backends.onnxruntime.attention import is_attended
from hatch_lower.exir.graph.nodes import MAY_BE_ZERO, Ranges, may_be_zero, result_tensors
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of
from hatch_lower.runtime.torch_private.quantized import quantized_decomposed
from hatch_lower.runtime.torch_private.recurrent import RECURRENT
from hatch_lower.runtime.torch_private.tensors import tree_leaves

# ONNX Runtime's CPU kernels support almost no operator in bfloat16
DTYPES = (*INTEGERS, torch.float16, torch.float32, torch.float64)

OPERATORS = Path(__file__).with_name("operators.json")
SIZES = (operator.add, operator.sub, operator.mul, operator.floordiv)


def is_size(node: Node) -> bool:
    """Return whether a node computes a size by an operation that a model can hold."""
    value, target = node.meta.get("val"), torch_operator(node.target)
    known = target is torch.ops.aten.sym_size.int or target in SIZES
    return known and isinstance(value, torch.SymInt) and not free_unbacked_symbols(value)


def why_not_onnxruntime(
    node: Node, exclude: frozenset[str], *, finite: bool, ranges: Ranges, on_cpu: bool = True
) -> str:
    op = torch_operator(node.target)
    if reason := why_not_target(node, exclude):
        return reason
    if not isinstance(op, OpOverload):
        return f"`{getattr(op, '__name__', op)}` computes no tensor"
    if torch.Tag.data_dependent_output in op.tags or any(
        free_unbacked_symbols(tensor) for tensor in result_tensors(node)
    ):
        return f"the result of `{op}` has a size that depends on its input's contents"
    if op in FIRST_ONLY and any(user.args[1:] != (0,) for user in node.users):
        return f"a result of `{op}` beside the first is used"
    known = operator_table(finite=True).get(str(op))
    if known is None:
        return f"ONNX Runtime is not known to give eager's results for `{op}` with any dtypes"
    if str(op) in not_empty() and any(
        may_be_zero(size, ranges)
        for source in (node, *node.all_input_nodes)
        for tensor in result_tensors(source)
        for size in tensor.shape
    ):
        return f"ONNX Runtime does not give eager's results for `{op}` of tensors without elements, and {MAY_BE_ZERO}"
    reason = why_not_values(node) or why_not_arguments(op, node.args, node.kwargs)
    reason = reason or why_not_interpolation(node, ranges, doubles=True) or why_not_places(node, corners=True)
    reason = reason or why_not_dtypes(op, node, known) or why_not_limits(node)
    if not reason and named_arguments(node).get("attn_mask") is not None and not (on_cpu and is_attended(node, ranges)):
        return "masked attention is taken whole on the CPU only, as float32, of tensors that always have elements"
    if not reason and not finite and differs_for_nan(node):
        return f"ONNX Runtime's `{op}` gives other results than eager for NaN or infinity, and `finite-only` is false"
    return reason


def differs_for_nan(node: Node) -> bool:
    """Return whether an operation is in the table for finite numbers only."""
    op = torch_operator(node.target)
    if str(op) not in operator_table(finite=True):  # a size
        return False
    exact = operator_table(finite=False).get(str(op), frozenset())
    return bool(why_not_dtypes(op, node, exact))


def why_not_values(node: Node) -> str:
    for source in (node, *node.all_input_nodes):
        value = source.meta.get("val")
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            return f"`{source.name}` is a number that is known at run time only"
        if isinstance(value, torch.SymInt) and free_unbacked_symbols(value):
            return f"`{source.name}` is a size that is known at run time only"
    return why_not_tensors(node, DTYPES) or why_not_dimension(node)


def why_not_limits(node: Node) -> str:
    tensors = [tensor for source in (node, *node.all_input_nodes) for tensor in result_tensors(source)]
    return why_not_digits(tensors, tree_leaves((node.args, node.kwargs)))


def why_not_digits(tensors: Sequence[torch.Tensor], values: Sequence[object]) -> str:
    """Return why a model cannot hold a number among values, beside tensors."""
    if all(tensor.dtype != torch.float64 for tensor in tensors):
        return ""
    for value in values:
        if isinstance(value, float) and not math.isnan(value) and not is_float32(value):
            return f"the model would hold {value} with the digits of float32"
    return ""


def is_float32(number: float) -> bool:
    return torch.tensor(number, dtype=torch.float32).item() == number


def why_not_zero_points(node: Node, constants: Mapping[Node, torch.Tensor]) -> str:
    """Return why ONNX cannot hold a node's zero points in the integers' dtype; `constants` never change."""
    is_ours = str(torch_operator(node.target)).startswith("quantized_decomposed.")
    given = named_arguments(node) if is_ours else {}
    points = given.get("zero_points", given.get("zero_point"))
    if not isinstance(points, Node):
        return ""
    if points in constants:
        values, limits = constants[points], torch.iinfo(given["dtype"])
        if values.numel() and not limits.min <= values.min() <= values.max() <= limits.max:
            return f"`{points.name}` holds zero points outside of `{dtype_name(given['dtype'])}`"
        convolved = any(torch_operator(user.target) is torch.ops.aten.convolution.default for user in node.users)
        if convolved and values.numel() and values.min() != values.max():
            return f"`{points.name}` holds different zero points for the channels of a convolution"
        return ""
    maker = points.args[0] if points.target is operator.getitem else None
    chosen = isinstance(maker, Node) and torch_operator(maker.target) is quantized_decomposed.choose_qparams.tensor
    return "" if chosen else f"`{points.name}` holds zero points that are known at run time only"


def why_not_bias(node: Node, constants: Mapping[Node, torch.Tensor]) -> str:
    """Return why a convolution of integers could not sum its products and its bias in 32 bits."""
    if torch_operator(node.target) is not torch.ops.aten.convolution.default:
        return ""
    image, weight, bias = (each if isinstance(each, Node) else None for each in node.args[:3])
    scale, steps = scale_of(image, constants), scale_of(weight, constants)
    if weight is None or bias is None or bias not in constants or scale is None or steps is None:
        return ""
    values, products = constants[bias], math.prod(weight.meta["val"].shape[1:]) * 255 * 255
    if steps.numel() not in (1, values.numel()) or products >= 2**31:  # computed in floating point
        return ""
    greatest = (values.double() / (scale.double() * steps.double())).abs().max()
    return "" if greatest + products < 2**31 else f"`{bias.name}` is not a 32-bit multiple of the scale of the products"


def scale_of(value: Node | None, constants: Mapping[Node, torch.Tensor]) -> torch.Tensor | None:
    if value is None or not str(torch_operator(value.target)).startswith("quantized_decomposed.dequant"):
        return None
    given = named_arguments(value)
    scale = given.get("scales", given.get("scale"))
    return constants.get(scale) if isinstance(scale, Node) else torch.tensor(scale)


def why_not_dtypes(op: OpOverload, node: Node, known: frozenset[str]) -> str:
    # tensors of pointwise operators are promoted in the model
    values = torch.fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    combination = combination_of(*values, node.meta["val"])
    if combination in known:
        return ""
    _, _, given = combination.partition(" > ")
    if torch.Tag.pointwise in op.tags and f"{dtype_name(common_dtype(values))} > {given}" in known:
        return ""
    return f"ONNX Runtime is not known to give eager's results for `{op}` on {combination.replace(' > ', ', giving ')}"


def common_dtype(values: object) -> torch.dtype:
    """Return the dtype to which eager converts the tensors of a call, to match each other or a number."""
    leaves = tree_leaves(values)
    common = reduce(torch.promote_types, [value.dtype for value in leaves if isinstance(value, torch.Tensor)])
    if any(isinstance(value, float) for value in leaves) and not common.is_floating_point:
        return torch.get_default_dtype()
    return torch.int64 if common is torch.bool and any(type(value) is int for value in leaves) else common


def combination_of(args: object, kwargs: object, result: object) -> str:
    """Return the dtypes of a call: its tensors' without immediate repetitions, and its first result's."""
    names: list[str] = []
    for value in tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor) and (not names or names[-1] != dtype_name(value.dtype)):
            names.append(dtype_name(value.dtype))
    results = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
    return f"{' '.join(names)} > {dtype_name(results[0].dtype) if results else 'none'}"


@cache
def operator_table(*, finite: bool) -> Mapping[str, frozenset[str]]:
    """Return the combinations of dtypes that give eager's results by overload; `finite`: of finite numbers, too."""
    table = read_operator_table()
    rows: dict[str, list[str]] = dict(table["operators"])
    for name, more in table["finite only"].items() if finite else ():
        rows[name] = [*rows.get(name, ()), *more]
    return {name: frozenset(combinations) for name, combinations in rows.items()}


@cache
def not_empty() -> frozenset[str]:
    # results for tensors without elements are not eager's
    return frozenset(read_operator_table()["not empty"])


def read_operator_table() -> Any:
    return json.loads(OPERATORS.read_text(encoding="utf-8"))


def why_not_arguments(op: OpOverload, args: Any, kwargs: Any) -> str:
    limit = LIMITS.get(op)
    if limit is None:
        return ""
    defaults = {argument.name: argument.default_value for argument in schema_of(op).arguments}
    return limit({**defaults, **dict(zip(defaults, args, strict=False)), **kwargs})


def limit_range(given: Mapping[str, object]) -> str:
    # ONNX Runtime computes the length in 32 bits: the result may have an element more.
    fractions = any(isinstance(value, float) and not value.is_integer() for value in given.values())
    return "a range of fractions is not taken" if fractions else ""


def limit_attention(given: Mapping[str, object]) -> str:
    # A mask of floats may mask whole rows: eager gives 0 for such rows, the exporter's translation does not.
    mask: Any = given["attn_mask"]
    mask = getattr(mask, "meta", {}).get("val", mask)
    if (mask is not None and mask.dtype != torch.bool) or given["dropout_p"] or given["enable_gqa"]:
        return "attention with a mask of floats, dropout or grouped queries is not taken whole"
    key: Any = given["key"]
    if getattr(key, "meta", {}).get("val", key).shape[-2:-1] == (0,):
        return "attention over no keys is not taken whole"
    # the translation takes the root of the scale
    scale = given["scale"]
    positive = scale is None or (isinstance(scale, (int, float)) and 0 <= scale < math.inf)
    return "" if positive else "attention is taken whole with a finite scale of at least 0 only"


def limit_convolution(given: Mapping[str, Any]) -> str:
    # ONNX Runtime checks only at run time that an output is padded by less than the stride.
    padded = given["transposed"] and max(given["output_padding"], default=0) >= min(given["stride"], default=1)
    return "a transposed convolution with an output padding as large as the stride is not taken" if padded else ""


def limit_average(given: Mapping[str, Any]) -> str:
    # The translation passes over the divisor; ONNX Runtime 1.23 counts elements behind the padding, too.
    if given["divisor_override"] is not None:
        return "an average pool with a divisor of its own is not taken"
    counted = given["count_include_pad"] and any(given["padding"])
    return "an average pool that counts its padding is not taken" if counted else ""


def limit_product(given: Mapping[str, object]) -> str:
    # The translation multiplies by other factors than eager where both are given.
    return "" if given["alpha"] == 1 and given["beta"] == 1 else "a product with factors is not taken"


def limit_zero_factor(given: Mapping[str, object]) -> str:
    return ZERO_FACTOR if 0 in (given["alpha"], given["beta"]) else ""


def limit_reduction(given: Mapping[str, object]) -> str:
    # Without dimensions, the exporter does not translate the call.
    return "" if given["dim"] else "a reduction over all dimensions without naming them is not taken"


def limit_layer_norm(given: Mapping[str, Any]) -> str:
    # ONNX Runtime refuses such rows in the call.
    return "a layer norm of rows without elements is not taken" if 0 in given["normalized_shape"] else ""


def limit_norm(given: Mapping[str, Any]) -> str:
    # Without dimensions, the translation keeps no dimension; the greatest magnitude ignores NaN.
    if math.isinf(given["ord"]) or (given["dim"] is None and given["keepdim"]):
        return "a norm by the greatest magnitude, or over all dimensions and keeping them, is not taken"
    # the translation holds the inverse of the order as float32
    tensor = getattr(given["self"], "meta", {}).get("val", given["self"])
    if tensor.dtype == torch.float64 and given["ord"] and not is_float32(1 / given["ord"]):
        return f"a norm of float64 by the order {given['ord']} is not taken"
    return ""


def limit_index(given: Mapping[str, Any]) -> str:
    # With a mask, the size of the result depends on its contents.
    indices = [getattr(index, "meta", {}).get("val", index) for index in given["indices"] if index is not None]
    masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
    return "indexing by a mask has a size that depends on its contents" if masks else ""


def limit_scatter(given: Mapping[str, Any]) -> str:
    # ONNX Runtime needs as many places as values, and checks only at run time; sizes are compared by name.
    places, values = (tuple(map(str, given[name].meta["val"].shape)) for name in ("index", "src"))
    return "" if places == values else "scattering only some of the values is not taken"


def limit_zero_point(given: Mapping[str, Any]) -> str:
    limits = torch.iinfo(given["dtype"])
    if isinstance(given["zero_point"], int) and not limits.min <= given["zero_point"] <= limits.max:
        return f"a zero point of {given['zero_point']} outside of `{dtype_name(given['dtype'])}` is not taken"
    return ""


def limit_recurrent(given: Mapping[str, Any]) -> str:
    directions = given["num_layers"] * (1 + given["bidirectional"])
    if len(given["params"]) != directions * (4 if given["has_biases"] else 2):
        return "an LSTM with projections is not taken whole"
    value = getattr(given["input"], "meta", {}).get("val", given["input"])
    if value.dtype != torch.float32:  # halves round each step in eager
        return "a recurrent network is taken whole in float32 only"
    return "dropout is not taken" if given["train"] and given["dropout"] else ""


LIMITS: Mapping[OpOverload, Callable[[Mapping[str, object]], str]] = {
    torch.ops.aten.addbmm.default: limit_zero_factor,
    torch.ops.aten.addmm.default: limit_product,
    torch.ops.aten.addmv.default: limit_zero_factor,
    torch.ops.aten.addr.default: limit_zero_factor,
    torch.ops.aten.amax.default: limit_reduction,
    torch.ops.aten.amin.default: limit_reduction,
    torch.ops.aten.arange.start_step: limit_range,
    torch.ops.aten.avg_pool2d.default: limit_average,
    torch.ops.aten.avg_pool3d.default: limit_average,
    torch.ops.aten.baddbmm.default: limit_zero_factor,
    torch.ops.aten.convolution.default: limit_convolution,
    torch.ops.aten.index.Tensor: limit_index,
    torch.ops.aten.layer_norm.default: limit_layer_norm,
    torch.ops.aten.linalg_vector_norm.default: limit_norm,
    torch.ops.aten.native_layer_norm.default: limit_layer_norm,
    torch.ops.aten.scaled_dot_product_attention.default: limit_attention,
    torch.ops.aten.scatter.src: limit_scatter,
    torch.ops.aten.scatter_add.default: limit_scatter,
    quantized_decomposed.dequantize_per_tensor.default: limit_zero_point,
    quantized_decomposed.quantize_per_tensor.default: limit_zero_point,
    **dict.fromkeys(RECURRENT, limit_recurrent),
}

# results beside the first, which inference never uses, are something else in a model
FIRST_ONLY = (torch.ops.aten._native_batch_norm_legit_no_training.default, torch.ops.aten.native_group_norm.default)

# composites that ONNX Runtime fuses best if they come whole
KEPT = (
    torch.ops.aten.hardsigmoid.default,
    torch.ops.aten.hardswish.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.layer_norm.default,
    torch.ops.aten.scaled_dot_product_attention.default,
    *NEAREST,
    *RECURRENT,
)
