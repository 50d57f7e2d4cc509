"""A backend's result as a JSON value of the cache, and back; its bytes are blobs, which the value names by digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.exir._serialize._named_data_store import NamedDataStoreOutput
from hatch_lower.exir._serialize.data_serializer import DataEntry
from hatch_lower.exir.backend.backend_details import PreprocessResult, Target
from hatch_lower.exir.tensor_layout import TensorLayout

RESULT_SCHEMA = 2


def is_storable(result: PreprocessResult) -> bool:
    data = result.data_store_output
    known = data is None or isinstance(data, NamedDataStoreOutput)
    return known and is_plain(result._delegate_info_meta) and is_json(dict(result.info))


def result_value(result: PreprocessResult) -> dict[str, Any]:
    data, debug, target = result.data_store_output, result.debug_handle_map, result.target
    return {
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


def data_value(data: NamedDataStoreOutput) -> dict[str, Any]:
    return {
        "buffers": [sha256_bytes(buffer) for buffer in data.buffers],
        "program": [[name, entry_value(entry)] for name, entry in data.pte_data.items()],
        "external": [
            [tag, [[name, entry_value(entry)] for name, entry in entries.items()]]
            for tag, entries in data.external_data.items()
        ],
    }


def entry_value(entry: DataEntry) -> dict[str, Any]:
    layout = entry.tensor_layout and {
        "scalar_type": entry.tensor_layout.scalar_type,
        "sizes": list(entry.tensor_layout.sizes),
        "dim_order": list(entry.tensor_layout.dim_order),
    }
    return {"buffer": entry.buffer_index, "alignment": entry.alignment, "layout": layout}


def is_plain(value: Any) -> bool:
    # whether it is the same after a round trip through JSON
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, str))


def is_json(value: Any) -> bool:
    try:
        canonical_json(value)
    except (TypeError, ValueError):
        return False
    return True


def read_result(store: Store, value: Mapping[str, Any]) -> PreprocessResult | None:
    if not {"blob", "data", "debug_handle_map", "target"} <= value.keys():
        return None
    target = value["target"]
    debug = value["debug_handle_map"]
    digests = [value["blob"], *(value["data"]["buffers"] if value["data"] is not None else ())]
    read = {digest: store.read_blob(digest) for digest in digests}
    blobs = {digest: blob for digest, blob in read.items() if blob is not None}
    if len(blobs) < len(read):  # removed since the record was looked up
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
    return NamedDataStoreOutput(
        tuple(blobs[digest] for digest in value["buffers"]),
        {name: read_entry(entry) for name, entry in value["program"]},
        {tag: {name: read_entry(entry) for name, entry in entries} for tag, entries in value["external"]},
    )


def read_entry(value: Mapping[str, Any]) -> DataEntry:
    layout = value["layout"]
    if layout is not None:
        layout = TensorLayout(layout["scalar_type"], tuple(layout["sizes"]), tuple(layout["dim_order"]))
    return DataEntry(value["buffer"], value["alignment"], layout)
