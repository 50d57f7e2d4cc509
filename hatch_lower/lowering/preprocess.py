"""From partitions to backends' results: each distinct partition is lowered once, or found in the cache."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hatch_lower.backend.api import BackendDetails, CompileSpec, DelegationSpec, PreprocessResult, Target
from hatch_lower.backend.identity import code_of
from hatch_lower.backend.named_data import DataEntry, NamedDataStoreOutput, TensorLayout
from hatch_lower.cache.key import NoKeyError, PartitionKey
from hatch_lower.cache.store import Store
from hatch_lower.digest import canonical_json, sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.graph.canonical import structure_digest
from hatch_lower.graph.state import constant_of, constant_specs
from hatch_lower.graph.tensors import combined_digest, tensor_digests
from hatch_lower.lowering.checked import wrong_field
from hatch_lower.lowering.extract import LocalProgram
from hatch_lower.lowering.restored import process_restored

__all__ = ["Request", "Response", "preprocess_all"]

RESULT_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Request:
    """One partition to lower.

    Args:
        method: the method that it is in.
        spec: its backend's id and options.
        backend: the backend's compile half.
        local: what the backend sees.
    """

    method: str
    spec: DelegationSpec
    backend: type[BackendDetails]
    local: LocalProgram


@dataclass(frozen=True, slots=True)
class Response:
    """A partition's result; `reused` says that no `preprocess` call was made for it, and `key` where it is stored."""

    result: PreprocessResult
    reused: bool
    key: str = ""


def preprocess_all(requests: Sequence[Request], store: Store | None) -> list[Response]:
    """Lower partitions, equal ones once, those of one backend together.

    Args:
        requests: in the order in which backends shall see them.
        store: where earlier results are, and new ones go; `None`: everything is lowered.

    Raises:
        BackendError: if a backend answers with something else than it was asked for.
        CacheError: if the cache is frozen and does not hold a result.
    """
    fingerprints: dict[str, tuple[tuple[str, str], ...]] = {}
    keys = [key_of(request, fingerprints) for request in requests]
    digests = [key.digest() for key in keys]
    wanted: dict[str, Request] = {}
    for digest, request in zip(digests, requests, strict=True):
        wanted.setdefault(digest, request)
    found = {} if store is None else read_results(store, wanted)
    missing = {digest: request for digest, request in wanted.items() if digest not in found}
    if missing:
        components = {digest: key.components() for digest, key in zip(digests, keys, strict=True)}
        with nullcontext() if store is None else store.locked(missing):
            if store is not None:  # another build may have made some while this one waited
                found |= read_results(store, missing)
            missing = {digest: request for digest, request in missing.items() if digest not in found}
            states = {digest: key.state for digest, key in zip(digests, keys, strict=True)}
            for digest, result in call_backends(missing):
                refuse_changed_weights(missing[digest], states[digest])
                found[digest] = result
                if store is not None:
                    write_result(store, digest, components[digest], result)
    return [
        Response(found[digest], missing.get(digest) is not request, digest)
        for request, digest in zip(requests, digests, strict=True)
    ]


def read_results(store: Store, wanted: Mapping[str, Request]) -> dict[str, PreprocessResult]:
    """Return the stored results of the requests that have one."""
    results = {digest: read_result(store, digest, request) for digest, request in wanted.items()}
    return {digest: result for digest, result in results.items() if result is not None}


def call_backends(requests: Mapping[str, Request]) -> Iterator[tuple[str, PreprocessResult]]:
    """Lower partitions, those of one backend together; yield each one's key and result."""
    by_backend: dict[str, dict[str, Request]] = {}
    for digest, request in requests.items():
        by_backend.setdefault(request.spec.backend_id, {})[digest] = request
    for group in by_backend.values():
        yield from zip(group, call_backend(list(group.values())), strict=True)


