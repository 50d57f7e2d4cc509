"""Cache keys: everything that the result of a partition, of an exported model, or of an export depends on.

Every field of a key is hashed, so a new field cannot be forgotten. The readable components are stored beside the hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hatch_lower.canonical import digest_of
from hatch_lower.frozen import Frozen


class NoKeyError(Exception):
    """A part of an exported model has no digest, so the model is not looked up as a whole."""


class Key(Frozen):
    def components(self) -> dict[str, Any]:
        return asdict(self)

    def digest(self) -> str:
        return digest_of(self.components())


class PartitionKey(Key):
    """The key of the `PreprocessResult` of a partition."""

    graph: str  # canonical form of the partition: structure, and layout, ties and mutability of constants
    state: str  # digest of the constants' contents; empty for a backend whose blob does not contain constants
    backend: str
    # versions of everything that shapes the blob: the backend's code, libraries, compilers
    fingerprint: tuple[tuple[str, str], ...]
    compile_specs: tuple[tuple[str, str], ...]  # values in hexadecimal
    torch: str
    interpreter: str  # shapes the code that torch generates for some graphs
    system: str  # operating system and machine
    result_schema: int  # version of the form in which results are stored


class JointKey(Key):
    """The key of the results of partitions that a backend lowered together, in a single call."""

    backend: str
    partitions: tuple[tuple[str, str], ...]  # method and key of each, in order


class ExportKey(Key):
    """The key of the `ModelReport` of an exported model; tuples with an entry for each method follow `methods`."""

    model: str  # part of the paths of the files
    methods: tuple[str, ...]
    graphs: tuple[str, ...]  # canonical forms before decomposition
    names: tuple[str, ...]  # of parameters, dimensions, constants, containers and modules
    examples: tuple[str, ...]
    state: tuple[str, ...]  # digests of the constants' contents
    sharing: str  # which constants of all methods overlap in memory
    eager: str  # digest of the results of the module, or of the ready programs, for the example inputs
    recipes: tuple[Mapping[str, object], ...]  # name, backends with options, settings of verification
    check: int  # the largest size of the check data in bytes; 0: no check data
    # URL and sha256 of the files that `weights` names; or `file`, and the distribution's name
    weights: tuple[tuple[str, str], ...]
    # for each method with real inputs for verification: name, source of the inputs, sha256 of all inputs
    samples: tuple[tuple[str, str, str], ...]
    # for each recipe with a precision other than float32: name, and digest of graphs, weights and outputs
    converted: tuple[tuple[str, str], ...]
    tools: tuple[tuple[str, str], ...]  # versions and digests of the code of the recipes' backends
    torch: str
    interpreter: str
    system: str  # with the instruction set that torch's own kernels use
    code: str  # hatch-lower's own
    schema: tuple[int, ...]  # of plan, debug map, manifest and stored report


class ManifestKey(Key):
    """The key of a model's stored results: the arguments of an export. Each result records the inputs that it read."""

    model: str
    export: str  # entry point
    package: str  # receives the files
    distribution: str
    recipes: tuple[object, ...]  # as in the settings, in load order
    check: int  # the largest size of the check data in bytes; 0: no check data
    # URL and last known sha256 of the files that `weights` names; or `file`
    weights: tuple[tuple[str, str], ...]
    verify_inputs: str  # source of real inputs; empty: no real inputs
    calibrate: str  # as `verify_inputs`
    kept: tuple[tuple[str, tuple[str, ...]], ...]  # recipe to paths of modules that stay in float32
    metric: tuple[str, float]  # the function, or empty, and its largest drop
    inputs: tuple[str, ...]  # globs of the declared inputs
    strict: bool  # whether undeclared inputs are refused
    entry_points: str  # the project's
    roots: tuple[str, ...]  # import roots, located
    links: tuple[tuple[str, str], ...]  # path and located target of each link that makes the project importable
    later_hooks: tuple[str, ...]  # build hooks that run later
    # name and digest of the variables of interpreter, compilers and dynamic loader, and of variables that are fixed
    variables: tuple[tuple[str, str], ...]
    machine: tuple[tuple[str, str], ...]  # operating system, processor, C library and interpreter
    # name, version and digest of the entry points of the distributions with backends or delegates
    backends: tuple[tuple[str, str, str], ...]
    code: str  # hatch-lower's own
    schema: int
