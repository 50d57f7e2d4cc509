"""Documents of editable installs, beside the lowered programs or instead of programs; a document for each package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from hatch_lower.canonical import canonical_json
from hatch_lower.config.checkpoint import absolute_export
from hatch_lower.config.settings import Settings
from hatch_lower.driver.build import look_up, write_payload_file
from hatch_lower.driver.checkpoints import obtain_checkpoints
from hatch_lower.driver.context import BuildContext, ProjectView, build_context, open_cache
from hatch_lower.driver.sources import asset_files, find_assets
from hatch_lower.events import NullReporter
from hatch_lower.format.results import PayloadFile, payload_folder
from hatch_lower.runtime.installed import EAGER_SCHEMA

PROJECT = "project/"  # prefix of recorded inputs in the project's folder
Documents: TypeAlias = "dict[str, dict[str, Any]]"  # package to the JSON object for it
SHA256 = 64  # characters of a digest
UNKNOWN = "its lowered programs were not known when the project was installed"


def unknown_models(settings: Settings, view: ProjectView, work: Path, warn: Callable[[str], None]) -> list[str]:
    """Return the models whose current lowered programs are not in the cache, without running any code."""
    context = build_context(settings, view, work, open_cache(settings, warn), NullReporter())
    known = look_up(context)
    return [model.name for model in settings.models if model.name not in known or known[model.name].result is None]


def unknown_line(models: Sequence[str]) -> str:
    """Return the line about models without known programs in an editable build."""
    names = ", ".join(f"`{name}`" for name in models)
    return (
        f"no lowered programs of {names} are known: this editable install runs the module itself; "
        "`hatch build -t wheel` lowers, and the install after it has the programs"
    )


def write_eager(settings: Settings, work: Path, reason: str = "") -> tuple[PayloadFile, ...]:
    """Write `<package>/_lowered/eager.json`, the entry point of each model, and return all files to package.

    `reason` explains missing programs, where the settings ask for programs.
    """
    obtain_checkpoints(settings.root, settings.models, open_cache(settings, lambda line: None), NullReporter())
    assets = {model: asset_files(model, paths) for model, paths in find_assets(settings).items()}
    documents: Documents = {}
    files = []
    for model in settings.models:
        document = documents.setdefault(model.package, new_document(reason))
        document["models"][model.name] = absolute_export(model.export, settings.root)
        if own := assets[model.name]:
            document.setdefault("assets", {})[model.name] = {name: file.path for name, file in own.items()}
        files += [replace(file, path=f"{payload_folder(model.package)}/{file.path}") for file in own.values()]
    return (*files, *write_documents("eager.json", documents, work))


def new_document(reason: str) -> dict[str, Any]:
    return {"models": {}, "reason": reason, "schema": EAGER_SCHEMA} if reason else {"models": {}}


def write_sources(context: BuildContext) -> tuple[PayloadFile, ...]:
    """Write `<package>/_lowered/sources.json`, so that `load` can report programs that are older than their sources."""
    settings, known = context.settings, look_up(context)
    documents: Documents = {}
    for model in settings.models:
        stored = known.get(model.name)
        if stored is not None and stored.entry is not None:  # else the inputs of the export are not known completely
            inputs, _ = stored.entry
            documents.setdefault(model.package, {"models": {}})["models"][model.name] = {
                path.removeprefix(PROJECT): [(settings.root / path.removeprefix(PROJECT)).stat().st_mtime_ns, digest]
                for path, digest in inputs.files.items()
                if path.startswith(PROJECT) and len(digest) == SHA256 and path.isprintable()
            }
    return tuple(write_documents("sources.json", documents, context.work / "sources"))


def write_documents(name: str, documents: Documents, work: Path) -> Iterator[PayloadFile]:
    for package, document in sorted(documents.items()):
        data = canonical_json({"schema": 1, **document})
        yield write_payload_file(f"{payload_folder(package)}/{name}", data, work)
