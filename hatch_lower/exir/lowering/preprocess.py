"""Backends' results for partitions, from the cache or by a call of the backend; the exported node of an operation
that a backend cannot lower.

A backend that defines `preprocess_multimethod` may share data among partitions, so its results form a group: computed,
stored and found together. For any other backend each distinct partition is a group.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from inspect import getattr_static
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.cache.key import JointKey, NoKeyError, PartitionKey
from hatch_lower.cache.partition import SUFFIX
from hatch_lower.cache.store import Store
from hatch_lower.config.requirements import read_requirement
from hatch_lower.errors import AnswerError, OperationError
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult, Target
from hatch_lower.exir.backend.partitioner import DelegationSpec
from hatch_lower.exir.backend.registry import backend_code
from hatch_lower.exir.graph.canonical import structure_digest
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.graph.tensors import combined_digest, tensor_digests
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.extract import LocalProgram
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.exir.lowering.stored_results import RESULT_SCHEMA, is_storable, read_stored_result, result_value
from hatch_lower.frozen import Frozen


def place_operation(
    error: OperationError,
    candidates: Iterable[tuple[str, ExportedProgram, LocalProgram, ExportedProgram | None]],
) -> None:
    """Add the method of the failed operation, and the stack of its source line, to an error in place.

    Args:
        error: an error whose node is in one of the programs.
        candidates: for each partition the method, the program that the backend got, the local form, and the partition
            with the names, handles and stacks of the model, if known.
    """
    node = error.node
    for method, given, local, owner in candidates:
        if isinstance(node, Node) and node.graph is given.graph:
            error.where = f"method `{method}`, {error.where}"
            handle = local.handles[node.meta["debug_handle"] - 1]
            stacks = [known.meta for known in (owner.graph.nodes if owner is not None else ())]
            error.stack = next((meta.get("stack_trace") or "" for meta in stacks if is_of(meta, handle)), "")


def is_of(meta: Mapping[str, object], handle: int) -> bool:
    return meta.get("debug_handle") == handle and bool(meta.get("stack_trace"))


class PreprocessRequest(Frozen):
    method: str
    spec: DelegationSpec
    backend: type[BackendDetails]
    local: LocalProgram  # the partition in the backend's view
    owner: ExportedProgram | None = None  # the same with names, handles and stacks of the model, where known


class Group(Frozen):
    """Partitions whose results are made, kept and found together."""

    requests: tuple[
        PreprocessRequest, ...
    ]  # a single request, or all for a backend that defines `preprocess_multimethod`
    components: Mapping[str, object]  # parts of the key
    states: tuple[str, ...]  # of each request, the digest of the weights that its backend is given

    @property
    def joint(self) -> bool:
        return lowers_jointly(self.requests[0].backend)


class Response(Frozen):
    result: PreprocessResult
    reused: bool  # not computed for this request
    key: str = ""  # of the group in the cache


def preprocess_all(requests: Sequence[PreprocessRequest], store: Store | None) -> list[Response]:
    """Lower partitions: equal partitions once, or all together for a backend with joint lowering."""
    # a wrong answer is a `BackendError`, a frozen cache without a result a `CacheError`
    groups, places = groups_of(requests)
    results = {} if store is None else read_groups(store, groups)
    missing = {key: group for key, group in groups.items() if key not in results}
    if missing:
        with nullcontext() if store is None else store.locked(missing):
            if store is not None:  # another build may have stored results during the wait
                results |= read_groups(store, missing)
            missing = {key: group for key, group in missing.items() if key not in results}
            for key, made in call_backends(missing):
                refuse_weights_of_backend(missing[key])
                refuse_unknown_handles(missing[key], made)
                results[key] = made
                if store is not None:
                    write_group(store, key, missing[key], made)
    return [
        Response(results[key][index], key not in missing or missing[key].requests[index] is not request, key)
        for request, (key, index) in zip(requests, places, strict=True)
    ]


def lowers_jointly(backend: type[BackendDetails]) -> bool:
    return overrides(backend, "preprocess_multimethod")


def overrides(backend: type[BackendDetails], name: str) -> bool:
    # a static lookup: otherwise each lookup of a class method makes a new object
    return getattr_static(backend, name) is not getattr_static(BackendDetails, name)


def groups_of(requests: Sequence[PreprocessRequest]) -> tuple[dict[str, Group], list[tuple[str, int]]]:
    """Return the groups of requests by key, and for each request its group's key and its index in the group."""
    # a fingerprint may run a compiler for its version: ask once for each backend and options
    fingerprints: dict[str, tuple[tuple[str, str], ...]] = {}
    keys = [partition_key(request, fingerprints) for request in requests]
    groups: dict[str, Group] = {}
    places = [(key.digest(), 0) for key in keys]
    joint: dict[str, list[int]] = {}
    for number, (request, key) in enumerate(zip(requests, keys, strict=True)):
        if lowers_jointly(request.backend):
            joint.setdefault(request.spec.backend_id, []).append(number)
        else:
            groups.setdefault(places[number][0], Group((request,), key.components(), (key.state,)))
    for backend_id, numbers in joint.items():
        together = JointKey(backend_id, tuple((requests[number].method, places[number][0]) for number in numbers))
        states = tuple(keys[number].state for number in numbers)
        groups[together.digest()] = Group(tuple(requests[number] for number in numbers), together.components(), states)
        for index, number in enumerate(numbers):
            places[number] = (together.digest(), index)
    return groups, places


