"""`hatch-lower init`: a project's pyproject.toml and package, ready for `hatch build`."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from packaging.utils import canonicalize_name

from hatch_lower import BACKEND_GROUP, MODEL_GROUP
from hatch_lower.cli.arguments import root_option
from hatch_lower.cli.init_checkpoint import checked_folder, checked_timm
from hatch_lower.cli.output import show
from hatch_lower.cli.proposal import NEEDS, proposal_lines, propose
from hatch_lower.cli.replaced import edited_text
from hatch_lower.cli.scaffold import Package, find_package, module_package, weights_globs, write_package, write_stub
from hatch_lower.config.checkpoint import checkpoint_of
from hatch_lower.config.requirements import OWN_NAME, read_requirement
from hatch_lower.config.settings import HOOK_PATH, Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver.sources import checkpoint_place
from hatch_lower.errors import ConfigError, nearest, refused_error
from hatch_lower.frozen import Frozen
from hatch_lower.hatch.outside import read_pyproject
from hatch_lower.huggingface.checkpoint import checkpoint_assets
from hatch_lower.runtime.processors import JOINT, PROCESSOR, has_images
from hatch_lower.runtime.texts import TOKENIZER
from hatch_lower.runtime.torch_private.unimported import numbers, tried_versions

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

HATCHLING = "hatchling>=1.28"
SETUPTOOLS = ("setuptools.build_meta", None)  # `[build-system] build-backend`; the default is setuptools, too
REPLACED = frozenset(["setuptools", "wheel"])

GPU_BACKEND = "cuda"


@click.command()
@root_option
@click.option("--model", help="The model's name. Default: the project's.")
@click.option("--export", help="The function that returns the model. Default: `export` in the package's `model`.")
@click.option(
    "--transformers",
    "checkpoint",
    help="A folder of the project with a checkpoint of transformers or sentence-transformers, or `org/name@COMMIT` of"
    " the Hugging Face hub, in place of a function.",
)
@click.option("--timm", help="A folder of the project with a checkpoint of timm, or `org/name@COMMIT`.")
@click.option("--task", help="The checkpoint's task, such as `text-classification`. Default: by its configuration.")
@click.option("--trust-remote-code", "trusts_code", is_flag=True, help="Let builds run code of the checkpoint.")
@click.option("--backend", "backends", multiple=True, help="A backend. Repeatable. Default: by the needs.")
@click.option(
    "--need",
    "needs",
    type=click.Choice(list(NEEDS)),
    multiple=True,
    help="A need of the project, by which the command chooses the backend: to run without torch, to build without a"
    " compiler, machine code in the wheel, or a file that a phone runs, too. Repeatable.",
)
def init(
    root: Path,
    model: str | None,
    export: str | None,
    checkpoint: str | None,
    timm: str | None,
    task: str | None,
    trusts_code: bool,
    backends: Sequence[str],
    needs: Sequence[str],
) -> None:
    """Set up a project for `hatch build`.

    Edits pyproject.toml: the build requirements, the dependencies, the model's entry point and the build hook, and
    hatchling in place of setuptools. Writes a module with a stand-in for the model if there is no module. With
    `--transformers` or `--timm` no module is written, and the build hook names the folder. Nothing else changes.
    """
    named = [f"`--{name}`" for name, each in (("export", export), ("transformers", checkpoint), ("timm", timm)) if each]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} both name the model: give only one of them.")
    if task and not checkpoint:
        raise click.UsageError("`--task` is the task of a checkpoint: give `--transformers`, too.")
    if trusts_code and not checkpoint:
        raise click.UsageError("`--trust-remote-code` is for the code of a checkpoint: give `--transformers`, too.")
    path = Path(os.path.realpath(root / "pyproject.toml"))
    table = read_pyproject(path)
    refuse_present(table, path)
    if backends and needs:
        raise click.UsageError("`--need` chooses the backend, and `--backend` names it: give only one of them.")
    proposal = None if backends else propose(needs)
    backends = [proposal.backend] if proposal else backends
    installed = importlib.metadata.entry_points(group=BACKEND_GROUP).names
    for backend in backends:
        if backend not in installed:
            raise ConfigError(
                f"there is no backend `{backend}`", where="`--backend`", found=nearest(backend, installed)
            )
    project = table["project"]["name"]
    package = (module_package(path.parent, export.partition(":")[0]) if export else None) or find_package(
        path.parent, project
    )
    folder = checked_folder(path.parent, checkpoint, task, trusts_code=trusts_code) if checkpoint else None
    folder = checked_timm(path.parent, timm) if timm else folder
    try:
        if folder:
            target, written = folder.export, write_package(package)
        else:
            target, written = (export, []) if export else entry_point(package)
        inputs = [] if folder else weights_globs(path.parent, package)
        declared = Declared(path.parent, package, model or project, target, tuple(backends), tuple(inputs))
        replace_file(path, replace(declared, torch_free="torch-free" in needs))
    except OSError as error:
        raise refused_error(error, str(path)) or error from error
    chosen = [*proposal_lines(proposal), ""] if proposal else []
    show([f"changed {path}", *(f"wrote {file}" for file in written), "", *chosen, *next_steps(table, target, inputs)])


class Declared(Frozen):
    """A model in the form in which a project declares models."""

    root: Path
    package: Package
    model: str
    export: str
    backends: tuple[str, ...]
    inputs: tuple[str, ...]
    torch_free: bool = False

    @property
    def code(self) -> str:
        """The folder of the top-level package, relative to the project; the package may be a namespace."""
        return (self.package.source / self.package.name.partition(".")[0]).relative_to(self.root).as_posix()


def entry_point(package: Package) -> tuple[str, list[Path]]:
    module, written = write_stub(package)
    return f"{module}:export", written


def refuse_present(table: Mapping[str, Any], path: Path) -> None:
    """Refuse a project that has the tables already, or in which the tables have no effect."""
    where = str(path)
    project, system = table.get("project", {}), table.get("build-system", {})
    if not isinstance(project.get("name"), str):
        raise ConfigError("the project has no name", where=where, hint="write `[project]` with `name` and `version`")
    if "version" not in project and "version" not in project.get("dynamic", []):
        raise ConfigError("the project has no version", where=where, hint='write `version = "0.1.0"` into `[project]`')
    if system.get("build-backend") not in ("hatchling.build", *SETUPTOOLS):
        raise ConfigError(
            "the project is built neither by hatchling nor by setuptools",
            where=where,
            found=f"build-backend {system['build-backend']!r}",
            hint='let `[build-system]` say `requires = ["hatchling"]` and `build-backend = "hatchling.build"`',
        )
    build = table.get("tool", {}).get("hatch", {}).get("build", {})
    for prefix, part in (("", build), ("targets.wheel.", build.get("targets", {}).get("wheel", {}))):
        if "lower" in part.get("hooks", {}):
            raise ConfigError("the project uses hatch-lower already", where=f"tool.hatch.build.{prefix}hooks.lower")
    if MODEL_GROUP in project.get("entry-points", {}):
        raise ConfigError("the project declares models already", where=f'project.entry-points."{MODEL_GROUP}"')
    if (path.parent / "hatch.toml").is_file():
        raise ConfigError(
            "the project's settings for Hatch are in another file",
            where=str(path.parent / "hatch.toml"),
            hint=f"write the table `[{HOOK_PATH.removeprefix('tool.hatch.')}]` there",
        )
    if system.get("build-backend") in SETUPTOOLS:
        refuse_setuptools(table, path)


def refuse_setuptools(table: Mapping[str, Any], path: Path) -> None:
    """Refuse a project of setuptools that does more than hatchling would do in its place."""
    dynamic = set(table["project"].get("dynamic", []))
    given = table.get("tool", {}).get("setuptools", {}).get("dynamic", {})
    if dynamic - {"version"} or (dynamic and "attr" not in given.get("version", {})):
        raise ConfigError(
            "metadata of the project come from setuptools",
            where=str(path),
            found=f"`dynamic` = {', '.join(f'`{name}`' for name in sorted(dynamic))}",
            hint="write the values into `[project]`, and let hatchling build the project",
        )
    if (path.parent / "setup.py").is_file() and "ext_modules" in (path.parent / "setup.py").read_text(errors="replace"):
        raise ConfigError(
            "setuptools builds extension modules of the project",
            where=str(path.parent / "setup.py"),
            hint="put the model into a project of its own, which hatchling builds",
        )


def edit(document: TOMLDocument, declared: Declared) -> None:
    """Change a project's document; existing entries keep their places, order and comments."""
    was_setuptools = document.get("build-system", {}).get("build-backend") in SETUPTOOLS
    edit_build_system(document, declared, was_setuptools)
    project = table_at(document, "project")
    if "dependencies" not in project.get("dynamic", []):
        needed = with_needed(project.get("dependencies", []), run_time_needs(declared))
        set_list(project, "dependencies", needed)
    checkpoint = checkpoint_of(declared.export)
    if checkpoint is None:
        table_at(project, "entry-points", MODEL_GROUP)[declared.model] = declared.export
    if was_setuptools and "version" in project.get("dynamic", []):
        attribute = str(document["tool"]["setuptools"]["dynamic"]["version"]["attr"])
        version = version_file(declared, attribute)
        table_at(document, "tool", "hatch", "version")["path"] = version
    wheel = table_at(document, "tool", "hatch", "build", "targets", "wheel")
    if not {"packages", "include", "only-include", "force-include"} & wheel.keys():
        set_list(wheel, "packages", [declared.code])
    hook = table_at(document, "tool", "hatch", "build", "hooks", "lower")
    # a recipe is for one device: machines without a GPU get a recipe of their own, which `load` tries second
    on_gpu = [name for name in declared.backends if name == GPU_BACKEND]
    others = [name for name in declared.backends if name != GPU_BACKEND]
    set_list(hook, "backends", on_gpu or others)
    if on_gpu and others:
        set_list(table_at(hook, "recipes", "cpu"), "backends", others)
    if declared.torch_free:
        hook["torch-free"] = True
    if declared.inputs:
        set_list(hook, "inputs", declared.inputs)
    if checkpoint is not None:
        # the recipe may need torch: the build knows
        hook["runtime-requirements"] = "add"
        own = table_at(hook, "models", declared.model)
        own[checkpoint.library] = checkpoint.folder
        if checkpoint.task:
            own["task"] = checkpoint.task
        if checkpoint.trusts_code:
            own["trust-remote-code"] = True
    edit_cache_keys(document, declared)


