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
        return asdict(self)

    def digest(self) -> str:
        return digest_of(self.components())


class PartitionKey(Key):
    """The key of one partition's `PreprocessResult`."""

    graph: str  # canonical form of the partition: structure, and layout, ties and mutability of constants
    state: str  # of the constants' contents; empty for a backend whose blob does not depend on them
    backend: str
    # versions of what shapes the blob: the backend's code, libraries, compilers
    fingerprint: tuple[tuple[str, str], ...]
    compile_specs: tuple[tuple[str, str], ...]  # values in hexadecimal
    torch: str
    interpreter: str  # shapes the code that torch generates for some graphs
    system: str  # operating system and machine
    result_schema: int  # of the form in which results are stored


class JointKey(Key):
    """The key of the results of partitions that a backend lowered in one call in which it saw them all."""

    backend: str
    partitions: tuple[tuple[str, str], ...]  # method and key of each, in order


class StepKey(Key):
    """The key of what one step of a backend came to."""

    step: str
    text: str  # sha256
    backend: str
    made_by: tuple[tuple[str, str], ...]  # versions of its tools, and its options
    torch: str  # whose headers it may include
    interpreter: str
    system: str  # operating system and machine


class ExportKey(Key):
    """The key of one exported model's `ModelReport`; tuples of one entry for each method are in the methods' order."""

    model: str  # it is in the paths of the files
    methods: tuple[str, ...]
    graphs: tuple[str, ...]  # canonical forms before decomposition
    names: tuple[str, ...]  # of parameters, dimensions, constants, containers and modules
    examples: tuple[str, ...]
    state: tuple[str, ...]  # of the constants' contents
    sharing: str  # which constants of all methods overlap in memory
    eager: str  # what the module itself, or the ready programs, return for the example inputs
    recipes: tuple[Mapping[str, object], ...]  # name, backends with their options, and how they are verified
    check: int  # the bytes of check data, at most; 0: there are none
    # URL and sha256 of the files that `weights` names; or `file`, and the distribution's name
    weights: tuple[tuple[str, str], ...]
    # of each method with real inputs for verification: its name, where they are from, and sha256 of them all
    samples: tuple[tuple[str, str, str], ...]
    tools: tuple[tuple[str, str], ...]  # versions and digests of the code of the recipes' backends
    torch: str
    interpreter: str
    system: str  # with the instruction set that torch's own kernels use
    code: str  # hatch-lower's own
    schema: tuple[int, ...]  # of plan, debug map, manifest and stored report


class ManifestKey(Key):
    """The key of one model's stored results: what an export is given. What it reads is recorded with each of them."""

    model: str
    export: str  # entry point
    package: str  # gets the files
    distribution: str
    recipes: tuple[object, ...]  # as the settings have them, in the order in which they are tried
    check: int  # the bytes of check data, at most; 0: there are none
    # URL, and sha256 as it was last known, of the files that `weights` names; or `file`
    weights: tuple[tuple[str, str], ...]
    verify_inputs: str  # where real inputs are from; empty: there are none
    inputs: tuple[str, ...]  # globs of the declared inputs
    strict: bool  # whether undeclared inputs are refused
    entry_points: str  # the project's
    roots: tuple[str, ...]  # import roots, located
    links: tuple[tuple[str, str], ...]  # that make the project importable: path and located target
    later_hooks: tuple[str, ...]  # build hooks that run later
    # name and digest of those of interpreter, compilers and dynamic loader, and of those that are otherwise fixed
    variables: tuple[tuple[str, str], ...]
    machine: tuple[tuple[str, str], ...]  # operating system, processor, C library and interpreter
    # name, version and digest of the entry points of distributions that have backends or delegates
    backends: tuple[tuple[str, str, str], ...]
    code: str  # hatch-lower's own
    schema: int
