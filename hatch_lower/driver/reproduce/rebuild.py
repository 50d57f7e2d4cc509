"""A build of a wheel in a separate process with a varied environment."""

from __future__ import annotations

import importlib.util
import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hatch_lower.driver.reproduce.sources import copy_tree, unpack_sdist
from hatch_lower.errors import ConfigError, ProcessError
from hatch_lower.frozen import Frozen

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
def rebuilt(project: Path, sdist: Path | None, environment: Mapping[str, str]) -> Iterator[Rebuilt]:
    """Build a project's wheel from a copy of its folder, or from its source distribution, in a varied environment."""
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
        log = build(source, work / "made", variation)
        yield Rebuilt(only_wheel(work / "made", str(project if sdist is None else sdist)), log, variation)


def only_wheel(folder: Path, where: str) -> Path:
    """Return the only wheel that a build has made in a folder; `where` names the sources."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ProcessError(
            "the build made no wheel" if not wheels else "the build made several wheels",
            where=where,
            found=", ".join(path.name for path in wheels),
        )
    return wheels[0]


def build(source: Path, target: Path, variation: Variation) -> str:
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
