"""Exported programs: checked, traced, rewritten, changed in place and observed; fake tensors, delegate calls,
control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from torch._dynamo.exc import UserError
from torch._export.pass_base import Argument as Argument
from torch._export.pass_base import ExportPassBaseError as ExportPassBaseError
from torch._export.pass_base import _ExportPassBaseDeprecatedDoNotUse
from torch._export.pass_infra.node_metadata import NodeMetadata as NodeMetadata
from torch._export.pass_infra.proxy_value import ProxyValue as ProxyValue
from torch._export.passes.lift_constants_pass import ConstantAttrMap, lift_constants_pass
from torch._export.verifier import SpecViolationError as SpecViolationError
from torch._export.verifier import Verifier as Verifier
from torch._guards import detect_fake_mode
from torch._higher_order_ops.executorch_call_delegate import executorch_call_delegate as executorch_call_delegate
from torch._higher_order_ops.executorch_call_delegate import get_lowered_module_name as get_lowered_module_name
from torch._higher_order_ops.executorch_call_delegate import is_lowered_module as is_lowered_module
from torch._higher_order_ops.map import map as map_of_rows
from torch._higher_order_ops.scan import scan as scan
from torch._higher_order_ops.while_loop import while_loop as while_loop
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.export import ExportedProgram
from torch.export._tree_utils import reorder_kwargs
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule, Node, proxy
from torch.fx.node import _get_qualified_name
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torchgen.model import SchemaKind as SchemaKind

from hatch_lower.runtime.torch_private.any_size import for_any_size
from hatch_lower.runtime.torch_private.older import linalg_checks_kept, register_anchor
from hatch_lower.runtime.torch_private.operators import OpOverload
from hatch_lower.runtime.torch_private.recurrent import recurrent_shapes
from hatch_lower.runtime.torch_private.unimported import find_part

InterpretingPass = _ExportPassBaseDeprecatedDoNotUse
map_rows = map_of_rows


def copy_calling_convention(source: Graph, target: Graph) -> None:
    """Copy the containers of inputs and outputs from a graph to another graph."""
    target._codegen = source._codegen


def qualify_name(function: Callable[..., Any]) -> str:
    """Return the name of a function with its module, in the form of graphs' texts."""
    return str(_get_qualified_name(function))


def is_transformation_step(node: Node) -> bool:
    """Return whether a node adds or removes a dimension of `torch.vmap`, or the like; a decomposition removes it."""
    return "_functorch" in str(getattr(node.target, "__module__", ""))


def name_after_target(node: Node) -> None:
    """Rename a node to torch's default name for its target: `aten_add_tensor`."""
    node._rename(node.graph._target_to_str(node.target))


def change_signature(program: ExportedProgram, signature: ExportGraphSignature) -> None:
    """Replace the signature of a program; copies of the program keep the old signature."""
    program._graph_signature = signature


def lift_constants(program: ExportedProgram) -> None:
    """Turn tensor attributes of a graph into inputs, in place."""
    program._constants.update(lift_constants_pass(program.graph_module, program.graph_signature, ConstantAttrMap()))


def order_kwargs(kwargs: dict[str, object], spec: Any) -> dict[str, object]:
    """Return keyword arguments in the order of the export."""
    return reorder_kwargs(kwargs, spec)


def mode_of_fakes(values: object) -> FakeTensorMode | None:
    """Return the mode of the fake tensors among `values`, or `None`."""
    return detect_fake_mode(values)


def holds_tensors(value: object) -> bool:
    """Return whether a value is a tensor subclass that wraps plain tensors, such as torchao's quantized tensors."""
    return bool(is_traceable_wrapper_subclass(value))


def remember_lines(function: Callable[..., Any]) -> None:
    """Let exports record source lines of a function; by default torch records lines of `forward` only."""
    register = find_part(proxy, "torch.fx.proxy._register_stack_trace_anchor") or register_anchor
    register(function)


def decompose_program(program: ExportedProgram, table: Mapping[Any, Callable[..., Any]]) -> ExportedProgram:
    """Decompose a program by a table, as `run_decompositions`, with the checks of linear algebra."""
    # a condition on sizes that a decomposition adds would be a check in each call, if the export deferred conditions
    sizes = for_any_size() if defers_guards(program) else nullcontext()
    with linalg_checks_kept(), recurrent_shapes(), sizes:
        decomposed: ExportedProgram = program.run_decompositions(dict(table))
    return decomposed


def defers_guards(program: ExportedProgram) -> bool:
    """Return whether conditions on sizes that torch cannot prove become checks of the program."""
    mode = mode_of_fakes([node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")])
    sizes = mode.shape_env if mode is not None else None
    return sizes is not None and sizes.prefer_deferred_runtime_asserts_over_guards


def is_users_fault(error: Exception) -> bool:
    """Return whether an export failed because of its arguments, such as dynamic shapes."""
    return isinstance(error, UserError)


def trace_operators(function: Callable[..., object], *args: object) -> GraphModule:
    """Trace the operators that a function calls, including derivatives, for arguments with the sizes of `args`."""
    from torch.fx.experimental.proxy_tensor import make_fx

    traced: GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    return traced


Look = Callable[[OpOverload[..., Any], tuple[Any, ...], object], None]


class CallsSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that passes each call of an operator to a function: operator, positional arguments, result."""

    def __init__(self, look: Look) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look = look

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        result: object = func(*args, **(kwargs or {}))
        self._look(func, args, result)
        return result
