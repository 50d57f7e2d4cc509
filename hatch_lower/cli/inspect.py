"""`hatch-lower inspect`: the lowered models in a wheel, a folder or an installed package; without an argument, all
installed models.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import Distribution
from pathlib import Path

import click

from hatch_lower.cli.arguments import json_option, model_option, recipe_option, target_of
from hatch_lower.cli.debug import debug_lines, method_report
from hatch_lower.cli.output import Report, count, page, show_json, show_report, show_text
from hatch_lower.cli.page.operations import (
    delegate_reports,
    left_out_reports,
    method_facts,
    outside_reports,
    undelegated_reports,
)
from hatch_lower.config.requirements import distributions_required, read_requirement
from hatch_lower.driver.contents import OpenedModel, OpenedRecipe, WheelModels, find_contents, sbom_text
from hatch_lower.errors import ProgramError, size_text
from hatch_lower.format.results import metric_text
from hatch_lower.hatch.terminal import table_lines
from hatch_lower.runtime.installed import (
    EagerEntry,
    InstalledModel,
    find_recording_distributions,
    models_of,
    read_field,
)


def installed_report() -> list[Report]:
    return [
        row
        for owner, distribution in sorted(find_recording_distributions().items())
        for row in distribution_report(owner, distribution)
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
    from hatch_lower.runtime.load_order import order_here
    from hatch_lower.runtime.selection import DelegateKinds, refusal_reason  # imports torch

    kinds, entry = DelegateKinds(), model.source.manifest.models[model.model]
    for name in order_here(entry):
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


NAMES_AND_NUMBERS = re.compile(r"`[^`]*`|\d+")  # the parts of a reason that concern a single node
CACHED = ".pyc"  # written by Python at the first import, or by an installer
SHOWN = 3  # operators or delegates in a row


@click.command()
@click.argument("name", metavar="[NAME|PATH]", required=False)
@json_option
@click.option("--sbom", is_flag=True, help="Print the SBOM in CycloneDX JSON: models, digests, licenses, tools.")
@click.option("--debug", "method", metavar="METHOD", help="Show the source lines of a method's instructions.")
@model_option
@recipe_option
@click.option(
    "--match",
    "texts",
    multiple=True,
    metavar="TEXT",
    help="With `--debug`: show only the instructions of an operator (`conv`), a file or line (`model.py:31`), or a"
    " backend (`aoti`). Repeatable: all texts must match.",
)
def inspect(
    name: str | None,
    as_json: bool,
    sbom: bool,
    method: str | None,
    model: str | None,
    recipe: str | None,
    texts: Sequence[str],
) -> None:
    """Show the lowered models of a wheel or a package.

    NAME|PATH is an installed model or distribution, or a wheel or folder: `./digits` is a path, `digits` a name.
    Without an argument, list the installed models and the recipes that can run here.
    """
    if method is None and (model or recipe or texts):
        raise click.UsageError("`--model`, `--recipe` and `--match` need `--debug METHOD`.")
    if sbom and method:
        raise click.UsageError("`--sbom` and `--debug` exclude each other.")
    if name is None:
        if sbom or method:
            raise click.UsageError("`--sbom` and `--debug` need a name or a path.")
        show_report(installed_report(), as_json, list_lines)
        return
    target = target_of(name)
    if sbom:
        show_text(sbom_text(target))
        return
    folders = find_contents(target)
    if method is None:
        show_report([contents_report(contents) for contents in folders], as_json, inspection_lines)
        return
    report = method_report(folders, model, recipe, method, texts)
    if as_json:
        show_json(report)
    else:
        title = f"{report['model']}.{report['method']}, recipe {report['recipe']}"
        page([title, "", *debug_lines(report["instructions"])])


def inspection_lines(reports: Sequence[Report]) -> Iterator[str]:
    for position, report in enumerate(reports):
        if position:
            yield ""
        yield from contents_lines(report)


def contents_report(contents: WheelModels) -> Report:
    manifest = contents.manifest
    return {
        "place": contents.place,
        "distribution": manifest.distribution,
        "version": manifest.version,
        "tools": {"hatch-lower": manifest.hatch_lower, "torch": manifest.torch, **manifest.tools},
        "models": {name: inspected_model(contents.model(name)) for name in contents.models},
    }


def inspected_model(model: OpenedModel) -> Report:
    from hatch_lower.runtime.load_order import order_here

    entry, plans = model.entry, [recipe.plan for recipe in model.recipes.values()]
    storages = {storage.key: storage for plan in plans for storage in plan.storages}
    weights = model.contents.weights(model.name)
    spans = {} if weights is None else weights.spans
    return {
        "order": list(entry.order),
        "order_here": list(order_here(entry)),
        "constants": entry.constants and {"size": entry.constants.size, "tensors": len(storages.keys() - spans.keys())},
        "outside": [] if weights is None else outside_reports(weights, storages),
        "check": entry.check and {"size": entry.check.size},
        "methods": {name: method_facts(name, method) for name, method in plans[0].methods.items()},
        "recipes": {name: recipe_report(recipe) for name, recipe in model.recipes.items()},
    }


def recipe_report(recipe: OpenedRecipe) -> Report:
    sizes = {delegate.path: delegate.size for delegate in recipe.entry.delegates}
    installation = installed_sizes(recipe.entry.requirements)
    return {
        **recipe.facts(),
        "requirements": list(recipe.entry.requirements),
        "torch": "torch" in installation,
        "installation": installation,
        "methods": {
            name: {
                **asdict(entry),
                "left_out": left_out_reports(entry, recipe.method_debug(name)),
                "delegates": delegate_reports(recipe.plan, recipe.plan.methods[name], sizes),
                "undelegated": undelegated_reports(recipe.method_debug(name)),
            }
            for name, entry in recipe.entry.methods.items()
        },
    }


def installed_sizes(requirements: Collection[str]) -> dict[str, int | None]:
    """Return the bytes of the distributions that requirements install, the largest first.

    A distribution that is not installed here has no size, and its dependencies are unknown.
    """
    # a wheel may have malformed requirements
    unreadable = [text for text in requirements if read_requirement(text) is None]
    names = distributions_required(text for text in requirements if text not in unreadable)
    sizes = {name: installed_size(name) for name in names}
    known = sorted(sizes.items(), key=lambda item: (-(item[1] or 0), item[0]))
    return {**dict(known), **dict.fromkeys(unreadable)}


@functools.cache
def installed_size(name: str) -> int | None:
    """Return how many bytes the files of an installed distribution have, without compiled modules."""
    try:
        files = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return sum(size_on_disk(Path(str(file.locate()))) for file in files or () if file.suffix != CACHED)


def size_on_disk(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # removed by its owner
        return 0


def contents_lines(report: Report) -> Iterator[str]:
    yield f"{report['distribution']} {report['version']}"
    yield f"  in          {report['place']}"
    yield f"  built with  {', '.join(f'{name} {version}' for name, version in report['tools'].items())}"
    for name, model in report["models"].items():
        yield ""
        yield from model_lines(name, model)


def model_lines(name: str, model: Report) -> Iterator[str]:
    constants, check = model["constants"], model["check"]
    weights = f"{size_text(constants['size'])} in {count(constants['tensors'], 'tensor')}" if constants else "none"
    yield f"model {name}"
    weights += " in the wheel" if model["outside"] else ""
    yield f"  weights     {weights}{', shared by all recipes' if constants and len(model['recipes']) > 1 else ''}"
    for source in model["outside"]:
        used, tensors = size_text(source["used"]), count(source["tensors"], "tensor")
        copied = f", {size_text(source['copied'])} copied at each load" if source["copied"] else ""
        yield f"  outside     {used} in {tensors}{copied}: {source['url']}"
    if check:
        yield f"  check data  {size_text(check['size'])}"
    yield ""
    for method in model["methods"].values():
        call, *ranges = method["signature"].split("; ")
        yield f"  {call} -> {method['outputs']}"
        yield from (f"      {line}" for line in ranges)
    yield ""
    rows: list[Sequence[str]] = [("recipe", "backends", "runs on", "size", "requires")]
    for recipe, report in model["recipes"].items():
        target = report["target"]
        codes = " ".join([target["isa"], *target.get("arch", ())]) if target else ""
        machine = f"{target['system']} {target['machine']}, {codes}" if target else "any machine"
        requires = ", ".join(report["requirements"])
        rows.append((recipe, engines_text(report), machine, size_text(report["size"]), requires))
    yield from table_lines(rows, indent=2, right=[3])
    yield ""
    rows = [("recipe", "needs torch", "installation")]
    for recipe, report in model["recipes"].items():
        rows.append((recipe, "yes" if report["torch"] else "no", installation_text(report["installation"])))
    yield from table_lines(rows, indent=2)
    yield ""
    yield from measured_lines(model)
    rows = [("recipe", "not compared with eager in the build, because")]
    rows += [(recipe, report["not_compared"]) for recipe, report in model["recipes"].items() if report["not_compared"]]
    if rows[1:]:
        yield from table_lines(rows, indent=2)
        yield ""
    yield from metric_table_lines(model["recipes"])
    rows = [("recipe", "method", "nodes", "delegated", "delegates")]
    for recipe, report in model["recipes"].items():
        for method, entry in report["methods"].items():
            delegates = delegates_text(entry["delegates"])
            rows.append((recipe, method, str(entry["nodes"]), str(entry["delegated"]), delegates))
    yield from table_lines(rows, indent=2, right=[2, 3])
    rows = [row for recipe, report in model["recipes"].items() for row in undelegated_rows(recipe, report["methods"])]
    if rows:
        yield ""
        rows.insert(0, ("recipe", "method", "not delegated", "op", "first at", "why"))
        yield from table_lines(rows, indent=2, right=[2])
    rows = [
        (recipe, method, each["backend"], each["op"], each["source"], each["reason"].removeprefix("left out: "))
        for recipe, report in model["recipes"].items()
        for method, entry in report["methods"].items()
        for each in entry["left_out"]
    ]
    if rows:
        yield ""
        yield from table_lines([("recipe", "method", "left out of", "op", "at", "why"), *rows], indent=2)


def engines_text(recipe: Report) -> str:
    """Return the backends of a recipe, and a precision other than float32: `onnxruntime, int8`."""
    precision = [] if recipe["precision"] == "float32" else [recipe["precision"]]
    return ", ".join([*(recipe["backends"] or ["none"]), *precision])


def measured_lines(model: Report) -> Iterator[str]:
    """Yield the measured calls of all recipes, and the order in which this machine tries the recipes."""
    rows: list[Sequence[str]] = [("measured on", "threads", "call", "recipe", "ms")]
    rows += sorted(
        (measured["level"], str(measured["threads"]), call_text(call), recipe, f"{call['seconds'] * 1e3:.4g}")
        for recipe, report in model["recipes"].items()
        for measured in report["measured"]
        for call in measured["calls"]
    )
    if rows[1:]:
        yield from table_lines(rows, indent=2, right=[1, 4])
        yield f"  order on this machine: {', '.join(model['order_here'])}"
        yield ""


def call_text(call: Report) -> str:
    """Return a measured call in short: `forward, batch = 2`."""
    return ", ".join([call["method"], *(f"{name} = {size}" for name, size in sorted(call["sizes"].items()))])


def metric_table_lines(recipes: Mapping[str, Report]) -> Iterator[str]:
    rows = [("recipe", "metric, higher is better", "number", "of eager", "allowed drop")]
    for recipe, report in recipes.items():
        if metric := report["metric"]:
            value, _, eager = metric_text(metric["value"], metric["eager"]).partition(", eager ")
            rows.append((recipe, metric["name"], value, eager, f"{metric['max_drop']:g}"))
    if rows[1:]:
        yield from table_lines(rows, indent=2, right=[2, 3, 4])
        yield ""


def installation_text(sizes: Mapping[str, int | None]) -> str:
    """Return the installed size of requirements: `312 MiB (onnxruntime 180 MiB, 4 more 132 MiB)`."""
    if absent := [name for name, size in sizes.items() if size is None]:
        return f"unknown: {', '.join(absent)} not installed here"
    known = [(name, size or 0) for name, size in sizes.items()]
    parts = [f"{name} {size_text(size)}" for name, size in known[:SHOWN]]
    if rest := known[SHOWN:]:
        parts.append(f"{len(rest)} more {size_text(sum(size for _, size in rest))}")
    return f"{size_text(sum(size for _, size in known))} ({', '.join(parts)})"


def delegates_text(delegates: Sequence[Report]) -> str:
    """Return a method's delegates in short: the first three, and number and size of the rest."""
    shown = [delegate_text(delegate) for delegate in delegates[:SHOWN]]
    if rest := delegates[SHOWN:]:
        shown.append(f"{len(rest)} more of {size_text(sum(delegate['size'] for delegate in rest))}")
    return ", ".join(shown) or "none"


