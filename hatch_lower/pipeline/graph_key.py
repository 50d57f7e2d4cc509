"""Digests of an exported method: the graph, the names in the graph, the example inputs.

The canonical form lacks facts that reach a wheel's files: names, containers, and torch's metadata of nodes, which may
guide a partitioner. The digest of names adds these facts. Source lines are excluded: debug maps take the lines from
the fresh export.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from hatch_lower.cache.key import NoKeyError
from hatch_lower.canonical import canonical_json, digest_of
from hatch_lower.exir.graph.canonical import Encoder, canonical_form, encode_target
from hatch_lower.exir.graph.state import CONSTANT_KINDS, layouts
from hatch_lower.exir.graph.surgery import all_nodes, graph_modules, oldest_ancestor, tensor_attributes
from hatch_lower.exir.graph.tensors import dtype_name, is_plain_tensor, storage_key, tensor_digests
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.runtime.classes import find_owner
from hatch_lower.runtime.torch_private import tensors as trees
from hatch_lower.runtime.torch_private.operators import COMPOSITE, OpOverload, has_composite_kernel, schema_of
from hatch_lower.runtime.torch_private.programs import executorch_call_delegate

TORCH_NAMESPACES = ("aten", "prim", "prims", "higher_order", "quantized_decomposed")

# metadata of nodes with a treatment of its own: values are in the form, source lines come from the fresh export,
# `ancestry` and `node_rows` write ancestors, modules and autograd's counter
NOTED_ELSEWHERE = frozenset({"val", "tensor_meta", "stack_trace", "from_node", "nn_module_stack", "seq_nr"})

# metadata of graphs without effect here: `prepare_pt2e` writes the entry for `convert_pt2e`, which has run before a
# program of plain operators is exported
READ_BEFORE = frozenset({"_observed_graph_module_attrs"})


@dataclass(frozen=True, slots=True)
class ExportedMethod:
    form: Mapping[str, object]
    graph: str
    names: str  # sha256 of the facts outside of the form, without contents and source lines
    examples: str  # sha256 of the example inputs


def describe_method(method: CapturedMethod) -> ExportedMethod:
    """Return the digests of an exported method; raise `NoKeyError` if a part cannot be written as JSON."""
    program = method.program
    refuse_unknown(program)
    encoder = Encoder()
    form = canonical_form(program, encoder)
    known = {str(symbol): str(renamed) for symbol, renamed in encoder.symbols.items()}
    ranges = program.range_constraints.items()
    names = {
        "parameters": list(method.parameters),
        "dimensions": sorted([known.get(symbol, symbol), name] for symbol, name in method.dimensions.items()),
        # the form has only the ranges of symbols, and a plan also uses ranges of expressions
        "ranges": sorted([encoder.text(expr), str(limits.lower), str(limits.upper)] for expr, limits in ranges),
        "inputs": [[spec.kind.name, spec.arg.name, spec.target] for spec in program.graph_signature.input_specs],
        "outputs": [[spec.kind.name, spec.target] for spec in program.graph_signature.output_specs],
        "constants": [
            [name, dtype_name(tensor.dtype), list(tensor.shape), list(tensor.stride())]
            for name, tensor in named_constants(program)
        ],
        "containers": [tree_row(tree) for tree in (program.call_spec.in_spec, program.call_spec.out_spec)],
        "nodes": list(node_rows(program, encoder)),
        "graphs": [
            encoder.encode_note({key: note for key, note in graph.meta.items() if key not in READ_BEFORE}, "a graph")
            for graph in graph_modules(program.graph_module)
        ],
    }
    return ExportedMethod(form, digest_of(form), digest_of(names), digest_of(example_row(method)))


def form_bytes(method: CapturedMethod, form: Mapping[str, object], sources: list[str]) -> bytes:
    specs = method.program.graph_signature.input_specs
    overloads = {encode_target(node.target): node.target for node in called_operations(method.program)}
    value = {
        "form": form,
        "sources": sources,
        "names": [spec.arg.name if spec.target is None else spec.target for spec in specs],
        "arguments": {
            name: [argument.name for argument in schema_of(overload).arguments]
            for name, overload in overloads.items()
            if isinstance(overload, OpOverload)
        },
    }
    return zlib.compress(canonical_json(value), 1)


def called_operations(program: ExportedProgram) -> Iterator[Node]:
    return (node for node in all_nodes(program.graph_module) if node.op == "call_function")


def refuse_unknown(program: ExportedProgram) -> None:
    """Raise `NoKeyError` for parts that the form lacks: script objects, Python operators, backends' results."""
    for spec in program.graph_signature.input_specs:
        if spec.kind not in (*CONSTANT_KINDS, InputKind.USER_INPUT):
            raise NoKeyError(f"`{spec.target or spec.arg.name}` is a {spec.kind.name.lower()}")
    for node in called_operations(program):
        target = node.target
        if target is executorch_call_delegate:
            raise NoKeyError("a backend's result is a part of the export")
        if isinstance(target, OpOverload) and target.namespace not in TORCH_NAMESPACES and is_composite(target):
            # the decomposition runs the operator's own code, which no key covers
            raise NoKeyError(f"the operator `{target}` has a decomposition in code of its own")
    for name, tensor in named_constants(program):
        refuse_tensor(f"`{name}`", tensor)


