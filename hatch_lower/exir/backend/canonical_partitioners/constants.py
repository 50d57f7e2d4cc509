"""Which partition owns a parameter, buffer or lifted tensor: tags for them, and copies of their placeholders."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputSpec, TensorArgument
from torch.fx import Node

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.backend_details import DELEGATION_TAG
from hatch_lower.exir.graph.state import CONSTANT_KINDS, mutated_targets

__all__ = [
    "duplicate_constant_node",
    "duplicate_constant_nodes",
    "tag_constant_data",
    "tag_mutated_buffer",
    "unchanged_constants",
]

logger = logging.getLogger(__name__)


def tag_constant_data(edge_program: ExportedProgram) -> None:
    """Tag the constants that tagged operations use, for their partitions to own; call it after tagging operations.

    These are parameters, lifted tensors, and buffers that the program does not change. Each gets the smallest tag of
    its users, in the order of text; where users have several tags, every one of those partitions owns the constant, and
    all share its memory. With `meta["no_copy"]` on the placeholder that is an error when the program is lowered.
    """
    tag_placeholders(edge_program, mutated=False)


def tag_mutated_buffer(edge_program: ExportedProgram) -> None:
    """Tag the buffers that the program changes and tagged operations use; call it after tagging operations.

    Each gets the smallest tag of its users. A partition owns one only if it holds all its users and computes its new
    value; else the buffer stays in the program, where every user sees its changes.
    """
    tag_placeholders(edge_program, mutated=True)


def tag_placeholders(program: ExportedProgram, *, mutated: bool) -> None:
    """Tag the constants that are, or are not, changed by the program."""
    changed = mutated_targets(program)
    for node, spec in zip(placeholders_of(program), program.graph_signature.input_specs, strict=True):
        if spec.kind not in CONSTANT_KINDS or (spec.target in changed) is not mutated:
            continue
        tags = sorted({tag for user in node.users if (tag := user.meta.get(DELEGATION_TAG)) is not None})
        if tags:
            node.meta[DELEGATION_TAG] = tags[0]
        if len(tags) > 1:
            logger.info("the constant `%s` is used in the partitions %s", spec.target, ", ".join(tags))


def unchanged_constants(program: ExportedProgram) -> frozenset[Node]:
    """Return the placeholders of parameters, lifted tensors, and buffers that the program does not change."""
    changed = mutated_targets(program)
    specs = zip(placeholders_of(program), program.graph_signature.input_specs, strict=True)
    return frozenset(node for node, spec in specs if spec.kind in CONSTANT_KINDS and spec.target not in changed)


def placeholders_of(program: ExportedProgram) -> list[Node]:
    """Return a program's placeholders, in the order of its input specs."""
    return list(program.graph.find_nodes(op="placeholder"))


def duplicate_constant_node(exported_program: ExportedProgram, candidate_node: str) -> set[str]:
    """Give each user of a constant but the first a placeholder of its own; as `duplicate_constant_nodes` of one."""
    return duplicate_constant_nodes(exported_program, [candidate_node])


def duplicate_constant_nodes(exported_program: ExportedProgram, candidates: Iterable[str]) -> set[str]:
    """Give each user of some constants but the first a placeholder of its own, in place.

    The new placeholders are `<name>_copy_0`, … before the original, with its metadata, and stand for the same
    parameter, buffer or lifted tensor: its memory is shared, and the state of the program does not grow. A constant
    that the program returns keeps its own placeholder there.

    Args:
        exported_program: is changed.
        candidates: names of placeholders; those that do not exist are ignored.

    Returns:
        The names of the new placeholders.

    Raises:
        PartitionError: for a placeholder that is no constant, or one whose value the program changes.
    """
    names = set(candidates)
    changed = mutated_targets(exported_program)
    specs: list[InputSpec] = []
    created: set[str] = set()
    signature = exported_program.graph_signature
    for node, spec in zip(placeholders_of(exported_program), signature.input_specs, strict=True):
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
        exported_program._graph_signature = ExportGraphSignature(specs, signature.output_specs)
        exported_program.graph_module.recompile()
    return created


def copy_for_users(node: Node) -> list[str]:
    """Give each user of a placeholder but the first, or but the output, a copy of it; return the copies' names."""
    users = sorted(node.users, key=lambda user: user.op != "output")
    names = []
    for index, user in enumerate(users[1:]):
        with node.graph.inserting_before(node):
            copied = node.graph.placeholder(f"{node.name}_copy_{index}")
        copied.meta.update(node.meta)
        user.replace_input_with(node, copied)
        names.append(copied.name)
    return names
