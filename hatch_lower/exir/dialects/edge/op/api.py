"""Conversion between functional operators and variants that write into an `out` argument."""

from __future__ import annotations

import torch

from hatch_lower.errors import EdgeError
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of
from hatch_lower.runtime.torch_private.programs import SchemaKind


class VariantError(EdgeError, RuntimeError):
    """An operator has no variant of the requested kind."""


class VariantKindError(EdgeError, AssertionError):
    """The requested kind of variant is neither functional nor out."""


def get_torch_op_overload(namespace: str, opname: str, overload: str | None) -> OpOverload:
    op: OpOverload = getattr(getattr(getattr(torch.ops, namespace), opname), overload or "default")
    return op


def get_callable(name: str) -> OpOverload:
    opname, overload = name.split(".")
    return get_torch_op_overload("aten", opname, overload)


def schema_kind(schema: torch.FunctionSchema) -> SchemaKind:
    if any(argument.is_out for argument in schema.arguments):
        return SchemaKind.out
    if not schema.is_mutable:
        return SchemaKind.functional
    in_place = schema.name.endswith("_") and not schema.name.endswith("__")
    return SchemaKind.inplace if in_place else SchemaKind.mutable


def schema_signature(schema: torch.FunctionSchema) -> tuple[tuple[str, str, str, bool], ...]:
    return tuple(
        (argument.name, str(argument.real_type), repr(argument.default_value), argument.kwarg_only)
        for argument in schema.arguments
        if not argument.is_out
    )


def to_variant(op: OpOverload, variant: SchemaKind) -> OpOverload:
    """Return the operator's overload of the given kind with the same arguments.

    Raises:
        VariantKindError: an `AssertionError`, for a kind that is neither `functional` nor `out`.
        VariantError: a `RuntimeError` that lists the overloads, if none has the same arguments and that kind.
    """
    if variant not in (SchemaKind.functional, SchemaKind.out):
        raise VariantKindError(
            "an operator can be turned into its functional variant or its out variant only",
            where=str(op),
            found=str(variant),
            hint="ask for `SchemaKind.functional` or `SchemaKind.out`",
        )
    if schema_kind(schema_of(op)) is variant:
        return op
    wanted = schema_signature(schema_of(op))
    packet = op.overloadpacket
    overloads: list[OpOverload] = [getattr(packet, name) for name in packet.overloads()]
    for overload in overloads:
        # results are not compared: many out variants have no results
        if schema_kind(schema_of(overload)) is variant and schema_signature(schema_of(overload)) == wanted:
            return overload
    raise VariantError(
        f"{variant.name.capitalize()} variant of operator {schema_of(op).name} can't be found",
        found="\n".join(str(schema_of(overload)) for overload in overloads),
        hint="register an overload with the same arguments, or leave the operator as it is",
    )
