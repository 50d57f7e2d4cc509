"""What must be equal before it is even asked whether anything that an export has read is changed.

Every field is hashed, as in the other keys. It is a module of its own for a build of what is known uses no other key.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hatch_lower.canonical import digest_of
from hatch_lower.frozen import Frozen


class ManifestKey(Frozen):
    """The key of the stored results of one model that may still hold: what an export is given, not what it reads.

    What it reads differs between these results, and is recorded with each of them.

    Args:
        model: the model's name.
        export: its entry point.
        package: the import package that gets its files.
        distribution: the project's name.
        recipes: as in `ExportKey`, but as they are written in the settings.
        order: the recipes' names in the order in which they are tried.
        check: whether there is check data.
        seed: of the exporting process.
        inputs: globs of the declared inputs.
        strict: whether undeclared inputs are refused.
        entry_points: digest of the project's entry points.
        roots: located import roots.
        links: path and located target of each link that makes the project importable.
        later_hooks: build hooks that run later.
        variables: those set of the interpreter, of compilers and of the dynamic loader, and those that are otherwise
            fixed: name and digest.
        machine: operating system, processor, C library and interpreter.
        backends: distributions that have backends or delegates: name, version and digest of their entry points.
        code: digest of hatch-lower's own code.
        schema: version of the form of what is stored.
    """

    model: str
    export: str
    package: str
    distribution: str
    recipes: tuple[Any, ...]
    order: tuple[str, ...]
    check: bool
    seed: int
    inputs: tuple[str, ...]
    strict: bool
    entry_points: str
    roots: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    later_hooks: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    machine: tuple[tuple[str, str], ...]
    backends: tuple[tuple[str, str, str], ...]
    code: str
    schema: int

    def components(self) -> dict[str, Any]:
        """Return the fields as a JSON value."""
        return asdict(self)

    def digest(self) -> str:
        """Return the sha256 over all fields."""
        return digest_of(self.components())
