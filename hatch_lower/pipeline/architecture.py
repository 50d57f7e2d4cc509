"""Facts about an exported model for the SBOM: the module's class, the number of parameters, the methods' outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.format.record import Architecture
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.emit.symbols import SYMBOL

WITHOUT_A_NAME = "torch.fx."  # prefix of the class names that torch generates for traced graphs


def architecture_of(source: CapturedModel) -> Architecture:
    programs = [method.program for method in source.methods]
    module = source.eager
    name = class_name(type(module)) if module is not None else next(filter(None, map(root_class, programs)), "")
    owners: Sequence[Any] = programs if module is None else [module]
    distinct = {id(parameter): parameter.numel() for owner in owners for parameter in owner.parameters()}
    return Architecture(
        name="" if name.startswith(WITHOUT_A_NAME) else name,
        parameters=sum(distinct.values()),
        outputs={method.name: tuple(outputs_of(method)) for method in source.methods},
    )


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def root_class(program: ExportedProgram) -> str:
    for node in program.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if not path:
                return kind if isinstance(kind, str) else class_name(kind)
            break
    return ""


def outputs_of(method: CapturedMethod) -> list[str]:
    """Describe each leaf of a method's result, for example `float32[batch, 10]`."""
    nodes = {node.name: node for node in method.program.graph.nodes}
    texts = []
    for name in method.program.graph_signature.user_outputs:
        value = nodes[name].meta.get("val") if isinstance(name, str) and name in nodes else name
        texts.append(output_text(value, method.dimensions))
    return texts


def output_text(value: object, dimensions: Mapping[str, str]) -> str:
    if isinstance(value, torch.Tensor):
        sizes = (SYMBOL.sub(lambda match: dimensions.get(match[0], "?"), str(size)) for size in value.shape)
        return f"{dtype_name(value.dtype)}[{', '.join(sizes)}]"
    if isinstance(value, torch.SymInt):
        return "an integer"
    return f"the value {value!r}" if isinstance(value, bool | int | float | str | type(None)) else "a value"
