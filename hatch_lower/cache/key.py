"""What the result of lowering one partition depends on, and what that of lowering one exported model does.

Every field of a key is hashed, so a new field cannot be forgotten. The readable components are stored beside the hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hatch_lower.canonical import digest_of


class NoKeyError(Exception):
    """Something about an exported model has no digest, so that it is not looked up as a whole."""


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """The key of one partition's `PreprocessResult`.

    Args:
        graph: digest of the canonical form of the partition: structure, and layout, ties and mutability of constants.
        state: digest of the constants' contents; empty for a backend whose blob does not depend on them.
        backend: the backend's id.
        fingerprint: versions of what shapes the blob: the backend's code, libraries, compilers.
        compile_specs: the options, values in hexadecimal.
        torch: torch's version.
        interpreter: Python's version, which shapes the code that torch generates for some graphs.
        system: operating system and machine.
        result_schema: version of the form in which results are stored.
    """

    graph: str
    state: str
    backend: str
    fingerprint: tuple[tuple[str, str], ...]
    compile_specs: tuple[tuple[str, str], ...]
    torch: str
    interpreter: str
    system: str
    result_schema: int

    def components(self) -> dict[str, Any]:
        """Return the fields as a JSON value."""
        return asdict(self)

    def digest(self) -> str:
        """Return the sha256 over all fields."""
        return digest_of(self.components())


@dataclass(frozen=True, slots=True)
class JointKey:
    """The key of the results of partitions that a backend lowered in one call in which it saw them all.

    Args:
        backend: the backend's id.
        partitions: of each partition in order, its method and the digest of its own key.
    """

    backend: str
    partitions: tuple[tuple[str, str], ...]

    def components(self) -> dict[str, Any]:
        """Return the fields as a JSON value."""
        return asdict(self)

    def digest(self) -> str:
        """Return the sha256 over all fields."""
        return digest_of(self.components())


@dataclass(frozen=True, slots=True)
class ExportKey:
    """The key of one exported model's `ModelReport`.

    Fields of one entry for each method are in the order of the methods.

    Args:
        model: the model's name, which is in the paths of its files.
        methods: the methods' names.
        graphs: digests of the canonical forms before decomposition.
        names: digests of the names of parameters, dimensions, constants, containers and modules.
        examples: digests of the example inputs.
        state: digests of the constants' contents.
        sharing: digest of which constants of all methods overlap in memory.
        eager: digest of what the module itself, or the ready programs, return for the example inputs.
        recipes: the recipes: name, backends with their options, and how they are verified.
        order: the recipes' names in the order in which they are tried.
        check: whether there is check data.
        seed: of the inputs for verification.
        tools: versions and digests of the code of the recipes' backends.
        torch: torch's version.
        interpreter: Python's version.
        system: operating system, machine, and the instruction set that torch's own kernels use.
        code: digest of hatch-lower's own code.
        schema: versions of the forms of plan, debug map, manifest and stored report.
    """

    model: str
    methods: tuple[str, ...]
    graphs: tuple[str, ...]
    names: tuple[str, ...]
    examples: tuple[str, ...]
    state: tuple[str, ...]
    sharing: str
    eager: str
    recipes: tuple[Mapping[str, Any], ...]
    order: tuple[str, ...]
    check: bool
    seed: int
    tools: tuple[tuple[str, str], ...]
    torch: str
    interpreter: str
    system: str
    code: str
    schema: tuple[int, ...]

    def components(self) -> dict[str, Any]:
        """Return the fields as a JSON value."""
        return asdict(self)

    def digest(self) -> str:
        """Return the sha256 over all fields."""
        return digest_of(self.components())
