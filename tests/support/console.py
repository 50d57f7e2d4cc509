"""Pages of the documentation as scripts: their files are written, their console blocks run, their outputs compared."""

from __future__ import annotations

import re
import shlex
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from support.venv import run

FENCE = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
MARK = "@@ step "
COMMANDS = {
    "hatch": 'test "$1" = build && exec python -m hatchling "$@"',  # without an environment of its own
    "hatch-lower": 'exec python -c "from hatch_lower.cli.entry import main; main()" "$@"',
    "pip": 'exec python -m pip "$@"',
    "pytest": 'exec python -m pytest -p no:cacheprovider "$@"',
}
"""Commands that a reader has installed, as they run in the page's environment."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page and the lines of its output that the page shows; or a file that the page has."""

    command: str
    shown: tuple[str, ...] = ()
    path: str = ""
    text: str = ""


def steps_of(page: str) -> Iterator[Step]:
    """Yield a page's files (blocks with a title) and commands (lines that begin with `$`), in order."""
    for block in FENCE.finditer(page):
        if block["title"]:
            yield Step("", path=block["title"], text=block["text"])
        elif block["language"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                command, *shown = re.sub(r"\\\n", "", part).splitlines()
                yield Step(command, tuple(line for line in shown if line.strip() not in ("", "…")))


def make_environment(folder: Path) -> Path:
    """Return the folder of commands of a new environment, which also sees what is installed in this one."""
    run([sys.executable, "-m", "venv", "--without-pip", folder]).check()
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    if find_spec("hatch") is None:  # a page may install it; its command is one of `COMMANDS`
        written = site / "hatch-1.99.dist-info"
        written.mkdir()
        (written / "METADATA").write_text("Metadata-Version: 2.1\nName: hatch\nVersion: 1.99\n")
    for name, line in COMMANDS.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder / "bin"


def run_page(page: str, commands: Path, folder: Path, environment: Mapping[str, str]) -> list[tuple[Step, str]]:
    """Run a page as one shell session in an empty `folder`; return each command with its output, or fail."""
    steps = list(steps_of(page))
    script = ["set -euo pipefail; exec 2>&1", f"PATH={shlex.quote(str(commands))}:$PATH"]
    for number, step in enumerate(steps):
        script.append(f"echo {MARK}{number}")
        if step.path:
            quoted = shlex.quote(str(folder / step.path))
            script += [f"mkdir -p $(dirname {quoted})", f"printf %s {shlex.quote(step.text)} > {quoted}"]
        else:
            script.append(step.command)
    output = run(["bash", "-c", "\n".join(script)], cwd=folder, environment=environment).check().stdout
    parts = re.split(rf"^{MARK}\d+\n", output, flags=re.MULTILINE)[1:]
    return [(step, part) for step, part in zip(steps, parts, strict=True) if step.command]


def missing_lines(shown: tuple[str, ...], output: str) -> list[str]:
    """Return the lines of a page that an output lacks; numbers and spaces may differ, `…` stands for anything."""
    lines = [plain(line) for line in output.splitlines()]
    patterns = {line: re.escape(plain(line)).replace("…", ".*") for line in shown}
    return [line for line, pattern in patterns.items() if not any(re.search(pattern, each) for each in lines)]


def plain(line: str) -> str:
    """Return a line with its numbers as `#` and its spaces as single ones."""
    return " ".join(re.sub(r"\d[\d.,]*(e[+-]\d+)?", "#", line).split())
