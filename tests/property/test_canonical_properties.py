"""The canonical form holds everything that shapes a result, and nothing that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import getitem
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.generated import Drawn, Recipe, examples, export, exported, inputs, recipes
from support.random_tags import graphs_of
from torch._ops import OpOverload
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from hatch_lower.exir.dialects._ops import EdgeOpOverload, edge_overload
from hatch_lower.exir.graph.canonical import structure_digest
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.lowering.convert import to_edge

pytestmark = pytest.mark.torch

Change = Callable[[], None]


@contextmanager
def kept(node: Node) -> Iterator[None]:
    """Restore a node's fields after the block."""
    before = node.target, node.args, node.kwargs, node.meta.get("val")
    try:
        yield
    finally:
        node.target, node.args, node.kwargs = before[:3]
        if "val" in node.meta:
            node.meta["val"] = before[3]


def other_values(value: Any, nodes: list[Node]) -> Iterator[Any]:
    """Yield values that are not the given one, though Python may hold some of them for equal."""
    if isinstance(value, Node):
        yield from [each for each in nodes if each is not value][-2:]
        yield 0
    elif isinstance(value, bool):
        yield from (not value, int(value), None)
    elif isinstance(value, int):
        yield from (value + 1, -value - 1, float(value), str(value))
        if value in (0, 1):
            yield bool(value)
    elif isinstance(value, float):
        yield from (value + 0.5, -value if value else 1.0)
        if value == int(value):
            yield int(value)
    elif isinstance(value, torch.dtype):
        yield torch.complex128
    elif value is None:
        yield from (0, False, "")
    elif isinstance(value, str):
        yield value + "x"


def argument_changes(node: Node, nodes: list[Node]) -> Iterator[tuple[str, Change]]:
    """Yield changes of each leaf of a node's arguments, and of their number and names."""
    leaves, tree = pytree.tree_flatten((node.args, node.kwargs), is_leaf=lambda each: isinstance(each, Node))

    def put(index: int, value: Any) -> None:
        node.args, node.kwargs = pytree.tree_unflatten([*leaves[:index], value, *leaves[index + 1 :]], tree)

    for index, leaf in enumerate(leaves):
        for value in other_values(leaf, nodes):
            yield f"argument {index}: {leaf!r} -> {value!r}", lambda i=index, v=value: put(i, v)
    if node.op == "call_function":
        yield "an argument more", lambda: setattr(node, "args", (*node.args, 1))
        yield "a keyword more", lambda: setattr(node, "kwargs", {**node.kwargs, "new": 1})
        for name, value in node.kwargs.items():
            rest = {key: each for key, each in node.kwargs.items() if key != name}
            yield f"without keyword {name}", lambda r=rest: setattr(node, "kwargs", r)
            yield f"keyword {name} renamed", lambda r=rest, n=name, v=value: setattr(node, "kwargs", {**r, f"{n}_": v})
        if len(node.args) > 1 and node.args[0] is not node.args[1]:
            swapped = (node.args[1], node.args[0], *node.args[2:])
            yield "arguments swapped", lambda: setattr(node, "args", swapped)
        if node.args:
            yield "an argument less", lambda: setattr(node, "args", node.args[:-1])


def target_changes(node: Node) -> Iterator[tuple[str, Change]]:
    """Yield changes of an operation's target: another operator, overload, dialect."""
    if isinstance(node.target, EdgeOpOverload):
        op = node.target._op
        yield "the dialect", lambda: setattr(node, "target", op)
        others = [getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads()]
        for other in [each for each in others if each is not op][:3]:
            yield f"the overload {other}", lambda o=other: setattr(node, "target", edge_overload(o))
        stranger = torch.ops.aten.neg.default if op is not torch.ops.aten.neg.default else torch.ops.aten.abs.default
        yield "the operator", lambda: setattr(node, "target", edge_overload(stranger))
    elif isinstance(node.target, OpOverload):
        op = node.target
        yield "the dialect", lambda: setattr(node, "target", edge_overload(op))
        others = [getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads()]
        for other in [each for each in others if each is not op][:3]:
            yield f"the overload {other}", lambda o=other: setattr(node, "target", o)
        stranger = torch.ops.aten.neg.default if op is not torch.ops.aten.neg.default else torch.ops.aten.abs.default
        yield "the operator", lambda: setattr(node, "target", stranger)
    elif node.target is getitem:
        yield "the function", lambda: setattr(node, "target", max)


