"""The plan: what one model does for one recipe, as data. One file each, canonical JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hatch_lower.canonical import canonical_json
from hatch_lower.format.arguments import Argument, ConstantName, Value, argument_json, read_argument
from hatch_lower.format.constants import Constant, Storage, constant_json, read_constant, read_storage, storage_json
from hatch_lower.format.delegates import DelegateEntry, delegate_json, read_delegate
from hatch_lower.format.graph import Graph, graph_json
from hatch_lower.format.graph_reader import Scope, read_graph
from hatch_lower.format.inputs import (
    Input,
    Symbol,
    TensorInput,
    input_json,
    read_input,
    read_symbols,
    symbols_json,
)
from hatch_lower.format.reading import (
    check_schema,
    parse_json,
    read_fields,
    read_identifier,
    read_list,
    read_natural,
    read_object,
    read_pair,
    read_text,
    refuse,
)
from hatch_lower.format.tree import Tree, count_leaves, read_tree, tree_json

PLAN_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the Python signature, `positional` or `keyword`."""

    name: str
    kind: str
    tree: Tree


@dataclass(frozen=True, slots=True)
class MethodPlan:
    """One method.

    Args:
        parameters: positional ones first.
        inputs: of each leaf over all parameters, in order.
        symbols: of every graph of the method.
        graph: its inputs are the leaves.
        mutations: constant name, and the value copied into it when all is computed.
        input_mutations: index of an input, and the value copied into it when all is computed.
        outputs: its leaves are the graph's outputs.
    """

    parameters: tuple[Parameter, ...]
    inputs: tuple[Input, ...]
    symbols: Mapping[str, Symbol]
    graph: Graph
    mutations: tuple[tuple[str, Argument], ...]
    input_mutations: tuple[tuple[int, Argument], ...]
    outputs: Tree


@dataclass(frozen=True, slots=True)
class Plan:
    """All methods of one model for one recipe."""

    storages: tuple[Storage, ...]
    constants: Mapping[str, Constant]
    delegates: tuple[DelegateEntry, ...]
    methods: Mapping[str, MethodPlan]


def read_plan(data: bytes, where: str) -> Plan:
    """Return the plan in `data`; `where` names the file in messages.

    Raises:
        ProgramError: if it is damaged, or from a newer hatch-lower.
    """
    value = parse_json(data, where)
    check_schema(value, PLAN_SCHEMA, where)
    try:
        fields = read_fields(value, frozenset({"schema", "storages", "constants", "delegates", "methods"}), where)
        storages = tuple(
            read_storage(each, f"{where}: storages[{index}]")
            for index, each in enumerate(read_list(fields["storages"], where))
        )
        constants = {
            read_text(name, where): read_constant(each, storages, f"{where}: constants[{name!r:.80}]")
            for name, each in read_object(fields["constants"], where).items()
        }
        delegates = tuple(
            read_delegate(each, constants, f"{where}: delegates[{index}]")
            for index, each in enumerate(read_list(fields["delegates"], where))
        )
        _check_data(delegates, where)
        methods = {
            read_text(name, where): _read_method(each, constants, len(delegates), f"{where}: methods[{name!r:.80}]")
            for name, each in read_object(fields["methods"], where).items()
        }
    except RecursionError:
        refuse(where, "JSON that nests too deeply")
    return Plan(storages, constants, delegates, methods)


def write_plan(plan: Plan) -> bytes:
    """Return the plan as canonical JSON, which `read_plan` reads back to an equal plan."""
    return canonical_json(
        {
            "schema": PLAN_SCHEMA,
            "storages": [storage_json(each) for each in plan.storages],
            "constants": {name: constant_json(each) for name, each in plan.constants.items()},
            "delegates": [delegate_json(each) for each in plan.delegates],
            "methods": {name: _method_json(each) for name, each in plan.methods.items()},
        }
    )


def _check_data(delegates: Iterable[DelegateEntry], where: str) -> None:
    """Refuse one name for two files of named data."""
    files: dict[str, str] = {}
    for index, entry in enumerate(delegates):
        for name, data in entry.data.items():
            if files.setdefault(name, data.file) != data.file:
                refuse(f"{where}: delegates[{index}]", f"the name {name!r:.80} for another file than elsewhere")


