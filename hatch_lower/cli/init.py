"""`hatch-lower init`: the tables that a project needs, appended to its pyproject.toml, whose text stays as it is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from packaging.utils import canonicalize_name

from hatch_lower import BACKEND_GROUP, MODEL_GROUP, __version__
from hatch_lower.cli.arguments import root_option
from hatch_lower.cli.output import show
from hatch_lower.config.requirements import OWN_NAME, read_requirement
from hatch_lower.config.settings import HOOK_PATH
from hatch_lower.config.tables import quote_key
from hatch_lower.errors import ConfigError, nearest, refused_error
from hatch_lower.hatch.outside import read_pyproject

TORCH = "torch>=2.13"
TORCH_FREE = frozenset({"onnxruntime", "openvino"})  # backends whose run halves take NumPy's arrays


@click.command()
@root_option
@click.option("--model", help="The model's name. Default: the project's.")
@click.option("--export", help="The function that says what to export. Default: `export` in the package's `model`.")
@click.option("--backend", "backends", multiple=True, default=["aoti"], help="May be repeated. Default: aoti.")
def init(root: Path, model: str | None, export: str | None, backends: Sequence[str]) -> None:
    """Add a model and the build hook to a project's pyproject.toml.

    Both are appended as tables of their own; what is there stays as it is. Says what else is to be done.
    """
    path = Path(os.path.realpath(root / "pyproject.toml"))
    table = read_pyproject(path)
    refuse_present(table, path)
    installed = importlib.metadata.entry_points(group=BACKEND_GROUP).names
    for backend in backends:
        if backend not in installed:
            raise ConfigError(
                f"there is no backend `{backend}`", where="`--backend`", found=nearest(backend, installed)
            )
    name = table["project"]["name"]
    target = export or f"{canonicalize_name(name).replace('-', '_')}.model:export"
    added = list(new_lines(model or name, target, backends))
    append(path, added)
    show(
        [f"added to {path}:", "", *added, "", "to do:", *(f"- {step}" for step in next_steps(table, target, backends))]
    )


def refuse_present(table: Mapping[str, Any], path: Path) -> None:
    """Refuse a project that has what would be added, or in which it would have no effect."""
    where = str(path)
    if not isinstance(table.get("project", {}).get("name"), str):
        raise ConfigError("the project has no name", where=where, hint="write `[project]` with `name` and `version`")
    if table.get("build-system", {}).get("build-backend") != "hatchling.build":
        raise ConfigError(
            "the project is not built by hatchling",
            where=where,
            found=f"build-backend {table.get('build-system', {}).get('build-backend')!r}",
            hint='let `[build-system]` say `requires = ["hatchling"]` and `build-backend = "hatchling.build"`',
        )
    build = table.get("tool", {}).get("hatch", {}).get("build", {})
    for prefix, part in (("", build), ("targets.wheel.", build.get("targets", {}).get("wheel", {}))):
        if "lower" in part.get("hooks", {}):
            raise ConfigError("the project uses hatch-lower already", where=f"tool.hatch.build.{prefix}hooks.lower")
    if MODEL_GROUP in table["project"].get("entry-points", {}):
        raise ConfigError("the project declares models already", where=f'project.entry-points."{MODEL_GROUP}"')
    if (path.parent / "hatch.toml").is_file():
        raise ConfigError(
            "the project's settings for Hatch are in another file",
            where=str(path.parent / "hatch.toml"),
            hint=f"write the table `[{HOOK_PATH.removeprefix('tool.hatch.')}]` there",
        )


def new_lines(model: str, export: str, backends: Sequence[str]) -> Iterator[str]:
    yield f'[project.entry-points."{MODEL_GROUP}"]'
    yield f"{quote_key(model)} = {quoted([export])}"
    yield ""
    yield f"[{HOOK_PATH}]"
    yield f"backends = [{quoted(backends)}]"


def quoted(texts: Sequence[str]) -> str:
    return ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def append(path: Path, lines: Sequence[str]) -> None:
    """Append lines to a project's file if that can be read afterwards; it is replaced as a whole or not at all."""
    try:
        text = path.read_bytes().decode("utf-8")
        end = "\r\n" if "\r\n" in text else "\n"
        with tempfile.TemporaryDirectory(prefix=".hatch-lower-", dir=path.parent) as beside:
            part = Path(beside, path.name)
            part.write_bytes((text.rstrip() + end * 2 + end.join(lines) + end).encode("utf-8"))
            shutil.copymode(path, part)
            try:
                read_pyproject(part)
            except ConfigError as error:
                raise ConfigError(
                    "the tables cannot be appended to the project's file",
                    where=str(path),
                    found=error.found,
                    hint="\n".join(["write these tables yourself:", *lines]),
                ) from error
            part.replace(path)
    except OSError as error:
        raise refused_error(error, str(path)) or error from error


def next_steps(table: Mapping[str, Any], export: str, backends: Sequence[str]) -> Iterator[str]:
    try:
        provided = importlib.metadata.metadata(OWN_NAME).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:  # it is run from its sources
        provided = []
    extras = sorted(set(backends) & set(provided))
    chosen = f"[{','.join(extras)}]" if extras else ""
    own = f"{OWN_NAME}{chosen}>={__version__}"
    # what an engine leaves may need torch all the same: then the build says so
    for where, listed, needed in (
        ("[build-system] requires", table["build-system"].get("requires", []), [own, TORCH]),
        (
            "[project] dependencies",
            table["project"].get("dependencies", []),
            [own] if set(backends) <= TORCH_FREE else [own, TORCH],
        ),
    ):
        missing = [text for text in needed if not any(is_covered(text, other) for other in listed)]
        if missing:
            yield f"let `{where}` contain {quoted(missing)}"
    module, _, function = export.partition(":")
    yield (
        f"let `{module}` have a function `{function}()` that returns"
        ' `hatch_lower.Model(net, {"forward": hatch_lower.Method((example,))})`'
    )
    yield "name the files that it reads as `inputs` of the new table, so that source distributions have them"
    yield "build: `hatch build`"


def is_covered(needed: str, given: str) -> bool:
    """Return whether a requirement names the same distribution with the same extras; a build looks at the versions."""
    wanted, found = read_requirement(needed), read_requirement(given)
    if wanted is None or found is None:
        return False
    return canonicalize_name(wanted.name) == canonicalize_name(found.name) and wanted.extras <= found.extras
