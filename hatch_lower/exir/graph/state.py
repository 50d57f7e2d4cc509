"""A program's constants: the tensors of placeholders, overlaps in memory, and stand-ins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Node
from torch.fx.node import Argument

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.surgery import output_values
from hatch_lower.exir.graph.tensors import span_length, storage_key

CONSTANT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
STATE_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


@dataclass(frozen=True, slots=True)
class StorageLayout:
    group: int  # constants of a group overlap; numbered by first appearance
    offset: int  # elements from the group's first to the constant's first, in its own dtype's size


def input_pairs(program: ExportedProgram) -> list[tuple[InputSpec, Node]]:
    return list(zip(program.graph_signature.input_specs, program.graph.find_nodes(op="placeholder"), strict=True))


def output_pairs(program: ExportedProgram) -> list[tuple[OutputSpec, Argument]]:
    return list(zip(program.graph_signature.output_specs, output_values(program.graph_module), strict=True))


def named_after(spec: OutputSpec, value: Argument) -> OutputSpec:
    """Return the specification of an output with the name that its node has now."""
    arg: Any = spec.arg
    return replace(spec, arg=replace(arg, name=value.name)) if isinstance(value, Node) else spec


def constant_specs(program: ExportedProgram) -> list[InputSpec]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind in CONSTANT_KINDS]


def constant_placeholders(program: ExportedProgram) -> dict[Node, InputSpec]:
    return {node: spec for spec, node in input_pairs(program) if spec.kind in CONSTANT_KINDS}


def constant_of(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    name = str(spec.target)
    # buffers that are not persistent are in no state dictionary, but among the constants
    tensor = program.state_dict[name] if name in program.state_dict else program.constants.get(name)
    if not isinstance(tensor, torch.Tensor):  # both dictionaries can be changed after torch has checked them
        raise EdgeError(
            f"the program has no tensor for its {spec.kind.name.lower().replace('_', ' ')} `{name}`",
            found="no value" if tensor is None else f"a value of the type `{type(tensor).__name__}`",
            hint="leave `state_dict` and `constants` of an exported program as they are",
        )
    return tensor


def mutated_targets(program: ExportedProgram) -> frozenset[str]:
    specs = program.graph_signature.output_specs
    return frozenset(spec.target for spec in specs if spec.kind in STATE_MUTATIONS and spec.target)


def shared_state(programs: Iterable[ExportedProgram]) -> frozenset[int]:
    """Return the storage keys of state that has several views: in several methods, or under several names."""
    # state is memory that a method changes; state with a single view may live inside a delegate's blob
    changed: set[int] = set()
    views: dict[int, int] = {}
    for program in programs:
        mutated = mutated_targets(program)
        for node, spec in constant_placeholders(program).items():
            if node.users or spec.target in mutated:
                key = storage_key(constant_of(program, spec))
                views[key] = views.get(key, 0) + 1
                if spec.target in mutated:
                    changed.add(key)
    return frozenset(key for key in changed if views[key] > 1)


def layouts(tensors: Sequence[torch.Tensor]) -> list[StorageLayout]:
    """Return each tensor's layout; tensors of a group overlap in memory, directly or through other tensors."""
    # sorted by storage and offset, so that overlapping spans are neighbors
    spans = []
    for index, tensor in enumerate(tensors):
        begin = int(tensor.storage_offset()) * tensor.element_size()
        spans.append((storage_key(tensor), begin, begin + span_length(tensor) * tensor.element_size(), index))
    found: dict[int, tuple[int, int]] = {}
    group_key, group_end, group_begin, members = None, -1, 0, 0
    for key, begin, end, index in sorted(spans):
        if key != group_key or begin >= group_end:
            group_key, group_begin, group_end, members = key, begin, end, members + 1
        group_end = max(group_end, end)
        found[index] = (members, begin - group_begin)
    numbers: dict[int, int] = {}
    return [
        StorageLayout(numbers.setdefault(found[index][0], len(numbers)), found[index][1] // tensor.element_size())
        for index, tensor in enumerate(tensors)
    ]


def stand_ins(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of the same dtypes, shapes, strides and overlaps with contents of no meaning."""
    placed = layouts(tensors)
    sizes: dict[int, int] = {}
    for tensor, layout in zip(tensors, placed, strict=True):
        end = (layout.offset + span_length(tensor)) * tensor.element_size()
        sizes[layout.group] = max(sizes.get(layout.group, 0), end)
    # reserved but never touched, so no memory is used
    memory = {group: torch.empty(max(size, 1), dtype=torch.uint8) for group, size in sizes.items()}
    result = []
    for tensor, layout in zip(tensors, placed, strict=True):
        stand_in = torch.empty(0, dtype=tensor.dtype)
        stand_in.set_(memory[layout.group].untyped_storage(), layout.offset, tensor.shape, tensor.stride())
        result.append(stand_in)
    return result
