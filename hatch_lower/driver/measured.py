"""The measured times of recipes, from `lowering-times.json` beside the project's pyproject.toml into the manifest.

Times take no part in exporting and lowering, so the file is in no key: changed times change the manifest alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.timed import recipe_digest
from hatch_lower.errors import ConfigError
from hatch_lower.format.codec import encode
from hatch_lower.format.evidence import EVIDENCE_FILE, Evidence, Measurement, read_evidence
from hatch_lower.format.manifest import MeasuredCalls, MethodSeconds
from hatch_lower.format.results import ModelResult

Measured = Mapping[str, tuple[MeasuredCalls, ...]]  # by recipe
HINT = 'run `hatch-lower tune --write`, or write `order = "written"`'


def find_measured(settings: Settings) -> dict[str, Measured]:
    """Return the measured calls of each model's recipes.

    Raises `ConfigError` if the file is missing or damaged, if the file is another project's, or if the file lacks a
    measurement for the present settings of a recipe.
    """
    path = settings.root / EVIDENCE_FILE
    evidence = read_evidence_file(path)
    known = {model.name for model in settings.models}
    others = sorted({each.model for each in evidence.measurements})
    if others and known.isdisjoint(others):
        raise ConfigError(
            "the file of measured times is another project's",
            where=str(path),
            found=f"measurements of {', '.join(f'`{name}`' for name in others)}",
            hint=HINT,
        )
    problems: list[str] = []
    measured = {model.name: measured_calls(model, settings.recipes, evidence, problems) for model in settings.models}
    if problems:
        raise ConfigError(
            'the setting `order = "measured"` lacks measurements of recipes',
            where=str(path),
            found="\n".join(problems),
            hint=HINT,
        )
    return measured


def read_evidence_file(path: Path) -> Evidence:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            'the setting `order = "measured"` needs a file of measured times',
            where=str(path),
            found="no file" if isinstance(error, FileNotFoundError) else str(error.strerror),
            hint=HINT,
        ) from None
    return read_evidence(data, str(path))


def measured_calls(
    model: ModelSettings, recipes: Iterable[Recipe], evidence: Evidence, problems: list[str]
) -> Measured:
    """Return the measured calls of a model's recipes, and append a sentence for each recipe without measurements."""
    digests = {recipe.name: recipe_digest(recipe, model) for recipe in recipes}
    own = [each for each in evidence.measurements if each.model == model.name and each.recipe in model.recipes]
    present = [each for each in own if each.digest == digests[each.recipe]]
    for recipe in model.recipes:
        if not any(each.recipe == recipe for each in present):
            levels = sorted({each.level for each in own if each.recipe == recipe})
            why = f"was measured with other settings, on {', '.join(levels)}" if levels else "was not measured"
            problems.append(f"recipe `{recipe}` of model `{model.name}` {why}")
    problems += unlike_measurements(model.name, present)
    return {
        recipe: tuple(map(packaged_calls, sorted((each for each in present if each.recipe == recipe), key=place_of)))
        for recipe in model.recipes
    }


def unlike_measurements(model: str, measurements: Iterable[Measurement]) -> Iterator[str]:
    """Yield a sentence for each level whose recipes were measured with other calls, so that no order is right."""
    calls: dict[str, dict[str, set[object]]] = {}
    for each in measurements:
        cases = {(each.threads, call.method, *sorted(call.sizes.items())) for call in each.calls}
        calls.setdefault(each.level, {}).setdefault(each.recipe, set()).update(cases)
    for level, recipes in sorted(calls.items()):
        first, *rest = sorted(recipes)
        for other in rest:
            if recipes[other] != recipes[first]:
                yield (
                    f"recipes `{first}` and `{other}` of model `{model}` were measured on {level} with other sizes,"
                    " methods or threads"
                )


def place_of(measurement: Measurement) -> tuple[str, int]:
    return measurement.level, measurement.threads


def packaged_calls(measurement: Measurement) -> MeasuredCalls:
    calls = (MethodSeconds(call.method, call.sizes, call.median) for call in measurement.calls)
    return MeasuredCalls(measurement.level, measurement.threads, tuple(calls))


def with_measured(result: ModelResult, measured: Measured) -> ModelResult:
    """Add measured calls to the recipes of a model's manifest entry."""
    recipes: Mapping[str, Any] = result.entry["recipes"]
    entries = {name: {**entry, "measured": encode(measured[name], packaged=True)} for name, entry in recipes.items()}
    return replace(result, entry={**result.entry, "recipes": entries})
