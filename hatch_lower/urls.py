"""URLs of weights: which may be named in a project's settings, and so in a wheel that everybody may read."""

from __future__ import annotations

import re

# what no URL may hold beside the characters that must be escaped in it
URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<place>([^\s<>\"{}|\\^`#%?]|%[0-9A-Fa-f]{2})*)(?P<query>\?\S*)?")
# the path is one below a folder of huggingface's cache, too
HUB = re.compile(r"[\w.-]+/[\w.-]+@(?P<revision>[^/]*)/(?P<path>[^?:]+)", re.ASCII)
COMMIT = re.compile("[0-9a-f]{40}")
# parameters of signed URLs, and of those that bring a key along, in lower case without `-` and `_`
SECRETS = frozenset(
    {
        *("accesstoken", "apikey", "awsaccesskeyid", "googleaccessid", "key", "password", "policy", "secret", "sig"),
        *("signature", "token", "xamzcredential", "xamzsecuritytoken", "xamzsignature", "xgoogcredential"),
        "xgoogsignature",
    }
)

ALLOWED = (
    "`https://example.org/model.safetensors`, `hf://org/name@<commit>/model.safetensors`,"
    " `s3://bucket/model.safetensors`, or another URL that fsspec reads"
)


def url_fault(url: str) -> str:
    """Return what is wrong with the URL of a file of weights, as the end of a sentence; empty if nothing is."""
    match = URL.fullmatch(url)
    if match is None or not url.isprintable():
        return "it is no URL"
    scheme, place = match["scheme"], match["place"]
    host, _, path = place.partition("/")
    if scheme == "hf":
        return hub_fault(url.removeprefix("hf://"))
    # a container of Azure stands where others have a user: `abfs://container@account`
    if "@" in host and (scheme in ("http", "https", "ftp", "sftp", "ssh") or ":" in host.partition("@")[0]):
        return "it holds a user name or password, which everybody who has the wheel could read"
    names = re.findall(r"[?&;]([^=&;]*)", match["query"] or "")
    if secret := next((name for name in names if re.sub("[-_]", "", name).lower() in SECRETS), None):
        return f"its `{secret}` is a secret, which everybody who has the wheel could read"
    if not path.strip("/") or path.endswith("/") or (not host and scheme != "file"):
        return "it names no file"
    return ""


def hub_fault(place: str) -> str:
    match = HUB.fullmatch(place)
    if match is None:
        return "the hub's files are called `hf://org/name@<commit>/model.safetensors`"
    if not COMMIT.fullmatch(match["revision"]):
        return (
            f"`{match['revision']}` may become another commit: write the 40 hexadecimal digits of one behind the `@`,"
            " which the page of the repository shows"
        )
    return "it names no file of the repository" if {"", ".", ".."} & set(match["path"].split("/")) else ""
