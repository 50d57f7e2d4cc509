"""The choice of a model's recipe on this machine: by versions, processor and delegates."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from hatch_lower import DELEGATE_GROUP
from hatch_lower.errors import ProgramError, UnavailableError, nearest
from hatch_lower.format.manifest import ModelEntry, RecipeEntry
from hatch_lower.format.plan import Plan
from hatch_lower.runtime.arrays import is_installed
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.runtime.requirements import requirement_reason, unsupported_reason

if TYPE_CHECKING:
    from hatch_lower.runtime.timing import Timing


Started = TypeVar("Started")


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
            hint="install the named packages, or another wheel of the distribution",
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
    has_torch = is_installed("torch")
    numpy_delegates = [name for name in plan.backends if has_torch or kinds.takes_numpy(name)]
    reasons = torch_reasons(plan, numpy_delegates, () if has_torch else imports)
    if not reasons:
        return None
    needed = '`arrays="torch"`' if has_torch else "torch, which is not installed"
    return f"it needs {needed}: {reasons[0].what}"
