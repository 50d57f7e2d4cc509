"""Transports of a remote cache's objects: HTTP, or fsspec for a folder or an object store.

Both transports name objects as Bazel's HTTP cache protocol does: `ac/<sha256>` and `cas/<sha256>`. The client checks
the contents, not the transport.
"""

from __future__ import annotations

import contextlib
import io
import secrets
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from hatch_lower.frozen import Frozen
from hatch_lower.urls import UrlError, open_remote_folder, web_fault

if TYPE_CHECKING:
    import fsspec
    import urllib3

PIECE = 1 << 16
FOUND, TAKEN = (200,), (200, 201, 202, 204)


class TransferError(Exception):
    """An object could not be read or written; the text is the reason, in a few words."""


class UnreachableError(TransferError):
    """The remote fails for good: asking again is useless."""


class TransferLimits(Frozen):
    """Limits of time and space for a remote cache."""

    connect: float = 5.0  # seconds until a connection is open
    silence: float = 10.0  # seconds without a byte
    object: float = 20.0  # seconds for an object, beside the time for its size at `rate`
    rate: float = 256 * 1024  # bytes per second below which a transfer is given up
    build: float = 600.0  # seconds for all objects of a build, in one process
    failures: int = 3  # after so many failures the remote is not used any more
    result_bytes: int = 4 << 20  # of an action result
    entry_bytes: int = 16 << 20  # of a record

    def seconds(self, size: int) -> float:
        return self.object + size / self.rate


class Transport(Protocol):
    """A reader and writer of objects; a failing remote is a `TransferError`, a missing package an `ImportError`."""

    def read(self, name: str) -> Generator[bytes] | None:
        """Return an object in pieces, or `None`; the caller closes the generator after the last piece."""

    def holds(self, name: str, size: int) -> bool:
        """Return whether an object of this name and size exists; False in doubt."""

    def write(self, name: str, source: bytes | Path) -> None: ...


class HttpTransport:
    """A server of Bazel's HTTP cache protocol, over a connection that is kept open."""

    def __init__(self, url: str, authorization: str, limits: TransferLimits) -> None:
        self._url = url
        self._fault = web_fault(url)
        self._path = "" if self._fault else urlsplit(url).path.rstrip("/")
        self._headers = {"Authorization": authorization} if authorization else {}
        self._limits = limits
        self._pool: urllib3.HTTPConnectionPool | None = None

    def read(self, name: str) -> Generator[bytes] | None:
        response = self._request("GET", name)
        if response.status == 404:
            self._discard(response)
            return None
        self._expect(response, FOUND)
        return self._pieces(response)

    def holds(self, name: str, size: int) -> bool:
        response = self._request("HEAD", name)
        self._discard(response)
        return response.status in FOUND and response.headers.get("Content-Length", str(size)) == str(size)

    def write(self, name: str, source: bytes | Path) -> None:
        response = self._request("PUT", name, source)
        self._expect(response, TAKEN)
        self._discard(response)

    def _request(self, method: str, name: str, source: bytes | Path | None = None) -> urllib3.BaseHTTPResponse:
        if self._fault:
            raise UnreachableError(f"no connection is opened: {self._fault}")
        import urllib3  # takes 100 ms, so not in builds without a remote cache

        if self._pool is None:
            timeout = urllib3.Timeout(connect=self._limits.connect, read=self._limits.silence)
            self._pool = urllib3.connection_from_url(self._url, timeout=timeout)
        for is_last in (False, True):
            with contextlib.ExitStack() as stack:
                stack.enter_context(http_errors())
                body: io.BufferedReader | bytes | None
                headers = self._headers
                if isinstance(source, Path):
                    body, size = stack.enter_context(source.open("rb")), source.stat().st_size
                else:
                    body, size = source, len(source or b"")
                if body is not None:
                    headers = {**headers, "Content-Length": str(size), "Content-Type": "application/octet-stream"}
                try:
                    # no redirect and no proxy: `Authorization` reaches only the named host
                    return self._pool.urlopen(
                        method,
                        f"{self._path}/{name}",
                        body,
                        headers,
                        retries=False,
                        redirect=False,
                        preload_content=False,
                        decode_content=False,
                    )
                except urllib3.exceptions.ProtocolError:
                    # the server may close an idle connection just when a request is sent
                    if is_last:
                        raise
        raise AssertionError("the second request returns or raises")

    def _expect(self, response: urllib3.BaseHTTPResponse, statuses: tuple[int, ...]) -> None:
        if response.status in statuses:
            return
        detail = f"{response.status} {printable_reason(response.reason or '')}".strip()
        if 300 <= response.status < 400:
            target = urlsplit(response.headers.get("Location", "")).netloc
            detail += f" (a redirect to `{printable_reason(target)}`, which is not followed)"
        self._discard(response)
        raise TransferError(f"the answer was {detail}")

    def _discard(self, response: urllib3.BaseHTTPResponse) -> None:
        # keep the connection only if the rest of the answer is short: some servers send an endless answer
        with http_errors():
            response.read(PIECE)
        response.close()

    def _pieces(self, response: urllib3.BaseHTTPResponse) -> Generator[bytes]:
        try:
            with http_errors():
                yield from response.stream(PIECE)
        finally:
            response.close()


