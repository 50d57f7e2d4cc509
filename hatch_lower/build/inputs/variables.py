"""Environment variables as recorded inputs: what their values were, without saying them.

A value is recorded by a digest that is keyed with a random number of this cache, which only its owner can read: nobody
else who is given a record can try out values.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from hatch_lower.canonical import read_file

UNSET = ""
CREDENTIALS = ("TOKEN", "SECRET", "PASSWORD", "KEY")
SECRET_BYTES = 32


def mark_of(key: bytes, name: str, value: str | None) -> str:
    """Return what is recorded of a variable: a digest keyed with `key`; empty if it is not set."""
    if value is None:
        return UNSET
    return hmac.new(key, os.fsencode(f"{name}={value}"), hashlib.sha256).hexdigest()


def is_credential(name: str) -> bool:
    """Return whether a variable's name looks like that of a password, a token, or a key."""
    upper = name.upper()
    return any(each in upper for each in CREDENTIALS)


def secret(folder: Path, *, keeps: bool = True) -> bytes:
    """Return this cache's random key, made when it is first asked for; all processes get the same.

    Where it can be neither read nor kept, it is another one each time: then no recorded value is recognised.

    Args:
        folder: of the cache; the key is in its file `secret`, which only its owner can read.
        keeps: whether a new one may be written.
    """
    path = folder / "secret"
    found = read_secret(path)
    if found is not None:
        return found
    made = os.urandom(SECRET_BYTES)
    if not keeps:
        return made
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(made)
            keep(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
    return read_secret(path) or made


def keep(temporary: str, path: Path) -> None:
    """Give a finished file its name, unless another process was first with a whole one."""
    try:
        os.link(temporary, path)  # unlike a renaming, it fails where there is one already
    except OSError:  # or where the file system has no links
        if read_secret(path) is None:
            os.replace(temporary, path)


def read_secret(path: Path) -> bytes | None:
    """Return a whole key from a file, or `None`."""
    with suppress(OSError):
        found = read_file(path)
        if len(found) == SECRET_BYTES:
            return found
    return None
