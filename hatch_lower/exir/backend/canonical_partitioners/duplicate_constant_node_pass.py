"""Copies of placeholders, so that each user of a parameter, buffer or lifted tensor has its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputSpec, TensorArgument
from torch.fx import Node

from hatch_lower.errors import PartitionError
from hatch_lower.exir.graph.state import CONSTANT_KINDS, input_pairs, mutated_targets
from hatch_lower.runtime.torch_private.programs import change_signature

logger = logging.getLogger(__name__)


def duplicate_constant_node(exported_program: ExportedProgram, candidate_node: str) -> set[str]:
    """Call `duplicate_constant_nodes` for a single constant."""
    return duplicate_constant_nodes(exported_program, [candidate_node])


def duplicate_constant_nodes(exported_program: ExportedProgram, candidates: Iterable[str]) -> set[str]:
    """Give each user of some constants but the first a placeholder of its own, in place.

    Returns the names of the new placeholders, `<name>_copy_0`, …, which stand for the same parameter, buffer or lifted
    tensor. Candidates that do not exist are ignored.

    Raises:
        PartitionError: for a placeholder that is no constant, or whose value the program changes.
    """
    names = set(candidates)
    changed = mutated_targets(exported_program)
    specs: list[InputSpec] = []
    created: set[str] = set()
    signature = exported_program.graph_signature
    for spec, node in input_pairs(exported_program):  # a list from before the loop, which adds placeholders
        if node.name in names:
            if spec.kind not in CONSTANT_KINDS or spec.target in changed:
                raise PartitionError(
                    f"the placeholder `{node.name}` is no constant",
                    found="a buffer that the program changes" if spec.target in changed else spec.kind.name,
                    hint="duplicate placeholders of parameters, lifted tensors and buffers that do not change",
                )
            copies = copy_for_users(node)
            created.update(copies)
            specs += [InputSpec(spec.kind, TensorArgument(name), spec.target, spec.persistent) for name in copies]
        specs.append(spec)
    if created:
        # not in place: copies of a program share its signature
        change_signature(exported_program, ExportGraphSignature(specs, signature.output_specs))
        exported_program.graph_module.recompile()
    return created


def copy_for_users(node: Node) -> list[str]:
    # the first user keeps the placeholder; an output comes first, because the signature names the placeholder
    users = sorted(node.users, key=lambda user: user.op != "output")
    names = []
    for index, user in enumerate(users[1:]):
        with node.graph.inserting_before(node):
            copied = node.graph.placeholder(f"{node.name}_copy_{index}")
        copied.meta.update(node.meta)
        user.replace_input_with(node, copied)
        names.append(copied.name)
    return names
