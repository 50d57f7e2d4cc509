"""A build of a wheel in a separate process with a varied environment, from a copy of the project's folder or an
unpacked source distribution.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import site
import stat
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hatch_lower.errors import ConfigError, PackageError, ProcessError
from hatch_lower.frozen import Frozen

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
                copy_source_file(path, copy)
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


def copy_source_file(path: Path, copy: Path) -> None:
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


LONGER = "another-folder-with-a-longer-name"
GRACE_SECONDS = 10.0  # seconds for a build to end after an interruption, which also reaches the build
LAST_LINES = 40
# Variables with two values: the first, or the second if the caller has the first
CHOICES: Mapping[str, tuple[str, str]] = {
    "TZ": ("NPT-5:45", "NST3:30"),
    "LC_ALL": ("C", "C.UTF-8"),
    "PYTHONHASHSEED": ("4242", "77"),
    "OMP_NUM_THREADS": ("1", "3"),
}
# New folders, and the variables that name the folders
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "home": ("HOME", "USERPROFILE"),
    "temporary": ("TMPDIR", "TMP", "TEMP"),
    "user-cache": ("XDG_CACHE_HOME", "LOCALAPPDATA"),
    "empty-cache": ("HATCH_LOWER_CACHE_DIR",),
}


class Rebuilt(Frozen):
    wheel: Path
    log: str
    variation: Variation


@contextmanager
def rebuilt(project: Path, sdist: Path | None, environment: Mapping[str, str], name: str) -> Iterator[Rebuilt]:
    """Build a project's wheel from a copy of its folder, or from its source distribution, in a varied environment.

    `name` is the file name of the wheel to build again.
    """
    if importlib.util.find_spec("hatchling") is None:
        hint = "install hatchling, or run this in an environment with the requirements of `[build-system] requires`"
        raise ConfigError("hatchling is not installed here", hint=hint)
    with tempfile.TemporaryDirectory(prefix="hatch-lower-reproduce-", ignore_cleanup_errors=True) as made:
        work = Path(os.path.realpath(made))
        source = work / LONGER / project.resolve().name
        if sdist is None:
            copy_tree(project, source)
        else:
            source = unpack_sdist(sdist, work / LONGER)
        variation = vary(environment, work, source)
        log = build_varied(source, work / "made", variation)
        yield Rebuilt(only_wheel(work / "made", str(project if sdist is None else sdist), name), log, variation)


def only_wheel(folder: Path, where: str, name: str = "") -> Path:
    """Return the wheel that a build has made in a folder: of several wheel variants the wheel called `name`.

    `where` names the sources. Raises `ProcessError` if the wheel to return is not clear.
    """
    wheels = sorted(folder.glob("*.whl"))
    named = [path for path in wheels if path.name == name]
    if len(named or wheels) != 1:
        raise ProcessError(
            "the build made no wheel" if not wheels else "the build made several wheels",
            where=where,
            found=", ".join(path.name for path in wheels),
        )
    return (named or wheels)[0]


def build_varied(source: Path, target: Path, variation: Variation) -> str:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    with one_core():
        process = subprocess.Popen(
            command,
            cwd=source,
            env=dict(variation.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            umask=variation.umask,
        )
    try:
        log = process.communicate()[0].decode("utf-8", "replace")
    except BaseException:
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        process.kill()
        process.wait()
        raise
    if process.returncode:
        raise ProcessError(
            "the wheel could not be built again",
            where=f"`python -m hatchling build --target wheel` ended with status {process.returncode}",
            found="\n".join(log.splitlines()[-LAST_LINES:]),
            hint="build the wheel once in this environment, with all that `[build-system] requires` names; "
            "a build must find its data and other projects without this HOME and outside of this folder",
        )
    return log


class Variation(Frozen):
    """The difference of a build's environment from the caller's environment."""

    environment: Mapping[str, str]  # all its variables
    umask: int
    places: Mapping[str, str]  # paths of this build, to their meaning
    told: Mapping[str, str]  # varied settings and values, for people


def vary(environment: Mapping[str, str], work: Path, project: Path) -> Variation:
    """Return another environment for a build, and make its folders."""
    chosen = {name: first if environment.get(name) != first else second for name, (first, second) in CHOICES.items()}
    chosen["LANG"] = chosen["LC_ALL"]
    places = {str(project): "the rebuild's source folder"}
    for name, variables in FOLDERS.items():
        folder = work / name
        folder.mkdir(mode=0o700)  # regardless of the umask: a cache that others may write is refused
        places[str(folder)] = f"the rebuild's {variables[0]}"
        chosen |= dict.fromkeys(variables, str(folder))
    mask = 0o077 if current_umask() != 0o077 else 0o022
    fixed = {
        "HATCH_LOWER_CACHE": "off",  # cached results would be equal
        "HATCH_LOWER_REMOTE_CACHE": "off",
        "PYTHONUSERBASE": site.getuserbase(),  # packages installed there are tools of the build, wherever HOME is
    }
    told = {name: chosen[name] for name in (*CHOICES, "HOME", "TMPDIR")} | {"source folder": str(project)}
    told |= {"umask": f"{mask:03o}"} | ({"cores": "1"} if spare_cores() else {})
    return Variation({**environment, **chosen, **fixed}, mask, places, told)


def current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def spare_cores() -> set[int]:
    if not hasattr(os, "sched_getaffinity"):
        return set()
    return set(sorted(os.sched_getaffinity(0))[:-1])


@contextmanager
def one_core() -> Iterator[None]:
    """Restrict processes that are started in the block to a single core, if the system can."""
    spare = spare_cores()
    if not spare:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - spare)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
