"""Regions of a graph with another setting of torch (gradients or autocast), and state under several names as views
of a single tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import GraphModule, Node
from torch.fx.traceback import set_current_meta

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.nodes import written_into
from hatch_lower.exir.graph.state import (
    CONSTANT_KINDS,
    constant_of,
    input_pairs,
    layouts,
    mutated_targets,
    named_after,
    output_pairs,
)
from hatch_lower.exir.graph.surgery import (
    all_nodes,
    attribute_of,
    copy_program,
    functionalized,
    graph_modules,
    nested_graph_modules,
    output_values,
    rebuild_program,
)
from hatch_lower.exir.graph.tensors import is_plain_tensor, span_length
from hatch_lower.frozen import Frozen

aten = torch.ops.aten


class Name(Frozen):
    """A name of a piece of memory."""

    spec: InputSpec
    node: Node
    tensor: torch.Tensor

    @property
    def geometry(self) -> tuple[object, ...]:
        tensor = self.tensor
        return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()

    @property
    def span(self) -> range:
        begin = int(self.tensor.storage_offset())
        return range(begin, begin + span_length(self.tensor))


def without_aliases(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which all names of changed memory are views of a single input."""
    if not names_of_state(program):
        return program
    copied = copy_program(program)
    state, constants = dict(copied.state_dict), dict(copied.constants)
    specs = {node.name: spec for spec, node in input_pairs(copied)}
    for names in names_of_state(copied):
        base = base_name(names, copied)
        if base.node.name not in specs:
            specs[base.node.name] = base.spec
            state[str(base.spec.target)] = base.tensor
        for name in names:
            if name.node is not base.node:
                replace_by_view(name, base, copied)
                del specs[name.node.name]
                for store in (state, constants):
                    store.pop(str(name.spec.target), None)
    inputs = [specs[node.name] for node in copied.graph.find_nodes(op="placeholder")]
    signature = replace(copied.graph_signature, input_specs=inputs)
    copied.graph_module.recompile()
    return rebuild_program(
        copied, copied.graph_module, copied.graph, signature=signature, state_dict=state, constants=constants
    )


def names_of_state(program: ExportedProgram) -> list[list[Name]]:
    """Return the names of each changed piece of memory that has several names."""
    if mutated_targets(program):  # decomposed already
        return []
    names = [
        Name(spec, node, tensor)
        for spec, node in input_pairs(program)
        if spec.kind in CONSTANT_KINDS and is_plain_tensor(tensor := constant_of(program, spec)) and tensor.numel()
    ]
    groups: dict[int, list[Name]] = {}
    for name, layout in zip(names, layouts([name.tensor for name in names]), strict=True):
        groups.setdefault(layout.group, []).append(name)
    several = [group for group in groups.values() if len(group) > 1]
    written = written_into(program.graph_module) if several else set()
    return [group for group in several if any(name.node in written for name in group)]


def base_name(names: Sequence[Name], program: ExportedProgram) -> Name:
    """Return the name that covers the memory of a group: a name of the group, or a new flat buffer."""
    dtypes = {name.tensor.dtype for name in names}
    if len(dtypes) > 1:
        raise EdgeError(
            "a method changes memory that is state of several dtypes",
            found=", ".join(f"`{name.spec.target}` of {name.tensor.dtype}" for name in names),
            hint="keep one of them, and compute the other by `view(dtype)` in the method",
        )
    if len({name.geometry for name in names}) == 1:
        return names[0]
    begin, end = min(name.span.start for name in names), max(name.span.stop for name in names)
    for name in names:
        if name.tensor.is_contiguous() and name.span == range(begin, end):
            return name
    first = names[0]
    target = f"{first.spec.target}_memory"
    while target in program.state_dict or target in program.constants:
        target += "_"
    row = first.tensor.detach().as_strided((end - begin,), (1,), begin)
    with program.graph.inserting_before(first.node):
        node = program.graph.placeholder(f"b_{target.replace('.', '_')}")
    with first.node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty(row.shape, dtype=row.dtype)
    return Name(InputSpec(InputKind.BUFFER, TensorArgument(node.name), target, True), node, row)


