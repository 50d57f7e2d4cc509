"""Installed models, their recipes, and the reasons why a recipe cannot run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution

from hatch_lower.cli.output import Report
from hatch_lower.errors import ProgramError
from hatch_lower.hatch.terminal import table_lines
from hatch_lower.runtime.installed import EagerEntry, InstalledModel, models_of, read_field, recording


def installed_report() -> list[Report]:
    return [
        row for owner, distribution in sorted(recording().items()) for row in distribution_report(owner, distribution)
    ]


def distribution_report(owner: str, distribution: Distribution) -> Iterator[Report]:
    """Yield the models of a distribution; if the models cannot be read, a row without a name that has the reason."""
    known = {"distribution": owner, "version": read_field(distribution, "Version")}
    try:
        models: Mapping[str, InstalledModel] = models_of(owner, distribution)
    except ProgramError as error:
        yield {"model": "", **known, "recipes": [{"recipe": "", "backends": [], "reason": error.what}]}
        return
    for name, model in sorted(models.items()):
        yield {"model": name, **known, "recipes": list(recipe_reports(model))}


def recipe_reports(model: InstalledModel) -> Iterator[Report]:
    """Yield the recipes in load order, each with the reason why the recipe cannot run here, or `None`."""
    if isinstance(model.source, EagerEntry):
        yield {"recipe": "eager", "backends": [], "reason": None}
        return
    from hatch_lower.runtime.selection import DelegateKinds, refusal_reason  # imports torch

    kinds, entry = DelegateKinds(), model.source.manifest.models[model.model]
    for name in entry.order:
        try:
            reason = refusal_reason(entry.recipes[name], kinds, str(model.source.path))
        except ProgramError as error:
            reason = error.found or error.what
        yield {"recipe": name, "backends": list(entry.recipes[name].backends), "reason": reason}


def list_lines(report: Sequence[Report]) -> Iterator[str]:
    if not report:
        yield "no lowered models are installed here"
        return
    rows: list[Sequence[str]] = [("model", "distribution", "version", "recipe", "backends", "runs here")]
    for model in report:
        named = (model["model"], model["distribution"], model["version"])
        for recipe in model["recipes"]:
            reason = "yes" if recipe["reason"] is None else f"no: {recipe['reason']}"
            rows.append((*named, recipe["recipe"], ", ".join(recipe["backends"]), reason))
            named = ("", "", "")
    yield from table_lines(rows)
