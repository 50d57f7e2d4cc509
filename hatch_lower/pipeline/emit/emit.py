"""Turn the lowered programs of a model and recipe into a plan, delegate blobs, constants and a debug map, with the
flow of values between operations; find traces of the build machine in blobs.

A plan has only a delegate's inputs and outputs; the lowered graph also has the flow inside.
"""

from __future__ import annotations

import operator
import os
import platform
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.state import (
    CONSTANT_KINDS,
    STATE_MUTATIONS,
    constant_of,
    constant_specs,
    input_pairs,
    mutated_targets,
    output_pairs,
)
from hatch_lower.exir.graph.surgery import output_values, tensor_attributes
from hatch_lower.exir.graph_module import submodule_of
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, lowered_modules
from hatch_lower.format.arguments import Argument
from hatch_lower.format.debug_map import DebugMap, MethodDebug, input_number
from hatch_lower.format.plan import MethodPlan, Plan
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.emit.constants import ConstantUse, SpanDigests, collect_constants, name_constants
from hatch_lower.pipeline.emit.delegates import Blob, DelegateTable
from hatch_lower.pipeline.emit.graphs import CONTROL_FLOW, GRAPHS, GraphEmitter, MethodContext
from hatch_lower.pipeline.emit.signature import input_of, parameters_of, tree_of, user_inputs
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.emit.symbols import SizeSymbols
from hatch_lower.runtime.torch_private.programs import executorch_call_delegate

Makers: TypeAlias = frozenset[int]  # handles and numbers of inputs from which a value is computed
NONE: Makers = frozenset()


class Flow:
    def __init__(self, known: Collection[int]) -> None:
        self._known = known  # the debug map's handles; a node without such a handle passes on its inputs' makers
        self._reads: dict[int, Makers] = {}

    def reads(self) -> dict[int, tuple[int, ...]]:
        return {handle: tuple(sorted(self._reads[handle])) for handle in sorted(self._reads) if self._reads[handle]}

    def follow(self, module: GraphModule, given: Mapping[Node, Makers]) -> tuple[Makers, ...]:
        """Note a graph's edges and return the makers of its outputs; `given` has the makers of its placeholders."""
        makers: dict[Node, Makers] = {}
        results: dict[Node, tuple[Makers, ...]] = {}  # of calls whose outputs come from different operations
        for node in module.graph.nodes:
            if node.op == "placeholder":
                makers[node] = given.get(node, NONE)
            elif node.op != "call_function":
                makers[node] = NONE
            elif node.target is operator.getitem and node.args[0] in results:
                makers[node] = results[node.args[0]][node.args[1]]
            elif node.target is executorch_call_delegate:
                results[node] = self._follow_delegate(module, node, makers)
                makers[node] = union(results[node])
            else:
                before = union(makers[argument] for argument in node.all_input_nodes)
                if node.target in CONTROL_FLOW:
                    before |= self._follow_nested(module, node, makers)
                makers[node] = self._note(node, before)
        return tuple(makers.get(value, NONE) if isinstance(value, Node) else NONE for value in output_values(module))

    def _note(self, node: Node, before: Makers) -> Makers:
        handle = node.meta.get("debug_handle")
        if handle is None or handle not in self._known:
            return before
        # nodes from the decomposition of an operation share its handle
        self._reads[handle] = self._reads.get(handle, NONE) | (before - {handle})
        return frozenset({handle})

    def _follow_delegate(self, module: GraphModule, node: Node, makers: Mapping[Node, Makers]) -> tuple[Makers, ...]:
        _, lowered = submodule_of(module, node, 0, LoweredBackendModule)
        program = lowered.original_module
        inputs = [placeholder for _, placeholder in user_inputs(program)]
        given = dict(zip(inputs, (makers_of(value, makers) for value in node.args[1:]), strict=True))
        return self.follow(program.graph_module, given)

    def _follow_nested(self, module: GraphModule, node: Node, makers: Mapping[Node, Makers]) -> Makers:
        _, parts = CONTROL_FLOW[node.target]
        lists = [value for value in node.args if isinstance(value, list | tuple)]
        operands = [makers_of(value, makers) for values in lists for value in values]
        made = NONE
        for place, part in enumerate(parts):
            if part in GRAPHS:
                _, nested = submodule_of(module, node, place, GraphModule)
                inputs = [inner for inner in nested.graph.nodes if inner.op == "placeholder"]
                made |= union(self.follow(nested, dict(zip(inputs, operands, strict=True))))
        return made