def read_groups(store: Store, groups: Mapping[str, Group]) -> dict[str, list[PreprocessResult]]:
    stored = {key: read_group(store, key, group) for key, group in groups.items()}
    return {key: results for key, results in stored.items() if results is not None}


def call_backends(groups: Mapping[str, Group]) -> Iterator[tuple[str, list[PreprocessResult]]]:
    # all groups of a backend in a single call, so that the backend may lower partitions in parallel
    by_backend: dict[str, dict[str, Group]] = {}
    for key, group in groups.items():
        by_backend.setdefault(group.requests[0].spec.backend_id, {})[key] = group
    for together in by_backend.values():
        results = iter(call_backend([request for group in together.values() for request in group.requests]))
        for key, group in together.items():
            yield key, [next(results) for _ in group.requests]


def partition_key(request: PreprocessRequest, fingerprints: dict[str, tuple[tuple[str, str], ...]]) -> PartitionKey:
    program, state = request.local.program, state_digest(request)
    backend_id, specs = request.spec
    options = tuple((spec.key, spec.value.hex()) for spec in specs)
    asked = f"{backend_id} {options}"
    if asked not in fingerprints:
        code = identity_of(backend_id, request.backend)
        with process_restored():  # the backend's own code
            fingerprints[asked] = (("code", code), *sorted(request.backend.fingerprint(specs).items()))
    lowered = any(isinstance(module, LoweredBackendModule) for module in program.graph_module.modules())
    return PartitionKey(
        # the form of a graph does not cover results of its lowered modules: a random key, never found again
        graph=os.urandom(16).hex() if lowered else structure_digest(program),
        state=state,
        backend=backend_id,
        fingerprint=fingerprints[asked],
        compile_specs=options,
        torch=torch.__version__,
        interpreter=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        result_schema=RESULT_SCHEMA,
    )


def state_digest(request: PreprocessRequest) -> str:
    if request.backend.weight_free:
        return ""  # stand-ins: new weights need no compilation
    program = request.local.program
    return combined_digest(tensor_digests(constant_of(program, spec) for spec in constant_specs(program)))


def refuse_weights_of_backend(group: Group) -> None:
    # eager would compute with the same wrong weights, so no comparison would notice
    for request, before in zip(group.requests, group.states, strict=True):
        if state_digest(request) != before:
            raise AnswerError(
                f"the backend `{request.spec.backend_id}` changed the model's weights",
                where=f"method `{request.method}`",
                found="other contents after `preprocess` than before",
                hint="override `copy_exported_program_for_preprocess` to copy the tensors that `preprocess` changes",
            )


def refuse_unknown_handles(group: Group, results: Sequence[PreprocessResult]) -> None:
    for request, result in zip(group.requests, results, strict=True):
        handles = [handle for several in (result.debug_handle_map or {}).values() for handle in several]
        if max(handles, default=0) > len(request.local.handles):
            raise AnswerError(
                f"the backend `{request.spec.backend_id}` returned a debug handle that no node has",
                where=f"method `{request.method}`, `PreprocessResult.debug_handle_map`",
                found=f"{max(handles)}; the partition has the handles 1 to {len(request.local.handles)}",
                hint='take the handles from `node.meta["debug_handle"]` of the program that `preprocess` is given',
            )


def identity_of(backend_id: str, backend: type[BackendDetails]) -> str:
    # the code of a class that is defined in no file cannot be identified: a random value, so no later call finds the
    # result
    try:
        return backend_code(backend_id, backend, {})
    except NoKeyError:
        return os.urandom(16).hex()


