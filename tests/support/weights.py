"""Weights outside a wheel: servers on this machine that have them, honest or not, and a model that lacks them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.format.constants import content_key
from hatch_lower.format.weights import WeightsSource
from support.lowered import file_entry, lowered_model, safetensors_bytes, write_lowered
from support.plans import c, constant, method, op, plan_value, tensor_input, v

COMMIT = "0123456789" * 4


def source_of(url: str, data: bytes) -> WeightsSource:
    """Return the source that a file is."""
    return WeightsSource(url, len(data), sha256_bytes(data))


@dataclass
class Served:
    """A running server of files: `files` and `faults` may be changed while it runs."""

    url: str
    files: dict[str, bytes]
    faults: list[str] = field(default_factory=list)  # of the next answers, one each; `*` before one: of all from there
    requests: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    refusal: tuple[int, str] | None = None  # status and error code of the hub's answers to questions
    has_ranges: bool = True
    has_tags: bool = True

    def asked(self) -> list[str]:
        """Return the ranges that were asked for, in order; empty texts for whole files."""
        return [headers.get("Range", "") for command, _, headers in self.requests if command == "GET"]

    def next_fault(self) -> str:
        """Return how to fail now, if at all."""
        if self.faults and self.faults[0].startswith("*"):
            return self.faults[0][1:]
        return self.faults.pop(0) if self.faults else ""


@contextlib.contextmanager
def served(files: Mapping[str, bytes]) -> Iterator[Served]:
    """Serve files by HTTP, in ranges too; paths of huggingface's hub, `/org/name/resolve/<commit>/file`, as it does."""
    server = Server(("127.0.0.1", 0), Handler)
    server.state = Served(f"http://127.0.0.1:{server.server_address[1]}", dict(files))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.state
    finally:
        server.stopped.set()
        server.shutdown()
        server.server_close()


class Server(ThreadingHTTPServer):
    """What all answers share."""

    daemon_threads = True
    block_on_close = False
    state: Served

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stopped = threading.Event()

    def handle_error(self, *arguments: object) -> None:
        """Print nothing: clients that leave are what is tested."""


