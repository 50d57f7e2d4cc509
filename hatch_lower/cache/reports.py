"""Reports of lowered models in the store: a build with the same inputs packages a report instead of lowering.

The parent process reads reports in every build, so modules that only `read_report` needs are imported there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from hatch_lower.cache.store import Store
from hatch_lower.errors import LowerError
from hatch_lower.format.results import MethodRow, ModelResult, PayloadFile

if TYPE_CHECKING:
    from hatch_lower.format.record import ModelReport

REPORT_SCHEMA = 5


def report_value(store: Store, report: ModelReport) -> dict[str, object] | None:
    """Store a report's files; return it as JSON without paths of this machine, or `None` if the store lacks a file."""
    from hatch_lower.format.codec import encode
    from hatch_lower.format.manifest import model_json

    for file in (*report.files, *report.beside):
        path = store.blob_path(file.sha256)
        if file.source != path and store.put_blob(file.source.read_bytes()) != file.sha256:
            return None
        if not path.is_file():
            return None
    files, beside = ([file_value(file) for file in listed] for listed in (report.files, report.beside))
    paths = {file.source: file.path for file in report.files}
    native = sorted(paths[source] for source in report.native)
    value: dict[str, object] = encode(replace(report, files=(), native=(), beside=()))
    manifest = model_json(report.manifest)
    stored = {"files": files, "native": native, "beside": beside}
    return {**value, "manifest": manifest, **stored, "schema": REPORT_SCHEMA}


def file_value(file: PayloadFile) -> dict[str, object]:
    return {"path": file.path, "size": file.size, "sha256": file.sha256}


def report_blobs(value: Mapping[str, Any]) -> list[str]:
    forms = [method["form"] for method in value["methods"].values()]
    return list(dict.fromkeys([*(file["sha256"] for file in (*value["files"], *value["beside"])), *forms]))


def read_model_result(store: Store, value: Mapping[str, Any], level: int = 1) -> ModelResult | None:
    """Return the parts of a stored report that packaging needs, or `None` for an unusable report.

    `level` is the level of reuse at which the report was found.
    """
    try:
        if value["schema"] != REPORT_SCHEMA:
            return None
        model: str = value["model"]
        files, beside = (
            {
                file["path"]: PayloadFile(file["path"], store.blob_path(file["sha256"]), file["size"], file["sha256"])
                for file in value[name]
            }
            for name in ("files", "beside")
        )
        # the report may come from another machine: no path may lead out of the folder, on any system
        if not all(lies_within(path, model) for path in files) or not all(is_file_name(path) for path in beside):
            return None
        if not all(file.source.stat().st_size == file.size for file in (*files.values(), *beside.values())):
            return None
        return ModelResult(
            model=model,
            entry=value["manifest"],
            files=tuple(files.values()),
            rows=tuple(
                MethodRow(**{**row, "level": level, "seconds": 0.0, "reused": row["partitions"], "note": ""})
                for row in value["rows"]
            ),
            native=tuple(sorted(files[path].source for path in value["native"])),
            tools=value["tools"],
            torch=value["torch"],
            origin={"architecture": value["architecture"], "backends": value["backends"]},
            outside=value["outside"],
            beside=tuple(beside.values()),
        )
    except (KeyError, TypeError, AttributeError, OSError, LowerError):
        return None


def lies_within(path: str, folder: str) -> bool:
    first, *rest = path.split("/")
    return first == folder and bool(rest) and not {"", ".", ".."} & set(rest) and not {"\\", "\0", ":"} & set(path)


def is_file_name(path: str) -> bool:
    return lies_within(f"_/{path}", "_") and "/" not in path


def read_report(store: Store, value: Mapping[str, Any], level: int = 1) -> ModelReport | None:
    """Return a complete stored report, slower than `read_model_result`; `None` also if a field is missing."""
    from hatch_lower.format.codec import decode
    from hatch_lower.format.record import ModelReport

    result = read_model_result(store, value, level)
    if result is None:
        return None
    try:
        told = {field.name: value[field.name] for field in fields(ModelReport)}
        report: ModelReport = decode(ModelReport, {**told, "files": [], "native": [], "beside": []}, "a report")
    except (KeyError, LowerError):
        return None
    if not report.manifest.recipes:  # the report of an audit
        return None
    return replace(report, files=result.files, rows=result.rows, native=result.native, beside=result.beside)
