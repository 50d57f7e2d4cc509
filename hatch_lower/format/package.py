"""The frame of `manifest.json`: what is said of a package as a whole. Its models are put in as they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hatch_lower.canonical import canonical_json

MANIFEST_SCHEMA = 1
SBOM_FILE = "hatch-lower.cdx.json"
"""The SBOM's name below `.dist-info/sboms` in each wheel that the hook took part in."""


def package_manifest(
    distribution: str, version: str, hatch_lower: str, torch: str, tools: Mapping[str, str], models: Mapping[str, Any]
) -> bytes:
    """Return `manifest.json`.

    Args:
        distribution: name of the project.
        version: of the project.
        hatch_lower: version of this package.
        torch: its version.
        tools: name to version of what else shaped the programs.
        models: name to `format.manifest.model_json`.
    """
    return canonical_json(
        {
            "schema": MANIFEST_SCHEMA,
            "distribution": distribution,
            "version": version,
            "hatch_lower": hatch_lower,
            "torch": torch,
            "tools": dict(tools),
            "models": dict(models),
        }
    )
