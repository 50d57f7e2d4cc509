"""Pieces of a lowered method: nodes as a separate program, lowered by the same backend, and run as packaged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.cache.store import Store
from hatch_lower.exir.backend.backend_api import lower_methods, tag_program
from hatch_lower.exir.backend.canonical_partitioners.all_node_partitioner import AllNodePartitioner
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, DelegationSpec, Partitioner
from hatch_lower.exir.graph.state import constant_placeholders, mutated_targets
from hatch_lower.exir.graph.surgery import computes
from hatch_lower.exir.lowering.extract import extract
from hatch_lower.exir.lowering.partition import Partition
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.emit.constants import write_constants
from hatch_lower.pipeline.emit.delegates import names_in_constants
from hatch_lower.pipeline.emit.emit import MethodToEmit, emit_program
from hatch_lower.pipeline.emit.signature import user_inputs
from hatch_lower.pipeline.package import Packager
from hatch_lower.pipeline.random_inputs import copied_tensor
from hatch_lower.runtime.executor import Executor, execute_plan
from hatch_lower.runtime.mapped import ConstantsFile
from hatch_lower.runtime.selection import DelegateKinds
from hatch_lower.runtime.torch_private import tensors as trees

METHOD = "piece"
CONSTANTS_FILE = "constants.safetensors"


class Piece(Frozen):
    """Some nodes of a program, as a program that takes all other values as inputs."""

    program: ExportedProgram
    inputs: tuple[Node, ...]  # nodes of the owner whose values the piece takes
    outputs: tuple[Node, ...]  # nodes of the owner whose values the piece returns


def cut_out(owner: ExportedProgram, nodes: Collection[Node], outputs: Sequence[Node]) -> Piece:
    """Return nodes of a program as a program; constants that the owner does not change stay constants."""
    constants = constant_placeholders(owner)
    changed = mutated_targets(owner)
    members = set(nodes)
    owned: dict[Node, None] = {}
    inputs: dict[Node, None] = {}
    ordered = [node for node in owner.graph.nodes if node in members]
    for node in ordered:
        for source in node.all_input_nodes:
            if source in members:
                continue
            is_fixed = source in constants and constants[source].target not in changed
            (owned if is_fixed else inputs)[source] = None
    partition = Partition(
        owner.graph_module,
        METHOD,
        DelegationSpec("", []),
        nodes=ordered,
        owned=[node for node in constants if node in owned],
        inputs=list(inputs),
        outputs=list(outputs),
    )
    return Piece(extract(owner, partition), tuple(inputs), tuple(outputs))


def takes_all(partitioner: Partitioner, program: ExportedProgram) -> bool:
    nodes = filter(computes, tag_program(program, partitioner, False).tagged_exported_program.graph.nodes)
    tags = {node.meta.get(DELEGATION_TAG) for node in nodes}
    return len(tags) == 1 and None not in tags


def lower_piece(piece: Piece, spec: DelegationSpec, store: Store) -> ExportedProgram:
    # exceptions of backends pass through
    partitioners = {METHOD: AllNodePartitioner(*spec)}
    return lower_methods({METHOD: piece.program}, partitioners, store=store, validate=False)[METHOD].program


class Runner:
    """A lowered program, loaded like an installed package, whose inputs and outputs are given as flat lists."""

    def __init__(self, program: ExportedProgram, folder: Path, store: Store) -> None:
        users = [node for _, node in user_inputs(program)]
        self._expected = [node.meta["val"] for node in users]
        self._given: Any = program.call_spec.in_spec  # of a whole method: containers and keyword arguments, too
        names = tuple(f"x{index}" for index in range(self._given.child(0).num_children))
        emitted = emit_program(METHOD, {METHOD: MethodToEmit(METHOD, program, names)})
        Packager(folder, METHOD, store).write_program("default", emitted)
        plan = emitted.plan
        spans: Sequence[torch.Tensor] = [emitted.storages[storage.key] for storage in plan.storages]
        places: Sequence[Any] = ()
        if named := names_in_constants([(plan, emitted.storages)]):
            # a file, as an engine maps named storages itself
            path = folder / CONSTANTS_FILE
            write_constants(path, emitted.storages, named)
            places = ConstantsFile(path, path.name).places(plan.storages)
        kinds = DelegateKinds()
        delegates = {entry.backend: kinds.load(entry.backend) for entry in plan.delegates}
        self._executor: Executor = execute_plan(plan, spans, delegates, folder, places=places, checks_outputs=True)

    def reset(self) -> None:
        self._executor.reset()

    def __call__(self, inputs: Iterable[object]) -> list[object]:
        call: Callable[..., Any] = self._executor.methods[METHOD]
        given = [lay_out_alike(value, expected) for value, expected in zip(inputs, self._expected, strict=True)]
        with torch.no_grad():
            args, kwargs = trees.tree_unflatten(given, self._given)
            result = call(*args, **kwargs)
        return trees.tree_leaves(result)


def is_static_tensor(tensor: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in (*tensor.shape, *tensor.stride()))


def lay_out_alike(value: object, expected: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    copied = copied_tensor(value)
    # a comparison of a symbolic size with a number would make torch specialize the size
    if not isinstance(expected, torch.Tensor) or not is_static_tensor(expected):
        return copied
    if value.shape != expected.shape or value.stride() == expected.stride():
        return copied
    return torch.empty_strided(expected.shape, expected.stride(), dtype=value.dtype).copy_(value)
