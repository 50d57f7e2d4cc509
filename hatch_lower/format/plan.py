"""The plan: the instructions of a model for a recipe, as data. A canonical JSON file for each model and recipe."""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal

from hatch_lower.canonical import canonical_json
from hatch_lower.format.arguments import (
    Argument,
    ConstantName,
    Input,
    Symbol,
    TensorInput,
    Value,
    check_symbols_declared,
    input_text,
    range_texts,
)
from hatch_lower.format.codec import Damage, decode_file, encode, installation_error, within
from hatch_lower.format.constants import (
    Constant,
    DelegateEntry,
    Storage,
    TargetEntry,
    check_view,
    is_layout_whole,
    meanings,
)
from hatch_lower.format.expression import SymbolName
from hatch_lower.format.graph import Graph, Scope, check_graph, check_references
from hatch_lower.format.manifest import RecipeEntry
from hatch_lower.format.tree import Tree, count_leaves, leaf_paths, tree_text
from hatch_lower.format.values import Identifier, Natural, Text
from hatch_lower.frozen import Frozen

PLAN_SCHEMA = 2


class Parameter(Frozen):
    name: Identifier
    kind: Literal["positional", "keyword"]
    tree: Tree


class MethodPlan(Frozen):
    parameters: tuple[Parameter, ...]  # positional ones first
    inputs: tuple[Input, ...]  # an input for each leaf over all parameters, in order
    symbols: Mapping[SymbolName, Symbol]  # of every graph of the method
    graph: Graph  # its inputs are the leaves
    mutations: tuple[tuple[str, Argument], ...]  # name of a constant, and the value to copy into it at the end
    # index of an input, and the value to copy into the input at the end
    input_mutations: tuple[tuple[Natural, Argument], ...]
    outputs: Tree  # its leaves are the graph's outputs

    def validate(self) -> None:
        if len({parameter.name for parameter in self.parameters}) != len(self.parameters):
            raise Damage("two parameters with the same name")
        kinds = [parameter.kind for parameter in self.parameters]
        if kinds != sorted(kinds, reverse=True):
            raise Damage("a positional parameter after a keyword parameter")


class Plan(Frozen):
    storages: tuple[Storage, ...]
    constants: Mapping[Text, Constant]
    delegates: tuple[DelegateEntry, ...]
    methods: Mapping[Text, MethodPlan]

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(sorted({entry.backend for entry in self.delegates}))

    @property
    def target(self) -> TargetEntry | None:
        # the machine required by native code
        return next((entry.target for entry in self.delegates if entry.target is not None), None)

    def validate(self) -> None:
        for name, constant in self.constants.items():
            with within(f".constants[{name!r:.80}]"):
                check_view(constant, self.storages)
        changing = {constant.storage for constant in self.constants.values() if constant.mutable}
        known: dict[str, object] = {}
        for index, entry in enumerate(self.delegates):
            with within(f".delegates[{index}]"):
                for name in entry.constants:
                    if name not in self.constants:
                        raise Damage(f"the unknown constant `{name[:80]}`")
                for name, meaning in meanings(entry.data, entry.named):
                    if known.setdefault(name, meaning) != meaning:
                        raise Damage(f"the name {name!r:.80}, which stands for different data in another delegate")
                check_named(entry, self.storages, changing)
        for name, method in self.methods.items():
            with within(f".methods[{name!r:.80}]"):
                check_method_plan(method, Scope(self.constants, len(self.delegates), method.symbols))


def check_named(entry: DelegateEntry, storages: Sequence[Storage], changing: Set[int]) -> None:
    for name, data in entry.named.items():
        if data.storage >= len(storages):
            raise Damage(f"the name {name!r:.80} for storage {data.storage} of {len(storages)}")
        if data.storage in changing:
            raise Damage(f"the name {name!r:.80} for a constant that the model changes")
        size = storages[data.storage].nbytes
        if not is_layout_whole(data.layout, size):
            raise Damage(f"{size} bytes for {name!r:.80} in another layout")


