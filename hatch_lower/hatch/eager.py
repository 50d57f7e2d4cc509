"""The payload of an editable install that runs the modules themselves: where to import each model from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.config import Settings
from hatch_lower.digest import canonical_json, sha256_bytes

if TYPE_CHECKING:
    from hatch_lower.results import PayloadFile

__all__ = ["write_eager"]


def write_eager(settings: Settings, work: Path) -> tuple[PayloadFile, ...]:
    """Write `<package>/_lowered/eager.json` for each package under `work` and return the files."""
    from hatch_lower.results import PayloadFile

    packages: dict[str, dict[str, str]] = {}
    for model in settings.models:
        packages.setdefault(model.package, {})[model.name] = model.export
    files = []
    for package, models in sorted(packages.items()):
        data = canonical_json({"schema": 1, "models": models})
        path = f"{package.replace('.', '/')}/_lowered/eager.json"
        source = work / path
        source.parent.mkdir(parents=True)
        source.write_bytes(data)
        files.append(PayloadFile(path, source, len(data), sha256_bytes(data)))
    return tuple(files)
