"""Operations between integers of 8 bits, as XNNPACK computes them: products with the quantization around them.

A graph that PT2E quantized simulates integers: values are quantized, dequantized, and computed as floats. XNNPACK
computes a product or convolution with the integers themselves if one partition holds all of this. Quantizing or
dequantizing a tensor with one scale is also an operation by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.backends.executorch.sizes import SHAPED, aten_names
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.surgery import reach

LIBRARY = "quantized_decomposed"
# with a constant scale for the whole tensor
ALONE = (f"{LIBRARY}.quantize_per_tensor.default", f"{LIBRARY}.dequantize_per_tensor.default")
# products, and the positions of their weights
WEIGHTS: Mapping[str, int] = {
    "aten.addmm.default": 2,
    "aten.convolution.default": 1,
    "aten.linear.default": 1,
    "aten.mm.default": 1,
}

# They compute no number. XNNPACK's operators between integers give their operand's scale.
MOVES = SHAPED | aten_names(
    "cat.default max_pool2d.default permute.default select.int slice.Tensor squeeze.dims unsqueeze.default"
)


@dataclass(frozen=True, slots=True)
class Product:
    """A product or convolution with quantized weights, and the operations that XNNPACK merges with it."""

    node: Node
    needed: tuple[Node, ...]
    reason: str  # reason why XNNPACK cannot compute with integers


def quantizes(node: Node) -> bool:
    target = torch_operator(node.target)
    return node.op == "call_function" and getattr(target, "namespace", "") == LIBRARY


def find_products(
    copies: Mapping[Node, Node], form: ExportedProgram, configs: Mapping[str, Any], stated: Callable[[Any, Node], str]
) -> list[Product]:
    """Return the products with quantized weights; `copies` maps each operation to ExecuTorch's version in `form`."""
    originals = {copy: node for node, copy in copies.items()}
    products = []
    for node, copy in copies.items():
        name = str(torch_operator(node.target))
        weight = node.args[WEIGHTS[name]] if name in WEIGHTS else None
        if not isinstance(weight, Node) or not quantizes(weight):
            continue
        config = configs[name.removeprefix("aten.")]
        if config.check_constraints(copy, form):
            found = dict.fromkeys(originals[each] for each in config.get_node_and_deps(copy, form) if each in originals)
            needed = tuple(each for each in found if each is not node)
            products.append(Product(node, needed, why_not_product(node, needed)))
        else:
            reason = f"XNNPACK does not take this call of `{name}` with quantized weights{stated(config, copy)}"
            products.append(Product(node, (weight,), reason))
    return products


def why_not_product(product: Node, needed: Iterable[Node]) -> str:
    inside = {product, *needed}
    for member in inside:
        users = [user.name for user in member.users if user not in inside]
        if users and len(users) < len(member.users):
            return f"`{member.name}` is also used by `{users[0]}`, and XNNPACK does not return it"
        if "choose_qparams" in str(torch_operator(member.target)) and (reason := why_not_rows(member)):
            return reason
    results = [member.name for member in inside if inside.isdisjoint(member.users)]
    return "" if len(results) == 1 else f"XNNPACK returns only one of {', '.join(sorted(results))}"


def why_not_rows(choice: Node) -> str:
    # of integers that are chosen at run time
    source: Any = choice.args[0]
    if all(isinstance(size, int) and size == 1 for size in source.meta["val"].shape[:-1]):
        return ""
    return f"XNNPACK quantizes each row or image of `{source.name}` by itself, where the model uses one scale for all"


def why_not_xnnpack_quantized(node: Node, *, finite: bool) -> str:
    """Return the reason why XNNPACK does not quantize or dequantize as a node does, or an empty string."""
    name, arguments = str(torch_operator(node.target)), named_arguments(node)
    if arguments.get("dtype") != torch.int8:
        return f"XNNPACK has integers of the type int8 only, and `{name}` is for {arguments.get('dtype')}"
    if "dequantize" in name:
        shared = name in ALONE and len(node.users) > 1
        return f"`{node.name}` is used more than once, which ExecuTorch cannot always partition" if shared else ""
    if not finite:
        return f"XNNPACK's `{name}` gives other results than eager for NaN, and `finite-only` is false"
    if (arguments["quant_min"], arguments["quant_max"]) != (-128, 127):
        return f"XNNPACK's `{name}` gives all numbers from -128 to 127"
    if name in ALONE and any(source.args[1:3] != node.args[1:3] for source in moved(node)):
        return "it gives integers another scale, and XNNPACK fails there or rounds differently"
    return ""


def moved(node: Node) -> set[Node]:
    """Return the dequantize operations whose numbers are quantized as they are."""

    def sources(each: Node) -> list[Node]:
        return each.all_input_nodes if str(torch_operator(each.target)) in MOVES else []

    return {each for each in reach(node.all_input_nodes, sources) if str(torch_operator(each.target)) == ALONE[1]}


def settle_products(products: Iterable[Product], reasons: dict[Node, str]) -> None:
    """Write down that products are taken with all that they need, or why they are not."""
    for product in products:
        reason = product.reason or next((reasons[each] for each in product.needed if reasons.get(each)), "")
        for member in (product.node, *product.needed):
            if member is product.node or needs_product(member):
                reasons[member] = reason


def needs_product(node: Node) -> bool:
    return quantizes(node) and str(torch_operator(node.target)) not in ALONE