def flow_of(module: GraphModule, inputs: list[Node], known: Collection[int]) -> dict[int, tuple[int, ...]]:
    # `known` are the handles of the method's debug map
    flow = Flow(known)
    flow.follow(module, {node: frozenset({input_number(at)}) for at, node in enumerate(inputs)})
    return flow.reads()


def makers_of(value: object, makers: Mapping[Node, Makers]) -> Makers:
    return makers[value] if isinstance(value, Node) else NONE


def union(listed: Iterable[Makers]) -> Makers:
    return NONE.union(*listed)


class MethodToEmit(Frozen):
    name: str
    program: ExportedProgram
    parameters: tuple[str, ...]  # Python names of the positional arguments
    reasons: Mapping[str, str] = field(default_factory=dict)  # node name to the reason why no backend took the node
    # torch's name of a symbol to the name of its `torch.export.Dim`
    dimensions: Mapping[str, str] = field(default_factory=dict)


class EmittedProgram(Frozen):
    plan: Plan
    blobs: Mapping[str, Blob]
    debug: DebugMap
    # storage key to its 1-D tensor; `merge_storages` joins the storages of several recipes
    storages: Mapping[str, torch.Tensor]
    data: Mapping[str, bytes]  # sha256 to named data of delegates, to be written to `<model>/data/<sha256>.blob`
    # method name to debug handle to the node that the debug map describes there
    nodes: Mapping[str, Mapping[int, Node]] = field(default_factory=dict)

    def requirements(self) -> tuple[str, ...]:
        return tuple(sorted({line for blob in self.blobs.values() for line in blob.requirements}))


def emit_program(
    model: str, methods: Mapping[str, MethodToEmit], *, roots: Sequence[Path] = (), digests: SpanDigests | None = None
) -> EmittedProgram:
    """Return the packaged program of a model and recipe; source files are named relative to `roots`."""
    uses = {name: dict(constant_uses(name, method.program)) for name, method in methods.items()}
    delegated = [
        use
        for method in methods.values()
        for module in lowered_modules(method.program)
        for use in module_uses(method.name, module)
    ]
    tensors, mutable = name_constants([*(use for method in uses.values() for use in method.values()), *delegated])
    constants = collect_constants(tensors, mutable, SpanDigests() if digests is None else digests)
    delegates = DelegateTable(model, constants)
    sources = SourceRoots(roots)
    plans: dict[str, MethodPlan] = {}
    debug: dict[str, MethodDebug] = {}
    nodes: dict[str, Mapping[int, Node]] = {}
    for name, method in methods.items():
        names = {key: use.plan_name for key, use in uses[name].items()}
        plans[name], debug[name], nodes[name] = emit_method(f"{model}.{name}", method, names, delegates, sources)
    return EmittedProgram(
        Plan(tuple(delegates.storages), constants.constants, tuple(delegates.entries), plans),
        delegates.blobs,
        DebugMap(debug, sources.digests(debug.values())),
        delegates.contents,
        delegates.data,
        nodes,
    )


def constant_uses(method: str, program: ExportedProgram) -> Iterator[tuple[str, ConstantUse]]:
    """Yield the constants that a program's own operations use, by placeholder name or path of an attribute."""
    changed = mutated_targets(program)
    for spec, node in input_pairs(program):
        if spec.kind is InputKind.USER_INPUT or (not node.users and spec.target not in changed):
            continue
        if spec.kind not in CONSTANT_KINDS:
            raise EdgeError(
                "a method uses a constant that is not a tensor",
                where=f"method `{method}`, `{spec.target}`",
                found=spec.kind.name.lower(),
                hint="plans hold tensors only; script objects cannot be packaged",
            )
        tensor, lifted = constant_of(program, spec), spec.kind is InputKind.CONSTANT_TENSOR
        yield node.name, ConstantUse(method, str(spec.target), tensor, spec.target in changed, lifted)
    for path, tensor in tensor_attributes(program.graph_module):
        yield path, ConstantUse(method, path, tensor, lifted=True)


