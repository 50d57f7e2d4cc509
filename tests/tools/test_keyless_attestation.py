"""`hatch-lower reproduce --attest --sigstore`, and `hatch-lower verify-attestation --identity`: Sigstore bundles.

The public service is not reached: `sigstore` signs and verifies with an instance on the loopback.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.played_sigstore import ISSUER, SUBJECT, PlayedSigstore, identity_token, played_sigstore

from hatch_lower.canonical import sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.driver.reproduce import keyless, rebuild
from hatch_lower.driver.reproduce.attestation import MOST, PAYLOAD_TYPE, statement_of
from hatch_lower.errors import LowerError, ProgramError

pytest.importorskip("sigstore", reason="needs sigstore")

NAME = "plain-1.0-py3-none-any.whl"
STATEMENT = statement_of(Path(NAME), sha256_bytes(b"a wheel"), None, "https://example.org/builder", [])
IDENTITY = ("--identity", SUBJECT, "--issuer", ISSUER)


@pytest.fixture(scope="module")
def instance() -> Iterator[PlayedSigstore]:
    with played_sigstore() as played:
        yield played


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(b"a wheel")
    return path


def bundle_of(played: PlayedSigstore, folder: Path, statement: bytes = STATEMENT, **claims: Any) -> dict[str, Any]:
    """Return a bundle, signed as the command does."""
    token = folder / "token"
    token.write_text(identity_token(**claims))
    found: dict[str, Any] = json.loads(keyless.keyless_signer(token, played.write_trust_config(folder)).sign(statement))
    return found


def verify(wheel: Path, bundle: dict[str, Any] | str | bytes, *options: str | Path) -> Result:
    path = wheel.parent / "attestation.json"
    data = json.dumps(bundle) if isinstance(bundle, dict) else bundle
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return CliRunner().invoke(main, ["verify-attestation", str(path), str(wheel), *map(str, options)])


def reproduce(wheel: Path, *options: str | Path) -> Result:
    """Attest a wheel of a project without a repository."""
    command = ["reproduce", wheel, "--project", wheel.parent, "--attest", wheel.parent / "attestation.json"]
    return CliRunner().invoke(main, [*map(str, command), "--sigstore", *map(str, options)])


def refused(done: Result, what: str, found: str = "", hint: str = "") -> None:
    """Fail unless a command ends with an error of these parts, and without a traceback."""
    assert isinstance(done.exception, SystemExit), done.exc_info
    assert done.exit_code == 1, done.output
    lines = done.output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("error: "))
    assert lines[start] == f"error: {what}"
    rows = dict(line.strip().split(": ", 1) for line in lines[start + 1 :])
    assert rows["where"]
    assert found in rows["found"], rows
    assert hint in rows["to do"], rows


def rebuilt_with(wheel: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Let the rebuild give the wheel again; `meanwhile` is called in place of the build."""

    class Again:
        wheel: Path
        variation = SimpleNamespace(told={"TZ": "UTC"}, places=())
        log = ""

        def __enter__(self) -> Again:
            meanwhile()
            return self

        def __exit__(self, *_: object) -> None:
            pass

    Again.wheel = wheel
    monkeypatch.setattr(rebuild, "rebuilt", lambda *_: Again())


