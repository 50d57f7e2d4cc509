"""`hatch-lower fetch`: download weights that are not in the wheel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from hatch_lower.cli.arguments import json_option, target_of
from hatch_lower.cli.output import Report, count, show_report
from hatch_lower.driver.contents import WheelModels, find_contents
from hatch_lower.errors import ProgramError, nearest, size_text
from hatch_lower.format.weights import WeightsSource
from hatch_lower.hatch.terminal import table_lines


@click.command()
@click.argument("name", metavar="NAME|WHEEL|FOLDER")
@click.option("--model", help="Fetch the weights of this model. Default: all models.")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Put the files into this folder instead of the cache: for another machine, or a layer of an image. `load`"
    " finds the files if `HATCH_LOWER_WEIGHTS` names the folder.",
)
@click.option(
    "--from",
    "origins",
    multiple=True,
    metavar="URL|PATH",
    help="Another place with the same bytes: a file, or a folder of files with `/` at the end. Repeatable.",
)
@json_option
def fetch(name: str, model: str | None, to: Path | None, origins: tuple[str, ...], as_json: bool) -> None:
    """Fetch weights that are stored outside of the wheel.

    Files are compared with the digests in the wheel. A file that is here already is fetched again only if its digest
    differs.
    """
    from hatch_lower.runtime.obtain import fetch_sources  # imports libraries for connections, which takes long

    sources = list(model_sources(find_contents(target_of(name)), model, name))
    files = fetch_sources(sources, to, origins)
    report = [{"url": file.url, "path": str(file.path), "size": file.size, "fetched": file.is_new} for file in files]
    show_report(report, as_json, lambda rows: fetched_lines(rows, to))


def model_sources(folders: Sequence[WheelModels], model: str | None, name: str) -> Iterator[WeightsSource]:
    known = sorted({each for contents in folders for each in contents.models})
    if model is not None and model not in known:
        raise ProgramError(
            "there is no such model", where=name, found=nearest(model, known), hint="select a model with `--model`"
        )
    for contents in folders:
        for each in contents.models:
            if model in (None, each) and (weights := contents.weights(each)) is not None:
                yield from weights.sources


def fetched_lines(files: Sequence[Report], to: Path | None) -> Iterator[str]:
    if not files:
        yield "nothing to fetch: all weights are in the wheel"
        return
    rows = [("weights", "size", "", "where")]
    rows += [
        (file["url"], size_text(file["size"]), "fetched" if file["fetched"] else "here already", file["path"])
        for file in files
    ]
    yield from table_lines(rows, right=[1])
    new = [file["size"] for file in files if file["fetched"]]
    yield ""
    yield f"{count(len(files), 'file')}, {len(new)} fetched ({size_text(sum(new))})"
    if to is not None:
        yield f"where the models run, set HATCH_LOWER_WEIGHTS to {to.absolute()}"
