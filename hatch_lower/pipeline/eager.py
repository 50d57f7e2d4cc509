"""Eager as the other side of a comparison: a copy to call, its outputs for the example inputs, what may differ."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.export import ExportedProgram

from hatch_lower.errors import VerificationError
from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments
from hatch_lower.exir.graph.surgery import all_nodes, attribute_of
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.exceptions import describe_exception
from hatch_lower.pipeline.random_inputs import example_case
from hatch_lower.runtime.check import rounding_mark
from hatch_lower.runtime.numbers import Tolerance
from hatch_lower.runtime.torch_private import trees
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name, schema_of

CHECK_BYTES = 1 << 20  # bytes of tensors up to which they are packaged
TRAINING_HINT = "the module is in training mode; call `module.eval()` in the entry point"


def random_operators(program: ExportedProgram) -> list[str]:
    return sorted({str(node.target) for node in all_nodes(program.graph_module) if draws(node)})


def draws(node: torch.fx.Node) -> bool:
    # a dropout of nothing, or outside of training, has the tag and draws nothing
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    arguments = schema_of(node.target).arguments
    values = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    values |= named_arguments(node)
    return values.get("train", values.get("training", True)) is not False and values.get("dropout_p", 1.0) != 0.0


def tolerance_of(method: CapturedMethod, given: Tolerance) -> Tolerance:
    return given.widened(dtypes_of(method), quantised=is_quantised(method))


def is_quantised(method: CapturedMethod) -> bool:
    """Return whether a method rounds what it computes to integers, as PT2E and torchao have it do."""
    return any(
        isinstance(node.target, OpOverload)
        and node.target.namespace in ("quantized_decomposed", "torchao")
        and base_name(node.target).startswith("quantize_")
        for node in all_nodes(method.program.graph_module)
    )


def dtypes_of(method: CapturedMethod) -> Iterator[str]:
    for node in method.program.graph.nodes:
        for value in trees.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                yield dtype_name(value.dtype)


def eager_factory(model: CapturedModel, method: CapturedMethod) -> Callable[[], Callable[..., object]]:
    """Return what makes the eager method of a fresh copy, which shares the parameters that it does not change."""
    module = model.eager if model.eager is not None else method.program.module()
    attribute = model.attributes.get(method.name, "forward") if model.eager is not None else "forward"
    changed, named = changed_parameters(method.program), dict(module.named_parameters(remove_duplicate=False))
    shared = {id(tensor): tensor for tensor in named.values()}
    for name in changed.intersection(named):  # a tied one goes by several names
        shared.pop(id(named[name]), None)

    def new_eager() -> Callable[..., object]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its tree specifications
                copied = copy.deepcopy(module, dict(shared))
        except Exception as error:
            raise VerificationError(
                "the module cannot be copied, so that verifying it would change its state",
                where=f"model `{model.name}`",
                found=describe_exception(error),
                hint="make `copy.deepcopy(module)` work, or set `verify = false`",
            ) from error
        return copied if attribute == "forward" else getattr(copied, attribute)

    return new_eager


def changed_parameters(program: ExportedProgram) -> frozenset[str]:
    """Return the names of the parameters that an exported program writes into, itself or through views."""
    # what a program writes into is in its graph alone until it is decomposed
    names = program.graph_signature.inputs_to_parameters
    return frozenset(names[node.name] for node in written_into(program.graph_module) if node.name in names)


def written_into(module: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Return the values of a graph that it changes, in regions of other graphs as well."""
    found: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        found.update(map(owner_of, sources_of(node, is_write=True)))
        leaves = trees.tree_leaves(node.args)
        for leaf in leaves:
            inner = attribute_of(module, leaf.target) if getattr(leaf, "op", "") == "get_attr" else None
            if isinstance(inner, torch.fx.GraphModule):
                # what a region takes comes last among what it is called with
                taken = inner.graph.find_nodes(op="placeholder")
                changed = written_into(inner)
                given = zip(reversed(taken), reversed(leaves), strict=False)
                found.update(owner_of(value) for placeholder, value in given if placeholder in changed)
    return found


def owner_of(node: torch.fx.Node) -> torch.fx.Node:
    """Return the value in whose memory another may lie."""
    while source := next(sources_of(node, is_write=False), None):
        node = source
    return node


def sources_of(node: torch.fx.Node, *, is_write: bool) -> Iterator[torch.fx.Node]:
    """Yield the arguments that an operation writes into, or that it returns or shows a part of."""
    if node.target is operator.getitem:
        yield from node.all_input_nodes[: not is_write]
    elif isinstance(node.target, OpOverload):
        given = named_arguments(node)
        for argument in schema_of(node.target).arguments:
            alias = argument.alias_info
            if alias is not None and (alias.is_write or not is_write):
                values = trees.tree_leaves(given.get(argument.name))
                yield from (value for value in values if isinstance(value, torch.fx.Node))


def is_training(model: CapturedModel) -> bool:
    # an exported module, such as one that PT2E quantised, says that it is, and has an `eval` of its own that refuses
    return model.eager is not None and model.eager.training and "eval" not in vars(model.eager)


def limited(found: Mapping[str, torch.Tensor], note: str) -> tuple[Mapping[str, torch.Tensor], str]:
    total = sum(tensor.nbytes for tensor in found.values())
    if total > CHECK_BYTES:
        return {}, f"no check data: example inputs and outputs take {total} bytes, more than {CHECK_BYTES}"
    return found, note


def example_tensors(model: CapturedModel) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors among the example inputs and eager's outputs, and a note if there are none of them."""
    # The names are `<method>/input/<i>` and `<method>/output/<i>`, where `i` counts all leaves, not the tensors alone;
    # the tensors are contiguous and share no memory. A method that rounds to integers has one more, its mark, for
    # `hatch-lower check` allows it more.
    found: dict[str, torch.Tensor] = {}
    for method in model.methods:
        if not method.has_examples or random_operators(method.program):
            continue
        case = example_case(method)
        args, kwargs = case.copied()
        try:
            with torch.no_grad():
                outputs = eager_factory(model, method)()(*args, **kwargs)
        except Exception as error:
            return {}, f"no check data: eager fails on the example inputs of `{method.name}`: {error}"
        if is_quantised(method):
            found[rounding_mark(method.name)] = torch.tensor(True)
        for part, tree in (("input", (case.args, case.kwargs)), ("output", outputs)):
            for i, leaf in enumerate(trees.tree_leaves(tree)):
                if isinstance(leaf, torch.Tensor):
                    found[f"{method.name}/{part}/{i}"] = leaf.detach().clone(memory_format=torch.contiguous_format)
    return found, ""