def key_of(request: Request, fingerprints: dict[str, tuple[tuple[str, str], ...]]) -> PartitionKey:
    """Return a partition's key.

    Args:
        request: the partition.
        fingerprints: those already asked for, by backend and options; extended.
    """
    program, state = request.local.program, state_of(request)
    backend_id, specs = request.spec
    options = tuple((spec.key, spec.value.hex()) for spec in specs)
    asked = f"{backend_id} {options}"
    if asked not in fingerprints:
        code = identity_of(backend_id, request.backend)
        with process_restored():
            fingerprints[asked] = (("code", code), *sorted(request.backend.fingerprint(specs).items()))
    return PartitionKey(
        graph=structure_digest(program),
        state=state,
        backend=backend_id,
        fingerprint=fingerprints[asked],
        compile_specs=options,
        torch=torch.__version__,
        interpreter=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        result_schema=RESULT_SCHEMA,
    )


def state_of(request: Request) -> str:
    """Return the digest of the weights that a backend is given; empty if it is given stand-ins."""
    if request.backend.weight_free:
        return ""
    program = request.local.program
    return combined_digest(tensor_digests(constant_of(program, spec) for spec in constant_specs(program)))


def refuse_changed_weights(request: Request, before: str) -> None:
    """Raise `BackendError` if a backend has written into the model's tensors: eager's would be the same wrong ones."""
    if state_of(request) != before:
        raise BackendError(
            f"the backend `{request.spec.backend_id}` changed the model's weights",
            where=f"method `{request.method}`",
            found="other contents after `preprocess` than before",
            hint="copy what is changed: override `copy_exported_program_for_preprocess`",
        )


def identity_of(backend_id: str, backend: type[BackendDetails]) -> str:
    """Return what identifies a backend's code, whatever its fingerprint says of it.

    A class that is defined in no file has nothing that does: its results are found again in no other call.
    """
    try:
        return code_of(backend_id, backend, {})
    except NoKeyError:
        return os.urandom(16).hex()


def call_backend(requests: Sequence[Request]) -> list[PreprocessResult]:
    """Give one backend all its partitions of all methods in one call, and check its answer."""
    backend, backend_id = requests[0].backend, requests[0].spec.backend_id
    programs: dict[str, list[Any]] = {}
    specs: dict[str, list[list[CompileSpec]]] = {}
    for request in requests:
        options = request.spec.compile_specs
        program = backend.copy_exported_program_for_preprocess(request.local.program, options)
        programs.setdefault(request.method, []).append(program)
        specs.setdefault(request.method, []).append(options)
    answer = backend.preprocess_multimethod(programs, specs)
    check_answer(backend, backend_id, {method: len(each) for method, each in programs.items()}, answer)
    taken = {method: iter(answer[method]) for method in programs}
    return [next(taken[request.method]) for request in requests]


def check_answer(backend: type[BackendDetails], backend_id: str, expected: Mapping[str, int], answer: Any) -> None:
    """Raise `BackendError` unless a backend answered with one result for each partition of each method."""
    where = f"`{backend.__name__}.preprocess_multimethod`"
    hint = "return {method: [one PreprocessResult for each program, in order]}"
    if not isinstance(answer, Mapping):
        raise BackendError(
            f"the backend `{backend_id}` returned no mapping", where=where, found=repr(answer), hint=hint
        )
    for method, count in expected.items():
        results = answer.get(method)
        if not isinstance(results, (list, tuple)) or len(results) != count:
            found = "nothing" if results is None else f"{len(results)} results" if hasattr(results, "__len__") else "?"
            raise BackendError(
                f"the backend `{backend_id}` must return {count} results for the method `{method}`",
                where=where,
                found=found,
                hint=hint,
            )
        for result in results:
            if not isinstance(result, PreprocessResult):
                raise BackendError(
                    f"the backend `{backend_id}` returned something else than a `PreprocessResult`",
                    where=f"method `{method}`",
                    found=repr(result),
                    hint="define `preprocess(edge_program, compile_specs)` as a static method that returns one",
                )
            if (wrong := wrong_field(result)) is not None:
                name, expected_there = wrong
                raise BackendError(
                    f"the backend `{backend_id}` returned a result whose `{name}` is not {expected_there}",
                    where=f"method `{method}`",
                    found=f"{getattr(result, name)!r:.200}",
                    hint="correct the `PreprocessResult` that `preprocess` returns, or leave the backend out",
                )