def read_plan(data: bytes, where: str) -> Plan:
    return decode_file(Plan, data, PLAN_SCHEMA, where)


def write_plan(plan: Plan) -> bytes:
    return canonical_json({"schema": PLAN_SCHEMA, **encode(plan, packaged=True)})


def check_method_plan(method: MethodPlan, scope: Scope) -> None:
    for index, entry in enumerate(method.inputs):
        with within(f".inputs[{index}]"):
            check_symbols_declared(entry, scope.symbols)
    graph = method.graph
    with within(".graph"):
        check_graph(graph, scope)
    leaves = sum(count_leaves(parameter.tree) for parameter in method.parameters)
    if not leaves == len(method.inputs) == len(graph.inputs):
        raise Damage(f"{leaves} leaves, {len(method.inputs)} inputs, {len(graph.inputs)} graph inputs")
    if count_leaves(method.outputs) != len(graph.outputs):
        raise Damage(f"{count_leaves(method.outputs)} output leaves for {len(graph.outputs)} graph outputs")
    slots = {*graph.inputs, *(instruction.out for instruction in graph.instructions)}
    with within(".mutations"):
        for name, source in method.mutations:
            if name not in scope.constants or not scope.constants[name].mutable:
                raise Damage(f"{name!r:.80} instead of a mutable constant")
            check_source(source, slots, scope)
    with within(".input_mutations"):
        for position, source in method.input_mutations:
            if position >= len(method.inputs) or not isinstance(method.inputs[position], TensorInput):
                raise Damage(f"input {position}, which is no tensor")
            check_source(source, slots, scope)


def check_source(source: Argument, slots: set[int], scope: Scope) -> None:
    if not isinstance(source, Value | ConstantName):
        raise Damage("neither a slot nor a constant")
    check_references(source, slots, scope.constants)


def check_agreement(plan: Plan, recipe: RecipeEntry, where: str) -> None:
    # `load` chooses a recipe by the manifest and runs it by the plan
    for what, stated, listed in (
        ("the methods", names_text(plan.methods), names_text(recipe.methods)),
        ("the backends", names_text(plan.backends), names_text(recipe.backends)),
        ("the machine", machine_text(plan.target), machine_text(recipe.target)),
    ):
        if stated != listed:
            found = f"{what} {stated}, where the manifest says {listed}"
            raise installation_error("the plan and the manifest contradict each other", where, found)


def names_text(names: Iterable[str]) -> str:
    return ", ".join(f"`{name:.80}`" for name in sorted(names)) or "none"


def machine_text(target: TargetEntry | None) -> str:
    if target is None:
        return "any"
    codes = [target.isa, *target.arch, target.ptx, target.cuda and f"CUDA {target.cuda}"]
    return f"{target.system:.40} {target.machine:.40}, {' '.join(filter(None, codes)):.200}"


def signature_text(name: str, method: MethodPlan) -> str:
    """Return `embed(image: float32[batch, 1, 8, 8], *, scale: the value 2); batch from 1 to 1024`."""
    leaves = (input_text(entry, method.symbols) for entry in method.inputs)
    texts = []
    for parameter in method.parameters:
        if parameter.kind == "keyword" and "*" not in texts:
            texts.append("*")
        texts.append(f"{parameter.name}: {tree_text(parameter.tree, leaves.__next__)}")
    return "; ".join([f"{name}({', '.join(texts)})", *range_texts(method.inputs, method.symbols)])


def input_paths(method: MethodPlan) -> list[str]:
    """Return the path of each input of a method in Python's notation: `image`, `boxes[0]`."""
    return [path for parameter in method.parameters for path in leaf_paths(parameter.tree, parameter.name)]


def input_texts(method: MethodPlan) -> dict[str, str]:
    """Return descriptions of a method's inputs, by path."""
    named = zip(input_paths(method), method.inputs, strict=True)
    return {path: input_text(value, method.symbols) for path, value in named}
