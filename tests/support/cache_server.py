"""A server of Bazel's HTTP cache protocol for tests: a process of its own, honest or broken in one way.

`python cache_server.py FOLDER FAULT PORT` prints its port. What it was asked is in `FOLDER/requests`, in lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULTS = (
    *("silent", "500", "truncated", "swapped", "endless", "endless-chunks", "drip", "drip-headers", "redirect"),
    *("longer-length", "shorter-length", "garbage", "closed", "no-length", "empty", "huge-404"),
)
PATIENCE = 30


@dataclass(frozen=True, slots=True)
class CacheServer:
    """A running server."""

    url: str
    folder: Path

    def requests(self) -> list[dict[str, Any]]:
        """Return what was asked: method, path, and the header `Authorization`."""
        path = self.folder / "requests"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def sent(self) -> list[str]:
        """Return the path of each entry that was sent, as often as it was."""
        return [each["path"] for each in self.requests() if each["method"] == "PUT" and "/ac/" in each["path"]]

    def kind_of(self, path: str) -> object:
        """Return the kind of an entry, as its key names it."""
        from hatch_lower.cache.remote.client import ENVELOPE, decode_action_result
        from hatch_lower.cache.remote.envelope import read_envelope

        files = decode_action_result(self.object("ac", Path(path).name).read_bytes())
        (envelope,) = (file for file in files if file.path == ENVELOPE)
        entry, _ = read_envelope(self.object("cas", envelope.sha256).read_bytes())
        return entry.components.get("kind")

    def object(self, kind: str, name: str) -> Path:
        """Return the file of an object."""
        return self.folder / kind / name


@contextlib.contextmanager
def cache_server(folder: Path, fault: str = "", port: int = 0) -> Iterator[CacheServer]:
    """Run a server over a folder, at a port or any.

    `fault` is one of `FAULTS`, with `-cas` after it if action results are to be good.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, str(folder), fault, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        named = process.stdout.readline().strip()
        try:
            yield CacheServer(f"http://127.0.0.1:{named}", folder)
        finally:
            process.kill()


class Handler(BaseHTTPRequestHandler):
    """Answers from the server's folder."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer with an object, or in the way of the fault."""
        self.note()
        path = self.file()
        fault = self.server.fault
        if fault.endswith("-cas"):
            fault = fault.removesuffix("-cas") if "/cas/" in self.path else ""
        if fault:
            self.fail(fault, path.read_bytes() if path.is_file() else b"x" * 100)
        elif path.is_file():
            self.answer(200, path.read_bytes())
        else:
            self.answer(404, b"")

    def do_HEAD(self) -> None:
        """Answer whether there is an object."""
        self.note()
        path = self.file()
        self.send_response(200 if path.is_file() else 404)
        self.send_header("Content-Length", str(path.stat().st_size if path.is_file() else 0))
        self.end_headers()

    def do_PUT(self) -> None:
        """Take an object."""
        self.note()
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.fault == "no-put":
            self.answer(403, b"read only")
            return
        self.file().parent.mkdir(parents=True, exist_ok=True)
        self.file().write_bytes(data)
        self.answer(200, b"")

    def file(self) -> Path:
        """Return the file of the object that was asked for."""
        kind, name = self.path.split("/")[-2:]
        return self.server.folder / kind / name

    def note(self) -> None:
        """Write down what was asked."""
        line = {"method": self.command, "path": self.path, "authorization": self.headers.get("Authorization")}
        with (self.server.folder / "requests").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def answer(self, status: int, body: bytes, length: int | None = None) -> None:
        """Send a whole answer, or one that says another length."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, fault: str, body: bytes) -> None:
        """Answer in the way of a fault."""
        self.close_connection = True
        match fault:
            case "silent":
                time.sleep(PATIENCE)
            case "500":
                self.answer(500, b"broken")
            case "truncated":
                self.answer(200, body[: len(body) // 2], len(body))
            case "swapped":
                self.answer(200, bytes(reversed(body)))
            case "endless":
                self.answer(200, b"", 1 << 50)
                self.flood(b"x" * 65536)
            case "endless-chunks":
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.flood(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            case "drip":
                self.answer(200, b"", len(body))
                self.drip(body)
            case "drip-headers":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                self.drip(b"x" * 10_000)
            case "redirect":
                self.send_response(302)
                self.send_header("Location", self.server.elsewhere + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
            case "longer-length":
                self.answer(200, body, len(body) + 10)
            case "shorter-length":
                self.answer(200, body, len(body) - 10)
            case "garbage":
                self.wfile.write(b"\x00\xff not HTTP at all\r\n\r\n")
            case "closed":
                self.connection.close()
            case "no-length":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + body[:-1])
            case "empty":
                self.answer(200, b"")
            case "huge-404":
                self.answer(404, b"", 1 << 50)
                self.flood(b"x" * 65536)

    def flood(self, piece: bytes) -> None:
        """Send without an end."""
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(piece)

    def drip(self, body: bytes) -> None:
        """Send a byte now and then, so that no single wait is long."""
        with contextlib.suppress(OSError):
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(0.1)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """The folder that is served, and how."""

    daemon_threads = True

    def __init__(self, folder: Path, fault: str, elsewhere: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.folder, self.fault, self.elsewhere = folder, fault, elsewhere

    def handle_error(self, *arguments: object) -> None:
        """Print nothing: clients that leave are what is tested."""


if __name__ == "__main__":
    served, _, other = sys.argv[2].partition("=")
    server = Server(Path(sys.argv[1]), served, other or "http://127.0.0.1:9", int(sys.argv[3]))
    print(server.server_address[1], flush=True)
    server.serve_forever()