def is_composite(operator: OpOverload) -> bool:
    return COMPOSITE in operator.py_kernels or has_composite_kernel(operator)


def refuse_tensor(subject: str, tensor: object) -> None:
    if not is_plain_tensor(tensor) or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise NoKeyError(f"{subject} is not a plain tensor")


def named_constants(program: ExportedProgram) -> Iterator[tuple[str, Any]]:
    # includes constants without an input: a partitioner or backend could look them up
    yield from program.state_dict.items()
    yield from ((name, constant) for name, constant in program.constants.items() if name not in program.state_dict)
    yield from tensor_attributes(program.graph_module)


def sharing_of(programs: Iterable[ExportedProgram]) -> str:
    """Return a sha256 over the overlaps of constants in memory and their shared storages, for all methods."""
    tensors = [tensor for program in programs for _, tensor in named_constants(program)]
    storages: dict[int, int] = {}
    numbers = [storages.setdefault(storage_key(tensor), len(storages)) for tensor in tensors]
    placed = layouts(tensors)
    return digest_of([[number, place.group, place.offset] for number, place in zip(numbers, placed, strict=True)])


def node_rows(program: ExportedProgram, encoder: Encoder) -> Iterator[list[object]]:
    ancestors: dict[tuple[str, int], int] = {}
    counts: dict[object, int] = {}
    for node in all_nodes(program.graph_module):
        notes = {key: value for key, value in node.meta.items() if key not in NOTED_ELSEWHERE}
        target = str(node.target) if node.op == "get_attr" else ""
        modules = [[str(part) for part in entry] for entry in (node.meta.get("nn_module_stack") or {}).values()]
        if "seq_nr" in node.meta:
            # autograd counts every operation of the process; only the equality of these numbers has a meaning
            notes["seq_nr"] = counts.setdefault(node.meta["seq_nr"], len(counts))
        note = encoder.encode_note(notes, f"node `{node.name}`")
        yield [target, modules, ancestry(node, ancestors), note]


def ancestry(node: Node, numbers: dict[tuple[str, int], int]) -> list[object]:
    # nodes with the same oldest ancestor share a debug handle
    oldest = oldest_ancestor(node)
    if oldest is None:
        return []
    return [numbers.setdefault((oldest.name, oldest.graph_id), len(numbers)), str(oldest.target)]


def tree_row(spec: trees.TreeSpec | None) -> object:
    # a plan's facts about containers: classes, keys and fields
    if spec is None or spec.is_leaf():
        return None if spec is None else "leaf"
    kind: Any = spec.type
    facts = [f"{kind.__module__}:{kind.__qualname__}", is_dataclass(kind)]
    facts += [isinstance(kind, type) and issubclass(kind, base) for base in (Mapping, list, dict, tuple)]
    named = spec.context if isinstance(spec.context, type) else kind
    facts.append(find_owner(named))
    names = [list(getattr(named, attribute, ())) for attribute in ("_fields", "__match_args__")]
    context = Encoder().encode_note(spec.context, f"the container `{facts[0]}`")
    return [facts, names, context, [tree_row(child) for child in spec.children()]]


def example_row(method: CapturedMethod) -> list[object]:
    leaves, spec = trees.tree_flatten((method.args, method.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        refuse_tensor("an example input", tensor)
    contents = iter(zip(tensor_digests(tensors), layouts(tensors), strict=True))
    rows: list[object] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            digest, place = next(contents)
            rows.append([digest, place.group, place.offset, leaf.requires_grad])
        else:
            rows.append(Encoder().encode_note(leaf, "the example inputs"))
    return [method.has_examples, tree_row(spec), rows]
