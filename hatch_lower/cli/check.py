"""`hatch-lower check`: packaged models run their check inputs on this machine."""

from __future__ import annotations

import csv
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower import MODEL_GROUP
from hatch_lower.build.contents import (
    ARCHIVE_ERRORS,
    MANIFEST,
    find_contents,
    metadata_text,
    plain_member,
    read_member,
    wheel_members,
)
from hatch_lower.cli.arguments import json_option, path_option, target_of
from hatch_lower.cli.output import count, show, show_json, size_text
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.manifest import FileEntry, ModelEntry, read_manifest
from hatch_lower.hatch.terminal import table_lines
from hatch_lower.runtime.files import PackagedFolder, Recorded, files_of, open_folder, record_digest

if TYPE_CHECKING:
    from hatch_lower.runtime.check import CheckRow
    from hatch_lower.runtime.numbers import Tolerance

Place = tuple[str, PackagedFolder, tuple[str, ...]]  # what to call a folder, the folder, and the names of its models


@click.command()
@click.argument("name", metavar="NAME|PATH")
@path_option
@click.option("--model", help="The model to check. Default: all.")
@click.option("--recipe", help="The recipe to check. Default: all that can run here.")
@click.option("--rtol", type=click.FloatRange(0), default=1e-4, help="Relative tolerance. Default: 1e-4.")
@click.option("--atol", type=click.FloatRange(0), default=1e-5, help="Absolute tolerance. Default: 1e-5.")
@json_option
@click.pass_context
def check(
    context: click.Context,
    name: str,
    is_path: bool,
    model: str | None,
    recipe: str | None,
    rtol: float,
    atol: float,
    as_json: bool,
) -> None:
    """Compare what a model computes here with its packaged check.

    It runs the packaged inputs. Fails if an output differs from the eager model's, or a file is damaged or missing.
    """
    with places_of(target_of(name, is_path)) as places:
        chosen = choose(places, name, model, recipe)
        from hatch_lower.runtime.numbers import Tolerance

        rows = check_all(chosen, recipe, Tolerance(rtol, atol))
    if as_json:
        show_json([row_json(row) for row in rows])
    else:
        show(row_lines(rows))
    context.exit(1 if any(row.is_wrong for row in rows) else 0)


@contextmanager
def places_of(target: str | Path) -> Iterator[list[Place]]:
    """Give the folders with the models of a name or at a path; a wheel's are unpacked until the block ends."""
    is_name = isinstance(target, str)
    if isinstance(target, str) or target.is_dir():
        contents = find_contents(target)
        yield [
            (folder.place, PackagedFolder(Path(folder.place), folder.manifest, folder.recorded, is_name), folder.models)
            for folder in contents
        ]
        return
    with tempfile.TemporaryDirectory(prefix="hatch-lower-") as work:
        yield unpack(target, Path(work).resolve())


def unpack(wheel: Path, work: Path) -> list[Place]:
    manifests = sorted(name for name in wheel_members(wheel) if name.endswith(f"/{MANIFEST}"))
    if not manifests:
        refuse_incomplete(wheel)  # its build was killed, or had no hooks
        find_contents(wheel)  # says that there are none
    return [
        unpack_folder(wheel, member, recorded_below(wheel, member), work / str(position))
        for position, member in enumerate(manifests)
    ]


def refuse_incomplete(wheel: Path) -> None:
    """Refuse a wheel without lowered models that says that it has some: its build was killed, or had no hooks."""
    lines = {
        name: (metadata_text(wheel, name) or "").splitlines() for name in ("RECORD", "entry_points.txt", "METADATA")
    }
    promise = ""
    if any(f"/{MANIFEST}," in line for line in lines["RECORD"]):
        promise = f"a RECORD that lists `{MANIFEST}`"
    elif f"[{MODEL_GROUP}]" in lines["entry_points.txt"]:
        promise = f"entry points `{MODEL_GROUP}`"
    elif any(line.startswith("Requires-Dist: hatch-lower") for line in lines["METADATA"]):
        promise = "a requirement of `hatch-lower`"
    if promise:
        raise ProgramError(
            "the wheel is incomplete: it is without its lowered models",
            where=str(wheel),
            found=f"{promise}, and no `{MANIFEST}`",
            hint="build the wheel again with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS",
        )


def recorded_below(wheel: Path, member: str) -> Recorded | None:
    """Return what a wheel's RECORD says of the folder of a manifest; `None` if it does not list that."""
    rows = csv.reader((metadata_text(wheel, "RECORD") or "").splitlines())
    digests = {row[0]: record_digest(row[1]) for row in rows if len(row) > 1}
    folder = member.removesuffix("manifest.json")
    listed = {path.removeprefix(folder): digest for path, digest in digests.items() if path.startswith(folder)}
    return Recorded(f"`{wheel.name}`", listed) if member in digests else None