def value_changes(node: Node) -> Iterator[tuple[str, Change]]:
    """Yield changes of what is known of a node's value."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)) and value:
        yield "a result less", lambda: node.meta.update(val=value[:-1])
    if not isinstance(value, torch.Tensor) or node.op == "output":
        return
    sizes, strides = list(value.shape), list(value.stride())

    def put(shape: list[Any], steps: list[Any], dtype: torch.dtype) -> None:
        with value.fake_mode:  # type: ignore[attr-defined]
            node.meta["val"] = torch.empty_strided(shape, steps, dtype=dtype)

    yield "the dtype", lambda: put(sizes, strides, torch.complex128)
    yield "the rank", lambda: put([*sizes, 1], [*strides, 1], value.dtype)
    for dim in range(len(sizes)):
        larger = [size + (index == dim) for index, size in enumerate(sizes)]
        yield f"size {dim}", lambda s=larger: put(s, strides, value.dtype)
        wider = [step + (index == dim) for index, step in enumerate(strides)]
        yield f"stride {dim}", lambda s=wider: put(sizes, s, value.dtype)
    if all(isinstance(size, int) for size in (*sizes, *strides)):
        yield (
            "the device",
            lambda: node.meta.update(val=torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")),
        )
    yield "its kind", lambda: node.meta.update(val=1)


@settings(max_examples=examples(0.25))
@given(recipe=recipes(most=5), edge=st.booleans())
def test_a_change_of_any_field_of_any_node_changes_the_digest(recipe: Recipe, edge: bool) -> None:
    program = export(recipe) if edge else exported(recipe)
    before = structure_digest(program)
    count = 0
    for module in graphs_of(program.graph_module):
        nodes: list[Node] = []
        for node in module.graph.nodes:
            if node.op not in ("get_attr",):
                for what, change in (*argument_changes(node, nodes), *target_changes(node), *value_changes(node)):
                    with kept(node):
                        change()
                        assert structure_digest(program) != before, f"{node.format_node()}: {what}"
                    count += 1
            nodes.append(node)
    assert structure_digest(program) == before
    assert count > 20


@settings(max_examples=examples(0.25))
@given(recipe=recipes(most=4, control_flow=False), edge=st.booleans())
def test_a_change_of_the_signature_the_constants_or_the_ranges_changes_the_digest(recipe: Recipe, edge: bool) -> None:
    program = export(recipe) if edge else exported(recipe)
    before = structure_digest(program)
    signature = program.graph_signature
    ranges = dict(program.range_constraints)

    def check(what: str) -> None:
        assert structure_digest(program) != before, what

    for index, spec in enumerate(signature.input_specs):
        kinds = {InputKind.PARAMETER: InputKind.BUFFER, InputKind.BUFFER: InputKind.PARAMETER}
        changed = [replace(spec, kind=kinds[spec.kind], persistent=True)] if spec.kind in kinds else []
        if spec.kind is InputKind.BUFFER:
            changed.append(replace(spec, persistent=not spec.persistent))
        for each in changed:
            specs = [*signature.input_specs[:index], each, *signature.input_specs[index + 1 :]]
            program._graph_signature = ExportGraphSignature(specs, signature.output_specs)
            check(f"input {each}")
    for index, output in enumerate(signature.output_specs):
        changed_outputs = []
        if output.kind is OutputKind.BUFFER_MUTATION:
            changed_outputs.append(replace(output, kind=OutputKind.USER_OUTPUT, target=None))
            names = [spec.target for spec in constant_specs(program) if spec.target != output.target]
            changed_outputs += [replace(output, target=name) for name in names[:3]]
        else:
            changed_outputs.append(replace(output, kind=OutputKind.BUFFER_MUTATION, target="shift"))
        for each_output in changed_outputs:
            outputs = [*signature.output_specs[:index], each_output, *signature.output_specs[index + 1 :]]
            program._graph_signature = ExportGraphSignature(signature.input_specs, outputs)
            check(f"output {each_output}")
    program._graph_signature = signature
    for spec in constant_specs(program):
        place = program.state_dict if spec.target in program.state_dict else program.constants
        tensor = constant_of(program, spec)
        wide = torch.empty_strided(tensor.shape, [2 * step for step in tensor.stride()], dtype=tensor.dtype)
        tied = next(each for each in program.state_dict.values() if each.shape == (4,) and each is not tensor)
        changes = {"dtype": tensor.detach().to(torch.float16), "shape": tensor.detach().unsqueeze(0)}
        if tensor.dim():
            changes["stride"] = wide
        if tensor.shape == (4,):
            changes["a tie"] = tied
        for what, value in changes.items():
            place[spec.target] = value
            check(f"{what} of {spec.target}")
        place[spec.target] = tensor
    shapes = [node.meta["val"].shape for node in program.graph.find_nodes(op="placeholder")]
    used = {size.node.expr for shape in shapes for size in shape if isinstance(size, torch.SymInt)}
    assert bool(used) == recipe.dynamic
    for symbol in used:
        bounds = ranges[symbol]
        program._range_constraints = {**ranges, symbol: type(bounds)(bounds.lower, bounds.upper + 1)}
        check("a range")
    program._range_constraints = ranges
    assert structure_digest(program) == before


class Wrapped(torch.nn.Module):
    """Computes what a drawn module computes; constants have other names and contents.

    Inputs keep their names: torch chooses by them of which of two equal sizes it speaks.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.inside = Drawn(recipe)
        with torch.no_grad():
            for tensor in self.inside.state_dict().values():
                tensor.zero_()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.inside(x, y)


