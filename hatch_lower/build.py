"""The build, as its parent process sees it: a child for each model, then one manifest for each package.

torch is imported in the children only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hatch_lower import __version__
from hatch_lower.children import run_children
from hatch_lower.config import Settings
from hatch_lower.digest import sha256_bytes
from hatch_lower.environment import child_environment
from hatch_lower.events import Reporter
from hatch_lower.export.site import lay_out_site
from hatch_lower.format.manifest import Manifest, write_manifest
from hatch_lower.records import BuildResult, MethodRow, ModelReport, PayloadFile, Request
from hatch_lower.surroundings import Surroundings

__all__ = ["BuildResult", "MethodRow", "PayloadFile", "build"]

LOWER_MODEL = "hatch_lower.pipeline:lower_model"


def build(
    settings: Settings,
    work: Path,
    reporter: Reporter,
    *,
    surroundings: Surroundings,
    lower: str = LOWER_MODEL,
) -> BuildResult:
    """Lower every model of a project.

    Args:
        settings: what to build.
        work: an empty folder for the files of this build; it must live until they are in the wheel.
        reporter: is told of the stages; what the models' code and the backends print are notes of the stage `output`.
        surroundings: what the models' code sees of its project.
        lower: `module:function` that lowers one captured model in the child process.

    Raises:
        LowerError: if a model cannot be lowered; no child process is left.
    """
    search_path = lay_out_site(surroundings, work)
    requests = []
    for model in settings.models:
        folder = work / "models" / model.name
        folder.mkdir(parents=True)
        request = Request(
            settings=settings,
            model=model.name,
            folder=folder,
            lower=lower,
            search_path=search_path,
            import_roots=search_path[1:],
            later_hooks=surroundings.later_hooks,
            events=-1,
        )
        requests.append(request)
    temporary = work / "temporary"
    temporary.mkdir()
    reports = run_children(
        requests,
        jobs=settings.jobs,
        timeout=settings.timeout,
        environment=child_environment(os.environ, settings.pass_env, sys.path, temporary),
        reporter=reporter,
    )
    recipes = [recipe for report in reports for recipe in report.manifest.recipes.values()]
    targets = {recipe.target for recipe in recipes if recipe.target is not None}
    return BuildResult(
        payload=collect_payload(settings, reports, work),
        rows=tuple(row for report in reports for row in report.rows),
        requirements=tuple(sorted({requirement for recipe in recipes for requirement in recipe.requirements})),
        targets=tuple(sorted(targets, key=lambda target: (target.system, target.machine, target.isa))),
        native=tuple(path for report in reports for path in report.native),
    )


def collect_payload(settings: Settings, reports: Sequence[ModelReport], work: Path) -> tuple[PayloadFile, ...]:
    """Return all files under their paths in the wheel, each package's manifest among them."""
    packages: dict[str, list[ModelReport]] = {}
    for model, report in zip(settings.models, reports, strict=True):
        packages.setdefault(model.package, []).append(report)
    payload = []
    for package, members in packages.items():
        prefix = f"{package.replace('.', '/')}/_lowered"
        payload.append(write_package_manifest(settings, members, f"{prefix}/manifest.json", work))
        payload += [
            PayloadFile(f"{prefix}/{file.path}", file.source, file.size, file.sha256)
            for report in members
            for file in report.files
        ]
    return tuple(sorted(payload, key=lambda file: file.path))


def write_package_manifest(settings: Settings, reports: Sequence[ModelReport], path: str, work: Path) -> PayloadFile:
    """Write the manifest of the models that one package holds."""
    tools = {name: version for report in reports for name, version in report.tools.items()}
    manifest = Manifest(
        distribution=settings.name,
        version=settings.version,
        hatch_lower=__version__,
        torch=reports[0].torch,
        tools=tools,
        models={report.model: report.manifest for report in reports},
    )
    data = write_manifest(manifest)
    source = work / "payload" / path
    source.parent.mkdir(parents=True)
    source.write_bytes(data)
    return PayloadFile(path, source, len(data), sha256_bytes(data))