def edit_build_system(document: TOMLDocument, declared: Declared, was_setuptools: bool) -> None:
    system = table_at(document, "build-system")
    checkpoint = checkpoint_of(declared.export)
    wanted = {*declared.backends, *(() if checkpoint is None else (checkpoint.library,))}
    extras = sorted(wanted & {*(importlib.metadata.metadata(OWN_NAME).get_all("Provides-Extra") or [])})
    own = f"{OWN_NAME}[{','.join(extras)}]" if extras else OWN_NAME
    requires = [
        text for text in system.get("requires", []) if not (was_setuptools and requirement_name(text) in REPLACED)
    ]
    kept = [HATCHLING if text == "hatchling" else text for text in requires]
    set_list(system, "requires", with_needed(kept, [HATCHLING, own, f"torch=={minor_of_torch()}.*"]))
    system["build-backend"] = "hatchling.build"


def edit_cache_keys(document: TOMLDocument, declared: Declared) -> None:
    """Let uv build an installed project again after a change of its code or its weights."""
    import tomlkit

    uv = table_at(document, "tool", "uv")
    if "cache-keys" in uv:
        return
    keys = tomlkit.array()
    checkpoint = checkpoint_of(declared.export)
    inputs = declared.inputs
    if checkpoint is not None:
        inputs = () if checkpoint.hub else (f"{checkpoint.folder}/*",)
    for file in ("pyproject.toml", f"{declared.code}/**/*.py", *inputs):
        entry = tomlkit.inline_table()
        entry["file"] = file
        keys.append(entry)
    uv["cache-keys"] = keys.multiline(True)


