"""The options of a recipe for the `onnxruntime` backend."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hatch_lower.backend.api import CompileSpec
from hatch_lower.digest import canonical_json
from hatch_lower.errors import BackendError, nearest

__all__ = ["Options", "options_from_specs", "parse_options"]

CPU = "CPUExecutionProvider"
KNOWN = ("exclude", "providers", "threads")


@dataclass(frozen=True, slots=True)
class Options:
    """A recipe's options for this backend.

    Args:
        providers: ONNX Runtime's execution providers, the best first; those that are not installed are left out.
        threads: how many threads a loaded model has; 0: as many as torch has where it is loaded.
        exclude: ATen overloads (`aten.sort.stable`) that are left to the program's own executor.
    """

    providers: tuple[str, ...] = (CPU,)
    threads: int = 0
    exclude: tuple[str, ...] = ()

    def to_specs(self) -> list[CompileSpec]:
        """Return what shapes the result of one partition; which nodes it has is not among it."""
        return [
            CompileSpec("providers", canonical_json(list(self.providers))),
            CompileSpec("threads", canonical_json(self.threads)),
        ]


def parse_options(options: Mapping[str, Any]) -> Options:
    """Return the options of a recipe, given as TOML values.

    Raises:
        BackendError: naming every unknown or ill-typed option.
    """
    problems = [f"`{key}` is no option: {nearest(key, KNOWN)}" for key in options if key not in KNOWN]
    exclude, providers = options.get("exclude", []), options.get("providers", [CPU])
    threads = options.get("threads", 0)
    if not is_list_of_strings(exclude):
        problems.append(f"`exclude` must be a list of strings such as `aten.sort.stable`, but is {exclude!r}")
    if not is_list_of_strings(providers) or not providers:
        problems.append(f"`providers` must be a list of strings such as `{CPU}`, but is {providers!r}")
    elif wrong := [name for name in providers if not name.endswith("ExecutionProvider")]:
        problems.append(f"`providers` holds {wrong[0]!r}, but ONNX Runtime's names are like `{CPU}`")
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 0:
        problems.append(f"`threads` must be a number of threads, or 0 for as many as torch has, but is {threads!r}")
    if problems:
        raise BackendError(
            "the options of the backend `onnxruntime` are wrong",
            found="\n".join(problems),
            hint=f"it knows {', '.join(f'`{name}`' for name in KNOWN)}; correct the recipe's table for it",
        )
    return Options(tuple(dict.fromkeys(providers)), threads, tuple(sorted(set(exclude))))


def is_list_of_strings(value: Any) -> bool:
    """Return whether a TOML value is a list of strings."""
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def options_from_specs(specs: Sequence[CompileSpec]) -> Options:
    """Return the options that compile specs carry.

    Raises:
        BackendError: for an unknown key or value.
    """
    return parse_options({spec.key: json.loads(spec.value) for spec in specs})
