"""`hatch-lower precision`: the layers that must stay in float32 for a recipe to keep the metric."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hatch_lower.cli.arguments import json_option, open_here, root_option, temporary_context
from hatch_lower.cli.output import count, show, show_report
from hatch_lower.cli.replaced import edited_text, refuse_read_only, replace_files
from hatch_lower.config.precision_file import FLOAT_MODULES, PRECISION_FILE
from hatch_lower.config.settings import Settings
from hatch_lower.config.tables import quote_key
from hatch_lower.errors import ConfigError, PackageError, nearest
from hatch_lower.format.results import metric_text
from hatch_lower.hatch.outside import open_project

if TYPE_CHECKING:
    from hatch_lower.hatch.project import Project
    from hatch_lower.pipeline.precision.finding import PrecisionFinding, PrecisionSearch

SCHEMA = 1
SHOWN = 10  # layers


@click.command()
@click.argument("model", required=False)
@click.option("--recipe", help="The recipe. Default: the only recipe with a precision.")
@click.option("--write", is_flag=True, help=f"Write the layers into `{PRECISION_FILE}`, which builds read.")
@json_option
@root_option
def precision(model: str | None, recipe: str | None, write: bool, as_json: bool, root: Path) -> None:
    """Find the layers that must stay in float32.

    The model's metric decides: layers go back to float32, the layer with the largest effect on the outputs first, until
    the metric is at most `max-drop` lower than eager's. The build itself searches nothing.
    """
    from hatch_lower.pipeline.precision.finding import PrecisionSearch

    if write:  # a missing library and a read-only folder are refused before minutes have passed
        import tomlkit  # noqa: F401
    project = open_project(root)
    if write:
        refuse_read_only(project.settings.root / PRECISION_FILE)
    name = searched_model(project.settings, model)
    wanted = PrecisionSearch(searched_recipe(project.settings, name, recipe))
    found = finding_of(project, name, wanted)
    changed = write and write_kept(project.settings.root / PRECISION_FILE, found)
    show_report({"schema": SCHEMA, **asdict(found)}, as_json, lambda _: finding_text(found, write, changed))


def searched_model(settings: Settings, named: str | None) -> str:
    names = [each.name for each in settings.models]
    if named is None and len(names) == 1:
        return names[0]
    if named not in names:
        raise ConfigError(
            "the project has several models" if named is None else f"the project has no model `{named}`",
            where=str(settings.root),
            found=nearest(named or "", names),
            hint=f"name a model: `hatch-lower precision {names[0]}`" if named is None else "",
        )
    return named


def searched_recipe(settings: Settings, name: str, named: str | None) -> str:
    """Return the recipe to search; raise `ConfigError` without a metric, or without a recipe of another precision."""
    (model,) = (each for each in settings.models if each.name == name)
    where = f"model `{name}`"
    precise = [each.name for each in settings.recipes if each.name in model.recipes and each.precision != "float32"]
    if named is not None and named not in model.recipes:
        what = f"the model has no recipe `{named}`"
        raise ConfigError(what, where=where, found=nearest(named, precise or model.recipes))
    if not precise or (named is not None and named not in precise):
        raise ConfigError(
            "no recipe of the model has a precision to search"
            if named is None
            else f"the recipe `{named}` has no `precision`: all its layers are in float32",
            where=where,
            found=f"recipes with a precision: {', '.join(f'`{each}`' for each in precise) or 'none'}",
            hint="name a recipe with `precision`" if precise else 'write `precision = "int8"` in the table of a recipe',
        )
    if named is None and len(precise) > 1:
        raise ConfigError(
            "several recipes of the model have a precision",
            where=where,
            found=", ".join(f"`{each}`" for each in precise),
            hint=f"name a recipe: `hatch-lower precision {name} --recipe {precise[0]}`",
        )
    if not model.metric:
        raise ConfigError(
            "the search needs a metric, which says whether a precision is good enough",
            where=where,
            hint='write `metric = "module:function"` for the model',
        )
    return named or precise[0]


def finding_of(project: Project, model: str, wanted: PrecisionSearch) -> PrecisionFinding:
    from hatch_lower.driver.units import search_in_child
    from hatch_lower.events import LineReporter

    reporter = LineReporter(lambda line: show([line], err=True))
    with temporary_context(project, open_here(), reporter) as context:
        return search_in_child(context, model, wanted)


def finding_text(found: PrecisionFinding, write: bool, changed: bool) -> Iterator[str]:
    """Yield the finding in lines; `changed` says whether the list in the file is another list now."""
    recipe = found.recipe if found.recipe == found.precision else f"{found.recipe} ({found.precision})"
    yield f"{found.model}, recipe {recipe}: metric {metric_text(found.metric, found.eager)}"
    if not found.kept:
        yield f"no layer needs float32: the drop of the metric is within `max-drop`, {found.limit:g}"
        if write:
            yield f"removed the list from {PRECISION_FILE}" if changed else "nothing to write"
        return
    yield f"{len(found.kept)} of {count(len(found.layers), 'layer')} must stay in float32:"
    yield from (f"  {path}" for path in found.kept)
    yield "layers by effect, with the error that is left with this layer alone in float32:"
    yield from (f"  {layer.error:8.2%}  {layer.path}" for layer in found.layers[:SHOWN])
    if found.layers[SHOWN:]:
        yield f"  and {len(found.layers) - SHOWN} more, with smaller effects"
    if not write:
        yield f"`--write` writes the list into {PRECISION_FILE}"
    else:
        yield f"written into {PRECISION_FILE}" if changed else f"{PRECISION_FILE} has this list already"


def write_kept(path: Path, found: PrecisionFinding) -> bool:
    """Write the list of a recipe, or remove the list if no layer is kept; return whether the list has changed.

    Other entries and comments of the file stay, no half of a file is seen, and no empty file is left. Raises
    `ConfigError` for a file that has become no TOML, or that has a form that cannot be edited.
    """
    before = path.read_bytes() if path.exists() else b""
    try:
        values = tomllib.loads(before.decode())
    except ValueError as error:  # edited during the search
        raise ConfigError(
            "the file is no TOML", where=str(path), found=str(error), hint=f"write {entry_text(found)}"
        ) from error
    if sorted(kept_in(values, found)) == sorted(found.kept):
        return False
    after = with_list(before.decode(), values, found)
    if after is None:
        hint = f"write {entry_text(found)}" if found.kept else f"remove the list of `{found.recipe}`"
        raise ConfigError("the file has a form that cannot be edited", where=str(path), hint=hint)
    try:
        if after.strip():
            replace_files({path: after.encode()})
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise PackageError("the list cannot be written", where=str(path), found=str(error.strerror)) from error
    return True


def entry_text(found: PrecisionFinding) -> str:
    listed = ", ".join(f'"{path}"' for path in found.kept)
    return f"`[{quote_key(found.model)}.{quote_key(found.recipe)}]` with `{FLOAT_MODULES} = [{listed}]`"


def kept_in(values: Mapping[str, Any], found: PrecisionFinding) -> list[str]:
    lists: list[str] = values.get(found.model, {}).get(found.recipe, {}).get(FLOAT_MODULES, [])
    return lists


def with_list(text: str, values: dict[str, Any], found: PrecisionFinding) -> str | None:
    """Return the text with the list of a recipe, or `None` if an editor of TOML does not keep the other entries."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    expected = {**values, found.model: {**values.get(found.model, {}), found.recipe: {FLOAT_MODULES: [*found.kept]}}}
    if not found.kept:
        del expected[found.model][found.recipe]
    expected = {model: recipes for model, recipes in expected.items() if recipes}

    def edit(document: Any) -> None:
        recipes: Any = document.setdefault(found.model, tomlkit.table(is_super_table=True))
        recipes.pop(found.recipe, None)
        if found.kept:
            listed = tomlkit.array()
            listed.extend(found.kept)
            listed.multiline(len(found.kept) > 1)
            recipes[found.recipe] = {FLOAT_MODULES: listed}
        if not recipes:
            del document[found.model]

    try:
        after = edited_text(text, edit)
        return after if tomllib.loads(after) == expected else None
    except (TOMLKitError, AttributeError, LookupError, TypeError, ValueError):  # of unusual forms of tables
        return None