class Handler(BaseHTTPRequestHandler):
    """Answers with a file, a range of it, or in the way of a fault."""

    server: Server

    def do_HEAD(self) -> None:
        """Answer without the file."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with a file."""
        state = self.server.state
        state.requests.append((self.command, self.path, dict(self.headers)))
        data = state.files.get(self.path)
        if state.refusal is not None and self.path.startswith("/api/"):
            status, code = state.refusal
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        fault = state.next_fault() if self.command == "GET" else ""
        if data is None or fault in ("404", "500"):
            self.send_response(500 if fault == "500" else 404)
            self.send_header("X-Error-Code", "EntryNotFound")  # as the hub says that there is no such file
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif fault.startswith("reason"):
            self.send_response(404, fault.removeprefix("reason "))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif fault.startswith("redirect"):
            self.send_response(302)
            self.send_header("Location", fault.removeprefix("redirect "))
            self.end_headers()
        elif fault in ("closed", "silent", "drip-headers", "garbage"):
            self.break_off(fault)
        else:
            self.answer(data, fault)

    def answer(self, data: bytes, fault: str) -> None:
        """Send a file or a range of it; `fault` says what is wrong with it."""
        state = self.server.state
        if fault == "other":
            data = bytes(reversed(data))
        if fault in ("longer", "shorter"):  # a file that it really is
            data = data + b"more" if fault == "longer" else data[:-4]
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        begin = self.begin(tag) if state.has_ranges else 0
        if begin > 0 and begin >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        if state.has_tags:
            self.send_header("ETag", tag)
        if "/resolve/" in self.path:
            self.send_header("X-Repo-Commit", self.path.split("/resolve/")[1].split("/")[0])
        if fault == "gzip":
            self.send_header("Content-Encoding", "gzip")
        body = data[begin:]
        # Python refuses to read a number of so many digits
        self.send_header("Content-Length", "9" * 5000 if fault == "endless" else str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "drip":
            self.drip(body)
        elif fault.startswith("cut"):  # the connection ends after so many bytes
            self.wfile.write(body[: int(fault.removeprefix("cut"))])
        else:
            self.wfile.write(body)

    def begin(self, tag: str) -> int:
        """Return the first byte that was asked for."""
        match = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        return int(match[1]) if match and condition in (None, tag) else 0

    def break_off(self, fault: str) -> None:
        """Answer with no answer."""
        with contextlib.suppress(OSError):
            if fault == "silent":
                self.server.stopped.wait(30)
            elif fault == "garbage":
                self.wfile.write(b"\x00\xff not HTTP at all\r\n\r\n")
            elif fault == "drip-headers":
                self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
                self.drip(b"x" * 10_000)

    def drip(self, body: bytes) -> None:
        """Send a byte now and then, so that no single wait is long."""
        with contextlib.suppress(OSError):
            for byte in body:
                self.wfile.write(bytes([byte]))
                if self.server.stopped.wait(0.05):
                    return

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A safetensors file as others publish one: tensors under names of their own."""

    data: bytes
    spans: Mapping[str, tuple[int, int]]  # by name

    def span(self, name: str, position: int = 0) -> dict[str, Any]:
        """Return a span of `weights.json`."""
        begin, end = self.spans[name]
        return {"source": position, "begin": begin, "end": end, "sha256": sha256_bytes(self.data[begin:end])}


def checkpoint(tensors: Mapping[str, tuple[str, int, bytes]], *, shift: int = 0) -> Checkpoint:
    """Return a file; `shift` moves its tensors by so many bytes, off what their elements are aligned to."""
    data = safetensors_bytes(tensors)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    data = (length + shift).to_bytes(8, "little") + data[8 : 8 + length] + b" " * shift + data[8 + length :]
    start = 8 + length + shift
    spans = {
        name: (start + entry["data_offsets"][0], start + entry["data_offsets"][1]) for name, entry in header.items()
    }
    return Checkpoint(data, spans)


def hub_answers(files: Mapping[str, bytes], repository: str = "org/name") -> dict[str, bytes]:
    """Return the hub's answers about the files of a repository, by path of the server."""
    listed = [
        {
            "type": "file",
            "path": name,
            "size": len(data),
            "oid": hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest(),
            **({"lfs": {"oid": sha256_bytes(data), "size": len(data), "pointerSize": 130}} if is_large(name) else {}),
        }
        for name, data in files.items()
    ]
    tree = f"/api/models/{repository}/tree/{COMMIT}?recursive=true&expand=false"
    plain = {f"/{repository}/resolve/{COMMIT}/{name}": data for name, data in files.items()}
    return {**plain, tree: json.dumps(listed).encode()}


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def key_of(dtype: str, content: bytes) -> str:
    """Return the key of a storage."""
    return content_key(dtype, sha256_bytes(content))


def write_outside(
    folder: Path,
    urls: Mapping[str, Checkpoint],
    *,
    inside: Mapping[str, tuple[str, int, bytes]] | None = None,
    **fields: Any,
) -> Path:
    """Write a `_lowered` folder with the model `digits`, which adds all tensors of checkpoints to its input.

    Those in `inside` are in its constants file. All are float32.
    """
    keys: dict[str, dict[str, Any]] = {}
    lengths: dict[str, int] = {}
    for position, file in enumerate(urls.values()):
        for name, (begin, end) in file.spans.items():
            key = key_of("float32", file.data[begin:end])
            keys[key] = file.span(name, position)
            lengths[key] = (end - begin) // 4
    packed = {key_of("float32", content): ("F32", length, content) for _, length, content in (inside or {}).values()}
    lengths |= {key: length for key, (_, length, _) in packed.items()}
    storages = [(key, "float32", length) for key, length in lengths.items()]
    names = [f"w{index}" for index in range(len(storages))]
    body, last = [], v(0)
    for index, name in enumerate(names):
        body.append(op("aten.add.Tensor", last, c(name), out=index + 1))
        last = v(index + 1)
    constants = {
        name: constant(index, length) for index, (name, (_, _, length)) in enumerate(zip(names, storages, strict=True))
    }
    (length,) = set(lengths.values())
    plan = plan_value(forward=method([tensor_input(length)], body, last), storages=storages, constants=constants)
    model = lowered_model(folder, "digits", {"default": {"plan": plan}}, tensors=packed or None)
    sources = [{"url": url, "size": len(file.data), "sha256": sha256_bytes(file.data)} for url, file in urls.items()]
    text = canonical_json({"schema": 1, "sources": sources, "spans": keys, **fields})
    model["weights"] = file_entry(folder, "digits/weights.json", text)
    return write_lowered(folder, {"digits": model})
