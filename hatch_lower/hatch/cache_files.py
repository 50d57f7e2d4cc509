"""Files that the hook keeps out of a distribution, and the cache inside the project: its records hold values of
variables and their key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from hatch_lower.cache.directory import VERSION, default_directory, is_marked
from hatch_lower.errors import CacheError, PackageError

if TYPE_CHECKING:
    from hatchling.builders.config import BuilderConfig

    from hatch_lower.hatch.project import BuildData, Hook


SPECIAL = re.compile(r"([\\*?\[\]!# ])")  # characters with a meaning in git's patterns


def exclude(config: BuilderConfig, path: str) -> None:
    """Exclude a file, or a folder whose path ends with `/`; paths are posix and relative to the project."""
    import pathspec

    given = config.exclude_spec
    pattern = SPECIAL.sub(r"\\\1", path)
    added = pathspec.GitIgnoreSpec.from_lines([f"/{pattern}"])
    config.exclude_spec = added if given is None else pathspec.GitIgnoreSpec([*given.patterns, *added.patterns])


def leave_out_cache(hook: Hook, build_data: BuildData) -> None:
    """Exclude the cache from the files of a target; raise `PackageError` where another pattern includes the cache."""
    target = hook.target_name
    exclude_cache(hook.build_config)
    if target != "wheel":  # the files of a wheel are listed for the project
        with hook.build_config.set_build_data(build_data):
            refuse_cache((Path(file.path) for file in hook.build_config.builder.recurse_included_files()), target)
    cache = cache_folder()
    if target != "sdist" and cache is not None and lies_in_folder(cache, Path(hook.root)):
        from hatchling.builders.sdist import SdistBuilder

        config = SdistBuilder(hook.root, metadata=hook.metadata, app=hook.app).config
        if hook.PLUGIN_NAME not in config.hook_config and would_include(config, cache):
            raise inclusion_error(
                "sdist", cache, f"declare the hook under `[tool.hatch.build.hooks.{hook.PLUGIN_NAME}]`, "
            )


def would_include(config: BuilderConfig, cache: Path) -> bool:
    """Return whether a target of hatchling selects the files of a cache in the project, even of an empty cache."""
    starts = config.only_include
    if starts and not any(lies_in_folder(cache, Path(start)) for start in starts):
        return False
    place = PurePath(os.path.relpath(os.path.realpath(cache), os.path.realpath(config.root)))
    folders = [folder for folder in (place, *place.parents) if folder.name]
    if any(config.directory_is_excluded(folder.name, str(folder.parent)) for folder in folders):
        return False
    return config.include_path(str(place / "records" / "key.json"), explicit=bool(starts))


def cache_folder() -> Path | None:
    """Return the folder that this version makes in the cache directory, or `None` if the directory is unknown."""
    try:
        return default_directory(os.environ) / VERSION
    except ModuleNotFoundError:  # a source distribution is built without platformdirs
        return None
    except CacheError:  # the user has no home folder, and so no cache
        return None


def lies_in_folder(path: Path | None, folder: Path | None) -> bool:
    if path is None or folder is None:
        return False
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def exclude_cache(config: BuilderConfig) -> None:
    """Add the cache to the patterns that a target of hatchling excludes, if the cache is in the project."""
    cache = cache_folder()
    if cache is None or not lies_in_folder(cache, Path(config.root)):
        return
    place = os.path.relpath(os.path.realpath(cache), os.path.realpath(config.root)).replace(os.sep, "/")
    exclude(config, f"{place}/")


def refuse_cache(files: Iterable[Path], target: str) -> None:
    """Refuse a distribution with files that are in the cache, links followed."""
    cache = cache_folder()
    folders = sorted({file.parent for file in files})
    inside = next((folder for folder in folders if lies_in_folder(folder, cache) or is_marked(folder)), None)
    if inside is not None:
        raise inclusion_error(target, inside)


def inclusion_error(target: str, found: Path, cure: str = "") -> PackageError:
    return PackageError(
        f"the {'source distribution' if target == 'sdist' else target} would contain the cache of hatch-lower,"
        " whose records hold values of environment variables",
        found=str(found),
        hint=f"{cure}add the cache to `exclude` under `[tool.hatch.build]`, or name a directory outside of the project"
        " in `HATCH_LOWER_CACHE_DIR`; if a distribution with the cache was published, change the values that `pass-env`"
        " lets through",
    )
