"""A side that is a release: the wheel that pip would install here, from wherever pip is configured to look."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hatch_lower.bench.command import Tell, last_lines, run_command
from hatch_lower.bench.side import Side, open_wheel
from hatch_lower.bench.temporary import work_folder
from hatch_lower.errors import ConfigError, ProgramError


@contextmanager
def released(name: str, version: str | None, environment: Mapping[str, str], tell: Tell) -> Iterator[Side]:
    """Download the wheel of a distribution's release, the newest that pip takes if no version is given; open it."""
    try:
        importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            "pip is not installed here, which finds and downloads releases",
            where=sys.executable,
            hint="run `python -m ensurepip` or `uv pip install pip`, or name a wheel with `--against`",
        ) from None
    wanted = name if version is None else f"{name}=={version}"
    with work_folder() as work:
        wheel = download(wanted, work, environment, tell)
        with open_wheel(wheel, f"{wheel.name} (released)") as side:
            yield side


def download(wanted: str, work: Path, environment: Mapping[str, str], tell: Tell) -> Path:
    tell(f"downloading {wanted}")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(work), "--", wanted]
    status, lines = run_command(command, work, environment)
    wheels = sorted(work.glob("*.whl"))
    if status or len(wheels) != 1:
        raise ProgramError(
            "there is no such release that could be installed here",
            where=f"`{wanted}`",
            found=last_lines(lines),
            hint="see which versions have a wheel for this Python and this machine, and where pip looks "
            "(`python -m pip config list`); or name a wheel with `--against`",
        )
    return wheels[0]
