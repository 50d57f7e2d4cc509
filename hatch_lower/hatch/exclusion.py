"""Files that the hook keeps out of a distribution, by a pattern beside the project's patterns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hatchling.builders.config import BuilderConfig

SPECIAL = re.compile(r"([\\*?\[\]!# ])")  # characters with a meaning in git's patterns


def exclude(config: BuilderConfig, path: str) -> None:
    """Exclude a file, or a folder whose path ends with `/`; paths are posix and relative to the project."""
    import pathspec

    given = config.exclude_spec
    pattern = SPECIAL.sub(r"\\\1", path)
    added = pathspec.GitIgnoreSpec.from_lines([f"/{pattern}"])
    config.exclude_spec = added if given is None else pathspec.GitIgnoreSpec([*given.patterns, *added.patterns])
