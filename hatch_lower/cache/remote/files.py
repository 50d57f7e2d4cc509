"""Object stores and folders through fsspec: the objects of the Bazel layout under the same names."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hatch_lower.cache.remote.transport import Limits, TransferError, UnreachableError

PIECE = 1 << 20


class FilesTransport:
    """Reads and writes below a URL of a file system that fsspec knows.

    Args:
        url: `s3://bucket/path`, `gs://…`, `az://…`, `file:///path`, …
        options: for the file system; whether it is to be anonymous, most of all.
        limits: of time.
    """

    def __init__(self, url: str, options: Mapping[str, object], limits: Limits) -> None:
        self._url = url
        self._options = {**options, **timeouts_of(urlsplit(url).scheme, limits)}
        self._opened: tuple[Any, str] | None = None

    def read(self, name: str, write: Callable[[bytes], object]) -> bool:
        """Give an object's pieces to `write`; return whether there is such an object."""
        with self._errors():
            system, root = self._open()
            try:
                file = system.open(f"{root}/{name}", "rb")
            except FileNotFoundError:
                return False
            with file:
                while piece := file.read(PIECE):
                    write(piece)
        return True

    def holds(self, name: str, size: int) -> bool:
        """Return whether there is an object of this size."""
        with self._errors():
            system, root = self._open()
            try:
                return bool(system.info(f"{root}/{name}")["size"] == size)
            except FileNotFoundError:
                return False

    def write(self, name: str, source: bytes | Path) -> None:
        """Send an object; in a folder it gets its name when it is whole, as in an object store."""
        with self._errors():
            system, root = self._open()
            path = f"{root}/{name}"
            if not is_folder(system):
                self._put(system, source, path)
                return
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            temporary = f"{path}.{secrets.token_hex(8)}.part"
            try:
                self._put(system, source, temporary)
                Path(temporary).replace(path)
            finally:
                Path(temporary).unlink(missing_ok=True)

    def abandon(self) -> None:
        """Leave a file system that does not answer to its own thread; the next call opens another."""
        self._opened = None

    def _put(self, system: Any, source: bytes | Path, path: str) -> None:
        if isinstance(source, bytes):
            system.pipe_file(path, source)
        else:
            system.put_file(str(source), path)

    def _open(self) -> tuple[Any, str]:
        """Return the file system and the path in it.

        Raises:
            UnreachableError: if the package for this kind of URL is not installed.
        """
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs

                system, root = url_to_fs(self._url, **self._options, skip_instance_cache=True, use_listings_cache=False)
            except (ImportError, ValueError) as error:
                raise UnreachableError(f"{error} (its packages are in the extra `hatch-lower[remote]`)") from error
            self._opened = system, str(root).rstrip("/")
        return self._opened

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Say in our own words what went wrong: each kind of file system has exceptions of its own."""
        try:
            yield
        except TransferError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise TransferError("".join(each if each.isprintable() else " " for each in text[:160])) from error


def is_folder(system: Any) -> bool:
    """Return whether a file system is this machine's, where a file that is being written can be seen."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(system, LocalFileSystem)


def timeouts_of(scheme: str, limits: Limits) -> dict[str, object]:
    """Return the options that keep a file system from waiting long and trying often, where they are known."""
    if scheme in ("s3", "s3a"):
        retries = {"max_attempts": 1}
        config = {"connect_timeout": limits.connect, "read_timeout": limits.silence, "retries": retries}
        return {"config_kwargs": config}
    return {}
