"""Reports of lowered models in the store: what a build of the same inputs needs instead of lowering.

The parent process uses it too, so it imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hatch_lower.cache.store import Store
from hatch_lower.canonical import sha256_file
from hatch_lower.errors import LowerError
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.reading import read_path
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import PayloadFile

REPORT_SCHEMA = 2

SMALL = 1 << 24
"""Bytes up to which a file is checked against its digest when a report is restored; larger ones are checked by size,
and by digest when they are put into the wheel."""


def report_value(store: Store, report: ModelReport) -> dict[str, Any] | None:
    """Put a report's files into the store and return the report as JSON without a path of this machine.

    Args:
        store: gets a blob for each file. The constants file is one already.
        report: of a lowered model.

    Returns:
        `None` if the store does not hold all files, because it is not written.
    """
    files = []
    for file in report.files:
        path = store.blob_path(file.sha256)
        if file.source != path and store.put_blob(file.source.read_bytes()) != file.sha256:
            return None
        if not path.is_file():
            return None
        files.append({"path": file.path, "size": file.size, "sha256": file.sha256})
    paths = {file.source: file.path for file in report.files}
    native = sorted(paths[source] for source in report.native)
    value: dict[str, Any] = encode(replace(report, files=(), native=()))
    return {**value, "files": files, "native": native, "schema": REPORT_SCHEMA}


def report_blobs(value: Mapping[str, Any]) -> list[str]:
    """Return the digests of the blobs that a stored report needs, each once, for `Store.put`."""
    forms = [method["form"] for method in value["methods"].values()]
    return list(dict.fromkeys([*(file["sha256"] for file in value["files"]), *forms]))


def restore_report(store: Store, value: Mapping[str, Any], level: int = 1) -> ModelReport | None:
    """Return the report that `report_value` described, its files in the store.

    Args:
        store: where its files are.
        value: what `report_value` returned.
        level: of the look-up that found it, for the rows.

    Returns:
        `None` if it is of another version, a file is missing or damaged, or one would come to lie in the wheel where
        the model's files do not: another machine may have written it.
    """
    try:
        if value["schema"] != REPORT_SCHEMA:
            return None
        rest = {name: each for name, each in value.items() if name not in ("schema", "files", "native")}
        report: ModelReport = decode(ModelReport, {**rest, "files": [], "native": []})
        files = tuple(
            PayloadFile(
                read_path(file["path"], "a report"), store.blob_path(file["sha256"]), file["size"], file["sha256"]
            )
            for file in value["files"]
        )
        if not all(file.path.startswith(f"{report.model}/") for file in files):
            return None
        sources = {file.path: file.source for file in files}
        native = tuple(sorted(sources[path] for path in value["native"]))
    except (KeyError, TypeError, ValueError, AttributeError, LowerError):
        return None
    if not all(is_there(file) for file in files):
        return None
    rows = tuple(replace(row, level=level, reused=row.partitions, seconds=0.0) for row in report.rows)
    return replace(report, files=files, native=native, rows=rows)


def is_there(file: PayloadFile) -> bool:
    """Return whether a file is what it was, as far as this costs little."""
    try:
        if file.source.stat().st_size != file.size:
            return False
        return file.size > SMALL or sha256_file(file.source) == file.sha256
    except OSError:
        return False
