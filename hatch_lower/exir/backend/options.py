"""The options of a recipe for a backend: read one by one, refused all together if any is wrong, written as specs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import BackendError, nearest
from hatch_lower.exir.backend.backend_details import CompileSpec

__all__ = ["GivenOptions", "extra_hint", "is_list_of_strings", "is_number_from", "json_specs", "spec_values"]

Value = TypeVar("Value")


def extra_hint(extra: str) -> str:
    """Return how a build gets the libraries of an extra; most builds have an environment of their own."""
    name = f'"hatch-lower[{extra}]"'
    return f"let `[build-system] requires` name {name}; for a build without isolation: pip install {name}"


class GivenOptions:
    """What a recipe gives a backend; `check` says what was wrong with it, once all of it has been read.

    Args:
        backend_id: the backend.
        options: as TOML values.
        known: the names of the options that there are.
    """

    def __init__(self, backend_id: str, options: Mapping[str, Any], known: Collection[str]) -> None:
        self.problems = [f"`{key}` is no option: {nearest(key, known)}" for key in options if key not in known]
        self._backend_id = backend_id
        self._options = options

    def read(self, name: str, default: Value, fits: Callable[[Any], object], wanted: str) -> Value:
        """Return an option's value, or the default if it is not given or wrong.

        Args:
            name: the option.
            default: what it is if it is not given; not asked about.
            fits: says of another value whether it is right.
            wanted: what it must be, in words.
        """
        value: Value = self._options.get(name, default)
        if value is default or fits(value):
            return value
        self.problems.append(f"`{name}` must be {wanted}, but is {value!r}")
        return default

    def flag(self, name: str, default: bool) -> bool:
        return self.read(name, default, lambda value: isinstance(value, bool), "true or false")

    def excluded(self, example: str) -> tuple[str, ...]:
        """Return the names of the overloads that the option `exclude` leaves to others, sorted.

        Args:
            example: such a name, for whoever writes something else.
        """
        none: list[str] = []
        found = self.read("exclude", none, is_list_of_strings, f"a list of strings such as `{example}`")
        return tuple(sorted(set(found)))

    def check(self, hint: str = "") -> None:
        """Refuse the options if any that was read is wrong, or there is none of that name.

        Args:
            hint: what to do about it, if there is more to say than where to correct them.

        Raises:
            BackendError: naming them all.
        """
        if self.problems:
            raise BackendError(
                f"the options of the backend `{self._backend_id}` are wrong",
                found="\n".join(self.problems),
                hint=hint or f"correct them in the recipe's table for the backend `{self._backend_id}`",
            )


def is_list_of_strings(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def is_number_from(least: int) -> Callable[[Any], bool]:
    """Return what says whether a TOML value is a whole number that is not smaller; true and false are none."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def json_specs(values: Mapping[str, Any]) -> list[CompileSpec]:
    """Return compile specs with the values as JSON."""
    return [CompileSpec(name, canonical_json(value)) for name, value in values.items()]


def spec_values(backend_id: str, specs: Iterable[CompileSpec]) -> dict[str, Any]:
    """Return what `json_specs` was given.

    Raises:
        BackendError: for a spec that is no JSON.
    """
    try:
        return {spec.key: json.loads(spec.value) for spec in specs}
    except ValueError as error:
        raise BackendError(
            f"a compile spec of the backend `{backend_id}` is no JSON",
            found=str(error),
            hint="make the specs with the backend's partitioner",
        ) from error
