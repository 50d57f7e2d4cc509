"""The pass of torch that runs a graph operation by operation and writes down a new one."""

from torch._export.pass_base import Argument, ExportPassBaseError
from torch._export.pass_base import _ExportPassBaseDeprecatedDoNotUse as InterpretingPass
from torch._export.pass_infra.node_metadata import NodeMetadata
from torch._export.pass_infra.proxy_value import ProxyValue

__all__ = ["Argument", "ExportPassBaseError", "InterpretingPass", "NodeMetadata", "ProxyValue"]
