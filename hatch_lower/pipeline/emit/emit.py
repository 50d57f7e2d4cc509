"""Turn the lowered programs of a model and recipe into a plan, delegate blobs, constants and a debug map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

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
from hatch_lower.exir.graph.surgery import tensor_attributes
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, lowered_modules
from hatch_lower.format.arguments import Argument
from hatch_lower.format.debug_map import DebugMap, MethodDebug
from hatch_lower.format.plan import MethodPlan, Plan
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.emit.constants import ConstantUse, SpanDigests, collect_constants, name_constants
from hatch_lower.pipeline.emit.delegates import Blob, DelegateTable
from hatch_lower.pipeline.emit.flow import flow_of
from hatch_lower.pipeline.emit.graphs import GraphEmitter, MethodContext
from hatch_lower.pipeline.emit.signature import input_of, parameters_of, tree_of, user_inputs
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.emit.symbols import Symbols


class LoweredMethod(Frozen):
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
    model: str, methods: Mapping[str, LoweredMethod], *, roots: Sequence[Path] = (), digests: SpanDigests | None = None
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
    where: str, method: LoweredMethod, names: Mapping[str, str], delegates: DelegateTable, sources: SourceRoots
) -> tuple[MethodPlan, MethodDebug, Mapping[int, Node]]:
    program = method.program
    symbols = Symbols(program.range_constraints, method.dimensions, where)
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
