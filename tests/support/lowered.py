"""Installed distributions with lowered models, written by hand into a folder on the import path."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatch_lower.canonical import canonical_json, sha256_bytes


def safetensors_bytes(tensors: Mapping[str, tuple[str, int, bytes]]) -> bytes:
    """Return a safetensors file of one-dimensional tensors: key to (dtype, length, contents)."""
    header: dict[str, Any] = {}
    begin = 0
    for key, (dtype, length, content) in tensors.items():
        header[key] = {"dtype": dtype, "shape": [length], "data_offsets": [begin, begin + len(content)]}
        begin += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    return len(text).to_bytes(8, "little") + text + b"".join(content for _, _, content in tensors.values())


def floats(*values: float) -> tuple[str, int, bytes]:
    """Return a float32 tensor for `safetensors_bytes`."""
    return "F32", len(values), struct.pack(f"<{len(values)}f", *values)


def file_entry(folder: Path, path: str, data: bytes) -> dict[str, Any]:
    """Write a file; return its FILE entry."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return {"path": path, "size": len(data), "sha256": sha256_bytes(data)}


def lowered_model(
    folder: Path,
    name: str,
    recipes: Mapping[str, Mapping[str, Any]],
    *,
    tensors: Mapping[str, tuple[str, int, bytes]] | None = None,
    order: list[str] | None = None,
) -> dict[str, Any]:
    """Write a model's files; return its part of the manifest.

    Args:
        folder: the `_lowered` folder.
        name: of the model.
        recipes: name to `{"plan": value, "blobs": {path: bytes}, …}`; anything else overrides the recipe's entry.
        tensors: of the constants file; `None`: there is none.
        order: in which the recipes are tried.
    """
    entries = {}
    for recipe, given in recipes.items():
        fields = dict(given)
        plan, blobs = fields.pop("plan"), fields.pop("blobs", {})
        methods = {
            method: {"handles": {}, "instructions": {}, "delegates": {}, "undelegated": []}
            for method in plan["methods"]
        }
        debug = canonical_json({"schema": 3, "methods": methods})
        entries[recipe] = {
            "plan": file_entry(folder, f"{name}/{recipe}.json", canonical_json(plan)),
            "debug": file_entry(folder, f"{name}/{recipe}.debug.json", debug),
            "delegates": [file_entry(folder, path, data) for path, data in blobs.items()],
            "backends": sorted({each["backend"] for each in plan["delegates"]}),
            "requirements": [],
            "target": next((each["target"] for each in plan["delegates"] if each["target"]), None),
            "methods": {method: {"nodes": 1, "delegated": 0, "partitions": 0} for method in plan["methods"]},
            **fields,
        }
    constants = None
    if tensors is not None:
        data = safetensors_bytes(tensors)
        constants = file_entry(folder, f"{name}/constants.safetensors", data)
        length = 8 + int.from_bytes(data[:8], "little")
        constants["header_sha256"] = sha256_bytes(data[:length])
    check = file_entry(folder, f"{name}/check.safetensors", b"example inputs")
    return {"order": order or list(entries), "constants": constants, "check": check, "recipes": entries}


def write_lowered(folder: Path, models: Mapping[str, Any], distribution: str = "digits") -> Path:
    """Write a `_lowered` folder's manifest; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "schema": 1,
        "distribution": distribution,
        "version": "1.0",
        "hatch_lower": "0.1.0",
        "torch": "2.13.0",
        "tools": {},
        "models": dict(models),
    }
    (folder / "manifest.json").write_bytes(canonical_json(manifest))
    return folder


def install(site: Path, distribution: str, entry_points: Mapping[str, Mapping[str, str]] | None = None) -> None:
    """Write the `.dist-info` of a distribution, whose RECORD lists what is in its package."""
    package = distribution.lower().replace("-", "_")
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    groups = (entry_points or {}).items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {x}" for k, x in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    rows = []
    for path in sorted((site / package).rglob("*")):
        if path.is_file():
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            rows.append(f"{path.relative_to(site).as_posix()},sha256={digest},{path.stat().st_size}")
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n")
