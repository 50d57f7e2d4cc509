"""A recipe's options for a backend: reading, a single error for all problems, and compile specs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import BackendError, nearest
from hatch_lower.exir.backend.backend_details import CompileSpec

Value = TypeVar("Value")


class GivenOptions:
    """A recipe's options for a backend; after all options were read, `check` reports every problem.

    Args:
        options: TOML values; an option exists if `read` was called for its name.
    """

    def __init__(self, backend_id: str, options: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self.known: set[str] = set()
        self._backend_id = backend_id
        self._options = options

    def read(self, name: str, default: Value, fits: Callable[[Any], object], wanted: str) -> Value:
        """Return an option's value, or the default if the option is missing or wrong.

        Args:
            fits: whether a given value is valid.
            wanted: the valid values, in words.
        """
        self.known.add(name)
        value: Value = self._options.get(name, default)
        if value is default or fits(value):
            return value
        self.problems.append(f"`{name}` must be {wanted}, but is {value!r}")
        return default

    def flag(self, name: str, default: bool) -> bool:
        return self.read(name, default, lambda value: isinstance(value, bool), "true or false")

    def excluded(self, example: str) -> tuple[str, ...]:
        """Return the names of the overloads that the option `exclude` leaves to other backends."""
        none: list[str] = []
        names = self.read("exclude", none, is_list_of_strings, f"a list of strings such as `{example}`")
        return tuple(sorted(set(names)))  # the order has no meaning and must not change a key

    def check(self, hint: str = "") -> None:
        """Raise a `BackendError` that names all options that were wrong or do not exist."""
        unknown = [key for key in self._options if key not in self.known]
        problems = [*(f"`{key}` is no option: {nearest(key, self.known)}" for key in unknown), *self.problems]
        if problems:
            raise BackendError(
                f"the options of the backend `{self._backend_id}` are wrong",
                found="\n".join(problems),
                hint=hint or f"correct the options in the recipe's table for the backend `{self._backend_id}`",
            )


def is_list_of_strings(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def is_number_from(least: int) -> Callable[[object], bool]:
    # Python takes true and false for numbers
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def json_specs(values: Mapping[str, object]) -> list[CompileSpec]:
    return [CompileSpec(name, canonical_json(value)) for name, value in values.items()]


def spec_values(backend_id: str, specs: Iterable[CompileSpec]) -> dict[str, object]:
    """Return the values that `json_specs` encoded; raise a `BackendError` for a spec that is no JSON."""
    try:
        return {spec.key: json.loads(spec.value) for spec in specs}
    except ValueError as error:
        raise BackendError(
            f"a compile spec of the backend `{backend_id}` is no JSON",
            found=str(error),
            hint="make the specs with the backend's partitioner",
        ) from error
