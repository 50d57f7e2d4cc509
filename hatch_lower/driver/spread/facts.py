"""Facts about a worker: the versions and properties that decide whether its results equal the results of the build.

A worker with other facts would make results under other keys, which the build would not find. So the worker refuses
with a list of its lacks, and another worker gets the unit. All facts are found without torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping

from packaging.utils import canonicalize_name

from hatch_lower import BACKEND_GROUP, __version__
from hatch_lower.cache.stats import StatCache
from hatch_lower.config.requirements import OWN_NAME, own_requirements
from hatch_lower.driver.environment import ALIKE
from hatch_lower.driver.inputs.machine import machine_facts, own_digest
from hatch_lower.driver.spread.protocol import Facts, Lack

# the facts' names for readers, by the names of `machine_facts`
MACHINE = {"system": "system", "machine": "machine", "libc": "C library", "cpu": "instruction sets", "python": "Python"}
SETS = MACHINE["cpu"]
# backends that run the C++ compiler; other backends name their tools in fingerprints, which are in the keys
COMPILING = frozenset({"aoti"})
COMPILERS = ("g++", "clang++")
COMPILER, LINKER = "C++ compiler", "linker"
SECONDS = 20.0  # the time limit of a compiler that prints its version


def facts_wanted(backends: Collection[str]) -> tuple[str, ...]:
    """Return the names of the facts on which units with these backends depend."""
    compilers = (COMPILER, LINKER) if COMPILING.intersection(backends) else ()
    return (*MACHINE.values(), OWN_NAME, *sorted(distributions_of(backends)), *compilers)


def facts_here(names: Collection[str], environment: Mapping[str, str], stats: StatCache) -> Facts:
    """Return the facts of this machine for a child process with an environment; missing facts are left out."""
    known = {MACHINE[name]: text for name, text in machine_facts().items()}
    known[SETS] = " ".join(sorted(ALIKE)) if set(known[SETS].split()) >= ALIKE else known[SETS]
    known[OWN_NAME] = f"{__version__} (code {own_digest(stats)[:16]})"
    if COMPILER in names or LINKER in names:
        known |= compiler_facts(environment)
    facts = {name: known[name] if name in known else version_of(name) for name in names}
    return {name: text for name, text in facts.items() if text}


def compare_facts(wanted: Facts, found: Facts) -> tuple[Lack, ...]:
    """Return the wanted facts that the worker lacks or that differ there."""
    return tuple(
        lack_of_sets(text, found.get(name, "")) if name == SETS else Lack(name, text, found.get(name, ""))
        for name, text in wanted.items()
        if found.get(name, "") != text
    )


def lack_of_sets(wanted: str, found: str) -> Lack:
    # a processor has dozens: the differing sets say more than the whole list
    fewer, more = set(wanted.split()) - set(found.split()), set(found.split()) - set(wanted.split())
    return Lack(SETS, " ".join(sorted(fewer)) or "no such set", " ".join(sorted(more)))


def distributions_of(backends: Iterable[str]) -> set[str]:
    """Return the names of torch, of the distributions with these backends, and of the libraries in the backends'
    extras.
    """
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
    """Return the first line of a program's output, without the program's folder."""
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
