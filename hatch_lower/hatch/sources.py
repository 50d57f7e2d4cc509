"""What the programs of an editable install were made from, so that loading them can say that it has changed."""

from __future__ import annotations

from hatch_lower.build.build import look_up
from hatch_lower.build.context import BuildContext
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.format.results import PayloadFile

PROJECT = "project/"
"""Recorded inputs that are the project's own begin with this."""

SHA256 = 64


def write_sources(context: BuildContext) -> tuple[PayloadFile, ...]:
    """Write `<package>/_lowered/sources.json` for each package in the build's folder and return the files.

    It names the project's files that the exports read, with time and sha256. Of a model whose inputs are not known
    completely, or that is not cached, nothing is said.
    """
    settings, work = context.settings, context.work
    known = look_up(context)
    packages: dict[str, dict[str, dict[str, list[int | str]]]] = {}
    for model in settings.models:
        found = known.get(model.name)
        if found is None or found.entry is None:
            continue
        inputs, _ = found.entry
        packages.setdefault(model.package, {})[model.name] = {
            path.removeprefix(PROJECT): [(settings.root / path.removeprefix(PROJECT)).stat().st_mtime_ns, digest]
            for path, digest in inputs.files.items()
            if path.startswith(PROJECT) and len(digest) == SHA256 and path.isprintable()
        }
    files = []
    for package, models in sorted(packages.items()):
        data = canonical_json({"schema": 1, "models": models})
        path = f"{package.replace('.', '/')}/_lowered/sources.json"
        source = work / "sources" / path
        source.parent.mkdir(parents=True)
        source.write_bytes(data)
        files.append(PayloadFile(path, source, len(data), sha256_bytes(data)))
    return tuple(files)
