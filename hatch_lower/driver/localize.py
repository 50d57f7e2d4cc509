"""The search for a wrong operation in a project's model: a child process exports and lowers the model as in a build."""

from __future__ import annotations

from dataclasses import replace

from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.executor import export_models
from hatch_lower.driver.sources import urls_of
from hatch_lower.driver.weight_sources import obtain_sources
from hatch_lower.errors import ConfigError, nearest
from hatch_lower.format.codec import read_record
from hatch_lower.pipeline.localize.finding import FINDINGS, Findings, Localization


def localize(context: BuildContext, model: str, wanted: Localization) -> Findings:
    """Return the wrong operations of a model, found by a child process; only partitions are kept."""
    models = {each.name: each for each in context.settings.models}
    if model not in models:
        raise ConfigError(
            "the project has no such model",
            where=str(context.settings.root),
            found=nearest(model, models),
            hint="run this in the project that the model comes from",
        )
    chosen = [models[model]]
    urls = urls_of(chosen)
    sources = obtain_sources(context, urls) if urls else {}
    # strict mode protects the result of a build; here the result is dropped
    context = replace(context, settings=replace(context.settings, strict=False))
    export_models(context, chosen, {}, "localize", sources, wanted)
    found: Findings = read_record(Findings, context.work / "models" / model / FINDINGS)
    return found
