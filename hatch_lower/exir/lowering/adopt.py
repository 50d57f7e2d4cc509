"""Lowered modules that a model was exported with, made parts of its program."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from torch.fx import GraphModule, Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.surgery import all_nodes, graph_modules
from hatch_lower.exir.lowered_backend_module import (
    LoweredBackendModule,
    get_lowered_backend_modules,
    get_lowered_submodules,
)
from hatch_lower.runtime.torch_private import tensors


def adopt_lowered(module: GraphModule, handle: int) -> None:
    """Make calls of lowered modules take and return flat tuples, as in a newly lowered program, in place."""
    # each module is replaced by a copy with debug handles above `handle` and with unique names of constants
    copies: dict[int, LoweredBackendModule] = {}
    for inner in graph_modules(module):
        for name, lowered, node in get_lowered_submodules(inner):
            spec = lowered.original_module.call_spec
            if id(lowered) not in copies:
                copies[id(lowered)] = lowered.adopted(handle, f"lowered_module_{len(copies)}.")
                handle = max(handle, highest_debug_handle(copies[id(lowered)].original_module.graph_module))
            inner.set_submodule(name, copies[id(lowered)])
            node.args = (node.args[0], *flatten(node.args[1:], spec.in_spec.child(0), f"node `{node.name}`"))
            flatten_results(node, spec.out_spec)
        inner.recompile()


def highest_debug_handle(module: GraphModule) -> int:
    """Return the highest debug handle in a graph, its nested graphs and its lowered modules, or 0."""
    # handles of lowered modules are numbers of the model too
    handles = [node.meta.get("debug_handle") or 0 for node in all_nodes(module)]
    lowered = [
        called.original_module.graph_module
        for inner in graph_modules(module)
        for called in get_lowered_backend_modules(inner)
    ]
    return max([0, *handles, *map(highest_debug_handle, lowered)])


def flatten_results(call: Node, spec: tensors.TreeSpec) -> None:
    values = flatten(call.meta["val"], spec, f"node `{call.name}`")
    if spec.is_leaf():
        with call.graph.inserting_after(call):
            found = call.graph.call_function(operator.getitem, (call, 0))
        found.meta = dict(call.meta)
        call.replace_all_uses_with(found, lambda user: user is not found)
    else:
        take_leaves(call, call, spec, 0)
    call.meta["val"] = tuple(values)


def take_leaves(call: Node, node: Node, spec: tensors.TreeSpec, first: int) -> None:
    """Replace the `getitem`s of a container, whose first leaf is number `first`, by `getitem`s of the call."""
    places: dict[Any, tuple[int, tensors.TreeSpec]] = {}
    for key, child in zip(keys_of(spec), spec.children(), strict=True):
        places[key] = first, child
        first += child.num_leaves
    for user in list(node.users):
        place, child = places[user.args[1]]
        if child.is_leaf():
            user.args = (call, place)
        else:
            take_leaves(call, user, child, place)
            user.graph.erase_node(user)


def keys_of(spec: tensors.TreeSpec) -> Iterable[Any]:
    return spec.context if spec.type in (dict, OrderedDict) else range(spec.num_children)


def flatten(value: Any, spec: tensors.TreeSpec, where: str) -> list[Any]:
    # not by pytree: a value in a graph may be a node, which stands for a whole container
    if spec.is_leaf():
        return [value]
    keys = list(keys_of(spec))
    if not isinstance(value, (list, tuple, dict)) or len(value) != len(keys):
        raise EdgeError(
            "a lowered module is called with other containers than it was lowered for",
            where=where,
            found=f"{value!s:.200}",
            hint=f"call it with {spec}",
        )
    return [
        leaf for key, child in zip(keys, spec.children(), strict=True) for leaf in flatten(value[key], child, where)
    ]
