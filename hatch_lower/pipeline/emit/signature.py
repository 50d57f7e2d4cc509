"""A method's signature: the nesting of parameters and results, and the requirements of each flat input."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from keyword import iskeyword

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind
from torch.fx import Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.state import input_pairs
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.format.arguments import Input, LiteralInput, SymbolInput, TensorInput, Value
from hatch_lower.format.graph import Graph
from hatch_lower.format.plan import MethodPlan, Parameter
from hatch_lower.format.tree import Container, Leaf, Tree
from hatch_lower.pipeline.emit.arguments import literal_argument
from hatch_lower.pipeline.emit.symbols import SizeSymbols
from hatch_lower.runtime.classes import find_owner
from hatch_lower.runtime.torch_private import tensors


def signature_of(
    program: ExportedProgram, names: tuple[str, ...], dimensions: Mapping[str, str], where: str
) -> MethodPlan:
    """Return the signature of an exported method in the form of its plan, with an empty graph."""
    symbols = SizeSymbols(program.range_constraints, dimensions, where)
    users = user_inputs(program)
    inputs = tuple(input_of(spec, node, symbols, where) for spec, node in users)
    positions = {node.name: index for index, (_, node) in enumerate(users)}
    changed = [
        positions[str(spec.target)]
        for spec in program.graph_signature.output_specs
        if spec.kind is OutputKind.USER_INPUT_MUTATION
    ]
    return MethodPlan(
        parameters_of(program, names, where),
        inputs,
        symbols.ranges(),
        Graph(tuple(range(len(inputs))), (), ()),
        (),
        tuple((index, Value(index)) for index in changed),
        None,
    )


def parameters_of(program: ExportedProgram, names: tuple[str, ...], where: str) -> tuple[Parameter, ...]:
    positional, keyword = program.call_spec.in_spec.children()
    if len(names) != positional.num_children:
        raise EdgeError(
            "the names of a method's positional arguments do not fit its example arguments",
            where=where,
            found=f"{len(names)} names, {positional.num_children} arguments",
        )
    parameters = [
        Parameter(name, "positional", tree_of(child, f"{where}, argument `{name}`"))
        for name, child in zip(names, positional.children(), strict=True)
    ]
    parameters += [
        Parameter(name, "keyword", tree_of(child, f"{where}, argument `{name}`"))
        for name, child in zip(keyword.context, keyword.children(), strict=True)
    ]
    return tuple(parameters)


def tree_of(spec: tensors.TreeSpec, where: str) -> Tree:
    if spec.is_leaf():
        return Leaf()
    kind, context = spec.type, spec.context
    children = tuple(tree_of(child, where) for child in spec.children())
    if kind is list or issubclass_of(kind, torch.fx.immutable_collections.immutable_list):
        return Container("list", children)
    if kind in (tuple, torch.Size):
        return Container("tuple", children)
    if kind is defaultdict:
        return Container("dict", children, dict_keys(context[1], where))
    if kind is OrderedDict and all(is_name(key) for key in context):
        return Container("object", children, tuple(context), "collections:OrderedDict")
    if kind in (dict, OrderedDict) or issubclass_of(kind, torch.fx.immutable_collections.immutable_dict):
        return Container("dict", children, dict_keys(context, where))
    named = context if kind is namedtuple else kind
    if kind is namedtuple or kind.__module__ == "torch.return_types":
        fields = named._fields if kind is namedtuple else named.__match_args__
        if importable(named) and not any(field.startswith("_") for field in fields):
            return Container("namedtuple", children, tuple(fields), class_path(named), find_owner(named))
    keys, absent = object_keys(kind, context)
    if keys is not None and len(keys) == len(children) and all(is_name(key) for key in keys) and importable(kind):
        children += (None,) * len(absent)
        return Container("object", children, (*keys, *absent), class_path(kind), find_owner(kind))
    raise EdgeError(
        "a method takes or returns a container that a plan cannot describe",
        where=where,
        found=f"`{class_path(named if isinstance(named, type) else type(named))}`",
        hint="use tuples, lists, dictionaries with string or integer keys, named tuples, dataclasses (registered with "
        "torch.export.register_dataclass) or transformers' ModelOutput, defined at the top level of a module",
    )


def object_keys(kind: object, context: object) -> tuple[list[str] | None, list[str]]:
    """Return the names of a registered class's children, and of its fields set to None; (None, []) if unknown."""
    if is_dataclass(kind) and isinstance(context, list) and len(context) == 2 and isinstance(context[0], list):
        return context[0], context[1]
    known = is_dataclass(kind) or issubclass_of(kind, Mapping)
    return (list(context), []) if known and isinstance(context, (list, tuple)) else (None, [])


def dict_keys(keys: Sequence[str | int], where: str) -> tuple[str | int, ...]:
    for key in keys:
        if type(key) not in (str, int):
            raise EdgeError(
                "a dictionary has a key that is neither a string nor an integer",
                where=where,
                found=repr(key),
                hint="use strings as keys",
            )
    return tuple(keys)


def issubclass_of(kind: object, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def is_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier() and not iskeyword(key)


def importable(kind: type) -> bool:
    # another process finds a class only by module and name
    return "<" not in kind.__qualname__ and kind.__module__ != "__main__"


def class_path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def user_inputs(program: ExportedProgram) -> list[tuple[InputSpec, Node]]:
    return [(spec, node) for spec, node in input_pairs(program) if spec.kind is InputKind.USER_INPUT]


def input_of(spec: InputSpec, node: Node, symbols: SizeSymbols, where: str) -> Input:
    if isinstance(spec.arg, ConstantArgument):
        return LiteralInput(literal_argument(spec.arg.value, where))
    return value_input(node.meta["val"], symbols, f"{where}, input `{node.name}`")


def value_input(value: object, symbols: SizeSymbols, where: str) -> Input:
    """Return the requirements of a method's input, or of a delegate's argument, from the traced value."""
    if isinstance(value, torch.Tensor):
        return tensor_value(value, symbols, where)
    if isinstance(value, torch.SymInt):
        return SymbolInput(symbols.expr(value))
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        raise EdgeError(
            "an input is a symbolic number that is not an integer",
            where=where,
            found=f"{type(value).__name__} {value}",
            hint="pass the number as a 0-d tensor",
        )
    return LiteralInput(literal_argument(value, where))


def tensor_value(value: torch.Tensor, symbols: SizeSymbols, where: str) -> TensorInput:
    if value.layout is not torch.strided or value.device.type != "cpu":
        raise EdgeError(
            "a tensor is not a dense tensor on the CPU",
            where=where,
            found=f"layout {value.layout}, on {value.device}",
            hint="export the model on the CPU",
        )
    shape = tuple(symbols.expr(size) for size in value.shape)
    return TensorInput(dtype_name(value.dtype), shape, tuple(symbols.expr(step) for step in value.stride()))
