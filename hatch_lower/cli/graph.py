"""`hatch-lower graph`: the graphs of lowered methods, for programs that show graphs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from hatch_lower.build.contents import Contents, find_contents
from hatch_lower.cli.arguments import OUTPUT, path_option, target_of
from hatch_lower.cli.output import show_text, write_document
from hatch_lower.cli.page.exports import NamedGraph, dot_text, graphs_of, model_explorer_json
from hatch_lower.errors import ProgramError, nearest


@click.command()
@click.argument("name", metavar="NAME|PATH")
@click.argument("method", required=False)
@path_option
@click.option("--model", help="The model. Default: all.")
@click.option("--recipe", help="The recipe. Default: all.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["model-explorer", "dot"]),
    default="model-explorer",
    help="JSON for Google's Model Explorer, or DOT for Graphviz. Default: model-explorer.",
)
@click.option("-o", "--output", type=OUTPUT, help="The file to write. Default: standard output.")
def graph(
    name: str, method: str | None, is_path: bool, model: str | None, recipe: str | None, kind: str, output: Path | None
) -> None:
    """Write the graphs of methods for a viewer of graphs.

    A node is an operation, with its engine, module and source line; those in delegates are nodes too. METHOD is one of
    the methods; without it all are written.
    """
    target = target_of(name, is_path)
    folders = find_contents(target)
    graphs = chosen(folders, method, model, recipe, name)
    label = target if isinstance(target, str) else target.resolve().name
    if kind == "dot":
        text = dot_text(graphs)
    else:
        text = json.dumps(model_explorer_json(label, graphs), ensure_ascii=False) + "\n"
    if output is None:
        show_text(text)
    else:
        write_document(output, text, "graph")


def chosen(
    folders: Sequence[Contents], method: str | None, model: str | None, recipe: str | None, where: str
) -> list[NamedGraph]:
    graphs = list(graphs_of(folders, method, model, recipe))
    if graphs:
        return graphs
    entries = {name: contents.manifest.models[name] for contents in folders for name in contents.models}
    recipes = [known for entry in entries.values() for known in entry.recipes]
    methods = [known for entry in entries.values() for lowered in entry.recipes.values() for known in lowered.methods]
    for what, given, known in (("model", model, [*entries]), ("recipe", recipe, recipes), ("method", method, methods)):
        if given is not None and given not in known:
            raise ProgramError(f"there is no such {what}", where=where, found=nearest(given, sorted(set(known))))
    raise ProgramError("no graph is of all that was asked for", where=where, hint="leave out one of the options")
