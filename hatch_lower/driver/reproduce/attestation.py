"""Attestations that an independent build gave the bytes of a wheel: in-toto statements in signed DSSE envelopes.

Sources: the in-toto Attestation Framework, Statement 1; SLSA Provenance 1; DSSE 1. Keys are PEM files of Ed25519 or of
ECDSA over P-256. Signatures by identities are in `keyless.py`.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hatch_lower import __version__
from hatch_lower.canonical import canonical_json, open_file, sha256_bytes, sha256_file
from hatch_lower.errors import ConfigError, PackageError, ProgramError
from hatch_lower.format.codec import Damage, json_value
from hatch_lower.frozen import Frozen

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUILD_TYPE = "urn:hatch-lower:reproduce:1"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle"
MOST = 1 << 20  # bytes of an attestation
# of RFC 3986: a scheme, and characters that a URI has
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")


class Source(Frozen):
    """The sources of the independent build: a source distribution, or a project in a commit of git."""

    name: str
    digest: Mapping[str, str]


class Attested(Frozen):
    """The contents of an attestation whose signature holds."""

    wheel: str
    sha256: str
    builder: str
    source: str  # name and digest; empty if the build was from a folder without a commit
    identity: str  # of the signer; empty if a key has signed


def statement_of(wheel: Path, sha256: str, source: Source | None, builder: str, varied: Iterable[str]) -> bytes:
    """Return an in-toto statement: the build from the sources has given the wheel again.

    Args:
        builder: the builder's URI.
        varied: the names of the differences between the two environments; values may have paths.
    """
    dependencies = [] if source is None else [{"name": source.name, "digest": dict(source.digest)}]
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": {"wheel": wheel.name},
        "internalParameters": {"varied": sorted(varied)},
        "resolvedDependencies": dependencies,
    }
    details = {"builder": {"id": builder, "version": {"hatch-lower": __version__}}}
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": wheel.name, "digest": {"sha256": sha256}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {"buildDefinition": definition, "runDetails": details},
        }
    )


def source_of_project(project: Path, wheel: Path) -> Source | None:
    """Return the commit of a wheel's project without uncommitted changes; `None` otherwise."""
    commands = (["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "--", "."])
    try:
        commit, changes = (
            subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return None if changes else Source(wheel.name.partition("-")[0], {"gitCommit": commit})


def source_of_sdist(sdist: Path) -> Source:
    return Source(sdist.name, {"sha256": sha256_file(sdist)})


def checked_builder(builder: str) -> str:
    if URI.fullmatch(builder) is None:
        raise ConfigError(
            "the builder's name is no absolute URI",
            where="--builder",
            found=f"`{builder:.200}`",
            hint="name a page of the builder, as `https://example.org/builder`, or a URN, as `urn:example:builder`",
        )
    return builder


def sign(statement: bytes, private: Any) -> bytes:
    """Return a statement in a DSSE envelope, signed with a key of `read_key_file`, as JSON."""
    signature = {"keyid": key_name(private.public_key()), "sig": encoded(signed(private, signed_message(statement)))}
    return canonical_json({"payloadType": PAYLOAD_TYPE, "payload": encoded(statement), "signatures": [signature]})


def verify(envelope: bytes, key: Path, where: str) -> Attested:
    """Check the signature of an envelope with a public key, and return the attested wheel.

    Raises:
        ProgramError: if the file is no attestation of `hatch-lower reproduce`, or has no signature by the key.
    """
    public = read_key_file(key, private=False)
    value = object_in(envelope, where)
    if bundle_type(value):
        raise ProgramError(
            "the attestation is signed by an identity, and not by a key",
            where=where,
            found=f"a Sigstore bundle: {bundle_type(value):.80}",
            hint="name the signer with `--identity` and `--issuer`",
        )
    signatures = value.get("signatures")
    statement = decoded_base64(value.get("payload"))
    if statement is None:
        raise no_attestation(where, "no payload in base64")
    listed = signatures if isinstance(signatures, list) else []
    given = [each.get("sig") for each in listed if isinstance(each, dict)]
    message = signed_message(statement)
    if value.get("payloadType") != PAYLOAD_TYPE:
        raise no_attestation(where, f"the payload is {value.get('payloadType')!r:.80}")
    if not any(is_signed_by(public, each, message) for each in given):
        raise ProgramError(
            "the attestation is not signed by the key",
            where=where,
            found=f"signatures: {len(given)}, by {key_name(public)}: none",
            hint="name the builder's public key; do not trust the file otherwise",
        )
    return attested_in(object_in(statement, where), where)


def bundle_type(value: Mapping[str, Any]) -> str:
    """Return the media type of a Sigstore bundle; an empty text for any other object."""
    kind = value.get("mediaType")
    return kind if isinstance(kind, str) and kind.startswith(BUNDLE_TYPE) else ""


def attested_in(statement: Mapping[str, Any], where: str, identity: str = "") -> Attested:
    try:
        (subject,) = statement["subject"]
        definition = statement["predicate"]["buildDefinition"]
        builder = statement["predicate"]["runDetails"]["builder"]["id"]
        types = (statement["_type"], statement["predicateType"], definition["buildType"])
        sources = [
            f"{each['name']} {kind}:{digest}"
            for each in definition["resolvedDependencies"]
            for kind, digest in each["digest"].items()
        ]
        found = Attested(subject["name"], subject["digest"]["sha256"], builder, ", ".join(sources), identity)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise no_attestation(where, f"{type(error).__name__}: {error}") from error
    if types != (STATEMENT_TYPE, PREDICATE_TYPE, BUILD_TYPE) or not all(
        isinstance(text, str) for text in vars(found).values()
    ):
        raise no_attestation(where, f"a statement of the types {types!r:.200}")
    return found


def no_attestation(where: str, found: str) -> ProgramError:
    return ProgramError(
        "the file is no attestation of `hatch-lower reproduce`",
        where=where,
        found=found,
        hint="name the file that `hatch-lower reproduce --attest` wrote",
    )


def read_attestation(path: Path) -> bytes:
    """Return the bytes of an attestation, or the first bytes of a file that is too large for an attestation."""
    try:
        with open_file(path) as file:
            return file.read(MOST + 1)
    except OSError as error:
        raise no_attestation(str(path), error.strerror or str(error)) from error


def object_in(data: bytes, where: str) -> Mapping[str, Any]:
    try:
        value = json_value(data) if len(data) <= MOST else None
    except Damage as damage:
        raise no_attestation(where, damage.found) from damage
    if not isinstance(value, dict):
        raise no_attestation(where, "no JSON object" if len(data) <= MOST else f"more than {MOST} bytes")
    return value


def decoded_base64(text: object) -> bytes | None:
    """Return the bytes of a base64 text; `None` for any other value. DSSE allows both alphabets of base64."""
    try:
        return (
            base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True) if isinstance(text, str) else None
        )
    except ValueError:
        return None


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def signed_message(statement: bytes) -> bytes:
    """Return the bytes that DSSE signs: the pre-authentication encoding."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(statement), statement)


def read_key_file(path: Path, *, private: bool) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    except ModuleNotFoundError as error:
        raise PackageError(
            "attestations need the package `cryptography`", found=str(error), hint='pip install "hatch-lower[remote]"'
        ) from error
    try:
        data = path.read_bytes()
        key: Any = (
            serialization.load_pem_private_key(data, None) if private else serialization.load_pem_public_key(data)
        )
    except (OSError, TypeError, UnsupportedAlgorithm) as error:
        raise refused_key(path, str(error)) from None
    except ValueError:  # its message may repeat the contents of a private key
        raise refused_key(path, f"no {'private' if private else 'public'} key in PEM, or a damaged key") from None
    kinds = (ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey)
    is_curve = isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey)
    if not (is_curve and key.curve.name == "secp256r1") and not isinstance(key, kinds):
        raise refused_key(path, f"a key of the kind {type(key).__name__}{f', {key.curve.name}' if is_curve else ''}")
    return key


def refused_key(path: Path, found: str) -> ConfigError:
    return ConfigError(
        "the key for attestations cannot be used",
        where=str(path),
        found=found,
        hint="name a key of Ed25519, or of ECDSA over P-256, without a password. To make a pair:"
        " `openssl genpkey -algorithm ed25519 -out key.pem`, and `openssl pkey -in key.pem -pubout -out public.pem`",
    )


def signed(private: Any, message: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if isinstance(private, ec.EllipticCurvePrivateKey):
        return private.sign(message, ec.ECDSA(hashes.SHA256()))
    result: bytes = private.sign(message)
    return result


def is_signed_by(public: Any, signature: object, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    options = [ec.ECDSA(hashes.SHA256())] if isinstance(public, ec.EllipticCurvePublicKey) else []
    try:
        public.verify(decoded_base64(signature) or b"", message, *options)
    except InvalidSignature:
        return False
    return True


def key_name(public: Any) -> str:
    """Return the sha256 of a public key in DER."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return sha256_bytes(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