def module_uses(method: str, module: LoweredBackendModule) -> list[ConstantUse]:
    """Return the constants to bind to a lowered module, in order; empty if the blob holds the constants."""
    if not module.constants:
        return []
    program = module.original_module
    changed = mutated_targets(program)
    return [
        ConstantUse(
            method,
            f"{module.prefix}{spec.target}",
            constant_of(program, spec),
            spec.target in changed,
            spec.kind is InputKind.CONSTANT_TENSOR or module.prefix != "",
        )
        for spec in constant_specs(program)
    ]


def emit_method(
    where: str, method: MethodToEmit, names: Mapping[str, str], delegates: DelegateTable, sources: SourceRoots
) -> tuple[MethodPlan, MethodDebug, Mapping[int, Node]]:
    program = method.program
    symbols = SizeSymbols(program.range_constraints, method.dimensions, where)
    users = user_inputs(program)
    inputs = symbols.determined([input_of(spec, node, symbols, where) for spec, node in users])
    symbols.close_inputs()

    def add_delegate(module: LoweredBackendModule) -> int:
        return delegates.add(module, tuple(use.plan_name for use in module_uses(method.name, module)))

    context = MethodContext(where, symbols, names, add_delegate, sources, method.reasons)
    emitter = GraphEmitter(context, program.graph_module)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            emitter.add_constant(node, names[node.name])
    for _, node in users:
        emitter.add_input(node)
    emitter.emit_calls()

    positions = {node.name: index for index, (_, node) in enumerate(users)}
    mutations: list[tuple[str, Argument]] = []
    input_mutations: list[tuple[int, Argument]] = []
    outputs: list[Argument] = []
    for spec, value in output_pairs(program):
        argument = emitter.refer(value)
        if spec.kind in STATE_MUTATIONS:
            mutations.append((str(spec.target), argument))
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            input_mutations.append((positions[str(spec.target)], argument))
        elif spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(argument)
        else:
            raise EdgeError(
                "a method has an output that only training needs",
                where=where,
                found=spec.kind.name.lower(),
                hint="export the method for inference",
            )
    plan = MethodPlan(
        parameters_of(program, method.parameters, where),
        inputs,
        symbols.ranges(),
        emitter.graph(outputs),
        tuple(mutations),
        tuple(input_mutations),
        tree_of(program.call_spec.out_spec, f"{where}, result"),
    )
    flow = flow_of(program.graph_module, [node for _, node in users], context.handles)
    return plan, replace(context.debug(), reads=flow), context.nodes


SHORTEST = 5  # characters of a name, or digits of a number, that rarely occur by chance
BEGIN, END = rb"(?<![0-9A-Za-z.])", rb"(?![0-9A-Za-z.])"
ADDRESS = re.compile(rb" at 0x[0-9a-f]{8,16}>")


def machine_words(root: Path) -> dict[str, bytes]:
    folders = {
        "the project's folder": str(root),
        "the temporary folder": tempfile.gettempdir(),
        "the home folder": os.path.expanduser("~"),
    }
    words = {name: folder.rstrip(os.sep) + os.sep for name, folder in folders.items() if folder.count(os.sep) > 1}
    words |= {"the machine's name": platform.node(), "the id of the process": str(os.getpid())}
    return {name: os.fsencode(word) for name, word in words.items() if len(word) >= SHORTEST}


def trace_in(data: bytes, words: Mapping[str, bytes]) -> str:
    for name, word in words.items():
        pattern = BEGIN + re.escape(word) + (b"" if word.endswith(os.fsencode(os.sep)) else END)
        # searching the plain word first is much faster than a regular expression, and is enough for most blobs
        if word in data and re.search(pattern, data):
            return f"{name}, `{os.fsdecode(word)}`"
    address = ADDRESS.search(data)
    return f"an address in memory, `{address[0].decode().strip()}`" if address else ""


def traces_of(emitted: EmittedProgram, words: Mapping[str, bytes]) -> Iterator[str]:
    for entry in emitted.plan.delegates:
        blob = next(data for digest, data in emitted.blobs.items() if digest in entry.file)
        for what, data in (("blob", blob.data), ("facts", canonical_json(entry.info))):
            if found := trace_in(data, words):
                yield f"the {what} of the backend `{entry.backend}` hold{'s' * (what == 'blob')} {found}"
