"""Instructions of a graph and its nested graphs."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.fx import GraphModule, Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.dialects.edge._ops import dotted_name
from hatch_lower.exir.graph.surgery import all_nodes, output_values
from hatch_lower.exir.graph_module import submodule_of
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.format.arguments import Argument, ConstantName, Value
from hatch_lower.format.debug_map import NO_REASON, DelegateDebug, MethodDebug, Origin, Undelegated
from hatch_lower.format.graph import Cond, DelegateCall, Graph, Instruction, Map, OpCall, PythonCall, Scan, While
from hatch_lower.pipeline.emit.arguments import (
    PYTHON_FUNCTIONS,
    called_name,
    convert_argument,
    number_conversion,
    overload_of,
)
from hatch_lower.pipeline.emit.signature import tensor_value, value_input
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.emit.symbols import SizeSymbols
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of
from hatch_lower.runtime.torch_private.programs import executorch_call_delegate

ASSERTIONS = frozenset({"aten._assert_scalar.default", "aten._assert_async.msg", "aten._assert_async.default"})
SIZES = frozenset(
    {"aten.sym_size.int", "aten.sym_stride.int", "aten.sym_numel.default", "aten.sym_storage_offset.default"}
)
# torch's operator → the instruction, and the fields for torch's arguments, in order; for a `scan` along another
# dimension, or backwards, torch has already permuted or flipped the tensors
CONTROL_FLOW: Mapping[object, tuple[Callable[..., Instruction], tuple[str, ...]]] = {
    torch.ops.higher_order.cond: (Cond, ("predicate", "true", "false", "args")),
    torch.ops.higher_order.while_loop: (While, ("condition", "body", "args", "extra")),
    torch.ops.higher_order.map_impl: (Map, ("body", "args", "extra")),
    torch.ops.higher_order.scan: (Scan, ("body", "args", "rows", "extra")),
}
GRAPHS = frozenset({"true", "false", "condition", "body"})  # fields that are graphs


@dataclass(slots=True)
class MethodContext:
    """State that the graphs of a method share during emission."""

    where: str
    symbols: SizeSymbols
    # placeholder's name, or dotted path of a tensor in a nested graph, to the constant's plan name
    constants: Mapping[str, str]
    add_delegate: Callable[[LoweredBackendModule], int]
    sources: SourceRoots
    reasons: Mapping[str, str]  # node name to the reason why no backend took the node
    handles: dict[int, Origin] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)  # debug handle to the node that its origin describes
    instructions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    delegates: dict[str, DelegateDebug] = field(default_factory=dict)
    undelegated: list[Undelegated] = field(default_factory=list)

    def debug(self) -> MethodDebug:
        handles = {handle: self.handles[handle] for handle in sorted(self.handles)}
        return MethodDebug(handles, self.instructions, self.delegates, tuple(self.undelegated))


class GraphEmitter:
    def __init__(self, context: MethodContext, module: GraphModule, path: str = "", prefix: str = "") -> None:
        self._context = context
        self._module = module
        self._path = path  # prefix of an instruction's number in the debug map: `4.true.`, empty at the top
        self._prefix = prefix  # prefix of an attribute's name: `true_graph_0.`, empty at the top
        self._known: dict[Node, Argument] = {}
        self._results: dict[object, list[Argument]] = {}
        self._inputs: list[int] = []
        self._instructions: list[Instruction] = []
        self._slots = itertools.count()
        self._needed = needed_nodes(module, context.symbols)

    def add_input(self, node: Node) -> None:
        slot = next(self._slots)
        self._inputs.append(slot)
        self._known[node] = Value(slot)

    def add_constant(self, node: Node, name: str) -> None:
        self._known[node] = ConstantName(name)

    def emit_calls(self) -> None:
        # all placeholders must have been added
        for node in self._module.graph.nodes:
            if node.op == "call_function" and node in self._needed:
                self._emit_call(node)
            elif node.op == "get_attr" and (name := self._context.constants.get(f"{self._prefix}{node.target}")):
                self._known[node] = ConstantName(name)

    def refer(self, value: object) -> Argument:
        return self._argument(value, "output")

    def graph(self, outputs: Sequence[Argument]) -> Graph:
        return Graph(tuple(self._inputs), tuple(self._instructions), tuple(outputs))

    def _append(self, make: Callable[[int], Instruction], handles: tuple[int, ...]) -> Value:
        slot = next(self._slots)
        if handles:
            self._context.instructions[self._next_path()] = handles
        self._instructions.append(make(slot))
        return Value(slot)

    def _next_path(self) -> str:
        return f"{self._path}{len(self._instructions)}"

    def _where(self, node: Node | str) -> str:
        if isinstance(node, str):
            return f"{self._context.where}, {node}"
        source = self._context.sources.source(node.meta.get("stack_trace"))
        return f"{self._context.where}, node `{node.name}`" + (f" ({source})" if source else "")

    def _argument(self, value: object, node: Node | str) -> Argument:
        return convert_argument(value, self._known.__getitem__, self._where(node))

    def _arguments(self, values: Sequence[object], node: Node) -> tuple[Argument, ...]:
        return tuple(self._argument(value, node) for value in values)

    def _emit_call(self, node: Node) -> None:
        target = node.target
        if (overload := overload_of(target)) is not None:
            self._known[node] = self._emit_op(node, dotted_name(overload))
        elif target is executorch_call_delegate:
            self._known[node] = self._emit_delegate(node)
        elif target in CONTROL_FLOW:
            self._known[node] = self._emit_control_flow(node)
        elif target is torch.ops.higher_order.auto_functionalized_v2:
            self._results[node] = self._emit_in_place(node)
        elif target is operator.getitem and node.args[0] in self._results:
            self._known[node] = self._result(node)
        elif target in PYTHON_FUNCTIONS:
            self._known[node] = self._emit_python(node, PYTHON_FUNCTIONS[target])
        else:
            raise EdgeError(
                "a method uses an operation that a plan cannot express",
                where=self._where(node),
                found=f"`{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}`",
                hint="plans hold ATen and custom operators, arithmetic on sizes, and `cond`, `while_loop`, `map` and "
                "`scan` of torch",
            )

    def _emit_op(self, node: Node, name: str) -> Argument:
        args = list(node.args)
        if name in ASSERTIONS:
            args = [self._message(arg) if isinstance(arg, str) else arg for arg in args]
        converted = self._arguments(args, node)
        kwargs = {key: self._argument(value, node) for key, value in sorted(node.kwargs.items())}
        if name not in SIZES:
            self._note_undelegated(node, name)
        return self._append(lambda out: OpCall(name, converted, kwargs, out), self._handles(node, name))

    def _message(self, text: str) -> str:
        return self._context.symbols.rename(text.partition(" on node '")[0])

    def _emit_python(self, node: Node, name: str) -> Argument:
        args = self._arguments(node.args, node)
        if name == "round" and len(args) == 1:
            args = (*args, None)
        result = self._append(lambda out: PythonCall(name, args, out), self._handles(node, name))
        source = node.args[0]
        is_returned = name == "getitem" and isinstance(source, Node) and source.target is executorch_call_delegate
        if is_returned and (conversion := number_conversion(node.meta.get("val"))):
            return self._append(lambda out: PythonCall(conversion, (result,), out), ())
        return result

    def _emit_delegate(self, node: Node) -> Argument:
        _, module = submodule_of(self._module, node, 0, LoweredBackendModule)
        operands = node.args[1:]
        number = self._context.add_delegate(module)
        inputs = tuple(
            value_input(arg.meta["val"] if isinstance(arg, Node) else arg, self._context.symbols, self._where(node))
            for arg in operands
        )
        outputs = tuple(
            tensor_value(value, self._context.symbols, self._where(node)) if isinstance(value, torch.Tensor) else None
            for value in node.meta["val"]
        )
        args = self._arguments(operands, node)
        handles: dict[int, None] = {}
        for inner in all_nodes(module.original_module.graph_module):
            if inner.op == "call_function":
                handles.update(dict.fromkeys(self._handles(inner, called_name(inner))))
        debug = (module.meta or {}).get("debug_handle_map", module.result.debug_handle_map)
        mapped = None if debug is None else {str(key): tuple(value) for key, value in debug.items()}
        self._context.delegates[self._next_path()] = DelegateDebug(module.backend_id, mapped)
        return self._append(lambda out: DelegateCall(number, args, inputs, outputs, out), tuple(sorted(handles)))

    def _emit_in_place(self, node: Node) -> list[Argument]:
        # A plan's operators do not change values: a custom operator changes copies of its arguments. The copies are
        # further results, which torch's graph uses from there on.
        overload = node.args[0]
        given = dict(node.kwargs)
        bases = given.pop("_all_bases", None)
        if not isinstance(overload, OpOverload) or not isinstance(bases, list | tuple):
            raise EdgeError(
                "a call that changes values in place is not an operator",
                where=self._where(node),
                found=f"`{node.args[0]}` with `_all_bases={bases}`",
                hint="passes must keep torch's calls of `auto_functionalized_v2` unchanged",
            )
        schema = schema_of(overload)
        changed = [each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write]
        bound = {name: given.pop(f"_{name}_base_index", None) for name in changed}
        places = {name: place for name, place in bound.items() if isinstance(place, int | None)}
        if len(places) < len(bound) or any(key.startswith("_") for key in given):
            raise EdgeError(
                "a custom operator changes a view or a list of tensors, which a plan cannot express",
                where=self._where(node),
                found=f"`{dotted_name(overload)}`",
                hint="pass whole tensors to the operator, or let the operator return new tensors",
            )
        copies = [
            self._append(partial(OpCall, "aten.clone.default", (base,), {}), ())
            for base in self._arguments(bases, node)
        ]
        values = {name: self._argument(value, node) for name, value in given.items()}
        values |= {name: None if place is None else copies[place] for name, place in places.items()}
        kwargs = dict(sorted(values.items()))
        name = dotted_name(overload)
        self._note_undelegated(node, name)
        result = self._append(lambda out: OpCall(name, (), kwargs, out), self._handles(node, name))
        count = len(schema.returns)
        results = [result]
        if count > 1:
            results = [self._append(partial(PythonCall, "getitem", (result, index)), ()) for index in range(count)]
        return [*results, *copies]

    def _result(self, node: Node) -> Argument:
        producer, index = node.args
        if not isinstance(index, int):
            raise EdgeError(
                "several results of an operator that changes values in place are taken at once",
                where=self._where(node),
                found=f"`getitem` with `{index}`",
                hint="take the results separately, by number",
            )
        return self._results[producer][index]

    def _emit_control_flow(self, node: Node) -> Argument:
        name, path = called_name(node), self._next_path()
        kind, parts = CONTROL_FLOW[node.target]
        if len(node.args) != len(parts):
            raise EdgeError(
                f"`{name}` has other arguments than in torch",
                where=self._where(node),
                found=f"{len(node.args)} arguments by position",
                hint=f"passes must keep all {len(parts)} arguments, by position",
            )
        values: dict[str, Graph | Argument] = {}
        for number, (part, value) in enumerate(zip(parts, node.args, strict=True)):
            if part in GRAPHS:
                values[part] = self._nested(*submodule_of(self._module, node, number, GraphModule), f"{path}.{part}.")
            else:
                values[part] = self._argument(value, node)
        self._note_undelegated(node, name)
        return self._append(lambda out: kind(**values, out=out), self._handles(node, name))

    def _nested(self, name: str, module: GraphModule, path: str) -> Graph:
        emitter = GraphEmitter(self._context, module, path, f"{self._prefix}{name}.")
        for inner in module.graph.nodes:
            if inner.op == "placeholder":
                emitter.add_input(inner)
        emitter.emit_calls()
        return emitter.graph([emitter.refer(value) for value in output_values(module)])

    def _handles(self, node: Node, name: str) -> tuple[int, ...]:
        """Note the origin of a node's debug handle, and return the handle."""
        # nodes from the same operation share a handle; an operator describes the origin better than size arithmetic
        handle = node.meta.get("debug_handle")
        if handle is None:
            return ()
        known = self._context.handles.get(handle)
        if known is None or ("." in name and "." not in known.op):
            self._context.handles[handle] = self._context.sources.origin(node, name)
            self._context.nodes[handle] = node
        return (handle,)

    def _note_undelegated(self, node: Node, name: str) -> None:
        reason = self._context.reasons.get(node.name, NO_REASON)
        self._context.undelegated.append(Undelegated(node.name, name, node.meta.get("debug_handle") or 0, reason))


def needed_nodes(module: GraphModule, symbols: SizeSymbols) -> set[Node]:
    # all nodes except assertions that always hold and unused arithmetic on sizes
    needed: set[Node] = set()
    for node in reversed(module.graph.nodes):
        overload = overload_of(node.target) if node.op == "call_function" else None
        name = dotted_name(overload) if overload is not None else ""
        if name in ASSERTIONS and node.args:
            condition = node.args[0]
            if symbols.proves(condition.meta.get("val") if isinstance(condition, Node) else condition):
                continue
        pure = name in SIZES or (node.op == "call_function" and node.target in PYTHON_FUNCTIONS)
        if not pure or any(user in needed for user in node.users):
            needed.add(node)
    return needed