def unpack_folder(wheel: Path, member: str, recorded: Recorded | None, target: Path) -> Place:
    """Unpack a manifest and the files that it lists; those that the wheel lacks are reported when they are checked."""
    target.mkdir()
    folder = member.removesuffix("/manifest.json")
    place = f"{wheel.name}: {folder}"
    data = read_member(wheel, member)
    (target / "manifest.json").write_bytes(data)
    manifest = read_manifest(data, f"{place}/manifest.json")
    try:
        opened = open_folder(target, recorded)
    except ProgramError as error:
        raise placed(error, str(target), place) from error
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        listed = {f"{folder}/{entry.path}": entry for model in manifest.models.values() for entry in files_of(model)}
        refuse_larger(wheel, {name: (sizes[name], entry) for name, entry in listed.items() if name in sizes}, target)
        for name, entry in listed.items():
            if name in sizes:
                copy_member(archive, name, target / entry.path, f"{wheel.name}: {name}")
    for path in (target, *target.rglob("*")):  # whatever the umask: native code is not loaded where others may write
        path.chmod(0o700 if path.is_dir() else 0o600)
    return place, opened, tuple(sorted(manifest.models))


def refuse_larger(wheel: Path, members: Mapping[str, tuple[int, FileEntry]], target: Path) -> None:
    """Refuse files that would become larger than the manifest says, or than there is space for."""
    for name, (size, entry) in members.items():
        if size > entry.size:
            raise ProgramError(
                "a packaged program file is not the one that the manifest lists",
                where=f"{wheel.name}: {name}",
                found=f"{size} bytes, where the manifest says {entry.size}",
                hint="build the wheel again",
            )
    needed, free = sum(size for size, _ in members.values()), shutil.disk_usage(target).free
    if needed > free:
        raise ProgramError(
            "there is no space to unpack the wheel's lowered models",
            where=str(target.parent),
            found=f"{size_text(needed)} to unpack, {size_text(free)} free",
            hint="set `TMPDIR` to a folder with more space, or install the wheel and check the installed model",
        )


def copy_member(archive: zipfile.ZipFile, name: str, target: Path, where: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(plain_member(archive, name)) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except ARCHIVE_ERRORS as error:
        raise ProgramError(
            "a packaged program file cannot be unpacked",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="build the wheel again, or see that there is space for temporary files",
        ) from error


def placed(error: ProgramError, folder: str, place: str) -> ProgramError:
    return ProgramError(error.what, where=error.where.replace(folder, place), found=error.found, hint=error.hint)


def choose(
    places: list[Place], name: str, model: str | None, recipe: str | None
) -> list[tuple[str, PackagedFolder, str]]:
    """Return place, folder and name of each model to check."""
    every = [(place, folder, known) for place, folder, models in places for known in models]
    chosen = [row for row in every if model is None or row[2] == model]
    if not chosen:
        found = nearest(model or "", [known for _, _, known in every])
        raise ProgramError("there is no such model", where=name, found=found, hint="name one with `--model`")
    if recipe is None:
        return chosen
    entries: list[ModelEntry] = [folder.manifest.models[known] for _, folder, known in chosen]
    if not any(recipe in entry.recipes for entry in entries):
        recipes = sorted({name for entry in entries for name in entry.recipes})
        hint = "name one with `--recipe`"
        raise ProgramError("there is no such recipe", where=name, found=nearest(recipe, recipes), hint=hint)
    return [row for row, entry in zip(chosen, entries, strict=True) if recipe in entry.recipes]


def check_all(
    chosen: list[tuple[str, PackagedFolder, str]], recipe: str | None, tolerance: Tolerance
) -> list[CheckRow]:
    from hatch_lower.runtime.check import check_model

    return [
        replace(row, detail=row.detail.replace(str(folder.path), place))
        for place, folder, model in chosen
        for row in check_model(folder, model, recipe, tolerance)
    ]


def row_json(row: CheckRow) -> dict[str, object]:
    infinite = row.largest_error is not None and not math.isfinite(row.largest_error)
    return asdict(row) | ({"largest_error": "inf"} if infinite else {})


def row_lines(rows: Sequence[CheckRow]) -> Iterator[str]:
    table = [("model", "recipe", "method", "result", "largest difference", "why skipped")]
    for row in rows:
        largest = "" if row.largest_error is None else f"{row.largest_error:.3g}"
        skipped = row.detail if row.status == "skipped" else ""
        table.append((row.model, row.recipe, row.method, row.status, largest, skipped))
    yield from table_lines(table)
    for row in rows:
        if row.is_wrong:
            name = ", ".join(part for part in (row.model, row.recipe, row.method) if part)
            yield ""
            yield from f"{name}: {row.detail}".split("\n")
    yield ""
    compared = [row for row in rows if row.largest_error is not None]
    wrong = sum(row.is_wrong for row in rows)
    yield f"{count(len(compared), 'method')} compared, {count(wrong, 'fault')}"
