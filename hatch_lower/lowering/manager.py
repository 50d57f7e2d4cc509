"""A model's methods on their way from exported programs to lowered ones, as one object.

A façade over `hatch_lower.edge` and the lowering flow, with the names that ExecuTorch gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch._ops import OpOverload
from torch.export import ExportedProgram, default_decompositions
from torch.fx import Node

from hatch_lower.backend.api import Partitioner
from hatch_lower.backend.named_data import NamedDataStore
from hatch_lower.edge.convert import decompose
from hatch_lower.edge.convert import to_edge as convert_program
from hatch_lower.edge.faults import EdgeViolationError
from hatch_lower.edge.ops import EdgeOpOverload
from hatch_lower.edge.verify import verify_edge
from hatch_lower.errors import EdgeError
from hatch_lower.graph.surgery import graph_modules
from hatch_lower.lowering.lower import Lowered, lower_methods
from hatch_lower.lowering.module import LoweredBackendModule
from hatch_lower.lowering.transform import Pass, transform_program

__all__ = ["EdgeCompileConfig", "EdgeProgramManager", "LoweredProgram", "to_edge", "to_edge_transform_and_lower"]

Programs = ExportedProgram | Mapping[str, ExportedProgram]
PerMethod = Mapping[str, Sequence[Any]]

WHOLE_NAMESPACES = ("quantized_decomposed",)
"""Operators that may stay whole without being delegated: they say how values are quantised."""
