"""`hatch-lower inspect --sbom`: the SBOM of a wheel or of an installed distribution, as it is stored."""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from hatch_lower.build.contents import find_contents, read_member, wheel_members
from hatch_lower.build.sbom.subject import FOLDER
from hatch_lower.errors import ProgramError
from hatch_lower.format.package import SBOM_FILE
from hatch_lower.runtime.installed import find_model

PLACE = f".dist-info/{FOLDER}/{SBOM_FILE}"


def sbom_text(target: str | Path) -> str:
    """Return the document of the wheel at a path, or of the installed distribution or model of a name.

    Raises:
        ProgramError: if there is none, or the wheel cannot be read.
    """
    if isinstance(target, Path):
        if target.is_dir():
            raise ProgramError(
                "a folder has no SBOM: it is in the metadata of a wheel",
                where=str(target),
                hint="name the wheel, or the installed distribution",
            )
        return wheel_text(target)
    installed = find_distribution(target)
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
    members = [each for each in wheel_members(path) if each.endswith(PLACE) and each.count("/") == 2]
    if not members:
        find_contents(path)  # says so if it has no lowered models at all
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
