"""Operators: classes, schemas, and kernels in the dispatcher. The runtime imports this module, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._C import DispatchKey as DispatchKey
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket

COMPOSITE = DispatchKey.CompositeImplicitAutograd

# modules of torch that register a namespace of operators, if `import torch` does not
REGISTERED_BY: Mapping[str, str] = {
    "onnx": "torch.onnx.ops",
    "prims": "torch._prims",
    "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
    "torch_attn": "torch.nn.attention.varlen",
}


def schema_of(operator: Any) -> torch.FunctionSchema:
    """Return the schema of an overload of torch, or of a dialect's operator for an overload."""
    schema: torch.FunctionSchema = operator._schema
    return schema


def base_name(operator: OpOverload[..., Any]) -> str:
    """Return `add` of `aten::add.Tensor`."""
    return str(operator._opname)


def overload_name(operator: OpOverload[..., Any]) -> str:
    """Return `Tensor` of `aten::add.Tensor`; `default` for an overload without a name."""
    return str(operator._overloadname)


def packet_name(packet: OpOverloadPacket[..., object]) -> str:
    """Return `aten.add` for the packet of all overloads of `aten::add`."""
    return str(packet._qualified_op_name).replace("::", ".")


def compiled_function(operator: OpOverload[..., Any]) -> Callable[..., object]:
    """Return the C++ function to which an overload's `__call__` forwards."""
    function: Callable[..., object] = operator._op
    return function


def is_registered(operator: OpOverload[..., Any]) -> bool:
    """Return whether the dispatcher knows an operator; false for operators of TorchScript only."""
    return bool(torch._C._dispatch_has_kernel(dispatcher_name(operator)))


def has_composite_kernel(operator: OpOverload[..., Any]) -> bool:
    """Return whether an operator has a C++ kernel that calls other operators."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(dispatcher_name(operator), COMPOSITE))


def dispatcher_name(operator: OpOverload[..., Any]) -> str:
    return str(operator.name())  # type: ignore[no-untyped-call]


def parse_schema(text: str) -> torch.FunctionSchema:
    """Parse `name.overload(Tensor x) -> Tensor`. Raises `RuntimeError` for an invalid text."""
    return torch._C.parse_schema(text)