def test_a_rebuilt_wheel_is_signed_by_the_jobs_token_and_verified_without_a_connection(
    instance: PlayedSigstore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust, path = instance.write_trust_config(wheel.parent), wheel.parent / "attestation.json"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{instance.url}/token")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "secret")
    rebuilt_with(wheel, monkeypatch, instance.requests.clear)
    done = reproduce(wheel, "--trust-config", trust)
    assert done.exit_code == 0, done.output
    assert instance.requests == ["/token?audience=sigstore", "/api/v2/signingCert", "/api/v1/log/entries"]
    bundle = json.loads(path.read_text())
    assert bundle["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert bundle["dsseEnvelope"]["payloadType"] == PAYLOAD_TYPE
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    assert statement["subject"] == [{"name": NAME, "digest": {"sha256": sha256_bytes(b"a wheel")}}]
    builder = "urn:hatch-lower:identity:https%3A%2F%2Fissuer.example.org:https%3A%2F%2Fexample.org%2Fproject%2F.ci"
    assert statement["predicate"]["runDetails"]["builder"]["id"].startswith(builder)

    monkeypatch.setattr(socket, "socket", None)  # no connection can be made
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, None)
    root = wheel.parent / "root.json"
    root.write_text(json.dumps(instance.trusted_root()))
    for each in (trust, root):
        done = verify(wheel, bundle, *IDENTITY, "--trust-config", each)
        assert done.exit_code == 0, done.output
        assert done.output.splitlines()[::3] == [
            f"{NAME} was built again with equal bytes: sha256 {sha256_bytes(b'a wheel')}",
            "  sources  a folder without a commit",
        ]
        assert f"  signer   {SUBJECT}, of {ISSUER}\n" in done.output


def test_the_identity_may_be_an_address(instance: PlayedSigstore, wheel: Path) -> None:
    bundle = bundle_of(instance, wheel.parent, subject="a@example.org")
    trust = instance.write_trust_config(wheel.parent)
    done = verify(wheel, bundle, "--identity", "a@example.org", "--issuer", ISSUER, "--trust-config", trust, "--json")
    assert json.loads(done.output)["identity"] == f"a@example.org, of {ISSUER}"


def test_the_file_is_a_bundle_for_sigstores_own_command(instance: PlayedSigstore, wheel: Path) -> None:
    from support.venv import run

    path = wheel.parent / "bundle.json"
    path.write_text(json.dumps(bundle_of(instance, wheel.parent)))
    command = [sys.executable, "-m", "sigstore", "--trust-config", str(instance.write_trust_config(wheel.parent))]
    command += ["verify", "identity", "--offline", "--bundle", str(path)]
    command += ["--cert-identity", SUBJECT, "--cert-oidc-issuer", ISSUER, str(wheel)]
    assert "OK" in run(command, cwd=wheel.parent).check().output


def test_another_identity_or_issuer_is_refused(instance: PlayedSigstore, wheel: Path) -> None:
    bundle, trust = bundle_of(instance, wheel.parent), instance.write_trust_config(wheel.parent)
    what = "the attestation is signed by another identity"
    for identity, issuer, found in (
        (SUBJECT + "x", ISSUER, SUBJECT),
        (SUBJECT[:-1], ISSUER, SUBJECT),
        (SUBJECT, ISSUER + "/", ISSUER),
        (SUBJECT, "https://other.example.org", ISSUER),
    ):
        done = verify(wheel, bundle, "--identity", identity, "--issuer", issuer, "--trust-config", trust)
        refused(done, what, found, "do not trust the file otherwise")


def test_no_identity_and_no_issuer_stand_for_any(instance: PlayedSigstore, tmp_path: Path) -> None:
    data, trust = json.dumps(bundle_of(instance, tmp_path)).encode(), instance.write_trust_config(tmp_path)
    for identity, issuer in (("", ISSUER), (SUBJECT, "")):
        with pytest.raises(ProgramError, match="the attestation is signed by another identity"):
            keyless.verify_bundle(data, identity, issuer, trust, "")


def test_a_wheel_with_other_bytes_or_another_name_is_refused(instance: PlayedSigstore, wheel: Path) -> None:
    bundle, trust = bundle_of(instance, wheel.parent), instance.write_trust_config(wheel.parent)
    wheel.write_bytes(b"another wheel")
    refused(verify(wheel, bundle, *IDENTITY, "--trust-config", trust), "the attestation is of another wheel")
    wheel.write_bytes(b"a wheel")
    other = wheel.rename(wheel.parent / "other-1.0-py3-none-any.whl")
    refused(verify(other, bundle, *IDENTITY, "--trust-config", trust), "the attestation is of another wheel")


def test_another_instance_is_refused(instance: PlayedSigstore, wheel: Path) -> None:
    bundle = bundle_of(instance, wheel.parent)
    with played_sigstore() as other:
        trust = other.write_trust_config(wheel.parent)
    done = verify(wheel, bundle, *IDENTITY, "--trust-config", trust)
    refused(done, "the attestation's signature does not hold", "certificate", f"than {trust}, name")


def test_a_log_of_another_instance_is_refused(instance: PlayedSigstore, wheel: Path) -> None:
    bundle = bundle_of(instance, wheel.parent)
    with played_sigstore() as other:
        root = {**instance.trusted_root(), "tlogs": other.trusted_root()["tlogs"]}
    trust = wheel.parent / "root.json"
    trust.write_text(json.dumps(root))
    done = verify(wheel, bundle, *IDENTITY, "--trust-config", trust)
    refused(done, "the attestation's signature does not hold", "invalid log entry")


def test_a_certificate_that_had_expired_at_the_signature_is_refused(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played_sigstore(logged_after=timedelta(hours=1)) as late:
        with pytest.raises(LowerError, match="Sigstore does not sign the attestation"):
            bundle_of(late, wheel.parent)  # the signer verifies its own bundle
        from sigstore.verify import Verifier

        with monkeypatch.context() as unverified:
            unverified.setattr(Verifier, "verify_dsse", lambda *_: None)
            bundle = bundle_of(late, wheel.parent)
        done = verify(wheel, bundle, *IDENTITY, "--trust-config", late.write_trust_config(wheel.parent))
    refused(done, "the attestation's signature does not hold", "failed to build timestamp certificate chain")


def without(bundle: dict[str, Any], *path: str) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(bundle))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copy


def test_a_changed_bundle_is_refused(instance: PlayedSigstore, wheel: Path) -> None:
    bundle, trust = bundle_of(instance, wheel.parent), instance.write_trust_config(wheel.parent)
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    other = base64.b64encode(payload.replace(b"example.org/builder", b"example.org/another")).decode()
    material = bundle["verificationMaterial"]
    (entry,) = material["tlogEntries"]
    for changed, found in (
        ({**bundle, "dsseEnvelope": {**bundle["dsseEnvelope"], "payload": other}}, "DSSE: invalid signature"),
        ({**bundle, "dsseEnvelope": {**bundle["dsseEnvelope"], "payloadType": "text/plain"}}, "invalid signature"),
        ({**bundle, "dsseEnvelope": {**bundle["dsseEnvelope"], "signatures": []}}, "exactly one signature"),
        ({**bundle, "verificationMaterial": {**material, "tlogEntries": []}}, "expected exactly one log entry"),
        (
            {**bundle, "verificationMaterial": {**material, "tlogEntries": [entry] * 2}},
            "expected exactly one log entry",
        ),
        (without(bundle, "verificationMaterial", "tlogEntries"), "tlogEntries"),
        (without(bundle, "verificationMaterial", "certificate"), "verificationMaterial"),
        (without(bundle, "dsseEnvelope"), ""),
        ({**bundle, "mediaType": bundle["mediaType"].replace("0.3", "9.9")}, "mediaType"),
        ({**bundle, "more": 1}, "more"),
    ):
        done = verify(wheel, changed, *IDENTITY, "--trust-config", trust)
        refused(done, "the attestation's signature does not hold", found, "do not trust the file otherwise")
        assert "errors.pydantic.dev" not in done.output


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from leaves(each, (*path, key))


def test_no_change_of_a_value_changes_the_statement_or_ends_in_another_error(
    instance: PlayedSigstore, tmp_path: Path
) -> None:
    bundle, trust = bundle_of(instance, tmp_path), instance.write_trust_config(tmp_path)
    whole = keyless.verify_bundle(json.dumps(bundle).encode(), SUBJECT, ISSUER, trust, "")
    refusals = 0
    for path in leaves(bundle):
        for value in (None, 1, "", "AAAA", "é", "1" * 400, [[]], {"a": 1}):
            changed: Any = json.loads(json.dumps(bundle))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            try:
                found = keyless.verify_bundle(json.dumps(changed).encode(), SUBJECT, ISSUER, trust, "")
            except LowerError:
                refusals += 1
            else:
                assert found == whole, (path, value)
    assert refusals > 200


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ("{}", "neither a Sigstore bundle nor an envelope"),
        ('{"mediaType": 1}', "neither a Sigstore bundle nor an envelope"),
        ("[" * 100_000, "nests too deeply"),
        (" " * (MOST + 1), f"more than {MOST} bytes"),
    ],
)
def test_a_file_of_another_form_is_refused(instance: PlayedSigstore, wheel: Path, data: str, found: str) -> None:
    trust = instance.write_trust_config(wheel.parent)
    done = verify(wheel, data, *IDENTITY, "--trust-config", trust)
    refused(done, "the file is no attestation of `hatch-lower reproduce`", found)


