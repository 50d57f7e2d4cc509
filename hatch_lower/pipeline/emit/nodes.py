"""Nodes of graphs to be emitted: which are needed, what they are called, and small instructions around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hatch_lower.format.arguments import Argument
from hatch_lower.format.graph import Instruction, OpCall, PythonCall
from hatch_lower.pipeline.emit.arguments import PYTHON_FUNCTIONS, op_name, overload_of
from hatch_lower.pipeline.emit.symbols import Symbols

ASSERTIONS = frozenset({"aten._assert_scalar.default", "aten._assert_async.msg", "aten._assert_async.default"})
SIZES = frozenset(
    {"aten.sym_size.int", "aten.sym_stride.int", "aten.sym_numel.default", "aten.sym_storage_offset.default"}
)


def needed_nodes(module: GraphModule, symbols: Symbols) -> set[Node]:
    # all but assertions that always hold, and arithmetic on sizes that nothing uses
    needed: set[Node] = set()
    for node in reversed(module.graph.nodes):
        overload = overload_of(node.target) if node.op == "call_function" else None
        name = op_name(overload) if overload is not None else ""
        if name in ASSERTIONS and node.args and always_holds(node.args[0], symbols):
            continue
        pure = name in SIZES or (node.op == "call_function" and node.target in PYTHON_FUNCTIONS)
        if not pure or any(user in needed for user in node.users):
            needed.add(node)
    return needed


def always_holds(condition: Any, symbols: Symbols) -> bool:
    return symbols.proves(condition.meta.get("val") if isinstance(condition, Node) else condition)


def clone_of(argument: Argument) -> Callable[[int], Instruction]:
    return lambda out: OpCall("aten.clone.default", (argument,), {}, out)


def item_of(sequence: Argument, index: int) -> Callable[[int], Instruction]:
    return lambda out: PythonCall("getitem", (sequence, index), out)


def conversion_of(value: Any) -> str | None:
    # what makes a Python number of what a delegate returned for it: some engines have tensors only
    if isinstance(value, (bool, torch.SymBool)):
        return "item_bool"
    if isinstance(value, (int, torch.SymInt)):
        return "item_int"
    return "item_float" if isinstance(value, (float, torch.SymFloat)) else None


def name_of(node: Node) -> str:
    overload = overload_of(node.target)
    if overload is not None:
        return op_name(overload)
    # torch calls the operation behind `map` `map_impl`
    return PYTHON_FUNCTIONS.get(node.target) or str(getattr(node.target, "__name__", node.target)).removesuffix("_impl")
