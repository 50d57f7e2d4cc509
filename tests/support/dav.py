"""A server from a package that keeps files, as some teams have one: WebDAV, which a shared cache can be."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CODE = """
import sys
from cheroot.wsgi import Server
from wsgidav.wsgidav_app import WsgiDAVApp
app = WsgiDAVApp({
    "provider_mapping": {"/": sys.argv[1]}, "simple_dc": {"user_mapping": {"*": True}}, "logging": {"enable": False},
})
server = Server(("127.0.0.1", 0), app)
server.prepare()
print(server.bind_addr[1], flush=True)
server.serve()
"""


@contextlib.contextmanager
def dav_server(folder: Path) -> Iterator[str]:
    """Serve a folder; the address is that of a shared cache."""
    pytest.importorskip("wsgidav")
    for name in ("ac", "cas"):  # it makes none by itself
        (folder / name).mkdir(parents=True)
    command = [sys.executable, "-c", CODE, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()
