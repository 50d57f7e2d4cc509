"""Measured configurations of kernels: a project is lowered once more, by processes that measure on the GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatch_lower.backends.cuda.choices import Times, fastest, is_table, with_measured
from hatch_lower.cli.measure.lowered_again import lowered_again
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver.context import ProjectView, open_cache
from hatch_lower.errors import ConfigError, ProgramError, nearest
from hatch_lower.frozen import Frozen

BACKEND, KERNELS, MEASURE = "cuda", "kernels", "measure-kernels"
# variables by which a user selects a GPU; other builds are independent of the GPUs of the machine
SELECTING = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")


class Tuned(Frozen):
    text: str  # of the file
    kernels: int  # kernels with several configurations
    other: int  # kernels of which the fastest configuration is not the first
    gpu: str


def find_gpu_here() -> str:
    """Return the architecture of this machine's GPU, such as `sm_90`; raise a `ProgramError` without a GPU."""
    from hatch_lower.runtime.devices import find_gpu
    from hatch_lower.runtime.torch_private.cuda import capability_of, cuda_version

    index = find_gpu("") if cuda_version() else "this torch has no CUDA"
    if isinstance(index, str):
        raise ProgramError(
            "kernels are measured on a GPU",
            found=index,
            hint="run this on a machine with a GPU and check the file in: builds use the file and need no GPU",
        )
    major, minor = capability_of(index)
    return f"sm_{major}{minor}"


def settings_that_measure(settings: Settings, recipes: Sequence[str], arch: str) -> Settings:
    """Return settings of the recipes that have code for `arch`, with measurements and without comparisons."""
    known = {recipe.name: recipe for recipe in settings.recipes if choices_of(recipe)}
    if unknown := [name for name in recipes if name not in known]:
        raise ConfigError(
            f"there is no such recipe with the backend `{BACKEND}`", found=nearest(unknown[0], known), hint=""
        )
    wanted = [recipe for name, recipe in known.items() if not recipes or name in recipes]
    compiled = {recipe.name: architectures(recipe) for recipe in wanted}
    kept = [measuring(recipe) for recipe in wanted if arch in compiled[recipe.name]]
    if not kept:
        others = "; ".join(f"`{name}` is for {', '.join(found)}" for name, found in compiled.items())
        raise ConfigError(
            f"no recipe has kernels for the GPU of this machine, {arch}",
            where=str(settings.root),
            found=others or f"no recipe with the backend `{BACKEND}`",
            hint=f"add `{arch}` to the option `arch` of a recipe, or measure on another GPU",
        )
    names = [recipe.name for recipe in kept]
    models = [
        replace(model, recipes=own, assets=())
        for model in settings.models
        if (own := tuple(name for name in model.recipes if name in names))
    ]
    used = {name for model in models for name in model.recipes}
    recipes_used = tuple(recipe for recipe in kept if recipe.name in used)
    return replace(settings, models=tuple(models), recipes=recipes_used, check_bytes=0, executor="local")


def choices_of(recipe: Recipe) -> list[BackendChoice]:
    return [choice for choice in recipe.backends if choice.name == BACKEND]


def architectures(recipe: Recipe) -> tuple[str, ...]:
    from hatch_lower.backends.cuda.options import parse_options  # imports torch

    return tuple(name for choice in choices_of(recipe) for name in parse_options(choice.options).arch)


def measuring(recipe: Recipe) -> Recipe:
    return replace(recipe, backends=tuple(map(measuring_choice, recipe.backends)), verify=False)


def measuring_choice(choice: BackendChoice) -> BackendChoice:
    if choice.name != BACKEND:
        return choice
    kept = {name: value for name, value in choice.options.items() if name != KERNELS}
    return replace(choice, options={**kept, MEASURE: True})


def read_table(path: Path) -> Mapping[str, Any]:
    """Return the table in a file, empty without the file."""
    try:
        table = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        table = str(error)
    if not is_table(table):
        raise ConfigError(
            "a file is there that `hatch-lower tune-kernels` has not written",
            where=str(path),
            found=table if isinstance(table, str) else "other contents",
            hint="name another file with `--output`",
        )
    return table  # type: ignore[no-any-return]


def tuned(settings: Settings, view: ProjectView, table: Mapping[str, Any]) -> Tuned:
    """Lower a project with measurements, and return a table with the choices, and those of other architectures."""
    # times that another machine has measured would be as good as none
    variables = {"HATCH_LOWER_CACHE": "off", **{name: os.environ[name] for name in SELECTING if name in os.environ}}
    store = replace(open_cache(settings, lambda _: None), mode="off")
    with lowered_again(settings, view, store, "build that measures", variables) as side:
        measured = measurements(side)
    machines = {(each["arch"], each["machine"]) for each in measured}
    if len(machines) != 1:
        raise ProgramError(
            "the kernels were not measured on one GPU",
            found=", ".join(f"{arch}: {machine}" for arch, machine in sorted(machines)) or "no kernels",
            hint="choose a GPU with CUDA_VISIBLE_DEVICES" if machines else "",
        )
    ((arch, machine),) = machines
    times: Times = [times for each in measured for times in each["times"]]
    best = fastest(times)
    first = {digest: known[0][0] for digest, known in times if known}
    text = json.dumps(with_measured(table, arch, machine, best), indent=2) + "\n"
    return Tuned(text, len(best), sum(best[digest] != first[digest] for digest in best), machine)


def measurements(side: BenchSide) -> list[Any]:
    """Return what was measured for each delegate of a build, once for delegates of several methods."""
    found: dict[str, Any] = {}
    for contents in side.contents:
        for name in contents.models:
            for recipe in contents.manifest.models[name].recipes.values():
                for delegate in contents.plan(recipe).delegates:
                    if delegate.backend == BACKEND:
                        found[delegate.file] = delegate.info[MEASURE]
    return list(found.values())