def replace_by_view(name: Name, base: Name, program: ExportedProgram) -> None:
    # by slices and views where possible: more engines take slices and views than `as_strided`
    tensor, first = name.tensor, name.span.start - base.span.start
    steps: list[tuple[Any, tuple[object, ...]]] = []
    if name.geometry != base.geometry and tensor.is_contiguous() and base.tensor.is_contiguous():
        steps = [
            (aten.view.default, ([-1],)),
            (aten.slice.Tensor, (0, first, first + tensor.numel())),
            (aten.view.default, (list(tensor.shape),)),
        ]
    elif name.geometry != base.geometry:
        # counted from the base's own first element, which torch places at 0
        steps = [(aten.as_strided.default, (list(tensor.shape), list(tensor.stride()), first))]
    value, last = base.node, program.graph.find_nodes(op="placeholder")[-1]
    for target, arguments in steps:
        with program.graph.inserting_after(last):
            last = program.graph.call_function(target, (value, *arguments))
        last.meta["val"] = target(value.meta["val"], *arguments)
        value = last
    name.node.replace_all_uses_with(value)
    program.graph.erase_node(name.node)


AUTOCAST = torch.ops.higher_order.wrap_with_autocast
GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled


def without_regions(program: ExportedProgram) -> ExportedProgram:
    """Return a program with its regions inlined, and with the casts of autocast."""
    program = without_aliases(without_gradient_regions(program))
    attributes = [
        attribute_of(module, str(source.target))
        for module in graph_modules(program.graph_module)
        for node in module.graph.nodes
        if node.target is AUTOCAST
        for source in node.all_input_nodes
        if source.op == "get_attr"
    ]
    regions = [attribute for attribute in attributes if isinstance(attribute, GraphModule)]
    if not regions:
        return program
    targets = {node: node.target for region in regions for node in region.graph.nodes if node.op == "call_function"}
    try:
        for node in targets:
            node.target = TracedNode(node)
        for region in regions:
            region.recompile()
        return functionalized(program)
    finally:
        for node, target in targets.items():
            node.target = target
        for region in regions:
            region.recompile()


class TracedNode:
    """Stand-in for an operator in a region that keeps the node's source line and module, which torch would lose."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._operator: Any = node.target
        self.__name__ = "traced"  # torch generates code with the name

    def __str__(self) -> str:
        return str(self._operator)

    def __call__(self, *args: object, **kwargs: object) -> object:
        with set_current_meta(self._node):
            return self._operator(*args, **kwargs)


def without_gradient_regions(program: ExportedProgram) -> ExportedProgram:
    """Return a program with its regions with or without gradients inlined."""
    # Gradients that a method computes are operations by now, so the mode has no effect. torch would trace each region
    # in its mode, and fails where a region asks for gradients.
    if all(node.target is not GRADIENTS for node in all_nodes(program.graph_module)):
        return program
    copied = copy_program(program)
    inline_gradient_regions(copied.graph_module)
    outputs = [named_after(spec, value) for spec, value in output_pairs(copied)]
    signature = replace(copied.graph_signature, output_specs=outputs)
    return rebuild_program(copied, copied.graph_module, copied.graph_module.graph, signature=signature)


def inline_gradient_regions(module: GraphModule) -> None:
    for _, nested in nested_graph_modules(module):
        inline_gradient_regions(nested)
    for node in list(module.graph.nodes):
        if node.target is GRADIENTS:
            inline_region(module, node)
    module.recompile()


def inline_region(module: GraphModule, node: Node) -> None:
    source: Any = node.args[1]
    region: GraphModule = attribute_of(module, source.target)
    operands = iter(node.args[2:])
    values: dict[Node, Any] = {}
    with module.graph.inserting_before(node):
        for inner in region.graph.nodes:
            if inner.op == "placeholder":
                values[inner] = next(operands)
            elif inner.op == "get_attr":
                values[inner] = module.graph.get_attr(add_attribute(module, attribute_of(region, inner.target)))
                values[inner].meta = dict(inner.meta)
            elif inner.op != "output":
                values[inner] = module.graph.node_copy(inner, values.__getitem__)
    results: list[Any] = [values[value] if isinstance(value, Node) else value for value in output_values(region)]
    if isinstance(region.graph.output_node().args[0], Node):
        node.replace_all_uses_with(results[0])
    for user in list(node.users):
        if user.target is operator.getitem:
            index: Any = user.args[1]
            user.replace_all_uses_with(results[index])
            module.graph.erase_node(user)
    module.graph.erase_node(node)
    if not source.users:
        module.graph.erase_node(source)


def add_attribute(module: GraphModule, value: object) -> str:
    number = 0
    while hasattr(module, f"region_{number}"):
        number += 1
    setattr(module, f"region_{number}", value)
    return f"region_{number}"
