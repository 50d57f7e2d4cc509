"""Outputs whose memory layout in eager differs from `torch.export`'s prediction: the program copies to eager's layout.

torch predicts the strides of a result by a rule for each operator, and a kernel may choose other strides. For an image
made from rows of tokens (SegFormer), the rule puts a convolution's channels innermost, and eager outermost. An engine
returns the predicted layout, so that `logits.view(-1)` raises although eager's does not.

Only the order of the dimensions matters. The program gets a copy if the example's output differs from the prediction
and the outputs of all further sizes that verification tries have the example's order. Otherwise the build names the
output (`comparison`). If all orders are as predicted, only the example's size is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, Node
from torch.fx.node import Argument

from hatch_lower.exir.graph.state import named_after, output_pairs
from hatch_lower.exir.graph.surgery import copy_program, rebuild_program
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.eager import eager_outputs
from hatch_lower.pipeline.generated_inputs import GeneratedInputs, InputMaker, MethodSizes, Sizes, size_value
from hatch_lower.pipeline.random_inputs import example_case
from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.operators import OpOverload

aten = torch.ops.aten

Order = tuple[int, ...]  # dimensions, the outermost first


class OutputLayout(Frozen):
    """Shape and strides of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def lies_in(self, order: Order) -> bool:
        """Return whether the tensor is dense in an order of dimensions; dimensions of size 1 may be anywhere."""
        step = 1
        for dim in reversed(order):
            if self.shape[dim] != 1 and self.stride[dim] != step:
                return 0 in self.shape
            step *= self.shape[dim]
        return True

    def order(self) -> Order | None:
        """Return the order in which the tensor is dense; `None` if elements have gaps or overlap, or are absent."""
        long = sorted((dim for dim, size in enumerate(self.shape) if size != 1), key=lambda dim: -self.stride[dim])
        ones = [dim for dim, size in enumerate(self.shape) if size == 1]
        order = tuple(sorted(long + ones) if long == sorted(long) else ones + long)
        return order if 0 not in self.shape and self.lies_in(order) else None


Layouts = Sequence[
    OutputLayout | None
]  # of all leaves of a method's outputs; `None` for leaves that are not strided tensors


def note_layouts(layouts: dict[str, Layouts], method: str, outputs: object) -> None:
    layouts[method] = layouts_of(outputs)


def layouts_of(outputs: object) -> Layouts:
    return [
        OutputLayout(tuple(leaf.shape), leaf.stride())
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested
        else None
        for leaf in tensors.tree_leaves(outputs)
    ]


def in_eagers_order(model: CapturedModel, eager: Mapping[str, Layouts]) -> CapturedModel:
    """Return a model whose programs lay out outputs like eager; `eager` has the layouts of the examples' outputs."""
    methods = tuple(
        ordered(model, method, eager[method.name]) if method.name in eager else method for method in model.methods
    )
    return replace(model, methods=methods)


def ordered(model: CapturedModel, method: CapturedMethod, eager: Layouts) -> CapturedMethod:
    orders = other_orders(method, eager)
    if not orders:
        return method
    for generated in InputMaker(method).sized():
        for found in layouts_at(model, method, generated):
            orders = {index: order for index, order in orders.items() if lies_in(found, index, order)}
    return replace(method, program=with_orders(method.program, orders)) if orders else method


def lies_in(layouts: Layouts, index: int, order: Order) -> bool:
    layout = layouts[index] if index < len(layouts) else None
    return layout is not None and len(layout.shape) == len(order) and layout.lies_in(order)


def other_orders(method: CapturedMethod, eager: Layouts) -> dict[int, Order]:
    """Return eager's orders for the example's outputs that differ from the prediction, by number of the leaf."""
    outputs = [value for spec, value in output_pairs(method.program) if spec.kind is OutputKind.USER_OUTPUT]
    if len(outputs) != len(eager):
        return {}
    example = example_case(method)
    sizes = MethodSizes(method, example.named(example.args, example.kwargs)).example
    orders = {}
    for index, (value, layout) in enumerate(zip(outputs, eager, strict=True)):
        if layout is None or not isinstance(value, Node) or value.op != "call_function":
            continue
        order, foretold = layout.order(), foretold_layout(value.meta.get("val"), sizes)
        if order and foretold is not None and foretold.shape == layout.shape and not foretold.lies_in(order):
            orders[index] = order
    return orders


def foretold_layout(value: object, sizes: Sizes) -> OutputLayout | None:
    """Return the layout that the exported program predicts; `None` if the layout depends on data."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = [number_of(size, sizes) for size in (*value.shape, *value.stride())]
    known = [number for number in numbers if number is not None]
    return (
        OutputLayout(tuple(known[: value.dim()]), tuple(known[value.dim() :])) if len(known) == len(numbers) else None
    )


def number_of(size: int | torch.SymInt, sizes: Sizes) -> int | None:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return size_value(expression, sizes) if expression.free_symbols <= sizes.keys() else None


def layouts_at(model: CapturedModel, method: CapturedMethod, generated: GeneratedInputs) -> Iterator[Layouts]:
    """Yield the layouts of eager's outputs for the first inputs of a kind that eager takes."""
    for case in generated.tries:
        with suppress(Exception):  # eager refuses this size; verification reports the refusal
            outputs = eager_outputs(model, method, case)
            yield layouts_of(outputs)
            return
    for each in generated.apart:
        yield from layouts_at(model, method, each)


def with_orders(program: ExportedProgram, orders: Mapping[int, Order]) -> ExportedProgram:
    """Return a program that copies outputs, given by number of the leaf, to other orders of dimensions."""
    copied = copy_program(program)
    end = copied.graph.output_node()
    pairs = output_pairs(copied)
    places = [place for place, (spec, _) in enumerate(pairs) if spec.kind is OutputKind.USER_OUTPUT]
    values = [value for _, value in pairs]
    made: dict[tuple[Node, Order], Node] = {}
    for index, order in orders.items():
        value = values[places[index]]
        if isinstance(value, Node):
            with copied.graph.inserting_before(end):
                key = value, order
                values[places[index]] = made[key] = made.get(key) or in_order(copied.graph, value, order)
    end.args = (tuple(values),)
    specs = [named_after(spec, value) for (spec, _), value in zip(pairs, values, strict=True)]
    signature = replace(copied.graph_signature, output_specs=specs)
    return rebuild_program(copied, copied.graph_module, copied.graph, signature=signature)


def in_order(graph: Graph, value: Node, order: Order) -> Node:
    steps: list[tuple[OpOverload, tuple[Argument, ...], dict[str, Argument]]] = [
        (aten.clone.default, (), {"memory_format": torch.contiguous_format})
    ]
    if order != tuple(sorted(order)):
        turned, back = list(order), [order.index(dim) for dim in range(len(order))]
        steps = [(aten.permute.default, (turned,), {}), *steps, (aten.permute.default, (back,), {})]
    for target, args, kwargs in steps:
        call = graph.call_function(target, (value, *args), kwargs)
        # the source line is the result's
        call.meta = {key: value.meta[key] for key in ("stack_trace", "nn_module_stack") if key in value.meta}
        call.meta["val"] = target(value.meta["val"], *args, **kwargs)
        value = call
    return value
