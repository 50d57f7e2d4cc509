"""What installing a wheel brings, out of what is installed here: a folder of links, which takes no time to install."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["link_needed"]


def link_needed(site: Path, folder: Path) -> list[str]:
    """Return an import path of nothing but what an unpacked wheel requires, itself left out.

    Finding a model by its name takes a look at every installed distribution, and whoever develops hatch-lower has many
    that no user of a wheel has.

    Args:
        site: where the wheel lies unpacked.
        folder: a new folder for links to the packages.
    """
    folder.mkdir()
    (wheel,) = importlib.metadata.distributions(path=[str(site)])
    paths = [str(folder)]
    for distribution in needed_by(wheel):
        base = Path(str(distribution.locate_file("")))
        for name in sorted({str(path).split("/")[0] for path in distribution.files or ()}):
            if name.endswith(".pth"):  # of an editable install: it names the folder of the sources
                paths += (base / name).read_text().splitlines()
            elif name not in ("..", "__pycache__") and not (folder / name).exists():
                (folder / name).symlink_to(base / name)
    return [each for each in paths if Path(each).is_dir()]


def needed_by(wheel: importlib.metadata.Distribution) -> list[importlib.metadata.Distribution]:
    """Return the installed distributions that one requires, and those that they require."""
    found: dict[tuple[str, frozenset[str]], importlib.metadata.Distribution] = {}
    open_texts = list(wheel.requires or ())
    while open_texts:
        requirement = Requirement(open_texts.pop())
        key = requirement.name.lower(), frozenset(requirement.extras)
        if key in found:
            continue
        found[key] = importlib.metadata.distribution(requirement.name)
        for text in found[key].requires or ():
            marker = Requirement(text).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                open_texts.append(text)
    return list(found.values())
