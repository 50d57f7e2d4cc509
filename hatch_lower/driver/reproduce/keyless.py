"""Attestations that an identity signs instead of a key: Sigstore bundles, by the package `sigstore`.

A Sigstore instance exchanges an identity token, which CI services give to their jobs, for a certificate of a few
minutes, and its log proves the time of the signature. Verification needs the instance's certificates and keys, and no
connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hatch_lower.driver.reproduce.attestation import (
    MOST,
    PAYLOAD_TYPE,
    Attested,
    attested_in,
    bundle_type,
    no_attestation,
    object_in,
)
from hatch_lower.errors import ConfigError, FetchError, LowerError, PackageError, ProgramError
from hatch_lower.format.codec import Damage, json_value
from hatch_lower.frozen import Frozen
from hatch_lower.timeouts import call_within

if TYPE_CHECKING:
    from sigstore.models import ClientTrustConfig, TrustedRoot
    from sigstore.oidc import IdentityToken

ROOT_TYPE = "application/vnd.dev.sigstore.trustedroot"
PUBLIC = "the public Sigstore instance"
PYDANTIC = re.compile(r" \[type=.*?\] For further information visit \S+")  # a whole value, and a page about a class
ANSWER_SECONDS = 120.0  # `sigstore` waits for its services without a limit


class KeylessSigner(Frozen):
    """Signs statements by the identity of a token."""

    tokens: Callable[[], IdentityToken]
    trust: ClientTrustConfig
    where: str  # the instance
    builder: str  # the identity as a URI

    def sign(self, statement: bytes) -> bytes:
        """Return a statement in a Sigstore bundle, as JSON."""
        from sigstore.dsse import Statement
        from sigstore.models import Bundle
        from sigstore.sign import SigningContext
        from sigstore.verify import Verifier

        token = self.tokens()  # a new one: tokens expire within minutes, and a build may take longer

        def signed_bundle() -> Any:
            with SigningContext.from_trust_config(self.trust).signer(token) as signer:
                return signer.sign_dsse(Statement(statement))

        late = TimeoutError(f"no answer within {ANSWER_SECONDS:g} s")
        with sigstore_answers("Sigstore does not sign the attestation", self.where):
            text: str = call_within(ANSWER_SECONDS, signed_bundle, late).to_json()
            # `sigstore` takes the answers of its services as they are
            Verifier(trusted_root=self.trust.trusted_root).verify_dsse(Bundle.from_json(text), AnyIdentity())
        return text.encode()


class AnyIdentity:
    """A policy of `sigstore` for the bundle of this process."""

    def verify(self, cert: object) -> None:
        pass


class ExpectedIdentity:
    """A policy of `sigstore`: a single identity of a single issuer."""

    def __init__(self, identity: str, issuer: str, where: str) -> None:
        self._expected = identity, issuer
        self._where = where

    def verify(self, cert: Any) -> None:
        from sigstore.errors import VerificationError
        from sigstore.verify.policy import AllOf, Identity, OIDCIssuer

        identity, issuer = self._expected
        try:
            # `Identity` with an empty issuer takes any issuer
            AllOf([OIDCIssuer(issuer), Identity(identity=identity)]).verify(cert)
        except VerificationError as error:
            raise ProgramError(
                "the attestation is signed by another identity",
                where=self._where,
                found=str(error),
                hint="name the signer with `--identity`, and the service that vouches for the signer with `--issuer`;"
                " do not trust the file otherwise",
            ) from error


def keyless_signer(token: Path | None, trust_config: Path | None) -> KeylessSigner:
    """Return a signer after a trial of all that needs no signature: package, trust configuration, identity token.

    Args:
        token: a file with an identity token; by default the CI service is asked for one.
        trust_config: the client trust configuration of a Sigstore instance; by default the public one.
    """
    require_sigstore()
    trust = read_client_trust(trust_config)
    first = "" if token is None else read_small_text(token, refused_token)

    def tokens() -> IdentityToken:
        if token is None:
            return identity_token(ambient_token(), Path())
        # Kubernetes renews its tokens in place; a pipe can be read once
        return identity_token(read_small_text(token, refused_token) if token.is_file() else first, token)

    found = tokens()
    builder = f"urn:hatch-lower:identity:{quote(found.issuer, safe='')}:{quote(found.identity, safe='')}"
    return KeylessSigner(tokens, trust, PUBLIC if trust_config is None else str(trust_config), builder)


def verify_bundle(data: bytes, identity: str, issuer: str, trust_config: Path | None, where: str) -> Attested:
    """Check a bundle's signature by an identity, and return the attested wheel.

    With a trust configuration no connection is made.

    Args:
        identity: the whole identity in the certificate: an e-mail address, or a workflow's URI.
        issuer: the URL of the service that has issued the identity token.
        trust_config: a client trust configuration, or its trusted root alone; by default of the public instance.

    Raises:
        ProgramError: if the file is no attestation of `hatch-lower reproduce`, or is not signed by the identity.
    """
    value = object_in(data, where)
    if not bundle_type(value):
        if "payloadType" not in value:
            raise no_attestation(where, "neither a Sigstore bundle nor an envelope")
        raise ProgramError(
            "the attestation is signed by a key, and not by an identity",
            where=where,
            found=f"an envelope with the payload type {value['payloadType']!r:.80}",
            hint="name the builder's public key with `--key`",
        )
    require_sigstore()
    from sigstore.models import Bundle
    from sigstore.verify import Verifier

    root = read_trusted_root(trust_config)
    try:
        kind, statement = Verifier(trusted_root=root).verify_dsse(
            Bundle.from_json(data), ExpectedIdentity(identity, issuer, where)
        )
    except LowerError:
        raise
    except Exception as error:  # a file of other people, in many libraries: pydantic, cryptography, ASN.1
        raise ProgramError(
            "the attestation's signature does not hold",
            where=where,
            found=messages_of(error),
            hint=f"fetch the file again; if another instance of Sigstore has signed than {trust_config or PUBLIC},"
            " name its trust configuration with `--trust-config`; do not trust the file otherwise",
        ) from error
    if kind != PAYLOAD_TYPE:
        raise no_attestation(where, f"the payload is {kind!r:.80}")
    return attested_in(object_in(statement, where), where, f"{identity}, of {issuer}")


def require_sigstore() -> None:
    try:
        import sigstore.models  # noqa: F401
    except ModuleNotFoundError as error:
        raise PackageError(
            "attestations by an identity need the package `sigstore`",
            found=str(error),
            hint='pip install "hatch-lower[sigstore]"',
        ) from error


def read_client_trust(path: Path | None) -> ClientTrustConfig:
    """Return certificates, keys and addresses of a Sigstore instance; without a file fetch the public instance's."""
    from sigstore.models import ClientTrustConfig

    if path is None:
        with sigstore_answers("the trust configuration of Sigstore cannot be fetched", PUBLIC):
            return ClientTrustConfig.production()
    with trust_file(path) as (text, _):
        trust = ClientTrustConfig.from_json(text)
        trust.trusted_root, trust.signing_config  # noqa: B018 - `sigstore` checks both at their first use
    return trust