@contextlib.contextmanager
def http_errors() -> Iterator[None]:
    from urllib3 import exceptions

    try:
        yield
    except (exceptions.NewConnectionError, exceptions.ConnectTimeoutError, exceptions.SSLError) as error:
        raise UnreachableError(f"no connection: {printable_reason(str(error.__cause__ or error))}") from error
    except exceptions.ReadTimeoutError as error:
        raise TransferError("no byte came for too long") from error
    except (exceptions.HTTPError, ValueError) as error:
        raise TransferError(printable_reason(str(error)) or type(error).__name__) from error


class FilesTransport:
    """Objects below a URL: `s3://bucket/path`, `gs://…`, `az://…`, `file:///path`."""

    def __init__(self, url: str, options: Mapping[str, object], limits: TransferLimits) -> None:
        self._url = url
        self._options = dict(options)
        if url.startswith("s3:"):
            timeouts = {"connect_timeout": limits.connect, "read_timeout": limits.silence}
            self._options["config_kwargs"] = {**timeouts, "retries": {"max_attempts": 1}}
        self._opened: tuple[fsspec.AbstractFileSystem, str] | None = None

    def read(self, name: str) -> Generator[bytes] | None:
        with self._errors():
            system, root = self._open()
            try:
                file = system.open(f"{root}/{name}", "rb")
            except FileNotFoundError:
                return None
        return self._pieces(file)

    def _pieces(self, file: io.BufferedIOBase) -> Generator[bytes]:
        with file, self._errors():
            while piece := file.read(PIECE):
                yield piece

    def holds(self, name: str, size: int) -> bool:
        with self._errors():
            system, root = self._open()
            try:
                return bool(system.info(f"{root}/{name}")["size"] == size)
            except FileNotFoundError:
                return False

    def write(self, name: str, source: bytes | Path) -> None:
        from fsspec.implementations.local import LocalFileSystem

        with self._errors():
            system, root = self._open()
            path = f"{root}/{name}"
            if not isinstance(system, LocalFileSystem):
                put(system, source, path)
                return
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            # an object store shows only whole objects; a folder shows unfinished files
            temporary = f"{path}.{secrets.token_hex(8)}.part"
            try:
                put(system, source, temporary)
                Path(temporary).replace(path)
            finally:
                Path(temporary).unlink(missing_ok=True)

    def _open(self) -> tuple[fsspec.AbstractFileSystem, str]:
        if self._opened is None:
            try:
                system, root = open_remote_folder(self._url, self._options)
            except UrlError as error:
                raise UnreachableError(f"no connection is opened: {printable_reason(str(error))}") from error
            self._opened = system, root.rstrip("/")
        return self._opened

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (TransferError, ImportError):
            raise
        except Exception as error:  # each kind of file system raises different exceptions
            raise TransferError(printable_reason(f"{type(error).__name__}: {error}")) from error


def put(system: fsspec.AbstractFileSystem, source: bytes | Path, path: str) -> None:
    if isinstance(source, bytes):
        system.pipe_file(path, source)
    else:
        system.put_file(str(source), path)


def printable_reason(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:160])
