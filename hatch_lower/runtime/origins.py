"""Origins of downloads: a web server, a local file, or an object store through fsspec.

An origin returns a file from a given byte on, in pieces. No origin is trusted: the receiver compares size and digest.
"""

from __future__ import annotations

import base64
import http.client
import netrc
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from hatch_lower import __version__
from hatch_lower.canonical import PIECE
from hatch_lower.frozen import Frozen
from hatch_lower.timeouts import call_within
from hatch_lower.urls import WEB, UrlError, open_fault, open_remote_folder, web_fault

BUSY = (408, 425, 429, 500, 502, 503, 504)  # temporary errors
COUNT = r"[0-9]{1,18}"
RANGE = re.compile(rf"bytes ({COUNT})-{COUNT}/({COUNT}|\*)")
INSTALL = 'install it: pip install "hatch-lower[{}]"'


class RefusedDownloadError(Exception):
    """A file is unavailable. The text is a short reason, `hint` a remedy if known."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class BrokenError(Exception):
    """A transfer ended too early; another try may resume."""

    stamp = ""  # of the contents received so far


class DownloadLimits(Frozen):
    """Limits of a download's time."""

    silence: float = 30.0  # seconds until a connection is open, an answer begins, or the next byte arrives
    rate: float = 1024.0  # bytes per second; slower transfers are stopped
    tries: int = 4  # consecutive tries that each receive less than `progress` bytes
    progress: int = 1 << 20
    pause: float = 1.0  # seconds before the second try; increases with each try


LIMITS = DownloadLimits()


class Stream(NamedTuple):
    """A file from a given byte on."""

    begin: int  # offset of the first piece; 0 if the origin sends whole files only
    size: int | None  # of the whole file; `None` if the origin does not declare the size
    stamp: str  # ETag or date, equal for equal contents; empty if the origin has none
    pieces: Iterator[bytes]
    close: Callable[[], object]


class DownloadOrigin(Protocol):
    def open(self, begin: int, stamp: str) -> Stream:
        """Return the file from a byte on; `stamp` is the stamp of the bytes before, if any were received."""
        # raises `RefusedDownloadError` if the file is unavailable; `BrokenError`, from pieces too, if a retry may help


def choose_download_origin(url: str, limits: DownloadLimits) -> DownloadOrigin:
    if fault := open_fault(url):
        raise refused_url(fault)
    scheme = urlsplit(url).scheme
    if scheme in WEB:
        return HttpOrigin(url, limits)
    return LocalOrigin(local_path(url)) if scheme == "file" else FilesOrigin(url, limits)


def refused_url(fault: str) -> RefusedDownloadError:
    return RefusedDownloadError(f"no connection is opened: {fault}", "name a place with the same bytes with `--from`")


def local_path(url: str) -> Path:
    return Path(urllib.request.url2pathname(urlsplit(url).path))


class LocalOrigin:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, begin: int, stamp: str) -> Stream:
        try:
            if not self._path.is_file():
                raise RefusedDownloadError("not a file" if self._path.exists() else "the file does not exist")
            file = self._path.open("rb")
            size = file.seek(0, 2)
            file.seek(begin)
        except OSError as error:
            raise RefusedDownloadError(f"the file cannot be read: {error.strerror or error}") from error
        return Stream(begin, size, "", pieces_of(file), file.close)


