"""Sequences of passes over a graph; for a program use `EdgeProgramManager.transform` or `transform_program`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule
from torch.fx.passes.infra import pass_manager as fx
from torch.fx.passes.infra.pass_base import PassResult

from hatch_lower.errors import EdgeError, LowerError
from hatch_lower.exir.pass_base import PassType as PassType
from hatch_lower.runtime.torch_private import tensors


class PassManager(fx.PassManager):
    """Runs passes, or lists of them, over a graph module."""

    def __init__(
        self,
        passes: Sequence[PassType | Sequence[PassType]] | None = None,
        run_checks_after_each_pass: bool = False,
        suppress_check_failures: bool = False,
        steps: int = 1,
    ) -> None:
        super().__init__(
            [fx.pass_result_wrapper(leaf) for leaf in tensors.tree_leaves(list(passes or ()))],
            run_checks_after_each_pass=run_checks_after_each_pass,
            suppress_check_failures=suppress_check_failures,
            steps=steps,
        )

    def __call__(self, module: torch.nn.Module) -> PassResult:
        try:
            return super().__call__(module)
        except Exception as error:  # fx wraps the exception of a pass, or of the check after the pass
            if isinstance(error.__cause__, LowerError):
                raise error.__cause__ from None
            raise

    # fx calls `check` before the first pass, and after each pass only with `run_checks_after_each_pass`
    def check(self, module: torch.nn.Module) -> None:
        if not isinstance(module, GraphModule):
            raise EdgeError(
                "passes run over graph modules only",
                found=f"a value of the type `{type(module).__name__}`",
                hint="give the manager `program.graph_module`, and let each pass return a graph module",
            )
        module.recompile()
        module.graph.lint()
        for node in module.graph.find_nodes(op="call_method"):
            raise EdgeError(
                "an edge program calls operators, and no methods",
                where=f"node `{node.name}`",
                found=str(node.target),
                hint="call the operator that the method stands for",
            )