def read_result(store: Store, digest: str, request: Request) -> PreprocessResult | None:
    """Return a stored result, or `None`."""
    value = store.get(digest, f"a partition of `{request.method}` for the backend `{request.spec.backend_id}`")
    if value is None or not {"blob", "data", "debug_handle_map", "target"} <= value.keys():
        return None
    target = value["target"]
    debug = value["debug_handle_map"]
    digests = [value["blob"], *(value["data"]["buffers"] if value["data"] is not None else ())]
    found = {each: store.read_blob(each) for each in digests}
    blobs = {each: blob for each, blob in found.items() if blob is not None}
    if len(blobs) < len(found):  # removed since the record was looked up
        return None
    head = value.get("head")
    if head is not None and head > len(blobs[value["blob"]]):  # whoever shares it need not be trusted
        return None
    return PreprocessResult(
        processed_bytes=blobs[value["blob"]],
        debug_handle_map=None if debug is None else {key: tuple(handles) for key, handles in debug},
        data_store_output=None if value["data"] is None else read_data(blobs, value["data"]),
        _delegate_info_meta=value["delegate_info_meta"],
        suffix=value["suffix"],
        requirements=tuple(value["requirements"]),
        target=None if target is None else Target(**target),
        info=value["info"],
        head=head,
    )


def read_data(blobs: Mapping[str, bytes], value: Mapping[str, Any]) -> NamedDataStoreOutput:
    """Return the named data that `data_value` describes."""
    return NamedDataStoreOutput(
        tuple(blobs[digest] for digest in value["buffers"]),
        {name: read_entry(each) for name, each in value["program"]},
        {tag: {name: read_entry(each) for name, each in entries} for tag, entries in value["external"]},
    )


def read_entry(value: Mapping[str, Any]) -> DataEntry:
    """Return the entry that `entry_value` describes."""
    layout = value["layout"]
    if layout is not None:
        layout = TensorLayout(layout["scalar_type"], tuple(layout["sizes"]), tuple(layout["dim_order"]))
    return DataEntry(value["buffer"], value["alignment"], layout)


def write_result(store: Store, digest: str, components: Mapping[str, Any], result: PreprocessResult) -> None:
    """Store a result, unless it holds what cannot be written as JSON; such a result is made anew each time."""
    data = result.data_store_output
    known = data is None or isinstance(data, NamedDataStoreOutput)
    if not known or not is_plain(result._delegate_info_meta) or not is_json(dict(result.info)):
        return
    target = result.target
    debug = result.debug_handle_map
    buffers = () if data is None else data.buffers
    value = {
        "blob": sha256_bytes(result.processed_bytes),
        "data": None if data is None else data_value(data),
        "debug_handle_map": None if debug is None else [[key, list(handles)] for key, handles in debug.items()],
        "delegate_info_meta": result._delegate_info_meta,
        "suffix": result.suffix,
        "requirements": list(result.requirements),
        "target": None if target is None else {name: getattr(target, name) for name in target.__slots__},
        "info": dict(result.info),
        **({} if result.head is None else {"head": result.head}),
    }
    store.put(digest, components, value, [result.processed_bytes, *buffers])


def data_value(data: NamedDataStoreOutput) -> dict[str, Any]:
    """Return named data as JSON; its buffers by their digests, everything in the order of the backend."""
    return {
        "buffers": [sha256_bytes(buffer) for buffer in data.buffers],
        "program": [[name, entry_value(each)] for name, each in data.pte_data.items()],
        "external": [
            [tag, [[name, entry_value(each)] for name, each in entries.items()]]
            for tag, entries in data.external_data.items()
        ],
    }


def entry_value(entry: DataEntry) -> dict[str, Any]:
    """Return one name's entry as JSON."""
    layout = entry.tensor_layout and {
        "scalar_type": entry.tensor_layout.scalar_type,
        "sizes": list(entry.tensor_layout.sizes),
        "dim_order": list(entry.tensor_layout.dim_order),
    }
    return {"buffer": entry.buffer_index, "alignment": entry.alignment, "layout": layout}


def is_plain(value: Any) -> bool:
    """Return whether a value is the same after a round trip through JSON."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(is_plain(each) for each in value)
    return value is None or isinstance(value, (bool, int, str))


def is_json(value: Any) -> bool:
    """Return whether a value can be written as JSON; emitting says what is wrong with one that cannot."""
    try:
        canonical_json(value)
    except (TypeError, ValueError):
        return False
    return True
