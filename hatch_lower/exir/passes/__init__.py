"""Passes over edge programs."""

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from hatch_lower.exir.graph.surgery import graph_modules


def dead_code_elimination_pass(graph_module: GraphModule) -> PassResult:
    """Remove unused operations in place, also in the graphs of control flow."""
    modified = False
    for module in graph_modules(graph_module):
        if module.graph.eliminate_dead_code():
            modified = True
            module.recompile()
    return PassResult(graph_module, modified)