def version_file(declared: Declared, attribute: str) -> str:
    """Return the file of a module whose attribute is the version, relative to the project."""
    module = declared.package.source.joinpath(*attribute.split(".")[:-1])
    for path in (module / "__init__.py", module.with_suffix(".py")):
        if path.is_file():
            return path.relative_to(declared.root).as_posix()
    raise ConfigError(
        "the project's version is in no file", where="tool.setuptools.dynamic.version", found=f"`{attribute}`"
    )


def run_time_needs(declared: Declared) -> list[str]:
    from hatch_lower.backends.early import early_requirements
    from hatch_lower.runtime.torch_reasons import NUMPY

    checkpoint = checkpoint_of(declared.export)
    own = [] if checkpoint is None else checkpoint_assets(checkpoint_place(checkpoint, declared.root))
    files = {path.name: path for path in own}
    readers = [
        name for name, is_needed in (("tokenizers", TOKENIZER in files), ("pillow", has_images(files))) if is_needed
    ]
    if readers or not files.keys().isdisjoint((PROCESSOR, JOINT)):
        readers.append(NUMPY)  # of arguments that `preprocess` makes
    recipe = Recipe("default", tuple(BackendChoice(name) for name in declared.backends))
    return list(dict.fromkeys([*early_requirements(recipe), *readers]))


