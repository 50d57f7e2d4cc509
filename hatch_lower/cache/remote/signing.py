"""Ed25519 signatures of shared entries.

Keys are 32 bytes, written in base64. Builds that push have the private key in the environment. Builds that pull have
the public keys in `pyproject.toml` or in the environment.
"""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Sequence

from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import CacheError
from hatch_lower.frozen import Frozen

# prefix of every signed text, so that a signature made for another purpose is not valid here
PURPOSE = b"hatch-lower cache entry 1\n"
KEY_BYTES = 32


class KeyPair(Frozen):
    # in base64
    private: str
    public: str
    key_id: str


class SigningKey(Frozen):
    private: bytes

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id()})"  # without the private bytes

    def key_id(self) -> str:
        return key_id(self.public())

    def public(self) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.private).sign(PURPOSE + text)


class VerifyingKeys(Frozen):
    keys: tuple[bytes, ...] = ()

    def ids(self) -> tuple[str, ...]:
        return tuple(map(key_id, self.keys))

    def knows(self, name: str) -> bool:
        return name in self.ids()

    def verify(self, name: str, signature: bytes, text: bytes) -> bool:
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
    return importlib.util.find_spec("cryptography") is not None


def key_id(public: bytes) -> str:
    return sha256_bytes(public)[:16]


def read_key(text: str, where: str) -> bytes:
    # no message repeats the text, which may be a private key
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise CacheError(
            "the Ed25519 key is malformed",
            where=where,
            found=f"{len(text.strip())} characters that are not base64 of {KEY_BYTES} bytes",
            hint="make a pair with `hatch-lower cache keygen`",
        )
    return key


def read_keys(texts: Sequence[str], where: str) -> VerifyingKeys:
    return VerifyingKeys(tuple(read_key(text, where) for text in texts if text.strip()))


def new_key_pair() -> KeyPair:
    if not can_sign():
        raise needs_library("making keys")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    encoded = base64.b64encode(private.private_bytes_raw()).decode()
    return KeyPair(encoded, base64.b64encode(public).decode(), key_id(public))


def needs_library(task: str) -> CacheError:
    return CacheError(
        f"{task} needs the package `cryptography`",
        where="the shared cache",
        found="the package is not installed",
        hint="install `hatch-lower[remote]`, or add `hatch-lower[remote]` to the hook's `dependencies`",
    )
