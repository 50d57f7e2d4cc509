"""A backend's result as a JSON value of the cache, and back; its bytes are blobs, which the value names by digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from hatch_lower.cache.partition import StoredData, StoredEntry, StoredLayout, StoredPartition, StoredTarget
from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.exir._serialize._named_data_store import NamedDataStoreOutput
from hatch_lower.exir._serialize.data_serializer import DataEntry
from hatch_lower.exir.backend.backend_details import PreprocessResult, Target
from hatch_lower.exir.tensor_layout import TensorLayout

RESULT_SCHEMA = 3


def is_storable(result: PreprocessResult) -> bool:
    data = result.data_store_output
    known = data is None or isinstance(data, NamedDataStoreOutput)
    return known and is_plain_value(result._delegate_info_meta) and is_json(dict(result.info))


def result_value(result: PreprocessResult) -> dict[str, object]:
    data, debug, target = result.data_store_output, result.debug_handle_map, result.target
    return StoredPartition(
        blob=sha256_bytes(result.processed_bytes),
        data=None if data is None else stored_data(data),
        debug_handle_map=None if debug is None else tuple((key, tuple(handles)) for key, handles in debug.items()),
        delegate_info_meta=result._delegate_info_meta,
        suffix=result.suffix,
        requirements=tuple(result.requirements),
        target=None if target is None else StoredTarget(**asdict(target)),
        info=result.info,
    ).value()


def stored_data(data: NamedDataStoreOutput) -> StoredData:
    # pairs, not objects: canonical JSON sorts keys, and the order of the backend must come back
    def stored(entries: Mapping[str, DataEntry]) -> tuple[tuple[str, StoredEntry], ...]:
        return tuple((name, stored_entry(entry)) for name, entry in entries.items())

    return StoredData(
        buffers=tuple(sha256_bytes(buffer) for buffer in data.buffers),
        program=stored(data.pte_data),
        external=tuple((tag, stored(entries)) for tag, entries in data.external_data.items()),
    )


def stored_entry(entry: DataEntry) -> StoredEntry:
    layout = entry.tensor_layout
    return StoredEntry(
        entry.buffer_index,
        entry.alignment,
        None if layout is None else StoredLayout(layout.scalar_type, layout.sizes, layout.dim_order),
    )


def is_plain_value(value: object) -> bool:
    # whether a round trip through JSON preserves the value
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain_value(item) for key, item in value.items())
    if isinstance(value, list):
        return all(is_plain_value(item) for item in value)
    return value is None or isinstance(value, (bool, int, str))


def is_json(value: object) -> bool:
    try:
        canonical_json(value)
    except (TypeError, ValueError):
        return False
    return True


def read_stored_result(store: Store, value: object) -> PreprocessResult | None:
    try:
        stored = StoredPartition.read(value)
    except ValueError:
        return None
    digests = [stored.blob, *(stored.data.buffers if stored.data is not None else ())]
    read = {digest: store.read_blob(digest) for digest in digests}
    blobs = {digest: blob for digest, blob in read.items() if blob is not None}
    if len(blobs) < len(read):  # removed since the record was looked up
        return None
    return PreprocessResult(
        processed_bytes=blobs[stored.blob],
        debug_handle_map=None if stored.debug_handle_map is None else dict(stored.debug_handle_map),
        data_store_output=None if stored.data is None else read_data(blobs, stored.data),
        _delegate_info_meta=stored.delegate_info_meta,
        suffix=stored.suffix,
        requirements=stored.requirements,
        target=None if stored.target is None else Target(**asdict(stored.target)),
        info=stored.info,
    )


def read_data(blobs: Mapping[str, bytes], data: StoredData) -> NamedDataStoreOutput:
    def entry(stored: StoredEntry) -> DataEntry:
        layout = stored.layout
        return DataEntry(
            stored.buffer,
            stored.alignment,
            None if layout is None else TensorLayout(layout.scalar_type, layout.sizes, layout.dim_order),
        )

    return NamedDataStoreOutput(
        tuple(blobs[digest] for digest in data.buffers),
        {name: entry(stored) for name, stored in data.program},
        {tag: {name: entry(stored) for name, stored in entries} for tag, entries in data.external},
    )