def read_trusted_root(path: Path | None) -> TrustedRoot:
    from sigstore.models import ClientTrustConfig, TrustedRoot

    if path is None:
        return read_client_trust(None).trusted_root
    with trust_file(path) as (text, kind):
        if kind.startswith(ROOT_TYPE):
            return TrustedRoot.from_file(str(path))
        return ClientTrustConfig.from_json(text).trusted_root


@contextmanager
def trust_file(path: Path) -> Iterator[tuple[str, str]]:
    """Give the text of a trust configuration and its media type; raise `ConfigError` if the block fails."""
    text = read_small_text(path, refused_trust)
    try:
        value = json_value(text.encode())
        yield text, str(value.get("mediaType")) if isinstance(value, dict) else ""
    except Damage as damage:
        raise refused_trust(path, damage.found) from damage
    except Exception as error:  # of pydantic, or of `sigstore`
        raise refused_trust(path, messages_of(error)) from error


def refused_trust(path: Path, found: str) -> ConfigError:
    return ConfigError(
        "the trust configuration of Sigstore cannot be used",
        where=str(path),
        found=found,
        hint="name a `ClientTrustConfig` in JSON, as the instance's operator gives it out; a verification takes a"
        " `TrustedRoot`, too",
    )


def ambient_token() -> str:
    from sigstore.oidc import detect_credential

    try:
        found: str | None = detect_credential()
    except Exception as error:  # of the CI service's library, and of its connection
        raise refused_token(Path(), messages_of(error)) from error
    if found is None:
        raise refused_token(Path(), "no CI service that gives tokens to its jobs")
    return found


def identity_token(text: str, path: Path) -> IdentityToken:
    from sigstore.oidc import IdentityError, IdentityToken

    try:
        return IdentityToken(text.strip())
    except IdentityError as error:
        raise refused_token(path, messages_of(error)) from error


def refused_token(path: Path, found: str) -> ConfigError:
    return ConfigError(
        "there is no identity token to sign the attestation by",
        where="this environment" if path == Path() else str(path),
        found=found,
        hint="GitHub Actions: `permissions: {id-token: write}` for the job; GitLab CI: `id_tokens: {SIGSTORE_ID_TOKEN:"
        " {aud: sigstore}}`; elsewhere name a file that holds a token for `sigstore` with `--identity-token`",
    )


def read_small_text(path: Path, refused: Callable[[Path, str], ConfigError]) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST + 1)
        if len(data) > MOST:
            raise refused(path, f"more than {MOST} bytes")
        return data.decode()
    except OSError as error:
        raise refused(path, error.strerror or str(error)) from error
    except UnicodeDecodeError:
        raise refused(path, "no text") from None


@contextmanager
def sigstore_answers(what: str, where: str) -> Iterator[None]:
    """Raise `FetchError` for services that do not answer, or do not sign."""
    try:
        yield
    except Exception as error:  # of requests, TUF, pydantic, `sigstore`
        raise FetchError(
            what,
            where=where,
            found=messages_of(error),
            hint="see that this machine reaches the instance, and that the instance takes tokens of the issuer; "
            + "a private instance is named with `--trust-config`",
        ) from error


def messages_of(error: BaseException | None) -> str:
    """Return the messages of an error and its causes: `sigstore` raises errors without a message."""
    texts = []
    while error is not None:
        answer = getattr(getattr(error, "response", None), "text", "")
        texts.append(": ".join(filter(None, [type(error).__name__, str(error), answer])))
        error = error.__cause__
    return PYDANTIC.sub("", " ".join("; ".join(texts).split()))[:400]
