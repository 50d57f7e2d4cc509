"""An unpacked wheel on the import path, and ways to damage it."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Installed:
    """A folder that holds one unpacked wheel; `importlib.metadata` finds it there."""

    site: Path

    def payload(self) -> list[str]:
        """Return the posix paths of the payload's files, sorted."""
        found = (path.relative_to(self.site).as_posix() for path in self.site.rglob("*") if path.is_file())
        return sorted(path for path in found if "/_lowered/" in path)

    def manifest(self) -> str:
        """Return the manifest's path."""
        return next(path for path in self.payload() if path.endswith("/_lowered/manifest.json"))

    def read(self, path: str) -> Any:
        """Return a JSON file's value."""
        return json.loads((self.site / path).read_bytes())

    def rewrite(self, path: str, data: bytes) -> None:
        """Replace a file as an installer of another wheel would: whatever lists it gives its new size and digest."""
        (self.site / path).unlink()
        (self.site / path).write_bytes(data)
        manifest = self.manifest()
        if path != manifest:
            value = self.read(manifest)
            update_entries(value, path.removeprefix(manifest.removesuffix("manifest.json")), data)
            self.rewrite(manifest, json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        (record,) = self.site.glob("*.dist-info/RECORD")
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows = record.read_text().splitlines()
        row = f"{path},sha256={digest},{len(data)}"
        record.write_text("\n".join(row if each.startswith(f"{path},") else each for each in rows) + "\n")


def update_entries(value: object, path: str, data: bytes) -> None:
    """Set size and digest wherever a manifest's value names `path`."""
    if isinstance(value, dict):
        if value.get("path") == path:
            value.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for child in value.values():
            update_entries(child, path, data)
    elif isinstance(value, list):
        for child in value:
            update_entries(child, path, data)