@settings(max_examples=examples(0.25))
@given(recipe=recipes(most=5), seed=st.integers(0, 2**20), edge=st.booleans())
def test_names_and_contents_are_not_in_the_digest(recipe: Recipe, seed: int, edge: bool) -> None:
    program = export(recipe) if edge else exported(recipe)
    before = structure_digest(program)
    rename_nodes(program, Random(seed))
    assert structure_digest(program) == before
    rows = Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "y": {0: rows}} if recipe.dynamic else None
    wrapped = torch.export.export(Wrapped(recipe), inputs(recipe, 0), dynamic_shapes=shapes, strict=False)
    assert structure_digest(to_edge(wrapped) if edge else wrapped) == before


def rename_nodes(program: ExportedProgram, random: Random) -> None:
    """Give all nodes, constants and nested graphs new names, and forget where nodes came from."""
    names: dict[str, str] = {}
    for module in graphs_of(program.graph_module):
        nodes = list(module.graph.nodes)
        numbers = random.sample(range(len(nodes)), len(nodes))
        for node, number in zip(nodes, numbers, strict=True):
            new = f"v{number}"
            if module is program.graph_module:
                names[node.name] = new
            node.name = new
            node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
            if node.op == "get_attr":
                nested = getattr(module, node.target)
                setattr(module, f"graph_{number}", nested)
                node.target = f"graph_{number}"
    targets = {spec.target: f"t{index}" for index, spec in enumerate(constant_specs(program))}

    def renamed(spec: Any) -> Any:
        name = getattr(spec.arg, "name", None)
        argument = replace(spec.arg, name=names[name]) if name in names else spec.arg
        target = names.get(spec.target, targets.get(spec.target))
        return replace(spec, arg=argument, target=target)

    signature = program.graph_signature
    program._graph_signature = ExportGraphSignature(
        [renamed(spec) for spec in signature.input_specs], [renamed(spec) for spec in signature.output_specs]
    )
    program._state_dict = {targets[name]: value for name, value in program.state_dict.items() if name in targets}
    program._constants = {targets[name]: value for name, value in program.constants.items() if name in targets}
