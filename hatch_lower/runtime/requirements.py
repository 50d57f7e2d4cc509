"""A recipe's requirements on this machine: distributions, modules to import, a processor for native code."""

from __future__ import annotations

import importlib
import importlib.metadata
import operator
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import hatch_lower
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import refuse
from hatch_lower.format.delegates import TargetEntry
from hatch_lower.runtime.installed import normal_name, read_field

RELEASE = r"[0-9]{1,9}(?:\.[0-9]{1,9})*"
BOUND = rf"(?:(?:<=|>=|==|<){RELEASE}|=={RELEASE}\.\*)"
PLAIN_REQUIREMENT = re.compile(rf"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)((?:{BOUND}(?:,{BOUND})*)?)")
PLAIN_VERSION = re.compile(rf"({RELEASE})(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?")
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
}
PARTS = re.compile(r"(<=|>=|==|<)([0-9.]*[0-9])(\.\*)?")


def requirement_reason(text: str, where: str) -> str | None:
    plain = PLAIN_REQUIREMENT.fullmatch(text)
    if plain is None:
        return general_reason(text, where)
    version = version_here(normal_name(plain[1]))
    if version is None:
        return f"it needs {text}, which is not installed"
    is_met = is_within(plain[2], version)
    if is_met is None:
        return general_reason(text, where)
    return None if is_met else f"it needs {text}, and {version} is installed"


def is_within(bounds: str, version: str) -> bool | None:
    """Return whether a version is within bounds, by the rules of `packaging`; `None` if this needs `packaging`."""
    # Most requirements are simple bounds on a release (`>=1.4,<1.5`, `==2.13.*`), and importing `packaging` takes
    # longer than loading a small model.
    plain = PLAIN_VERSION.fullmatch(version)
    if plain is None:
        return None
    found = release(plain[1])  # for these operators, `2.13.0+cpu` is `2.13.0`
    for comparison, text, wildcard in PARTS.findall(bounds):
        bound = release(text)
        have, wanted = zip(*zip_longest(found, bound, fillvalue=0), strict=True)  # `2` and `2.0` are the same
        if wildcard and have[: len(bound)] == bound:
            continue
        if wildcard or not COMPARISONS[comparison](have, wanted):
            return False
    return True


def release(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("."))


def general_reason(text: str, where: str) -> str | None:
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    try:
        requirement = Requirement(text)
        is_needed = requirement.marker is None or requirement.marker.evaluate()
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        refuse(where, f"the requirement {text!r:.80}: {error}")
    if not is_needed:
        return None
    version = version_here(normal_name(requirement.name))
    if version is None:
        return f"it needs {text}, which is not installed"
    try:
        is_met = requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # a version of a private build, not of PEP 440
        is_met = False
    return None if is_met else f"it needs {text}, and {version} is installed"


def version_here(name: str) -> str | None:
    # imported packages know their versions, which is faster than reading metadata
    if name == "hatch-lower":
        return hatch_lower.__version__
    if name == "torch" and name in sys.modules:
        return str(sys.modules[name].__version__)
    try:
        return read_field(importlib.metadata.distribution(name), "Version") or None
    except importlib.metadata.PackageNotFoundError:
        return None


# The x86-64 levels, lowest first, with the flags of Linux's `/proc/cpuinfo` that each level adds. The last level is not
# part of the standard; it adds instructions for sums of products of bytes.
LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64", frozenset()),
    ("x86-64-v2", frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])),
    ("x86-64-v3", frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])),
    ("x86-64-v4", frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"])),
    ("x86-64-v4-vnni", frozenset(["avx512_vnni"])),
)

BASELINES = {"aarch64": "armv8-a"}  # the instruction set that every machine of an architecture has


def unsupported_reason(target: TargetEntry, cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    system, machine, isa = platform.system(), platform.machine(), target.isa
    if (target.system, target.machine) != (system, machine):
        return f"it was compiled for {target.system} on {target.machine}, and this is {system} on {machine}"
    if machine in BASELINES:
        return None if isa == BASELINES[machine] else f"its instruction set `{isa}` is unknown here"
    if isa not in [name for name, _ in LEVELS]:
        return f"its instruction set `{isa}` is unknown here"
    flags = cpu_flags(cpuinfo)
    for name, needed in LEVELS:
        missing = sorted(needed - flags)
        if missing:
            return f"it needs the instruction set {isa}, and this processor has no {', '.join(missing)}"
        if name == isa:
            return None
    return None


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    with suppress(OSError), cpuinfo.open(encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return frozenset(value.split())
    return frozenset()


def import_modules(names: Iterable[str], where: str, *, installed: bool) -> None:
    # a program outside of an installed distribution is not trusted, and so must not choose code to run
    for name in names:
        if name in sys.modules:
            continue
        if not installed:
            raise ProgramError(
                "the program needs a module that is not imported",
                where=where,
                found=f"`{name}`",
                hint=f"run `import {name}` before loading; a program from a folder does not import anything itself",
            )
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ProgramError(
                "a module that the program needs cannot be imported",
                where=where,
                found=f"`{name}`: {type(error).__name__}: {error}",
                hint="install the distribution with the module, as the wheel requires",
            ) from error
