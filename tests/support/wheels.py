"""Small wheels made by hand, for tests that compare them."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

METADATA = "tiny-1.0.dist-info/"
EARLY = (2020, 2, 2, 0, 0, 0)
Contents = Mapping[str, bytes | str]


def make_wheel(
    path: Path,
    files: Contents,
    *,
    date: tuple[int, int, int, int, int, int] = EARLY,
    mode: int = 0o100644,
    deflated: bool = True,
    level: int = 6,
    extra: bytes = b"",
    order: Sequence[str] = (),
    record: str | None = None,
    comment: bytes = b"",
) -> Path:
    """Write a wheel with a RECORD, files below `_lowered` stored; the order is that of `files` if none is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    rows = [f"{name},sha256={record_digest(data)},{len(data)}\n" for name, data in contents.items()]
    name = f"{METADATA}RECORD"
    contents[name] = ("".join([*rows, f"{name},,\n"]) if record is None else record).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name in order or contents:
            info = zipfile.ZipInfo(name, date)
            info.external_attr = mode << 16
            info.extra = extra
            info.compress_type = zipfile.ZIP_DEFLATED if deflated and "_lowered" not in name else zipfile.ZIP_STORED
            archive.writestr(info, contents[name], compresslevel=level)
        archive.comment = comment
    return path


def record_digest(data: bytes) -> str:
    """Return a digest as RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def sha256(data: bytes) -> str:
    """Return a digest as manifests write it."""
    return hashlib.sha256(data).hexdigest()


def tensors(values: Mapping[str, tuple[str, Sequence[int], bytes]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a safetensors file of dtype, shape and bytes by name."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    begin, data = 0, b""
    for name, (dtype, shape, contents) in values.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + len(contents)]}
        begin, data = begin + len(contents), data + contents
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def lowered(
    delegates: Sequence[tuple[str, bytes]] = (), constants: Mapping[str, bytes] | None = None, tools: str = "2.13.0"
) -> dict[str, bytes]:
    """Return the files of a model in the shape of a build's: delegates and tensors are called by their digests.

    Args:
        delegates: suffix and contents of each, in the order in which the plan calls them.
        constants: name of a constant to its bytes, which are numbers of float32.
        tools: the version of torch.
    """
    digests = {name: sha256(data) for name, data in (constants or {}).items()}
    names = [f"net/delegates/{sha256(data)}.{suffix}" for suffix, data in delegates]
    files = {name: data for name, (_, data) in zip(names, delegates, strict=True)}
    stored = {digests[name]: ("F32", [len(data) // 4], data) for name, data in (constants or {}).items()}
    files["net/constants.safetensors"] = tensors(dict(sorted(stored.items())))
    plan = {
        "constants": {name: {"dtype": "float32", "storage": at} for at, name in enumerate(digests)},
        "storages": [{"key": digest, "dtype": "float32"} for digest in digests.values()],
        "delegates": [{"file": name} for name in names],
    }
    files["net/default.json"] = json.dumps(plan).encode()
    listed = [{"path": name, "sha256": sha256(data), "size": len(data)} for name, data in sorted(files.items())]
    files["manifest.json"] = json.dumps({"torch": tools, "tools": {}, "files": listed}).encode()
    return {f"tiny/_lowered/{name}": data for name, data in sorted(files.items())}
