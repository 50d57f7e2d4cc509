"""The choice of a model's recipe on this machine: by distributions and their versions, modules to import, the
processor, and delegates. Facts about the processor come from torch if torch is imported, so that engine and torch
agree.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import operator
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hatch_lower
from hatch_lower import DELEGATE_GROUP
from hatch_lower.builds import builds_of
from hatch_lower.errors import ProgramError, UnavailableError, nearest
from hatch_lower.format.codec import refuse_damaged_file
from hatch_lower.format.constants import TargetEntry
from hatch_lower.format.manifest import ModelEntry, RecipeEntry
from hatch_lower.format.plan import Plan
from hatch_lower.runtime.arrays import is_library_installed
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.runtime.installed import normal_name, read_field

if TYPE_CHECKING:
    from hatch_lower.runtime.timing import Timing


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
    found = build_here(plain[1])
    if found is None:
        return f"it needs {text}, which is not installed"
    is_met = is_version_within(plain[2], found[1])
    if is_met is None:
        return general_reason(text, where)
    return None if is_met else f"it needs {text}, and {' '.join(found).strip()} is installed"


def is_version_within(bounds: str, version: str) -> bool | None:
    """Return whether a version is within bounds, by the rules of `packaging`; `None` if this needs `packaging`."""
    # Most requirements are simple bounds on a release (`>=1.4,<1.5`, `==2.13.*`), and importing `packaging` takes
    # longer than loading a small model.
    plain = PLAIN_VERSION.fullmatch(version)
    if plain is None:
        return None
    found = parse_release(plain[1])  # for these operators, `2.13.0+cpu` is `2.13.0`
    for comparison, text, wildcard in PARTS.findall(bounds):
        bound = parse_release(text)
        have, wanted = zip(*zip_longest(found, bound, fillvalue=0), strict=True)  # `2` and `2.0` are the same
        if wildcard and have[: len(bound)] == bound:
            continue
        if wildcard or not COMPARISONS[comparison](have, wanted):
            return False
    return True


def parse_release(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("."))


def general_reason(text: str, where: str) -> str | None:
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    try:
        requirement = Requirement(text)
        is_needed = requirement.marker is None or requirement.marker.evaluate()
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        refuse_damaged_file(where, f"the requirement {text!r:.80}: {error}")
    if not is_needed:
        return None
    found = build_here(requirement.name)
    if found is None:
        return f"it needs {text}, which is not installed"
    try:
        is_met = requirement.specifier.contains(found[1], prereleases=True)
    except InvalidVersion:  # a version of a private build, not of PEP 440
        is_met = False
    return None if is_met else f"it needs {text}, and {' '.join(found).strip()} is installed"


def build_here(name: str) -> tuple[str, str] | None:
    """Return the installed build of a distribution's library, empty for the distribution itself, and its version."""
    # any build may do: the run half asks the library for the providers that it needs
    for number, build in enumerate(builds_of(normal_name(name))):
        if (version := version_here(build)) is not None:
            return build if number else "", version
    return None


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


def machine_level(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the highest x86-64 level of this processor; elsewhere the name of the machine's architecture."""
    machine = platform.machine()
    if machine != "x86_64":
        return machine
    flags, found = cpu_flags(cpuinfo), LEVELS[0][0]
    for name, needed in LEVELS:
        if not needed <= flags:
            break
        found = name
    return found


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


CPUS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")


def thread_count() -> int:
    """Return the default number of threads of an engine: torch's default, also if torch is not installed."""
    if (torch := sys.modules.get("torch")) is not None:
        count: int = torch.get_num_threads()
        return count
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) else physical_cores()