def test_of_a_huge_file_only_the_beginning_is_read(wheel: Path) -> None:
    path = wheel.parent / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # more than memory holds; the file has no blocks
    done = CliRunner().invoke(main, ["verify-attestation", str(path), str(wheel), *IDENTITY])
    refused(done, "the file is no attestation of `hatch-lower reproduce`", f"more than {MOST} bytes")


def test_a_signed_statement_of_another_kind_is_refused(instance: PlayedSigstore, wheel: Path) -> None:
    other = json.loads(STATEMENT)
    other["predicateType"] = "https://example.org/other"
    bundle = bundle_of(instance, wheel.parent, json.dumps(other).encode())
    done = verify(wheel, bundle, *IDENTITY, "--trust-config", instance.write_trust_config(wheel.parent))
    refused(done, "the file is no attestation of `hatch-lower reproduce`", "https://example.org/other")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], "name either the builder's `--key`, or the signer's `--identity` and its `--issuer`"),
        (["--identity", SUBJECT], "and its `--issuer`"),
        (["--issuer", ISSUER], "and its `--issuer`"),
        (["--identity", SUBJECT, "--issuer", ""], "and its `--issuer`"),
        (["--identity", "", "--issuer", ISSUER], "and its `--issuer`"),
        ([*IDENTITY, "--key", "FILE"], "name either the builder's `--key`"),
        (["--issuer", ISSUER, "--key", "FILE"], "name either the builder's `--key`"),
        (["--key", "FILE", "--trust-config", "FILE"], "`--trust-config` is for `--identity`"),
    ],
)
def test_options_of_a_verification_that_belong_together_are_asked_for(
    wheel: Path, options: list[str], found: str
) -> None:
    done = verify(wheel, "", *[str(wheel) if option == "FILE" else option for option in options])
    assert (done.exit_code, found in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--attest", "FILE", "--sigstore", "--key", "FILE"], "`--key` and `--sigstore` exclude each other"),
        (["--attest", "FILE", "--key", "FILE", "--identity-token", "FILE"], "are for `--sigstore`"),
        (["--attest", "FILE", "--key", "FILE", "--trust-config", "FILE"], "are for `--sigstore`"),
        (["--sigstore"], "are for `--attest`"),
        (["--identity-token", "FILE"], "are for `--sigstore`"),
    ],
)
def test_options_of_signing_that_belong_together_are_asked_for(wheel: Path, options: list[str], found: str) -> None:
    named = [str(wheel) if option == "FILE" else option for option in options]
    done = CliRunner().invoke(main, ["reproduce", str(wheel), *named])
    assert (done.exit_code, found in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "nests too deeply"),
        ("[]", "ClientTrustConfig"),
        ("{}", "mediaType"),
        ('{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}', "tlogs"),
        (" " * (MOST + 1), f"more than {MOST} bytes"),
        (b"\xff", "no text"),
    ],
)
def test_a_trust_configuration_of_another_form_is_refused(
    instance: PlayedSigstore, wheel: Path, text: str | bytes, found: str
) -> None:
    bundle, path = bundle_of(instance, wheel.parent), wheel.parent / "other.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    what = "the trust configuration of Sigstore cannot be used"
    refused(verify(wheel, bundle, *IDENTITY, "--trust-config", path), what, "", "`TrustedRoot`")
    done = reproduce(wheel, "--trust-config", path)
    refused(done, what, found if "trustedroot" not in str(text) else "mediaType", "`ClientTrustConfig`")
    assert "building" not in done.output


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("tlogs", ""),
        ("certificateAuthorities", "Fulcio certificates not found"),
        ("ctlogs", "CTFE keys not found"),
    ],
)
def test_a_trust_configuration_without_a_part_verifies_nothing(
    instance: PlayedSigstore, wheel: Path, part: str, found: str
) -> None:
    bundle, path = bundle_of(instance, wheel.parent), wheel.parent / "other.json"
    path.write_text(json.dumps({**instance.trusted_root(), part: []}))
    done = verify(wheel, bundle, *IDENTITY, "--trust-config", path)
    refused(done, "the attestation's signature does not hold", found, "--trust-config")


