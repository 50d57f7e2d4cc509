"""The URLs that a project, a wheel or a user may name, and the only function that passes a URL to fsspec.

fsspec interprets far more than places: `reference://` renders a template, `::` chains file systems, `?` sets options.
So a URL is compared with an allow-list where a document is read, and again where a connection is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import fsspec

WEB = ("http", "https")
STORES = ("s3", "gs", "az", "abfs", "abfss")
FOLDERS = ("file", *STORES)  # fsspec's
SCHEMES = (*WEB, *FOLDERS, "hf")

# a URL without characters that must be escaped
URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<place>([^\s<>\"{}|\\^`#%?]|%[0-9A-Fa-f]{2})*)(?P<query>\?\S*)?")
WEB_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
# a bucket or a container, and its account behind `@`: fsspec's Azure library makes a host name of the account
STORE_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
AZURE_HOST = re.compile(r"[A-Za-z0-9$][A-Za-z0-9-]*(@[a-z0-9-]+(\.(dfs|blob)\.core\.windows\.net)?)?")
# the path is also a path below a folder of Hugging Face's cache
HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*@(?P<revision>[^/]*)/(?P<path>[^?:]+)", re.ASCII)
COMMIT = re.compile("[0-9a-f]{40}")
# parameters of signed URLs, and of URLs with a key, in lower case without `-` and `_`
SECRETS = frozenset(
    {
        *("accesstoken", "apikey", "awsaccesskeyid", "googleaccessid", "key", "password", "policy", "secret", "sig"),
        *("signature", "token", "xamzcredential", "xamzsecuritytoken", "xamzsignature", "xgoogcredential"),
        "xgoogsignature",
    }
)

LONGEST = 8192  # characters
USER_FAULT = "it holds a user name or password, and credentials belong in the environment or in `.netrc`"
ALLOWED = (
    "`https://example.org/model.safetensors`, `hf://org/name@<commit>/model.safetensors`,"
    " `s3://bucket/model.safetensors`, or a URL of `gs`, `az`, `abfs` or `file`"
)


class UrlError(ValueError):
    """A refused URL; the text is the fault, as the end of a sentence."""


def url_fault(url: str) -> str:
    """Return the fault of the URL of a file of weights, as the end of a sentence; empty for a good URL."""
    fault = open_fault(url)
    if fault:
        return fault
    _, place, query = split_url(url)
    names = re.findall(r"[?&;]([^=&;]*)", query)
    if secret := next((name for name in names if re.sub("[-_]", "", unquote(name)).lower() in SECRETS), None):
        return f"its `{secret}` is a secret, which everybody who has the wheel could read"
    path = place.partition("/")[2]
    return "it names no file" if decoded(path).rpartition("/")[2] in ("", ".", "..") else ""


def packaged_fault(url: str) -> str:
    """Return the fault of a URL in a wheel, which must not name a file of this machine."""
    return "a wheel names no file of the machine" if url.startswith("file:") else url_fault(url)


def open_fault(url: str) -> str:
    """Return the reason for not opening a URL; empty for an allowed URL."""
    scheme, place, query = split_url(url)
    if not scheme:
        return "it is no URL"
    if scheme not in SCHEMES:
        return f"the scheme `{scheme}` is not allowed, only {', '.join(f'`{name}`' for name in SCHEMES)}"
    host, _, path = place.partition("/")
    # the host of a web server may be `[::1]`; a path of this machine may have any escaped character
    plain = place if scheme == "file" else decoded((path if scheme in WEB else place) + query)
    if "::" in plain:
        return "`::` chains file systems"
    if not plain.isprintable():
        return "it has an escaped control character"
    if scheme == "hf":
        return hub_fault(place + query)
    if scheme in WEB:
        return web_fault(url)
    if query:
        return "only a URL of `http` or `https` has a `?`"
    if scheme == "file":
        return f"`{host}` is a host: write `file:///path`" if host else ""
    if ":" in host.partition("@")[0]:
        return USER_FAULT
    grammar = STORE_HOST if scheme in ("s3", "gs") else AZURE_HOST
    return host_fault(host, is_good=grammar.fullmatch(host) is not None)


def web_fault(url: str) -> str:
    """Return the reason for not requesting a URL, even of a redirect, from a web server; empty for an allowed URL."""
    if not (url.isascii() and url.isprintable()):
        return "it has characters that are not ASCII: write `ä` as `%C3%A4`"
    try:
        scheme, host = urlsplit(url)[:2]
    except ValueError:
        return "it is no URL"
    if scheme not in WEB:
        return f"no web server has the scheme `{scheme}`"
    if "@" in host:
        return USER_FAULT
    match = WEB_HOST.fullmatch(host)
    return host_fault(host, is_good=match is not None and 0 < int(match["port"] or "1") < 1 << 16)


def host_fault(host: str, *, is_good: bool) -> str:
    if is_good:
        return ""
    return f"`{host}` is no name of a host, bucket or container" if host else "it names no file"


def split_url(url: str) -> tuple[str, str, str]:
    """Return the scheme of a URL, its place, and the query with its `?`; empty texts for a text that is no URL."""
    match = URL.fullmatch(url) if len(url) <= LONGEST and url.isprintable() else None
    if match is None:
        return "", "", ""
    return match["scheme"], match["place"], match["query"] or ""


def decoded(text: str) -> str:
    """Return a text without escapes, even nested escapes: some libraries decode more than once."""
    while (plain := unquote(text)) != text:
        text = plain
    return text


def hub_fault(place: str) -> str:
    match = HUB.fullmatch(place)
    if match is None:
        return "the hub's files are called `hf://org/name@<commit>/model.safetensors`"
    if not COMMIT.fullmatch(match["revision"]):
        return (
            f"`{match['revision']}` may become another commit: write the 40 hexadecimal digits of a commit behind the"
            " `@`, as shown on the page of the repository"
        )
    names = {"", ".", ".."}
    return "it names no file of the repository" if names & set(decoded(match["path"]).split("/")) else ""


def folder_fault(url: str) -> str:
    """Return the reason for not passing a URL to fsspec, whose names may have spaces; empty for an allowed URL."""
    url = url.replace(" ", "%20")
    return open_fault(url) or ("" if split_url(url)[0] in FOLDERS else "fsspec is asked for no URL of this scheme")


def open_remote_folder(url: str, options: Mapping[str, object]) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return fsspec's file system for a URL, and the path in the file system; raise `UrlError` for a refused URL."""
    if fault := folder_fault(url):
        raise UrlError(fault)
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url, **options, skip_instance_cache=True, use_listings_cache=False)
    return system, str(path)