class HttpOrigin:
    """A file on a web server. Proxies are taken from the environment, credentials from `.netrc`."""

    def __init__(self, url: str, limits: DownloadLimits, headers: Mapping[str, str] = {}) -> None:
        if fault := web_fault(url):
            raise refused_url(fault)
        self._url = url
        self._limits = limits
        self._own = {**netrc_headers(url), **headers}  # for this host only, not for the target of a redirect

    def open(self, begin: int, stamp: str) -> Stream:
        try:
            response = self._request(begin, stamp)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and begin:
                return self.open(0, "")  # the file has become shorter
            text = f"the answer was {error.code} {error.reason}".strip()
            raise (BrokenError if error.code in BUSY else RefusedDownloadError)(text) from error
        try:
            stream = self._answer(response, begin, stamp)
        except RefusedDownloadError:
            response.close()
            raise
        if stream is not None:
            return stream
        response.close()
        return self.open(0, "")

    def _request(self, begin: int, stamp: str) -> Any:
        # not compressed, so that byte ranges are ranges of the file
        headers = {"Accept-Encoding": "identity", "User-Agent": f"hatch-lower/{__version__}"}
        if begin:
            headers["Range"] = f"bytes={begin}-"
        if begin and stamp:
            headers["If-Range"] = stamp
        try:
            request = urllib.request.Request(self._url, headers=headers)
            for name, value in self._own.items():
                request.add_unredirected_header(name, value)
            opener = make_opener()
            patience = self._limits.silence
            return call_within(2 * patience, lambda: opener.open(request, timeout=patience), TimeoutError())
        except urllib.error.HTTPError:
            raise
        except TimeoutError as error:
            raise BrokenError("no answer came for too long") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError | ConnectionResetError):
                raise BrokenError(f"no connection: {error.reason}") from error
            raise RefusedDownloadError(f"no connection: {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise BrokenError(f"the connection broke: {type(error).__name__}: {error}") from error
        except ValueError as error:  # the URL is invalid
            raise RefusedDownloadError(str(error)) from error

    def _answer(self, response: Any, begin: int, stamp: str) -> Stream | None:
        """Return the stream of an answer; `None` if the answer does not continue the bytes before `begin`."""
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise RefusedDownloadError(f"the answer is encoded: {encoding}")
        found = response.headers.get("ETag", "")
        if not found or found.startswith("W/"):
            found = response.headers.get("Last-Modified", "")
        length = response.headers.get("Content-Length", "")
        whole = int(length) if re.fullmatch(COUNT, length) else None
        if response.status == 200:
            return Stream(0, whole, found, self._pieces(response, whole), response.close)
        place = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status != 206 or place is None or int(place[1]) != begin:
            raise RefusedDownloadError(f"the answer {response.status} has other bytes than the requested range")
        if stamp and found and stamp != found:
            return None  # the server ignores `If-Range`
        size = None if place[2] == "*" else int(place[2])
        left = None if size is None else size - begin
        return Stream(begin, size, found, self._pieces(response, left), response.close)

    def _pieces(self, response: Any, length: int | None) -> Iterator[bytes]:
        left = length
        try:
            while piece := response.read1(PIECE):
                yield piece
                left = None if left is None else left - len(piece)
        except TimeoutError as error:
            raise BrokenError("no byte came for too long") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise BrokenError(f"the connection broke: {type(error).__name__}: {error}") from error
        if left:
            raise BrokenError(f"the connection ended {left} bytes too early")


class Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise RefusedDownloadError(f"a redirect away from https, to {newurl[:200]}")
        if fault := web_fault(newurl):
            raise RefusedDownloadError(f"a redirect to {newurl[:200]} is not followed: {fault}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except BaseException:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def make_opener(certificates: str = "") -> urllib.request.OpenerDirector:
    # `certificates`: a file, in place of the system's certificates
    # not `build_opener`, which also follows redirects to `ftp:`
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=certificates or None)),
        Redirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def netrc_headers(url: str) -> Mapping[str, str]:
    host = urlsplit(url).hostname
    with suppress(OSError, netrc.NetrcParseError):
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(host) if host and url.startswith("https:") else None
        if found:
            text = base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode()
            return {"Authorization": f"Basic {text}"}
    return {}


class FilesOrigin:
    """A file opened by fsspec: `s3://bucket/path`, `gs://…`, `az://…`."""

    def __init__(self, url: str, limits: DownloadLimits) -> None:
        self._url = url
        self._options: dict[str, object] = {}
        if url.startswith("s3:"):
            timeouts = {"connect_timeout": limits.silence, "read_timeout": limits.silence}
            self._options["config_kwargs"] = {**timeouts, "retries": {"max_attempts": 1}}

    def open(self, begin: int, stamp: str) -> Stream:
        try:
            system, path = open_remote_folder(self._url, self._options)
            file = system.open(path, "rb", block_size=4 * PIECE)
            details = getattr(file, "details", None) or {}
            found = str(details.get("ETag") or details.get("etag") or "")
            file.seek(begin if not stamp or stamp == found else 0)
            return Stream(file.tell(), file.size, found, fsspec_pieces(file), file.close)
        except UrlError as error:
            raise refused_url(str(error)) from error
        except ImportError as error:
            raise RefusedDownloadError(str(error), self._install_hint(error)) from error
        except FileNotFoundError as error:
            raise RefusedDownloadError("the file does not exist") from error
        except PermissionError as error:
            raise RefusedDownloadError(f"access is denied: {error}") from error
        except ValueError as error:
            raise RefusedDownloadError(str(error)) from error
        except Exception as error:  # file systems have their own classes of exceptions
            raise BrokenError(f"{type(error).__name__}: {error}") from error

    def _install_hint(self, error: ImportError) -> str:
        if self._url.startswith("s3"):
            return INSTALL.format("s3")
        if (error.name or "").partition(".")[0] == "fsspec":
            return INSTALL.format("fetch")
        return "install the packages that fsspec needs for this URL scheme"


def fsspec_pieces(file: Any) -> Iterator[bytes]:
    try:
        while piece := file.read(PIECE):
            yield piece
    except Exception as error:
        raise BrokenError(f"{type(error).__name__}: {error}") from error


def pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    try:
        while piece := file.read(PIECE):
            yield piece
    except OSError as error:
        raise RefusedDownloadError(f"the file cannot be read: {error.strerror or error}") from error
