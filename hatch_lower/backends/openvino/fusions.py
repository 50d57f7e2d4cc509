"""Fusions of OpenVINO's CPU plugin that change numbers, and how a loaded model is kept from these fusions.

The plugin computes an elementwise operation with a constant in the kernel of the operation before, if that has no
other user. So an additional, unused result of the model keeps the two apart. Found with 2026.4, on AVX2 and AVX-512,
for models of two operations:

- A quotient of a constant and a computed number is inverted, behind a reduction, a product, a convolution, an
  interpolation and a normalization. `torch.rsqrt` is a quotient with the constant 1.
- Behind a reduction, all elements meet the first number of a constant with several numbers.
- Behind a reduction, some elements of a quotient by a constant are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

# OpenVINO's own mark of a division that must not become a product with the reciprocal, which rounds differently
EXACT = "nonconvertable_divide_0"
# operations that the plugin fuses, or that its simplification of a graph removes
FUSED = frozenset(
    {
        *("Abs", "Add", "Ceiling", "Clamp", "Convert", "Divide", "Elu", "Erf", "Exp", "Floor", "Gelu", "HSigmoid"),
        *(
            "HSwish",
            "HardSigmoid",
            "LogicalNot",
            "Maximum",
            "Minimum",
            "Mish",
            "Multiply",
            "Negative",
            "PRelu",
            "Power",
        ),
        *("ReLU", "Relu", "Reshape", "Round", "Sigmoid", "SoftPlus", "Sqrt", "SquaredDifference", "Squeeze"),
        *("Subtract", "Swish", "Tanh", "Unsqueeze"),
    }
)
SHAPED = frozenset({"Reshape", "Squeeze", "Unsqueeze"})  # with a constant that is a shape


def keep_numbers(openvino: Any, model: Any) -> None:
    """Mark divisions as exact, and keep operations apart whose fusion changes OpenVINO's results."""
    layers = model.get_ordered_ops()
    fixed = names_of_fixed(layers)
    apart = []
    for layer in layers:
        if layer.get_type_name() == "Divide":
            numerator, denominator = layer.input_values()
            if is_one(numerator):
                continue  # the reciprocal is exact, and fused right
            layer.get_rt_info()[EXACT] = True
            if name_of(numerator) in fixed:
                apart.append(denominator)
        elif layer.get_type_name().startswith("Reduce") and any(differs_fused(user, fixed) for user in users(layer)):
            apart.append(layer.output(0))
    model.add_results([openvino.op.Result(value) for value in apart if name_of(value) not in fixed])


def names_of_fixed(layers: Sequence[Any]) -> set[str]:
    """Return the names of values computed from constants alone, which OpenVINO computes before the first call."""
    fixed: set[str] = set()
    for layer in layers:
        sources = layer.input_values()
        if layer.get_type_name() == "Constant" or (sources and all(name_of(source) in fixed for source in sources)):
            fixed.add(layer.get_name())
    return fixed


def users(layer: Any) -> Iterator[Any]:
    """Give the operations behind a reduction that may be computed in its kernel."""
    found: set[str] = set()
    pending = [layer]
    while pending:
        for place in pending.pop().output(0).get_target_inputs():
            user = place.get_node()
            if user.get_type_name() in FUSED and user.get_name() not in found:
                found.add(user.get_name())
                pending.append(user)
                yield user


def differs_fused(layer: Any, fixed: Set[str]) -> bool:
    if layer.get_type_name() in SHAPED:
        return False
    sources = layer.input_values()
    if layer.get_type_name() == "Divide" and name_of(sources[1]) in fixed:
        return True
    return any(name_of(source) in fixed and has_several(source) for source in sources)


def name_of(value: Any) -> str:
    return str(value.get_node().get_name())  # no two layers of a process have the same


def has_several(value: Any) -> bool:
    return any(not length.is_static or length.get_length() > 1 for length in value.get_partial_shape())


def is_one(value: Any) -> bool:
    node = value.get_node()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant" or has_several(value):
        return False
    data = node.get_data()
    return bool(data.size == 1 and data.item() == 1)
