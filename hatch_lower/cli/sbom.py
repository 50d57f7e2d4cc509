"""`hatch-lower inspect --sbom`: the SBOM of a wheel or of an installed distribution, as it is stored."""

from __future__ import annotations

import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from hatch_lower.cli.contents import find_contents, read_member
from hatch_lower.errors import ProgramError
from hatch_lower.format.package import SBOM_FILE
from hatch_lower.provenance.subject import FOLDER
from hatch_lower.runtime.installed import find_model

__all__ = ["sbom_text"]

PLACE = f".dist-info/{FOLDER}/{SBOM_FILE}"


def sbom_text(name: str) -> str:
    """Return the document of a wheel, or of the installed distribution or model of that name.

    Raises:
        ProgramError: if there is none, or the wheel cannot be read.
    """
    path = Path(name)
    if path.suffix == ".whl":
        return wheel_text(path)
    try:
        installed = find_distribution(name)
    except ProgramError:
        if not path.is_dir():
            raise
        raise ProgramError(
            "a folder has no SBOM: it is in the metadata of a wheel",
            where=name,
            hint="name the wheel, or the installed distribution",
        ) from None
    text = installed.read_text(f"{FOLDER}/{SBOM_FILE}")
    if text is None:
        editable = '"editable":true' in "".join((installed.read_text("direct_url.json") or "").split())
        raise missing(
            f"the distribution `{installed.name}`",
            "an editable install has none: install its wheel"
            if editable
            else "build its wheel again with a newer hatch-lower, and install that",
        )
    return text


def wheel_text(path: Path) -> str:
    """Return the document of a wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.namelist() if each.endswith(PLACE) and each.count("/") == 2]
    except (OSError, zipfile.BadZipFile) as error:
        raise ProgramError("the wheel cannot be read", where=str(path), found=str(error)) from error
    if not members:
        find_contents(str(path))  # says so if it has no lowered models at all
        raise missing(path.name, "build the wheel again with a newer hatch-lower")
    return read_member(path, members[0]).decode(errors="replace")


def find_distribution(name: str) -> Distribution:
    """Return the installed distribution of that name, or that of the model `model` or `distribution:model`."""
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError):
        return distribution(find_model(name).distribution)


def missing(where: str, hint: str) -> ProgramError:
    """Return the error for lowered models without an SBOM."""
    return ProgramError("there is no SBOM of lowered models", where=where, found=f"no `{PLACE}`", hint=hint)
