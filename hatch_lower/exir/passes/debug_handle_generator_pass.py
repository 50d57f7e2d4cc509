"""Debug handles: new handles for all operations, or only for nodes without a handle."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from hatch_lower.exir.lowering.convert import assign_debug_handles, fill_debug_handles
from hatch_lower.exir.pass_base import ExportPass


class DebugHandleGeneratorPass(ExportPass):
    """Numbers all operations anew, in place; operations from the same exported operation share a number."""

    def call(self, graph_module: GraphModule) -> PassResult:
        assign_debug_handles(graph_module)
        return PassResult(graph_module, True)


def generate_missing_debug_handles(ep: ExportedProgram) -> None:
    """Give every node without a debug handle, or with handle 0, a new handle after the highest, in place."""
    fill_debug_handles(ep.graph_module, lambda node: True)
