"""Sources for another build: a copy of the project's folder, or an unpacked source distribution."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from hatch_lower.errors import ConfigError, PackageError

CACHE_MARK = "CACHEDIR.TAG"
ENVIRONMENT_MARK = "pyvenv.cfg"
LEFT_OUT = frozenset(
    {"__pycache__", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".tox", ".venv", "node_modules"}
)
LEFT_OUT_AT_TOP = frozenset({"build", "dist"})


def copy_tree(source: Path, target: Path) -> None:
    """Copy a project's folder, git's included, with the files made in the opposite order of their names."""
    source = source.resolve()
    if not (source / "pyproject.toml").is_file():
        raise ConfigError(
            "there is no project",
            where=str(source),
            found="no file `pyproject.toml`",
            hint="run this in the project's folder, or name that with `--project`, or an sdist with `--sdist`",
        )
    try:
        target.mkdir(parents=True)
        # in the opposite order of their names, so that folders are listed otherwise
        for path in sorted(paths_below(source, source), reverse=True):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                copy.symlink_to(link_target(path, source, target))
            elif path.is_dir():
                copy.mkdir(exist_ok=True)
            elif path.is_file():
                copy_file(path, copy)
    except OSError as error:
        raise PackageError(
            "the sources cannot be copied",
            where=str(source),
            found=str(error),
            hint="see that they can be read, and that there is space for temporary files (TMPDIR)",
        ) from error


def paths_below(folder: Path, top: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        listed = list(entries)
    if not listed and folder != top:
        yield folder
    for entry in listed:
        path = Path(entry.path)
        if not entry.is_dir(follow_symlinks=False):
            yield path
        elif not is_left_out(path, top):
            yield from paths_below(path, top)


def is_left_out(folder: Path, top: Path) -> bool:
    """Return whether a folder is no source: a cache, a virtual environment, or build output."""
    if folder.name in LEFT_OUT or any((folder / mark).exists() for mark in (CACHE_MARK, ENVIRONMENT_MARK)):
        return True
    return folder.parent == top and folder.name in LEFT_OUT_AT_TOP and not (folder / "__init__.py").exists()


def link_target(link: Path, source: Path, target: Path) -> str:
    """Return the target for the copy of a link: inside the copy if inside the project, else the original target."""
    written = os.readlink(link)
    meant = os.path.normpath(link.parent / written)
    inside = os.path.relpath(meant, source)
    if inside == os.pardir or inside.startswith(f"{os.pardir}{os.sep}"):
        return meant
    return str(target / inside) if os.path.isabs(written) else written


def copy_file(path: Path, copy: Path) -> None:
    """Copy a file's bytes and its permission to execute; the umask sets other permissions."""
    shutil.copyfile(path, copy)
    mode = stat.S_IMODE(copy.stat().st_mode)
    if path.stat().st_mode & stat.S_IXUSR:
        copy.chmod(mode | (mode & 0o444) >> 2)


def unpack_sdist(sdist: Path, target: Path) -> Path:
    """Unpack a source distribution, and return the project's folder."""
    if not hasattr(tarfile, "data_filter"):
        raise PackageError(
            "this Python cannot unpack a source distribution safely",
            found=sys.version.split()[0],
            hint="use Python 3.10.12, 3.11.4 or newer",
        )
    try:
        target.mkdir(parents=True)
        with tarfile.open(sdist, "r:gz") as archive:
            # PEP 706: no files outside of `target`, and only permissions that a build may have
            archive.extractall(target, archive.getmembers()[::-1], filter="data")
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise PackageError(
            "the source distribution cannot be unpacked",
            where=str(sdist),
            found=f"{type(error).__name__}: {error}",
            hint="build the source distribution again with `hatch build -t sdist`",
        ) from error
    projects = sorted(path.parent for path in target.glob("*/pyproject.toml"))
    if len(projects) != 1:
        raise PackageError(
            "the file is not a source distribution of a project",
            where=str(sdist),
            found=f"{len(projects)} folders with a `pyproject.toml`",
            hint="name the `.tar.gz` file that `hatch build -t sdist` made",
        )
    return projects[0]
