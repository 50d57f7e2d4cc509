"""A lowered recipe against eager: what was written is read back as an installed wheel's files are, and run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hatch_lower.config import Recipe
from hatch_lower.events import Event, Reporter, stage
from hatch_lower.export.capture import CapturedModel
from hatch_lower.export.verify import verify_method
from hatch_lower.format.plan import read_plan
from hatch_lower.program.package import CONSTANTS, Packager, ProgramFiles
from hatch_lower.runtime.constants import ConstantsFile
from hatch_lower.runtime.executor import execute_plan
from hatch_lower.runtime.selection import DelegateKinds

__all__ = ["verify_recipe"]


def verify_recipe(
    source: CapturedModel, recipe: Recipe, files: ProgramFiles, packager: Packager, seed: int, reporter: Reporter
) -> None:
    """Compare each method of a recipe with eager.

    Args:
        source: the captured model.
        recipe: its tolerances.
        files: what was written for it.
        packager: says where that is.
        seed: of random inputs.
        reporter: is told of each method.

    Raises:
        VerificationError: if anything differs.
    """
    plan = read_plan(packager.source(files.plan.path).read_bytes(), files.plan.path)
    spans: Sequence[torch.Tensor] = ()
    if plan.storages:
        spans = ConstantsFile(packager.source(f"{source.name}/{CONSTANTS}"), CONSTANTS).spans(plan.storages)
    kinds = DelegateKinds()
    delegates = {each.backend: kinds.load(each.backend) for each in plan.delegates}
    executor = execute_plan(plan, spans, delegates, packager.folder)
    mutable = [name for name, constant in plan.constants.items() if constant.mutable]
    for method in source.methods:
        with stage(reporter, "verify", source.name, recipe.name, method.name) as describe:
            result = verify_method(
                source,
                method,
                executor.methods[method.name],
                executor.reset,
                recipe=recipe.name,
                rtol=recipe.rtol,
                atol=recipe.atol,
                seed=seed,
                mutable=mutable,
            )
            count = len(result.cases)
            describe(f"{count} input{'' if count == 1 else 's'}, largest difference {result.largest_error:.1e}")
        for note in result.notes:
            reporter.report(Event("verify", "note", source.name, recipe.name, method.name, detail=note))
