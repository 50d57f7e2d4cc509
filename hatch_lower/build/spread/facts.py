"""What a worker is: all that decides which results are equal to this build's, as far as it is known without torch.

A worker that is something else would make other results under other keys, which the build would not find. So it says
what it has not, and the unit goes elsewhere.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping

from packaging.utils import canonicalize_name

from hatch_lower import BACKEND_GROUP, __version__
from hatch_lower.build.environment import ALIKE
from hatch_lower.build.inputs.machine import machine_facts, own_digest
from hatch_lower.build.spread.protocol import Facts, Lack
from hatch_lower.cache.stats import StatCache
from hatch_lower.config.requirements import OWN_NAME, own_requirements

# names for readers of what `machine_facts` tells
MACHINE = {"system": "system", "machine": "machine", "libc": "C library", "cpu": "instruction sets", "python": "Python"}
SETS = MACHINE["cpu"]
# Backends that run the C++ compiler. What others run, they say in their fingerprints, which are in the keys
COMPILING = frozenset({"aoti"})
COMPILERS = ("g++", "clang++")
COMPILER, LINKER = "C++ compiler", "linker"
SECONDS = 20.0  # that a compiler may take to say its version


def facts_wanted(backends: Collection[str]) -> tuple[str, ...]:
    """Return the names of the facts on which units depend that use some backends."""
    compilers = (COMPILER, LINKER) if COMPILING.intersection(backends) else ()
    return (*MACHINE.values(), OWN_NAME, *sorted(distributions_of(backends)), *compilers)


def facts_here(names: Collection[str], environment: Mapping[str, str], stats: StatCache) -> Facts:
    """Return what this machine is for a child process in an environment; facts that it has not are left out."""
    known = {MACHINE[name]: text for name, text in machine_facts().items()}
    known[SETS] = " ".join(sorted(ALIKE)) if set(known[SETS].split()) >= ALIKE else known[SETS]
    known[OWN_NAME] = f"{__version__} (code {own_digest(stats)[:16]})"
    if COMPILER in names or LINKER in names:
        known |= compiler_facts(environment)
    facts = {name: known[name] if name in known else version_of(name) for name in names}
    return {name: text for name, text in facts.items() if text}


def compare_facts(wanted: Facts, found: Facts) -> tuple[Lack, ...]:
    """Return what a worker has not, or has otherwise; what was not wanted does not matter."""
    return tuple(
        lack_of_sets(text, found.get(name, "")) if name == SETS else Lack(name, text, found.get(name, ""))
        for name, text in wanted.items()
        if found.get(name, "") != text
    )


def lack_of_sets(wanted: str, found: str) -> Lack:
    # there are dozens: those that differ say more than all
    fewer, more = set(wanted.split()) - set(found.split()), set(found.split()) - set(wanted.split())
    return Lack(SETS, " ".join(sorted(fewer)) or "none of these", " ".join(sorted(more)))


def distributions_of(backends: Iterable[str]) -> set[str]:
    """Return the names of torch, of what brings the backends, and of the libraries that their extras name."""
    names = {"torch"}
    points = importlib.metadata.entry_points(group=BACKEND_GROUP)
    for backend in backends:
        brought = (point.dist.name for point in points if point.name == backend and point.dist is not None)
        names |= {canonicalize_name(name) for name in brought}
        names |= {canonicalize_name(requirement.name) for requirement in own_requirements([backend])}
    return names - {OWN_NAME}


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def compiler_facts(environment: Mapping[str, str]) -> dict[str, str]:
    named = environment.get("CXX")
    programs = (shutil.which(name, path=environment.get("PATH")) for name in ([named] if named else COMPILERS))
    program = next((program for program in programs if program is not None), None)
    if program is None:
        return {COMPILER: "", LINKER: ""}
    return {
        COMPILER: first_line([program, "--version"], environment),
        LINKER: first_line([program, "-Wl,--version"], environment),
    }


def first_line(command: list[str], environment: Mapping[str, str]) -> str:
    """Return the first line that a program prints, without the folder in which it lies."""
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    line = next(iter((done.stdout or done.stderr).strip().splitlines()), "")
    program, space, rest = line.partition(" ")
    return f"{os.path.basename(program)}{space}{rest}"