def _read_method(value: Any, constants: Mapping[str, Constant], delegates: int, where: str) -> MethodPlan:
    names = frozenset(
        {"parameters", "inputs", "symbols", "graph", "mutations", "input_mutations", "outputs"},
    )
    fields = read_fields(value, names, where)
    parameters = tuple(
        _read_parameter(each, f"{where}.parameters[{index}]")
        for index, each in enumerate(read_list(fields["parameters"], where))
    )
    if len({each.name for each in parameters}) != len(parameters):
        refuse(where, "two parameters of one name")
    if [each.kind for each in parameters] != sorted((each.kind for each in parameters), reverse=True):
        refuse(where, "a positional parameter after a keyword one")
    symbols = read_symbols(fields["symbols"], f"{where}.symbols")
    inputs = tuple(
        read_input(each, symbols, f"{where}.inputs[{index}]")
        for index, each in enumerate(read_list(fields["inputs"], where))
    )
    graph = read_graph(fields["graph"], Scope(constants, delegates, symbols), f"{where}.graph")
    leaves = sum(count_leaves(each.tree) for each in parameters)
    if not leaves == len(inputs) == len(graph.inputs):
        refuse(where, f"{leaves} leaves, {len(inputs)} inputs, {len(graph.inputs)} graph inputs")
    outputs = read_tree(fields["outputs"], f"{where}.outputs")
    if count_leaves(outputs) != len(graph.outputs):
        refuse(where, f"{count_leaves(outputs)} output leaves for {len(graph.outputs)} graph outputs")
    slots = frozenset(graph.inputs) | {each.out for each in graph.instructions}
    mutations = []
    for each in read_list(fields["mutations"], where):
        name, source = read_pair(each, f"{where}.mutations")
        if not isinstance(name, str) or name not in constants or not constants[name].mutable:
            refuse(f"{where}.mutations", f"{name!r:.80} instead of a mutable constant")
        mutations.append((name, _read_reference(source, slots, constants, f"{where}.mutations")))
    input_mutations = []
    for each in read_list(fields["input_mutations"], where):
        index, source = read_pair(each, f"{where}.input_mutations")
        position = read_natural(index, f"{where}.input_mutations")
        if position >= len(inputs) or not isinstance(inputs[position], TensorInput):
            refuse(f"{where}.input_mutations", f"input {position}, which is no tensor")
        input_mutations.append((position, _read_reference(source, slots, constants, f"{where}.input_mutations")))
    return MethodPlan(parameters, inputs, symbols, graph, tuple(mutations), tuple(input_mutations), outputs)


def _read_parameter(value: Any, where: str) -> Parameter:
    fields = read_fields(value, frozenset({"name", "kind", "tree"}), where)
    if fields["kind"] not in ("positional", "keyword"):
        refuse(where, f"a parameter of kind {fields['kind']!r:.40}")
    return Parameter(read_identifier(fields["name"], where), fields["kind"], read_tree(fields["tree"], where))


def _read_reference(
    value: Any, slots: frozenset[int], constants: Mapping[str, Constant], where: str
) -> Value | ConstantName:
    """Return a value or constant of a method's top graph."""
    reference = read_argument(value, where)
    if isinstance(reference, Value) and reference.slot in slots:
        return reference
    if isinstance(reference, ConstantName) and reference.name in constants:
        return reference
    refuse(where, "neither a slot nor a constant")


def _method_json(method: MethodPlan) -> dict[str, Any]:
    return {
        "parameters": [
            {"name": each.name, "kind": each.kind, "tree": tree_json(each.tree)} for each in method.parameters
        ],
        "inputs": [input_json(each) for each in method.inputs],
        "symbols": symbols_json(method.symbols),
        "graph": graph_json(method.graph),
        "mutations": [[name, argument_json(source)] for name, source in method.mutations],
        "input_mutations": [[index, argument_json(source)] for index, source in method.input_mutations],
        "outputs": tree_json(method.outputs),
    }
