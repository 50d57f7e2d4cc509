"""A Sigstore instance of its own on the loopback: Fulcio's certificates, a CT log's key, and Rekor's log, version 1.

Tokens are taken unchecked, and each entry of the log is the only leaf of a tree. The formats are those of RFC 6962, of
Fulcio's oid-info.md, and of Rekor's openapi.yaml.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import struct
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER = "https://issuer.example.org"
SUBJECT = "https://example.org/project/.ci/rebuild.yml@refs/heads/main"
SIGNATURE = ec.ECDSA(hashes.SHA256())
START = datetime(2020, 1, 1, tzinfo=UTC)
ISSUER_1, ISSUER_2 = (x509.ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{number}") for number in (1, 8))
TIMESTAMPS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
NO_USAGE = dict.fromkeys(
    [
        *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"),
        *("encipher_only", "decipher_only"),
    ],
    False,
)


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def identity_token(subject: str = SUBJECT, issuer: str = ISSUER, seconds: float = 600, **more: object) -> str:
    """Return an OIDC token, signed by nobody."""
    now = int(time.time())
    claims = {"sub": subject, "iss": issuer, "aud": "sigstore", "iat": now, "exp": now + int(seconds), **more}
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, claims)] + [b"signature"]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


class PlayedSigstore:
    """An instance; `answers` replaces the answer to a path by a status and a body, or by an endless wait (`None`)."""

    def __init__(self, url: str, lifetime: timedelta, logged_after: timedelta) -> None:
        self.url = url
        self.lifetime, self.logged_after = lifetime, logged_after
        self.answers: dict[str, tuple[int, bytes] | None] = {}
        self.requests: list[str] = []
        self.closed = threading.Event()
        self.ca, self.ct, self.log = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "played")])
        builder = x509.CertificateBuilder(name, name, self.ca.public_key(), 1, START, START + timedelta(days=36_500))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(digital_signature=False, key_cert_sign=True, **NO_USAGE)
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self.ca.public_key())
        self.root = builder.add_extension(identifier, critical=False).sign(self.ca, hashes.SHA256())

    def signing_certificate(self, request: dict[str, Any], token: str) -> dict[str, Any]:
        """Answer a request for a certificate, as Fulcio does: with the timestamp of a CT log in the certificate."""
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        key = x509.load_pem_x509_csr(base64.b64decode(request["certificateSigningRequest"])).public_key()
        subject, issuer, start = claims["sub"], claims["iss"].encode(), datetime.now(UTC).replace(microsecond=0)
        name = x509.UniformResourceIdentifier(subject) if "://" in subject else x509.RFC822Name(subject)
        usage = x509.KeyUsage(digital_signature=True, key_cert_sign=False, **NO_USAGE)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.ca.public_key())
        builder = x509.CertificateBuilder(
            self.root.subject, x509.Name([]), key, x509.random_serial_number(), start, start + self.lifetime
        )
        for extension, critical in (
            (usage, True),
            (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CODE_SIGNING]), False),
            (authority, False),
            (x509.SubjectAlternativeName([name]), True),
            (x509.UnrecognizedExtension(ISSUER_1, issuer), False),
            (x509.UnrecognizedExtension(ISSUER_2, b"\x0c%c%b" % (len(issuer), issuer)), False),
        ):
            builder = builder.add_extension(extension, critical)
        without = builder.sign(self.ca, hashes.SHA256()).tbs_certificate_bytes
        whole = builder.add_extension(x509.UnrecognizedExtension(TIMESTAMPS, self.timestamps(without)), critical=False)
        chain = [whole.sign(self.ca, hashes.SHA256()), self.root]
        pems = [certificate.public_bytes(Encoding.PEM).decode() for certificate in chain]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": pems}}}

    def timestamps(self, certificate: bytes) -> bytes:
        """Return the extension with the timestamp that a CT log gives a certificate before its issue."""
        now = int(time.time() * 1000)
        issuer = hashlib.sha256(public_bytes(self.ca)).digest()
        entry = issuer + struct.pack("!I", len(certificate))[1:] + certificate
        signature = self.ct.sign(struct.pack("!BBQH", 0, 0, now, 1) + entry + bytes(2), SIGNATURE)
        log = hashlib.sha256(public_bytes(self.ct)).digest()
        stamp = struct.pack("!B32sQHBBH", 0, log, now, 0, 4, 3, len(signature)) + signature
        listed = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        return b"\x04%c%b" % (len(listed), listed)

    def log_entry(self, proposed: dict[str, Any]) -> dict[str, Any]:
        """Answer a proposed entry of the kind `dsse`, as Rekor does."""
        content = proposed["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        signatures = [
            {"signature": each["sig"], "verifier": content["verifiers"][0]} for each in envelope["signatures"]
        ]
        hashed = (content["envelope"].encode(), base64.b64decode(envelope["payload"]))
        digests = [{"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()} for data in hashed]
        spec = {"envelopeHash": digests[0], "payloadHash": digests[1], "signatures": signatures}
        body = canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        log = hashlib.sha256(public_bytes(self.log)).digest()
        seconds = int((datetime.now(UTC) + self.logged_after).timestamp())
        promised = {"body": text64(body), "integratedTime": seconds, "logID": log.hex(), "logIndex": 0}
        leaf = hashlib.sha256(b"\0" + body).digest()
        host = urlsplit(self.url).hostname  # by which other clients than Python's find the log's key
        note = f"{host}\n1\n{text64(leaf)}\n"
        signature = text64(log[:4] + self.log.sign(note.encode(), SIGNATURE))
        checkpoint = f"{note}\n\N{EM DASH} {host} {signature}\n"
        proof = {"checkpoint": checkpoint, "hashes": [], "logIndex": 0, "rootHash": leaf.hex(), "treeSize": 1}
        promise = text64(self.log.sign(canonical(promised), SIGNATURE))
        return {"entry": {**promised, "verification": {"inclusionProof": proof, "signedEntryTimestamp": promise}}}

    def trusted_root(self) -> dict[str, Any]:
        valid = {"start": START.isoformat()}
        root = {"certificates": [{"rawBytes": text64(self.root.public_bytes(Encoding.DER))}]}
        names = {"organization": "played", "commonName": "played"}
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self.log_instance(self.log)],
            "certificateAuthorities": [{"subject": names, "uri": self.url, "certChain": root, "validFor": valid}],
            "ctlogs": [self.log_instance(self.ct)],
        }

    def log_instance(self, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        data, details = public_bytes(key), "PKIX_ECDSA_P256_SHA_256"
        public = {"rawBytes": text64(data), "keyDetails": details, "validFor": {"start": START.isoformat()}}
        identifier = {"keyId": text64(hashlib.sha256(data).digest())}
        return {"baseUrl": self.url, "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": identifier}

    def trust_config(self) -> dict[str, Any]:
        service = {
            "url": self.url,
            "majorApiVersion": 1,
            "operator": "played",
            "validFor": {"start": START.isoformat()},
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": self.trusted_root(),
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": [service],
                "rekorTlogUrls": [service],
                "rekorTlogConfig": {"selector": "ANY"},
            },
        }

    def write_trust_config(self, folder: Path) -> Path:
        path = folder / "trust.json"
        path.write_text(json.dumps(self.trust_config()))
        return path


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Asked(BaseHTTPRequestHandler):
    """Answers the requests of a signer, and gives a token to a job as GitHub Actions does."""

    played: PlayedSigstore

    def do_GET(self) -> None:
        self.played.requests.append(self.path)
        self.answer(200, json.dumps({"value": identity_token()}).encode())

    def do_POST(self) -> None:
        self.played.requests.append(self.path)
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in self.played.answers:
            answer = self.played.answers[self.path]
            if answer is None:
                self.played.closed.wait()
                return
            status, data = answer
        elif self.path == "/api/v2/signingCert":
            token = self.headers["Authorization"].removeprefix("Bearer ")
            status, data = 201, json.dumps(self.played.signing_certificate(request, token)).encode()
        else:
            status, data = 201, json.dumps(self.played.log_entry(request)).encode()
        self.answer(status, data)

    def answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def played_sigstore(
    lifetime: timedelta = timedelta(minutes=10), logged_after: timedelta = timedelta()
) -> Iterator[PlayedSigstore]:
    """Serve an instance: its certificates hold for `lifetime`, its log is ahead of the clock by `logged_after`."""
    handler = type("Handler", (Asked,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.played = played = PlayedSigstore(f"http://127.0.0.1:{server.server_port}", lifetime, logged_after)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield played
        finally:
            played.closed.set()
            server.shutdown()