@pytest.mark.parametrize("part", ["caUrls", "rekorTlogUrls"])
def test_a_trust_configuration_without_a_service_is_refused_before_the_build(
    instance: PlayedSigstore, wheel: Path, part: str
) -> None:
    trust = instance.trust_config()
    trust["signingConfig"][part] = []
    path = wheel.parent / "other.json"
    path.write_text(json.dumps(trust))
    done = reproduce(wheel, "--trust-config", path)
    refused(done, "the trust configuration of Sigstore cannot be used", "found in signing config")
    assert "building" not in done.output


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda: "", "Identity token is malformed"),
        (lambda: "secret", "Not enough segments"),
        (lambda: identity_token(seconds=-60), "Signature has expired"),
        (lambda: identity_token(aud="other"), "Audience"),
        (lambda: "x" * (MOST + 1), f"more than {MOST} bytes"),
    ],
    ids=["empty", "text", "expired", "other-audience", "large"],
)
def test_a_token_that_cannot_sign_is_refused_before_the_build_and_is_not_shown(
    instance: PlayedSigstore, wheel: Path, made: Callable[[], str], found: str
) -> None:
    token = made()  # here: a token expires, and a run of all tests takes longer
    path = wheel.parent / "token"
    path.write_text(token)
    trust = instance.write_trust_config(wheel.parent)
    done = reproduce(wheel, "--trust-config", trust, "--identity-token", path)
    refused(done, "there is no identity token to sign the attestation by", found, "`--identity-token`")
    assert "building" not in done.output
    assert not token or token not in done.output


