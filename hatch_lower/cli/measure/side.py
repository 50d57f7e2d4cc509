"""A side of a benchmark: a wheel, an installed model, or a folder; and the methods that two sides share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path

from hatch_lower.cli.measure.figures import Figures, FigureSubject
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.driver.contents import Place, WheelModels, errors_of_wheel, find_contents, places_in, unpack_models
from hatch_lower.errors import ProgramError
from hatch_lower.format.constants import LENGTH_BYTES
from hatch_lower.format.manifest import ModelEntry, RecipeEntry
from hatch_lower.format.plan import Plan, signature_text
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.files import PackagedFolder


class BenchSide(Frozen):
    title: str  # `digits-1.0.0-py3-none-any.whl`, or another name for people
    contents: tuple[WheelModels, ...]  # as in `diff`
    folders: Mapping[str, PackagedFolder]  # model to its folder; a wheel is unpacked
    wheel: Path | None = None
    source: Path | None = None  # the folder of the project, if known
    build: Figures = field(default_factory=dict)  # figures of its build, if known

    @property
    def distributions(self) -> tuple[str, ...]:
        """`digits 1.0`, and other distributions in the folder."""
        manifests = (each.manifest for each in self.contents)
        return tuple(sorted({f"{each.distribution} {each.version}" for each in manifests}))

    def contents_of(self, model: str) -> WheelModels:
        (found,) = (each for each in self.contents if model in each.models)
        return found

    def plan(self, model: str, recipe: str) -> Plan:
        contents = self.contents_of(model)
        return contents.plan(contents.manifest.models[model].recipes[recipe])


@contextmanager
def open_side(target: str | Path) -> Iterator[BenchSide]:
    """Open the installed model or distribution of a name, or the wheel or the folder at a path."""
    if isinstance(target, Path) and not target.is_dir():
        with open_wheel_side(target, target.name) as side:
            yield side
        return
    contents = find_contents(target)
    manifest, is_name = contents[0].manifest, isinstance(target, str)
    title = f"{manifest.distribution} {manifest.version} (installed)" if is_name else str(target)
    yield side_of_places(title, contents, places_in(contents, installed=is_name))


@contextmanager
def open_wheel_side(wheel: Path, title: str) -> Iterator[BenchSide]:
    with work_folder() as work:
        places = unpack_models(wheel, work)
        with errors_of_wheel(wheel, places):
            yield replace(side_of_places(title, find_contents(wheel), places), wheel=wheel)


def side_of_places(title: str, contents: Sequence[WheelModels], places: Sequence[Place]) -> BenchSide:
    folders: dict[str, PackagedFolder] = {}
    owners: dict[str, str] = {}
    for place, folder, models in places:
        for model in models:
            if model in folders:
                raise ProgramError(
                    "two models have the same name",
                    where=title,
                    found=f"`{model}` in {owners[model]} and in {place}",
                    hint="name a folder of a single model, or its wheel",
                )
            folders[model], owners[model] = folder, place
    return BenchSide(title, tuple(contents), folders)


def comparable(first: BenchSide, second: BenchSide) -> tuple[list[FigureSubject], list[str]]:
    """Return the methods of both sides, and a line for each difference of models, recipes and methods.

    A model of only one side is reported without its recipes, a recipe without its methods. A method with another
    signature is another method.
    """
    mine, theirs = model_entries(first), model_entries(second)
    common: list[FigureSubject] = []
    lines = only_in_one(mine, theirs, "model")
    for model in sorted(mine.keys() & theirs.keys()):
        (contents, entry), (others, other) = mine[model], theirs[model]
        lines += only_in_one(entry.recipes, other.recipes, f"model `{model}`: recipe")
        for recipe in sorted(entry.recipes.keys() & other.recipes.keys()):
            here = signatures_of(contents, entry.recipes[recipe])
            there = signatures_of(others, other.recipes[recipe])
            place = f"model `{model}`, recipe `{recipe}`: method"
            lines += only_in_one(here, there, place)
            for method in sorted(here.keys() & there.keys()):
                if here[method] == there[method]:
                    common.append(FigureSubject(model, recipe, method))
                else:
                    lines.append(f"{place} `{method}` is `{here[method]}` in A, `{there[method]}` in B")
    if not common:
        raise ProgramError(
            "A and B have no method in common",
            where=f"{first.title}, and {second.title}",
            found="\n".join(lines),
            hint="compare two versions of the same models",
        )
    return common, lines


def model_entries(side: BenchSide) -> dict[str, tuple[WheelModels, ModelEntry]]:
    return {name: (each, each.manifest.models[name]) for each in side.contents for name in each.models}


def only_in_one(first: Mapping[str, object], second: Mapping[str, object], noun: str) -> list[str]:
    lines = [f"{noun} `{name}` is only in A" for name in sorted(first.keys() - second.keys())]
    return lines + [f"{noun} `{name}` is only in B" for name in sorted(second.keys() - first.keys())]


def signatures_of(contents: WheelModels, recipe: RecipeEntry) -> dict[str, str]:
    return {name: signature_text(name, method) for name, method in contents.plan(recipe).methods.items()}


def run_digests(side: BenchSide, subject: FigureSubject) -> list[object]:
    """Return values that are equal if both sides run the same program."""
    model = side.folders[subject.model].manifest.models[subject.model]
    recipe = model.recipes[subject.recipe]
    # calls use the check inputs, and a plan names its delegates' files
    files = [recipe.plan, model.constants, model.weights, model.check, *recipe.delegates]
    return [*sorted(file.sha256 for file in files if file is not None), recipe.imports, recipe.target]


def have_other_inputs(sides: Iterable[BenchSide], model: str) -> bool:
    """Return whether the sides have different check inputs of a model."""
    return len({inputs_digest(side, model) for side in sides} - {""}) > 1


def inputs_digest(side: BenchSide, model: str) -> str:
    """Return a digest of a model's packaged check inputs, without outputs; empty without check inputs."""
    contents = side.contents_of(model)
    entry = contents.manifest.models[model].check
    if entry is None:
        return ""
    data = contents.map(entry)
    begin = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    header = json.loads(bytes(data[LENGTH_BYTES:begin]))
    digest = hashlib.sha256()
    for name in sorted(name for name in header if "/input/" in name):
        first, last = header[name].pop("data_offsets")
        digest.update(f"{name} {header[name]}".encode())
        digest.update(data[begin + first : begin + last])
    return digest.hexdigest()
