"""A scratch site directory in which the project looks installed to the code that exports its models."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hatch_lower.build.project_view import Surroundings


def lay_out_site(surroundings: Surroundings, folder: Path, root: Path) -> tuple[Path, ...]:
    """Write the project's metadata and links below `folder`; return the directories for the front of `sys.path`.

    `importlib.metadata` finds `<name>-<version>.dist-info` there: an editable install of the project at `root`. The
    links stand for modules whose path in the wheel begins differently from their path in the source tree.
    """
    site = folder / "site"
    name = re.sub(r"[-_.]+", "_", surroundings.name)
    information = site / f"{name}-{surroundings.version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(surroundings.metadata, encoding="utf-8")
    if surroundings.entry_points:
        (information / "entry_points.txt").write_text(surroundings.entry_points, encoding="utf-8")
    (information / "top_level.txt").write_text("\n".join(surroundings.packages), encoding="utf-8")
    origin = {"url": root.as_uri(), "dir_info": {"editable": True}}
    (information / "direct_url.json").write_text(json.dumps(origin), encoding="utf-8")
    if not surroundings.links:
        return (site, *surroundings.import_roots)
    links = folder / "links"
    for path, target in surroundings.links:
        link = links / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target, target_is_directory=target.is_dir())
    return (site, links, *surroundings.import_roots)
