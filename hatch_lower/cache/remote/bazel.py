"""The HTTP cache protocol of Bazel: `GET`, `HEAD` and `PUT` of `/ac/<sha256>` and `/cas/<sha256>`.

No redirect is followed, so the header `Authorization` reaches no host but the one that was named.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from hatch_lower.cache.remote.transport import Limits, TransferError, UnreachableError

PIECE = 1 << 16
FOUND, TAKEN = (200,), (200, 201, 202, 204)


class HttpTransport:
    """Speaks to one server over a connection that is kept open.

    Args:
        url: `http://` or `https://`, host, and perhaps a path.
        authorization: the header of that name; empty: none.
        limits: of time.
    """

    def __init__(self, url: str, authorization: str, limits: Limits) -> None:
        parts = urlsplit(url)
        self._connection: http.client.HTTPConnection | None = None
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/")
        self._headers = {"Authorization": authorization} if authorization else {}
        self._limits = limits

    def __del__(self) -> None:
        """Close the connection that is kept."""
        self._close()

    def read(self, name: str, write: Callable[[bytes], object]) -> bool:
        """Give an object's pieces to `write`; return whether there is such an object."""
        with self._errors():
            response = self._exchange("GET", name)
            if response.status == 404:
                self._drain(response)
                return False
            self._expect(response, FOUND)
            while piece := response.read(PIECE):
                write(piece)
            if response.length:
                raise TransferError("the answer ended early")
            self._finish(response)
        return True

    def holds(self, name: str, size: int) -> bool:
        """Return whether the server says that there is an object of this size."""
        with self._errors():
            response = self._exchange("HEAD", name)
            self._finish(response)
        return response.status in FOUND and response.getheader("Content-Length", str(size)) == str(size)

    def write(self, name: str, source: bytes | Path) -> None:
        """Send an object."""
        with self._errors():
            response = self._exchange("PUT", name, source)
            self._expect(response, TAKEN)
            self._drain(response)

    def abandon(self) -> None:
        """End the connection under the thread that waits for an answer; that thread then closes it."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def _exchange(self, method: str, name: str, source: bytes | Path = b"") -> http.client.HTTPResponse:
        """Send a request and return the begin of its answer; once more if the kept connection was closed."""
        if self._connection is not None:
            with contextlib.suppress(ConnectionError):
                return self._request(self._connection, method, name, source)
            self._close()
        self._connection = self._connect()
        return self._request(self._connection, method, name, source)

    def _connect(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._limits.connect, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._limits.connect)
        try:
            connection.connect()
        except OSError as error:
            raise UnreachableError(f"no connection: {error}") from error
        connection.sock.settimeout(self._limits.silence)
        return connection

    def _request(
        self, connection: http.client.HTTPConnection, method: str, name: str, source: bytes | Path
    ) -> http.client.HTTPResponse:
        with contextlib.ExitStack() as stack:
            headers: Mapping[str, str] = self._headers
            body: io.BufferedIOBase | bytes | None = None
            if method == "PUT":
                size = len(source) if isinstance(source, bytes) else source.stat().st_size
                body = source if isinstance(source, bytes) else stack.enter_context(source.open("rb"))
                headers = {**headers, "Content-Length": str(size), "Content-Type": "application/octet-stream"}
            connection.request(method, f"{self._path}/{name}", body, headers)
            return connection.getresponse()

    def _expect(self, response: http.client.HTTPResponse, statuses: tuple[int, ...]) -> None:
        if response.status not in statuses:
            detail = f"{response.status} {printable(response.reason)}".strip()
            if 300 <= response.status < 400:
                target = urlsplit(response.getheader("Location", "")).netloc
                detail += f" (a redirect to `{printable(target)}`, which is not followed)"
            raise TransferError(f"the answer was {detail}")

    def _drain(self, response: http.client.HTTPResponse) -> None:
        """Read the short body of an answer that says nothing more; close the connection if it is not short."""
        response.read(PIECE)
        self._finish(response)

    def _finish(self, response: http.client.HTTPResponse) -> None:
        """Keep the connection for the next request, if the answer is at its end."""
        if not response.isclosed():
            response.read(1)
        if not response.isclosed():
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Close the connection after anything unexpected, and say in our own words what it was."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._close()
            reason = "no byte came for too long" if isinstance(error, TimeoutError) else f"{error}"
            raise TransferError(printable(reason) or type(error).__name__) from error
        except BaseException:
            self._close()
            raise


def printable(text: str) -> str:
    """Return what a server said on one short line, without control characters."""
    return "".join(each if each.isprintable() else "?" for each in text[:120])
