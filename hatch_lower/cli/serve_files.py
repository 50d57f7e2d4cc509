"""`hatch-lower serve-files`: files with which a model server serves the methods of a wheel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion

from hatch_lower.cli.arguments import choose_recipe, json_option, kind_of_folder, wheel_at
from hatch_lower.cli.output import Report, count, show_report
from hatch_lower.driver.contents import Place, loadable_places
from hatch_lower.driver.new_folder import folder_in_place
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.hatch.terminal import table_lines
from hatch_lower.runtime.files import PackagedFolder

if TYPE_CHECKING:
    from hatch_lower.cli.serve.describe import Described

FORMATS = ("triton", "kserve")
WHEEL = re.compile(r"[A-Za-z0-9_.!+-]+")  # the name stands in a Dockerfile; `packaging` does not check tags


@click.command("serve-files")
@click.argument("wheel", type=click.Path(path_type=Path))
@click.option("--format", "layout", type=click.Choice(FORMATS), required=True, help="The server.")
@click.option("--to", "folder", type=click.Path(path_type=Path), required=True, help="A new or empty folder.")
@click.option("--model", help="Serve this model. Default: all models.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Serve this method of each model that has it. Repeatable. Default: all methods.",
)
@click.option("--recipe", help="The recipe. Default: the first in load order.")
@json_option
def serve_files(
    wheel: Path,
    layout: str,
    folder: Path,
    model: str | None,
    methods: tuple[str, ...],
    recipe: str | None,
    as_json: bool,
) -> None:
    """Write the files of a model server for a wheel.

    `triton` is a model repository for NVIDIA Triton: ONNX Runtime's backend for methods that the engine computes
    whole, and the Python backend for all others. `kserve` is a server of the open inference protocol, its Dockerfile,
    and an InferenceService.

    Each method is a model of the server: NAME for `forward`, NAME_METHOD for others. Each method is called here with
    its packaged example inputs, so the recipe must run here.
    """
    wheel = wheel_at(wheel)
    with (
        folder_in_place(folder, "server's files") as unfinished,
        loadable_places(checked_wheel(wheel)) as places,
    ):
        report = write_server_files(unfinished, wheel, layout, places, (model, methods, recipe))
    show_report(report, as_json, lambda rows: served_lines(rows, folder))


def checked_wheel(wheel: Path) -> Path:
    try:
        parse_wheel_filename(wheel.name)
        if WHEEL.fullmatch(wheel.name) is None:
            raise InvalidWheelFilename(f"other characters than in the name of a wheel: {wheel.name!r}")
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise ProgramError(
            "the files for a server are written from a wheel",
            where=str(wheel),
            found=refused_path(wheel, error),
            hint="name a wheel without a variant's label, or a folder with wheels such as `dist/`",
        ) from error
    return wheel


def refused_path(path: Path, error: Exception) -> str:
    if path.is_dir():
        return kind_of_folder(path)
    return str(error) if path.exists() else "there is no such file"


def write_server_files(
    folder: Path,
    wheel: Path,
    layout: str,
    places: Sequence[Place],
    chosen: tuple[str | None, Sequence[str], str | None],
) -> list[Report]:
    """Write the files of all chosen methods into an empty folder; return a row for each method."""
    from hatch_lower.cli.serve.kserve import write_kserve, write_method
    from hatch_lower.cli.serve.triton import readme_text, write_triton

    described: list[Described] = []
    written = []
    for packaged, each in chosen_methods(places, wheel, *chosen):
        if any(each.served.name == other.served.name for other in described):
            raise ProgramError(
                "two methods would have the same name in the server",
                where=wheel.name,
                found=f"`{each.served.name}`",
                hint="write the files of each model into a folder of its own, with `--model`",
            )
        described.append(each)
        if layout == "triton":
            written.append(write_triton(folder, packaged, each))
        else:
            write_method(folder, each)
    if layout == "triton":
        owner = described[0].owner
        (folder / "README.md").write_text(readme_text(written, f"{owner.distribution}=={owner.version}"), "utf-8")
        return [{**method_row(row.described), "backend": row.backend, "reason": row.reason} for row in written]
    write_kserve(folder, wheel, described)
    return [method_row(each) for each in described]


def chosen_methods(
    places: Sequence[Place], wheel: Path, model: str | None, methods: Sequence[str], recipe: str | None
) -> Iterator[tuple[PackagedFolder, Described]]:
    known = [(packaged, name) for _, packaged, names in places for name in names]
    if model is not None and model not in [name for _, name in known]:
        found = nearest(model, [name for _, name in known])
        raise ProgramError("there is no such model", where=wheel.name, found=found)
    chosen = [
        (packaged, name, choose_recipe(name, packaged.manifest.models[name], recipe), packaged.manifest.models[name])
        for packaged, name in known
        if model in (None, name)
    ]
    there = {method for _, _, own, entry in chosen for method in entry.recipes[own].methods}
    if unknown := [method for method in methods if method not in there]:
        found, hint = nearest(unknown[0], sorted(there)), "select methods with `--method`"
        raise ProgramError("there is no such method", where=wheel.name, found=found, hint=hint)
    for packaged, name, own, entry in chosen:
        served = [method for method in entry.recipes[own].methods if not methods or method in methods]
        if served:
            yield from ((packaged, each) for each in described_methods(packaged, name, own, served))


def described_methods(packaged: PackagedFolder, model: str, recipe: str, methods: Sequence[str]) -> Iterator[Described]:
    from hatch_lower.cli.serve.describe import describe_served, owner_of
    from hatch_lower.runtime.check import read_check_tensors, tensors_of
    from hatch_lower.runtime.load import load_in_folder
    from hatch_lower.runtime.loaded import arrays_of
    from hatch_lower.runtime.selection import DelegateKinds

    entry = packaged.manifest.models[model]
    loaded = load_in_folder(packaged, model, recipe, DelegateKinds(), verify=True)
    owner = owner_of(packaged.manifest, model, recipe, loaded)
    stored = read_check_tensors(packaged, entry, arrays_of(loaded))
    tensors = tensors_of(stored, recipe, entry.recipes[recipe].precision)
    yield from (describe_served(owner, method, loaded, tensors) for method in methods)


def method_row(described: Described) -> Report:
    served = described.served
    return {
        "model": served.name,
        "method": f"{served.model}.{served.method}",
        "recipe": served.recipe,
        "batch": served.batch,
        "not_batched": described.not_batched,
    }


def served_lines(rows: Sequence[Report], folder: Path) -> Iterator[str]:
    table = [("model", "method", "recipe", "backend", "rows of a batch")]
    table += [
        (row["model"], row["method"], row["recipe"], row.get("backend", ""), str(row["batch"] or 1)) for row in rows
    ]
    yield from table_lines(table, right=[4])
    yield ""
    for row in rows:
        if row.get("reason"):
            yield f"{row['model']} needs Triton's Python backend: {row['reason']}"
        if row["not_batched"]:
            yield f"{row['model']} takes each request alone: {row['not_batched']}"
    yield f"{count(len(rows), 'model')} in {folder}"
