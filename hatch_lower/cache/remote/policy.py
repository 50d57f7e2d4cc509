"""The choice of the remote cache, and the policy for credentials: no pull request can send a token away.

Everybody who can propose a change can change `pyproject.toml`, but only the owner of the build sets the environment.
So the project may name a cache to read from. Credentials and entries go only to a cache that the environment names,
too.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from urllib.parse import SplitResult, urlsplit

from hatch_lower.cache.remote.signing import SigningKey, VerifyingKeys, can_sign, needs_library, read_key, read_keys
from hatch_lower.errors import CacheError, ConfigError, LowerError
from hatch_lower.frozen import Frozen
from hatch_lower.urls import WEB, folder_fault, open_fault

CACHE, PUSH, TOKEN = "HATCH_LOWER_REMOTE_CACHE", "HATCH_LOWER_REMOTE_PUSH", "HATCH_LOWER_REMOTE_TOKEN"
SIGNING_KEY, PUBLIC_KEYS = "HATCH_LOWER_SIGNING_KEY", "HATCH_LOWER_PUBLIC_KEYS"
ANY_KEY = "any"  # in place of keys: entries need no signature
SECRETS = (TOKEN, SIGNING_KEY)  # variables that the code of a model has no use for

PROJECT_KEY = "tool.hatch.build.hooks.lower.cache"
# fsspec's schemes, and the options with which fsspec leaves this user's credentials alone
ANONYMOUS: Mapping[str, Mapping[str, object]] = {
    **{scheme: {"anon": True} for scheme in ("s3", "az", "abfs", "abfss")},
    "gs": {"token": "anon"},
    "file": {},
}


class RemotePolicy(Frozen):
    url: str  # without a final slash
    push: bool = False  # whether results of this build are sent there
    authorization: str = ""  # the header `Authorization`, for HTTP; empty: no header
    options: Mapping[str, object] | None = None  # for the fsspec file system
    signing_key: SigningKey | None = None  # signs entries that are sent
    trusted: VerifyingKeys = field(default_factory=VerifyingKeys)  # accepted signers of received entries
    unsigned: bool = False  # whether all entries are accepted without a signature

    def __repr__(self) -> str:
        return f"RemotePolicy({self.url}, push={self.push})"  # no secrets in logs

    @property
    def is_http(self) -> bool:
        return urlsplit(self.url).scheme in WEB

    def known_keys(self) -> VerifyingKeys:
        own = () if self.signing_key is None else (self.signing_key.public(),)
        return VerifyingKeys((*self.trusted.keys, *own))

    def place(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}" if parts.netloc else self.url


def read_policy(
    environment: Mapping[str, str], remote: str | None, public_keys: Sequence[str], warn: Callable[[str], None]
) -> RemotePolicy | None:
    """Return the policy for the remote cache, or `None`; `remote` and `public_keys` are the project's settings."""
    from_environment = environment.get(CACHE, "").strip()
    url = (from_environment or remote or "").rstrip("/")
    if from_environment == "off" or not url:
        return None
    where = f"environment variable `{CACHE}`" if from_environment else f"`{PROJECT_KEY}.remote`"
    parts = check_url(url, where, ConfigError if not from_environment else CacheError)
    named = bool(from_environment)
    wants_push = environment.get(PUSH, "") == "1"
    policy = RemotePolicy(
        url=url,
        push=wants_push and named,
        authorization=authorization_of(environment, parts) if named and parts.scheme in WEB else "",
        options=None if parts.scheme in WEB else {} if named else ANONYMOUS[parts.scheme],
        signing_key=own_key(environment) if wants_push and named else None,
        trusted=trusted_keys(environment, public_keys),
        unsigned=takes_unsigned(environment),
    )
    if wants_push and not named:
        place = parts.netloc or url
        warn(f"results are not sent to the remote cache {place}: only `pyproject.toml` names it; set `{CACHE}` to push")
    return policy


def takes_unsigned(environment: Mapping[str, str]) -> bool:
    """Return whether entries need no signature by a known key."""
    return environment.get(PUBLIC_KEYS, "").strip() == ANY_KEY


def trusted_keys(environment: Mapping[str, str], public_keys: Sequence[str]) -> VerifyingKeys:
    """Return the public keys of accepted signers; keys in the environment replace the project's keys."""
    keys = "" if takes_unsigned(environment) else environment.get(PUBLIC_KEYS, "")
    named = read_keys(keys.split(","), f"environment variable `{PUBLIC_KEYS}`")
    return named if named.keys else read_keys(public_keys, f"`{PROJECT_KEY}.public-keys`")


def own_key(environment: Mapping[str, str]) -> SigningKey | None:
    if not environment.get(SIGNING_KEY, "").strip():
        return None
    if not can_sign():
        raise needs_library(f"signing with `{SIGNING_KEY}`")
    return SigningKey(read_key(environment[SIGNING_KEY], f"environment variable `{SIGNING_KEY}`"))


def check_url(url: str, where: str, kind: type[LowerError]) -> SplitResult:
    """Return a URL's parts; raise an error of `kind` for a text that is no URL, a password, or options in the URL."""
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_good = SplitResult(url.partition(":")[0], "", "", "", ""), False
    if parts.password is not None or (parts.scheme in WEB and parts.username is not None):
        raise kind(
            "a remote cache's URL holds credentials",
            where=where,
            found=f"`{parts.scheme}://…@{parts.hostname}`",
            hint=f"write a token, or `user:password`, into the environment variable `{TOKEN}`",
        )
    fault = open_fault(url) if parts.scheme in WEB else folder_fault(url)
    if not fault and parts.query:
        fault = "the URL has options"
    if fault or not port_is_good:
        raise kind(
            "a remote cache needs a URL",
            where=where,
            found=f"`{url}`" + (f": {fault}" if fault else ""),
            hint="write `https://host/path` for a server of the Bazel protocol, or `s3://bucket/path`, `gs://…`, `az://…`,"
            " `file:///path`",
        )
    return parts


def authorization_of(environment: Mapping[str, str], parts: SplitResult) -> str:
    token = environment.get(TOKEN, "").strip()
    if not token:
        return ""
    # no token of a bearer has a colon (RFC 6750), and no user's name (RFC 7617)
    header = f"Basic {base64.b64encode(token.encode()).decode()}" if ":" in token else f"Bearer {token}"
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise CacheError(
            "credentials are not sent over a connection that anyone can read",
            where="the remote cache",
            found=f"`http://{parts.netloc}`",
            hint=f"use `https://`, or leave out `{TOKEN}`",
        )
    if not re.fullmatch(r"[ -~]+", header):
        raise CacheError(
            "the token has characters that cannot be in a header",
            where=f"environment variable `{TOKEN}`",
            hint="look for a line break or a character that is not ASCII",
        )
    return header


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
