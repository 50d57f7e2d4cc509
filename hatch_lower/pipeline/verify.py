"""A lowered recipe against eager: what was written is read back as an installed wheel's files are, and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hatch_lower.config.settings import Recipe
from hatch_lower.errors import LowerError, VerificationError
from hatch_lower.events import Event, Reporter, stage
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.plan import MethodPlan, Plan, read_plan
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.eager import verify_method
from hatch_lower.pipeline.exceptions import describe_exception, is_out_of_memory, trim
from hatch_lower.pipeline.package import CONSTANTS, Packager, ProgramFiles
from hatch_lower.runtime.containers import replaced_in, take_apart
from hatch_lower.runtime.executor import Executor, execute_plan
from hatch_lower.runtime.mapped import ConstantsFile
from hatch_lower.runtime.selection import DelegateKinds


def verify_recipe(
    source: CapturedModel, recipe: Recipe, files: ProgramFiles, packager: Packager, seed: int, reporter: Reporter
) -> None:
    plan = read_plan(packager.source(files.plan.path).read_bytes(), files.plan.path)
    spans: Sequence[torch.Tensor] = ()
    if plan.storages:
        spans = ConstantsFile(packager.source(f"{source.name}/{CONSTANTS}"), CONSTANTS).spans(plan.storages)
    mutable = [name for name, constant in plan.constants.items() if constant.mutable]
    executor: Executor | None = None
    for method in source.methods:
        with process_restored(), stage(reporter, "verify", source.name, recipe.name, method.name) as describe:
            if executor is None:  # a library may crash as soon as it is loaded, and then the stage says so
                executor = load_program(plan, spans, packager.folder, f"model `{source.name}`, recipe `{recipe.name}`")
            replaced = dict(replaced_in(plan.methods[method.name].outputs))
            call = executor.methods[method.name]
            result = verify_method(
                source,
                method,
                as_exported(call, plan.methods[method.name], method) if replaced else call,
                executor.reset,
                recipe=recipe.name,
                rtol=recipe.rtol,
                atol=recipe.atol,
                seed=seed,
                mutable=mutable,
            )
            count = len(result.cases)
            describe(f"{count} input{'' if count == 1 else 's'}, largest difference {result.largest_error:.1e}")
        stands = [f"a mapping stands for its output `{name}`: {reason}" for name, reason in replaced.items()]
        for note in (*result.notes, *stands):
            reporter.report(Event("verify", "note", source.name, recipe.name, method.name, detail=note))


def as_exported(call: Callable[..., Any], plan: MethodPlan, method: CapturedMethod) -> Callable[..., Any]:
    # eager's classes, in place of what stands for them here, so that the trees of both sides can be compared
    leaves = take_apart(method.name, plan.outputs, "output")
    spec = method.program.call_spec.out_spec

    def run(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_unflatten(leaves(call(*args, **kwargs)), spec)

    return run


def load_program(plan: Plan, spans: Sequence[torch.Tensor], folder: Path, where: str) -> Executor:
    """Load a program as an installed package would; a `VerificationError` for whatever a run half raises."""
    kinds = DelegateKinds()
    try:
        delegates = {entry.backend: kinds.load(entry.backend) for entry in plan.delegates}
        return execute_plan(plan, spans, delegates, folder, checks_outputs=True)
    except BaseException as error:
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from error
        found = f"{error.what}: {error.found}" if isinstance(error, LowerError) else describe_exception(error)
        raise VerificationError(
            "what was lowered cannot be loaded",
            where=where,
            found=trim(found),
            hint="leave out backends to find the one whose program it is, and report it there; the next build lowers"
            " it again",
        ) from error
