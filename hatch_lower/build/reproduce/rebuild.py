"""One build of a wheel in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hatch_lower.build.reproduce.sources import copy_tree, unpack_sdist
from hatch_lower.build.reproduce.variation import Variation, one_core, vary
from hatch_lower.errors import ConfigError, ProcessError

LONGER = "another-folder-with-a-longer-name"
GRACE_SECONDS = 10.0
"""How long a build may take to end after an interruption, which reaches it as it does this process."""
LAST_LINES = 40


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A wheel that was built again."""

    wheel: Path
    log: str
    variation: Variation


@contextmanager
def rebuilt(project: Path, sdist: Path | None, environment: Mapping[str, str]) -> Iterator[Rebuilt]:
    """Build a project's wheel from a copy of its folder, or from its source distribution, in a varied environment.

    Nothing is written into `project`. All that is built goes when the block ends.

    Raises:
        ConfigError: if there is no project, or hatchling is not installed.
        PackageError: if the sources cannot be had.
        ProcessError: if the build fails.
    """
    if importlib.util.find_spec("hatchling") is None:
        hint = "install hatchling, or run this in an environment with what `[build-system] requires` names"
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
        wheels = sorted((work / "made").glob("*.whl"))
        if len(wheels) != 1:
            raise ProcessError(
                "the build made no wheel" if not wheels else "the build made more than one wheel",
                where=str(project if sdist is None else sdist),
                found=", ".join(path.name for path in wheels),
            )
        yield Rebuilt(wheels[0], log, variation)


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
            "a build must find what it reads (data, other projects) without this HOME and outside this folder",
        )
    return log
