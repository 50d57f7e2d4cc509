"""Exported programs: checked, traced, rewritten and changed in place; fake tensors, delegate calls, control flow."""

from __future__ import annotations

from collections.abc import Callable
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
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import _get_qualified_name
from torch.fx.proxy import _register_stack_trace_anchor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torchgen.model import SchemaKind as SchemaKind

InterpretingPass = _ExportPassBaseDeprecatedDoNotUse
map_rows = map_of_rows


def copy_calling_convention(source: Graph, target: Graph) -> None:
    """Let a graph take its inputs and return its outputs in the containers that another one has."""
    target._codegen = source._codegen


def qualified_name(function: Callable[..., Any]) -> str:
    """Return the name of a function with that of its module, as graphs show it."""
    return str(_get_qualified_name(function))


def name_after_target(node: Node) -> None:
    """Name a node as torch names a new one with its target: `aten_add_tensor`."""
    node._rename(node.graph._target_to_str(node.target))


def change_signature(program: ExportedProgram, signature: ExportGraphSignature) -> None:
    """Give a program another signature, in place: its copies share the old one."""
    program._graph_signature = signature


def lift_constants(program: ExportedProgram) -> None:
    """Make inputs of the tensors that a graph holds as attributes, in place."""
    program._constants.update(lift_constants_pass(program.graph_module, program.graph_signature, ConstantAttrMap()))


def order_kwargs(kwargs: dict[str, object], spec: Any) -> dict[str, object]:
    """Return arguments in the order in which the program was exported with them."""
    return reorder_kwargs(kwargs, spec)


def mode_of_fakes(values: object) -> FakeTensorMode | None:
    """Return the mode to which the fake tensors among some values belong."""
    return detect_fake_mode(values)


def holds_tensors(value: object) -> bool:
    """Return whether a tensor is of a class that holds plain ones, as torchao's quantised ones are."""
    return bool(is_traceable_wrapper_subclass(value))


def remember_lines(function: Callable[..., Any]) -> None:
    """Let an export record the lines of a function; by itself torch records those of `forward` only."""
    _register_stack_trace_anchor(function)


def is_users_fault(error: Exception) -> bool:
    """Return whether an export failed by what it was given, such as its dynamic shapes."""
    return isinstance(error, UserError)


def trace_operators(function: Callable[..., object], *args: object) -> GraphModule:
    """Return a graph of the operators that a function calls for arguments of these sizes, also in derivatives."""
    from torch.fx.experimental.proxy_tensor import make_fx

    traced: GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    return traced
