"""What manifest and plan both say of a recipe: the choice of a recipe trusts the manifest, running it the plan."""

from __future__ import annotations

from collections.abc import Iterator

from hatch_lower.errors import ProgramError
from hatch_lower.format.delegates import TargetEntry
from hatch_lower.format.manifest import RecipeEntry
from hatch_lower.format.plan import Plan


def backends_in(plan: Plan) -> tuple[str, ...]:
    """Return the backends whose delegates a plan runs."""
    return tuple(sorted({each.backend for each in plan.delegates}))


def target_in(plan: Plan) -> TargetEntry | None:
    """Return the machine that a plan's native code needs."""
    return next((each.target for each in plan.delegates if each.target is not None), None)


def check_agreement(plan: Plan, recipe: RecipeEntry, where: str) -> None:
    """Refuse a plan that the manifest contradicts.

    Args:
        plan: the recipe's.
        recipe: what the manifest says of it.
        where: the plan's file.

    Raises:
        ProgramError: if the plan has other methods, runs other backends, or needs another machine.
    """
    for what, found, listed in facts(plan, recipe):
        if found != listed:
            raise ProgramError(
                "the plan and the manifest contradict each other",
                where=where,
                found=f"{what} {found}, where the manifest says {listed}",
                hint="install the distribution again; if that does not help, build its wheel again",
            )


def facts(plan: Plan, recipe: RecipeEntry) -> Iterator[tuple[str, str, str]]:
    """Yield what both say, as text: the plan's word, then the manifest's."""
    yield "the methods", names(sorted(plan.methods)), names(sorted(recipe.methods))
    yield "the backends", names(backends_in(plan)), names(sorted(recipe.backends))
    yield "the machine", machine(target_in(plan)), machine(recipe.target)


def names(found: tuple[str, ...] | list[str]) -> str:
    """Return names for a message."""
    return ", ".join(f"`{each:.80}`" for each in found) or "none"


def machine(target: TargetEntry | None) -> str:
    """Return a machine for a message."""
    return f"{target.system:.40} {target.machine:.40}, {target.isa:.40}" if target is not None else "any"