def physical_cores(cpus: Path = CPUS) -> int:
    """Return the number of physical cores that this process may use."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len({siblings(cpus, number) for number in usable})


def siblings(cpus: Path, number: int) -> str:
    try:
        return (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return f"{number}\n"


def multiplies_bytes() -> bool:
    """Return whether the processor has exact instructions for sums of products of bytes (VNNI)."""
    if sys.modules.get("torch") is not None:
        from hatch_lower.runtime.torch_private.unimported import has_vnni

        return bool(has_vnni())
    return "avx512_vnni" in cpu_flags(CPUINFO)


Started = TypeVar("Started")
GPU_HINT = "install torch's build for CUDA and the GPU's driver, or load a recipe for another device"


class DelegateKinds:
    """The run halves of backends: given or installed. Installed run halves are imported on first use."""

    def __init__(
        self,
        given: Mapping[str, type[Delegate]] | None = None,
        *,
        checks_outputs: bool = False,
        timing: Timing | None = None,
    ) -> None:
        self._given = given
        self.checks_outputs = checks_outputs
        self.timing = timing

    def missing_reason(self, backend: str) -> str | None:
        if self._given is None and self._point(backend) is not None:
            return None
        known = list(self._installed if self._given is None else self._given)
        return None if backend in known else f"the delegate `{backend}` is not installed; {nearest(backend, known)}"

    def load(self, backend: str) -> type[Delegate]:
        if self._given is not None and backend in self._given:
            return self._given[backend]
        point = self._point(backend) if self._given is None else None
        if point is None:
            raise ProgramError(
                f"the program needs the delegate `{backend}`",
                found=self.missing_reason(backend) or "",
                hint="install the package that provides the delegate",
            )
        try:
            kind = point.load()
        except Exception as error:
            raise ProgramError(
                f"the delegate `{backend}` cannot be imported",
                where=point.value,
                found=f"{type(error).__name__}: {error}",
            ) from error
        if not isinstance(kind, type) or not issubclass(kind, Delegate):
            raise ProgramError(f"the delegate `{backend}` is no `Delegate`", where=point.value, found=repr(kind))
        return kind

    def on_numpy(self, backends: Iterable[str]) -> frozenset[str]:
        """Return the backends whose run halves take NumPy arrays; a missing run half counts as taking tensors."""
        found = set()
        for backend in backends:
            with contextlib.suppress(ProgramError):
                if self.takes_numpy(backend):
                    found.add(backend)
        return frozenset(found)

    def takes_numpy(self, backend: str) -> bool:
        """Return whether a run half takes NumPy arrays; false if its import needs torch and torch is missing."""
        try:
            return self.load(backend).arrays == "numpy"
        except ProgramError as error:
            if isinstance(error.__cause__, ImportError) and error.__cause__.name == "torch":
                return False
            raise

    def _point(self, backend: str) -> importlib.metadata.EntryPoint | None:
        # first the delegates of hatch-lower itself, for which no other distribution is read
        return self._own.get(backend) or self._installed.get(backend)

    @functools.cached_property
    def _own(self) -> dict[str, importlib.metadata.EntryPoint]:
        try:
            found = importlib.metadata.distribution("hatch-lower").entry_points
        except importlib.metadata.PackageNotFoundError:  # hatch-lower runs from a source tree
            return {}
        return {point.name: point for point in found.select(group=DELEGATE_GROUP)}

    @functools.cached_property
    def _installed(self) -> dict[str, importlib.metadata.EntryPoint]:
        return {point.name: point for point in importlib.metadata.entry_points(group=DELEGATE_GROUP)} | self._own


def start_recipe(
    name: str,
    model: ModelEntry,
    asked: str | None,
    kinds: DelegateKinds,
    where: str,
    fits: Callable[[str], str | None],
    start: Callable[[str], Started],
) -> Started:
    """Start the recipe `asked`, or without `asked` the first in load order that can run here."""
    # `fits` is called for a recipe with met requirements, and returns the reason if the recipe still cannot run
    # `start` raises `UnavailableError` if only the start shows that a device or provider is missing
    # passing over a recipe is a `RuntimeWarning`, because the next recipe may be much slower
    if asked is not None and asked not in model.recipes:
        raise ProgramError(
            f"model `{name}` has no recipe `{asked}`", found=nearest(asked, model.recipes), hint="name a known recipe"
        )
    reasons: dict[str, str] = {}
    unavailable: UnavailableError | None = None
    try:
        for recipe in model.order if asked is None else (asked,):
            reason = refusal_reason(model.recipes[recipe], kinds, where) or fits(recipe)
            if reason is None:
                try:
                    started = start(recipe)
                except UnavailableError as error:
                    reason, unavailable = f"{error.what}: {error.found}; {error.hint}", error
            if reason is None:
                if reasons:
                    passed = "; ".join(f"`{other}` cannot run here: {why}" for other, why in reasons.items())
                    message = f"model `{name}` runs recipe `{recipe}` because {passed}"
                    warnings.warn(message, RuntimeWarning, stacklevel=5)
                return started
            reasons[recipe] = reason
        kind = ProgramError if unavailable is None else UnavailableError
        raise kind(
            f"model `{name}` cannot run here"
            if asked is None
            else f"recipe `{asked}` of model `{name}` cannot run here",
            found="\n".join(f"`{recipe}`: {reason}" for recipe, reason in reasons.items()),
            hint=GPU_HINT
            if all(model.recipes[recipe].device == "cuda" for recipe in reasons)
            else "install the named packages, or another wheel of the distribution",
        ) from unavailable
    finally:
        # otherwise a reference cycle: the error's traceback holds this frame, and the frame would hold the error
        del unavailable


def refusal_reason(recipe: RecipeEntry, kinds: DelegateKinds, where: str) -> str | None:
    for text in recipe.requirements:
        if reason := requirement_reason(text, where):
            return reason
    if recipe.target is not None and (reason := unsupported_reason(recipe.target)):
        return reason
    return next(filter(None, map(kinds.missing_reason, recipe.backends)), None)


def numpy_reason(plan: Plan, imports: Sequence[str], kinds: DelegateKinds) -> str | None:
    """Return the reason why a program cannot take and return NumPy arrays, or `None`."""
    from hatch_lower.runtime.torch_reasons import torch_reasons

    # if torch is installed, the runtime converts arrays for delegates that take tensors
    has_torch = is_library_installed("torch")
    numpy_delegates = [name for name in plan.backends if has_torch or kinds.takes_numpy(name)]
    reasons = torch_reasons(plan, numpy_delegates, () if has_torch else imports)
    if not reasons:
        return None
    needed = '`arrays="torch"`' if has_torch else "torch, which is not installed"
    return f"it needs {needed}: {reasons[0].what}"
