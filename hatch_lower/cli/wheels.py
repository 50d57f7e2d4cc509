"""Wheels in a folder such as `dist/`; a command takes the newest wheel of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from hatch_lower.driver.contents import MANIFEST

UNKNOWN = Version("0.dev0")  # of a file whose name is not that of a wheel, or has the label of a variant


def find_wheels(folder: Path) -> list[Path]:
    """Return the wheels in a folder; empty for a folder that has lowered models itself.

    Wheel variants count only without other wheels: this machine may not run them, and pip knows no such names.
    """
    if (folder / "manifest.json").is_file() or next(folder.rglob(MANIFEST), None) is not None:
        return []
    wheels = sorted(path for path in folder.glob("*.whl") if path.is_file())
    return [wheel for wheel in wheels if wheel_version(wheel) != UNKNOWN] or wheels


def newest(wheels: Sequence[Path]) -> Path:
    """Return the last written wheel; among wheels with the same time, the greatest version."""
    return max(wheels, key=lambda wheel: (wheel.stat().st_mtime_ns, wheel_version(wheel), wheel.name))


def wheel_version(wheel: Path) -> Version:
    try:
        return parse_wheel_filename(wheel.name)[1]
    except (InvalidWheelFilename, InvalidVersion):
        return UNKNOWN
