"""Ed25519 signatures of shared entries.

Keys are 32 bytes, written in base64. The private key stands in the environment of the builds that push; the public
keys stand in `pyproject.toml` or in the environment of those that pull.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import CacheError

PURPOSE = b"hatch-lower cache entry 1\n"
"""Stands before every signed text, so that a signature made for something else is none here."""
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A new pair of keys in base64, and the name by which messages call it."""

    private: str
    public: str
    key_id: str


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key; its bytes are not shown."""

    private: bytes

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id()})"

    def key_id(self) -> str:
        """Return the name of the pair."""
        return key_id(self.public())

    def public(self) -> bytes:
        """Return the public key's bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.private).sign(PURPOSE + text)


@dataclass(frozen=True, slots=True)
class VerifyingKeys:
    """The public keys whose signatures are trusted, 32 bytes each."""

    keys: tuple[bytes, ...] = ()

    def knows(self, name: str) -> bool:
        """Return whether a key of that name is trusted."""
        return any(key_id(key) == name for key in self.keys)

    def verify(self, name: str, signature: bytes, text: bytes) -> bool:
        """Return whether the key of that name is trusted and signed the text."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        for key in self.keys:
            if key_id(key) == name:
                try:
                    Ed25519PublicKey.from_public_bytes(key).verify(signature, PURPOSE + text)
                except (InvalidSignature, ValueError):
                    continue
                return True
        return False


def can_sign() -> bool:
    """Return whether the library for signatures is installed."""
    return importlib.util.find_spec("cryptography") is not None


def key_id(public: bytes) -> str:
    """Return a short name for a public key: the begin of its sha256."""
    return sha256_bytes(public)[:16]


def read_key(text: str, where: str) -> bytes:
    """Return the bytes of a key in base64; the message of an error does not repeat it.

    Raises:
        CacheError: if it is not base64 of 32 bytes.
    """
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise CacheError(
            "a key for signatures is not one",
            where=where,
            found=f"{len(text.strip())} characters that are not base64 of {KEY_BYTES} bytes",
            hint="make a pair with `hatch-lower cache keygen`",
        )
    return key


def read_keys(texts: Sequence[str], where: str) -> VerifyingKeys:
    """Return the public keys that are written in base64; empty texts are left out.

    Raises:
        CacheError: if one is not a key.
    """
    return VerifyingKeys(tuple(read_key(text, where) for text in texts if text.strip()))


def new_key_pair() -> KeyPair:
    """Return a new pair of keys.

    Raises:
        CacheError: if the library for signatures is not installed.
    """
    if not can_sign():
        raise needs_library("making keys")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    encoded = base64.b64encode(private.private_bytes_raw()).decode()
    return KeyPair(encoded, base64.b64encode(public).decode(), key_id(public))


def needs_library(what: str) -> CacheError:
    """Return the error for a use of signatures where they cannot be made or checked."""
    return CacheError(
        f"{what} needs the package `cryptography`",
        where="the shared cache",
        found="it is not installed",
        hint="install `hatch-lower[remote]`, or put it into the hook's `dependencies`",
    )
