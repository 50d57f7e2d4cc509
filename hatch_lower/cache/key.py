"""What a stored result depends on: that of lowering one partition, of lowering one exported model, of exporting one.

Every field of a key is hashed, so a new field cannot be forgotten. The readable components are stored beside the hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hatch_lower.canonical import digest_of
from hatch_lower.frozen import Frozen


class NoKeyError(Exception):
    """Something about an exported model has no digest, so that it is not looked up as a whole."""


class Key(Frozen):
    def components(self) -> dict[str, Any]:
        """Return the fields as a JSON value."""
        return asdict(self)

    def digest(self) -> str:
        """Return the sha256 over all fields."""
        return digest_of(self.components())


class PartitionKey(Key):
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


class JointKey(Key):
    """The key of the results of partitions that a backend lowered in one call in which it saw them all.

    Args:
        backend: the backend's id.
        partitions: of each partition in order, its method and the digest of its own key.
    """

    backend: str
    partitions: tuple[tuple[str, str], ...]


class ExportKey(Key):
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


class ManifestKey(Key):
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
