"""State under several names as views of a single tensor: torch decomposes no other program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.state import CONSTANT_KINDS, constant_of, input_pairs, layouts, mutated_targets
from hatch_lower.exir.graph.surgery import copy_program, rebuild_program
from hatch_lower.exir.graph.tensors import is_plain, span_length
from hatch_lower.exir.graph.writes import written_into
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
        base = base_of(names, copied)
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
        if spec.kind in CONSTANT_KINDS and is_plain(tensor := constant_of(program, spec)) and tensor.numel()
    ]
    groups: dict[int, list[Name]] = {}
    for name, layout in zip(names, layouts([name.tensor for name in names]), strict=True):
        groups.setdefault(layout.group, []).append(name)
    several = [group for group in groups.values() if len(group) > 1]
    written = written_into(program.graph_module) if several else set()
    return [group for group in several if any(name.node in written for name in group)]


def base_of(names: Sequence[Name], program: ExportedProgram) -> Name:
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