def call_backend(requests: Sequence[PreprocessRequest]) -> list[PreprocessResult]:
    backend, backend_id = requests[0].backend, requests[0].spec.backend_id
    specs = [request.spec.compile_specs for request in requests]
    programs = [
        backend.copy_exported_program_for_preprocess(request.local.program, options)
        for request, options in zip(requests, specs, strict=True)
    ]
    if not lowers_jointly(backend):
        try:
            results: Any = backend.preprocess_many(programs, specs)
        except OperationError as error:
            pairs = zip(requests, programs, strict=True)
            place_operation(error, ((each.method, given, each.local, each.owner) for each, given in pairs))
            raise
        place = f"`{backend.__name__}.preprocess_many`"
        check_count(backend_id, results, len(requests), place, "", "return one PreprocessResult for each program")
        for request, result in zip(requests, results, strict=True):
            check_result(backend_id, result, request.method)
        return list(results)
    by_method: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        by_method.setdefault(request.method, []).append(number)
    answer: object = backend.preprocess_multimethod(
        {method: [programs[number] for number in numbers] for method, numbers in by_method.items()},
        {method: [specs[number] for number in numbers] for method, numbers in by_method.items()},
    )
    place = f"`{backend.__name__}.preprocess_multimethod`"
    hint = "return {method: [one PreprocessResult for each program, in order]}"
    if not isinstance(answer, Mapping):
        raise AnswerError(f"the backend `{backend_id}` returned no mapping", where=place, found=repr(answer), hint=hint)
    by_number: dict[int, PreprocessResult] = {}
    for method, numbers in by_method.items():
        results = answer.get(method)
        check_count(backend_id, results, len(numbers), place, f" for the method `{method}`", hint)
        for result in results:
            check_result(backend_id, result, method)
        by_number |= zip(numbers, results, strict=True)
    return [by_number[number] for number in range(len(requests))]


def check_count(backend_id: str, results: Any, count: int, where: str, subject: str, hint: str) -> None:
    if not isinstance(results, (list, tuple)) or len(results) != count:
        found = "`None`" if results is None else f"{len(results)} results" if hasattr(results, "__len__") else "?"
        raise AnswerError(
            f"the backend `{backend_id}` must return {count} results{subject}", where=where, found=found, hint=hint
        )


def check_result(backend_id: str, result: object, method: str) -> None:
    where = f"method `{method}`"
    if not isinstance(result, PreprocessResult):
        raise AnswerError(
            f"the backend `{backend_id}` did not return a `PreprocessResult`",
            where=where,
            found=repr(result),
            hint="define `preprocess(edge_program, compile_specs)` as a static method that returns the result",
        )
    if (wrong := wrong_field(result)) is not None:
        name, expected = wrong
        raise AnswerError(
            f"the backend `{backend_id}` returned a result whose `{name}` is not {expected}",
            where=where,
            found=f"{getattr(result, name)!r:.200}",
            hint="correct the `PreprocessResult` that `preprocess` returns, or leave the backend out",
        )


def read_group(store: Store, key: str, group: Group) -> list[PreprocessResult] | None:
    method, backend_id = group.requests[0].method, group.requests[0].spec.backend_id
    subject = "all partitions" if group.joint else f"a partition of `{method}`"
    value = store.get(key, f"{subject} for the backend `{backend_id}`")
    if value is None:
        return None
    values = value.get("results", []) if group.joint else [value]
    results = [result for stored in values if (result := read_stored_result(store, stored)) is not None]
    return results if len(results) == len(values) == len(group.requests) else None


def write_group(store: Store, key: str, group: Group, results: Sequence[PreprocessResult]) -> None:
    # results that JSON cannot hold are computed in every build
    if not all(map(is_storable, results)):
        return
    values = [result_value(result) for result in results]
    named = [result.data_store_output for result in results if result.data_store_output is not None]
    buffers = [buffer for data in named for buffer in data.buffers]
    value = {"results": values} if group.joint else values[0]
    store.put(key, group.components, value, [*(result.processed_bytes for result in results), *buffers])


def wrong_field(result: PreprocessResult) -> tuple[str, str] | None:
    """Return the name of an invalid field and a description of its valid values; `None` if all fields are valid."""
    # strict: a wrong field would fail this build later and, from the cache, every later build
    requirements, handles, info, target = result.requirements, result.debug_handle_map, result.info, result.target
    if not isinstance(result.processed_bytes, bytes):
        return "processed_bytes", "bytes"
    if not isinstance(result.suffix, str) or SUFFIX.fullmatch(result.suffix) is None:
        return "suffix", "the end of a file's name: letters, digits, dots, dashes"
    if not isinstance(requirements, (tuple, list)) or not all(isinstance(each, str) for each in requirements):
        return "requirements", "a tuple of strings"
    if None in map(read_requirement, requirements):
        return "requirements", "a tuple of requirements as in `pyproject.toml`"
    if target is not None and not (isinstance(target, Target) and isinstance(target.arch, tuple)):
        return "target", "a `Target`, with `arch` as a tuple, or `None`"
    if not isinstance(info, Mapping):
        return "info", "a mapping"
    if handles is not None and not (isinstance(handles, Mapping) and all(map(are_handles, handles.values()))):
        return "debug_handle_map", "a mapping of identifiers to tuples of the nodes' debug handles, or `None`"
    return None


def are_handles(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(type(each) is int and each > 0 for each in value)
