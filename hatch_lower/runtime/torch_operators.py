"""The operators of torch that a plan names: ATen overloads, and operators registered by libraries."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hatch_lower.errors import ProgramError, UnavailableError
from hatch_lower.format.codec import installation_error
from hatch_lower.format.graph import Graph
from hatch_lower.runtime.operators import calls_in
from hatch_lower.runtime.torch_private.cuda import has_gpu_kernel
from hatch_lower.runtime.torch_private.operators import (
    REGISTERED_BY,
    OpOverload,
    compiled_function,
    has_composite_kernel,
    is_registered,
    schema_of,
)

# operators whose sizes and strides torch does not check; torch checks other operators, such as `as_strided`
ALIASING = frozenset({"aten._reshape_alias.default", "aten._reshape_alias_copy.default"})

# operators that make a sparse tensor from indices
SPARSE = re.compile(r"aten\.sparse_(?:coo|compressed|csr|csc|bsr|bsc)_tensor\..*")

# internal operators of torch, which no model calls: they do not check arguments, or open a file
UNBOUNDED = re.compile(
    r"aten\._sparse_\w*_tensor_(?:unsafe|with_dims_and_tensors)\..*|aten\._nested_view_from_.*"
    r"|aten\.set_?\.source_.*_storage_offset.*|(?:inductor|debugprims)\..*"
)


def resolve_operators(graph: Graph, where: str) -> dict[str, OpOverload[..., Any]]:
    operators: dict[str, OpOverload[..., Any]] = {}
    for call in calls_in(graph):
        if call.op not in operators:
            operators[call.op] = find_operator(call.op, where)
        schema = schema_of(operators[call.op])
        positional = sum(not argument.kwarg_only for argument in schema.arguments)
        known = {argument.name for argument in schema.arguments[len(call.args) :]}
        if len(call.args) > positional or not known.issuperset(call.kwargs):
            raise ProgramError(
                "the program calls an operator with arguments that the operator does not have",
                where=where,
                found=f"{len(call.args)} arguments and {list(call.kwargs)} for {schema}",
                hint="install the torch version that the program requires",
            )
    return operators


def find_operator(name: str, where: str) -> OpOverload[..., Any]:
    # a program is arithmetic on tensors: operators must not open files or read memory outside of their arguments
    namespace, packet, overload = name.split(".")
    if namespace in REGISTERED_BY:
        importlib.import_module(REGISTERED_BY[namespace])
    try:
        operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError):
        operator = None
    if not isinstance(operator, OpOverload) or not is_registered(operator):
        what = "the program calls an operator that torch does not have here"
        hint = (
            "install the torch version that the program requires; if a library registers the operator, name its"
            " module in the setting `imports` and build the wheel again; until then, import the module before loading"
        )
    elif any(argument.name == "filename" for argument in schema_of(operator).arguments):
        what = "the program calls an operator that opens files"
        hint = "read the file in the model's own code, before the export"
    elif UNBOUNDED.fullmatch(name):
        what = "the program calls an operator that may read memory outside of its arguments"
        hint = "export the model with operators on dense tensors that check their arguments"
    else:
        return operator
    raise ProgramError(what, where=where, found=name, hint=hint)


def function_of(name: str, operator: OpOverload[..., Any]) -> Callable[..., object]:
    if name in ALIASING:
        return functools.partial(alias_within_storage, compiled_function(operator))
    if SPARSE.fullmatch(name):
        return functools.partial(call_checking_indices, compiled_function(operator))
    return compiled_function(operator)


def alias_within_storage(
    operator: Callable[..., object], self: Tensor, size: Sequence[int], stride: Sequence[int]
) -> object:
    ends = [(extent - 1) * step for extent, step in zip(size, stride, strict=False)]
    first = self.storage_offset() + sum(min(end, 0) for end in ends)
    last = self.storage_offset() + sum(max(end, 0) for end in ends)
    count = self.untyped_storage().nbytes() // self.itemsize
    if len(size) != len(stride) or (0 not in size and (first < 0 or last >= count)):
        found = f"sizes {list(size)} and strides {list(stride)}, where there is room for {count} elements"
        raise installation_error("the program would have read memory outside of a tensor", "", found)
    return operator(self, size, stride)


def call_checking_indices(operator: Callable[..., object], *args: object, **kwargs: object) -> object:
    # by default torch does not compare the indices of a sparse tensor with its sizes
    with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
        return operator(*args, **kwargs)


def may_return_alias(operator: OpOverload[..., Any]) -> bool:
    # aliases are in the schema, except for composite operators (`dropout` returns its argument at inference)
    has_alias = any(result.alias_info is not None for result in schema_of(operator).returns)
    return has_alias or has_composite_kernel(operator)


def creates_tensors(operator: OpOverload[..., Any]) -> bool:
    """Return whether an operator makes tensors on the device that its argument `device` names, by default the CPU."""
    arguments = schema_of(operator).arguments
    has_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    return not has_tensors and any(argument.name == "device" and argument.kwarg_only for argument in arguments)


def call_on_device(
    operator: Callable[..., object], place: torch.device, *args: object, device: object = None, **kwargs: object
) -> object:
    # a plan may leave out the device, for which torch takes the CPU
    return operator(*args, device=place if device is None else device, **kwargs)


def placed_function(
    function: Callable[..., object], name: str, operator: OpOverload[..., Any], place: torch.device, where: str
) -> Callable[..., object]:
    """Return an operator's function for tensors on a GPU. Raises `UnavailableError` for an operator of the CPU only."""
    if not has_gpu_kernel(operator, place.type):
        raise UnavailableError(
            f"the program calls an operator that torch does not have on {place}",
            where=where,
            found=name,
            hint='load the model with `device="cpu"`, or export the model without the operator',
        )
    return functools.partial(call_on_device, function, place) if creates_tensors(operator) else function