def minor_of_torch() -> str:
    """Return the minor version of torch that is installed, or else the newest that was tried."""
    tried = tried_versions()
    try:
        here = ".".join(map(str, numbers(importlib.metadata.version("torch"))))
    except importlib.metadata.PackageNotFoundError:
        return tried[-1]
    return here if here in tried else tried[-1]


def with_needed(given: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Return the given requirements, then the needed requirements of distributions that are not given."""
    names = {requirement_name(text) for text in given}
    mine = {requirement_name(text): text for text in needed}
    # a requirement of hatch-lower without extras gets the needed extras
    kept = [mine.get(OWN_NAME, text) if text.strip() == OWN_NAME else text for text in given]
    return [*kept, *(text for text in needed if requirement_name(text) not in names)]


def requirement_name(text: str) -> str:
    requirement = read_requirement(text)
    return "" if requirement is None else canonicalize_name(requirement.name)


def table_at(owner: Any, *names: str) -> Any:
    """Return a table below another table. Missing tables are created; only the last has a heading."""
    import tomlkit

    for place, name in enumerate(names):
        if name not in owner:
            owner[name] = tomlkit.table(is_super_table=place < len(names) - 1)
        owner = owner[name]
    return owner


def set_list(table: Any, key: str, values: Sequence[str]) -> None:
    """Set a list of strings; an existing list keeps its comments, and gets the missing values."""
    import tomlkit

    if list(table.get(key, [])) == list(values) and key in table:
        return
    there = table.get(key)
    if there is not None and list(there) == list(values)[: len(there)]:
        for value in values[len(there) :]:
            there.append(value)
        return
    made = tomlkit.array()
    made.extend(values)
    table[key] = made


def replace_file(path: Path, declared: Declared) -> None:
    """Replace a project's file by its changed text, as a whole or not at all."""
    path = Path(os.path.realpath(path))  # a link stays a link
    text = edited_text(path.read_bytes().decode(), lambda document: edit(document, declared))
    with tempfile.TemporaryDirectory(prefix=".hatch-lower-", dir=path.parent) as beside:
        part = Path(beside, path.name)
        part.write_bytes(text.encode())
        shutil.copymode(path, part)
        read_pyproject(part)
        part.replace(path)


def next_steps(table: Mapping[str, Any], export: str, inputs: Sequence[str]) -> Iterator[str]:
    if "dependencies" in table["project"].get("dynamic", []):
        yield "`dependencies` are dynamic: the build names the required entries"
    checkpoint = checkpoint_of(export)
    if checkpoint is None:
        yield f"`{export}` returns the model to lower"
    else:
        yield f"the checkpoint {'' if checkpoint.hub else 'in '}`{checkpoint.folder}` is the model to lower"
    if not inputs and checkpoint is None:
        yield f"`inputs = [...]` in `[{HOOK_PATH}]` names files of weights that `{export}` reads"
    yield "`hatch build` builds the wheel"