def delegate_text(delegate: Report) -> str:
    """Return a delegate in short: `aoti 38.1 KiB (0a1b2c3d)`."""
    digest = delegate["file"].rpartition("/")[2].removeprefix("sha256_")[:8]
    again = f", {delegate['calls']} calls" if delegate["calls"] > 1 else ""
    files = {data["file"]: data["size"] for data in delegate["data"].values()}
    data = f" with {size_text(sum(files.values()))} of named data" if files else ""
    return f"{delegate['backend']} {size_text(delegate['size'])} ({digest}{again}){data}"


def undelegated_rows(recipe: str, methods: Mapping[str, Report]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each group of reasons that differ in names and numbers only; JSON has every reason."""
    for method, entry in methods.items():
        nodes = entry["undelegated"]
        if not entry["delegated"] and len({node["reason"] for node in nodes}) == 1:
            yield recipe, method, str(len(nodes)), "all", "", nodes[0]["reason"]
            continue
        groups: dict[str, list[Report]] = {}
        for node in nodes:
            groups.setdefault(NAMES_AND_NUMBERS.sub("", node["reason"]), []).append(node)
        for group in groups.values():
            ops = list(dict.fromkeys(node["op"] for node in group))
            more = f" and {len(ops) - SHOWN} more" if len(ops) > SHOWN else ""
            alike = " (and alike)" if len({node["reason"] for node in group}) > 1 else ""
            op = ", ".join(ops[:SHOWN]) + more
            yield recipe, method, str(len(group)), op, group[0]["source"], group[0]["reason"] + alike