def test_a_machine_without_a_token_is_refused_before_the_build(
    instance: PlayedSigstore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = instance.write_trust_config(wheel.parent)
    what = "there is no identity token to sign the attestation by"
    with monkeypatch.context() as outside_of_ci:
        outside_of_ci.setattr(
            "sigstore.oidc.detect_credential", lambda: None
        )  # some clouds are asked by their machines
        done = reproduce(wheel, "--trust-config", trust)
    refused(done, what, "no CI service that gives tokens", "id-token: write")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", raising=False)
    done = reproduce(wheel, "--trust-config", trust)
    refused(done, what, "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "id-token: write")
    assert "building" not in done.output


def test_the_token_that_signs_is_read_after_the_build(
    instance: PlayedSigstore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, path = wheel.parent / "token", wheel.parent / "attestation.json"
    token.write_text(identity_token())
    options = ("--trust-config", instance.write_trust_config(wheel.parent), "--identity-token", token)
    rebuilt_with(wheel, monkeypatch, lambda: token.write_text(identity_token(seconds=-60)))
    done = reproduce(wheel, *options)
    refused(done, "there is no identity token to sign the attestation by", "Signature has expired")
    assert not path.exists()


def test_a_token_may_come_from_a_pipe(instance: PlayedSigstore, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(identity_token(),))
    writer.start()
    signer = keyless.keyless_signer(pipe, instance.write_trust_config(tmp_path))
    writer.join()
    assert json.loads(signer.sign(STATEMENT))["dsseEnvelope"]


@pytest.mark.parametrize("path", ["/api/v2/signingCert", "/api/v1/log/entries"])
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ((403, b'{"code": 16, "message": "no such issuer"}'), "no such issuer"),
        ((500, b"\xff"), "500"),
        ((200, b"{"), "JSON"),
        ((200, b"[]"), "Error"),
        ((200, b"{}"), "Error"),
        (None, "no answer within 0.3 s"),
    ],
)
def test_a_service_that_fails_is_named_and_no_file_is_left(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, path: str, answer: tuple[int, bytes] | None, found: str
) -> None:
    token = wheel.parent / "token"
    token.write_text(identity_token())
    rebuilt_with(wheel, monkeypatch)
    if answer is None:
        monkeypatch.setattr(keyless, "ANSWER_SECONDS", 0.3)
    with played_sigstore() as played:
        played.answers[path] = answer
        trust = played.write_trust_config(wheel.parent)
        done = reproduce(wheel, "--trust-config", trust, "--identity-token", token)
    refused(done, "Sigstore does not sign the attestation", found, "`--trust-config`")
    assert not (wheel.parent / "attestation.json").exists()


def test_the_public_instance_that_is_out_of_reach_is_named(
    instance: PlayedSigstore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(instance, wheel.parent)

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(wheel.parent / name))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    what = "the trust configuration of Sigstore cannot be fetched"
    refused(verify(wheel, bundle, *IDENTITY), what, "no network", "`--trust-config`")
    done = reproduce(wheel)
    refused(done, what, "no network", "`--trust-config`")
    assert "building" not in done.output


def test_the_extra_is_named_where_sigstore_is_missing(
    instance: PlayedSigstore, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(instance, wheel.parent)
    monkeypatch.setitem(sys.modules, "sigstore.models", None)
    for done in (verify(wheel, bundle, *IDENTITY), reproduce(wheel)):
        assert done.exit_code == 1
        assert "error: attestations by an identity need the package `sigstore`" in done.output
        assert 'pip install "hatch-lower[sigstore]"' in done.output
