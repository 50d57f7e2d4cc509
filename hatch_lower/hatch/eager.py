"""The payload of an editable install that runs the modules themselves: where to import each model from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.build.assets import asset_files, find_assets
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.config.settings import Settings

if TYPE_CHECKING:
    from hatch_lower.format.results import PayloadFile


def write_eager(settings: Settings, work: Path) -> tuple[PayloadFile, ...]:
    """Write `<package>/_lowered/eager.json` for each package under `work` and return the files."""
    from hatch_lower.format.results import PayloadFile

    packages: dict[str, dict[str, str]] = {}
    assets = {model: asset_files(model, found) for model, found in find_assets(settings).items()}
    for model in settings.models:
        packages.setdefault(model.package, {})[model.name] = model.export
    files = []
    for package, models in sorted(packages.items()):
        folder = f"{package.replace('.', '/')}/_lowered"
        paths = {model: {name: file.path for name, file in assets[model].items()} for model in models if assets[model]}
        data = canonical_json({"schema": 1, "models": models, **({"assets": paths} if paths else {})})
        path = f"{folder}/eager.json"
        files += [replace(file, path=f"{folder}/{file.path}") for model in models for file in assets[model].values()]
        source = work / path
        source.parent.mkdir(parents=True)
        source.write_bytes(data)
        files.append(PayloadFile(path, source, len(data), sha256_bytes(data)))
    return tuple(files)
