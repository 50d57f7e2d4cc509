"""`hatch-lower reproduce --attest` and `hatch-lower verify-attestation`: signed statements of equal bytes."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from support.scenarios import only
from support.sides import commit, git
from support.venv import run

from hatch_lower.canonical import sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.cli.output import write_output_file
from hatch_lower.driver.reproduce import rebuild
from hatch_lower.driver.reproduce.attestation import (
    Source,
    checked_builder,
    read_key_file,
    sign,
    source_of_project,
    statement_of,
)
from hatch_lower.errors import PackageError

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "plain"
version = "1.0"
"""
KINDS: dict[str, Callable[[], Any]] = {
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
    "ECDSA": lambda: ec.generate_private_key(ec.SECP256R1()),
}
BUILDER = "https://example.org/builder"


def key_files(folder: Path, kind: str = "Ed25519") -> tuple[Path, Path]:
    """Write a pair of keys; return the private and the public file."""
    folder.mkdir(parents=True, exist_ok=True)
    private = KINDS[kind]()
    paths = folder / "key.pem", folder / "public.pem"
    paths[0].write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    paths[1].write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return paths


def wheel_at(folder: Path) -> Path:
    path = folder / "plain-1.0-py3-none-any.whl"
    path.write_bytes(b"a wheel")
    return path


def attested(folder: Path, kind: str = "Ed25519") -> tuple[Path, Path, Path]:
    """Return an attestation, its wheel and the public key."""
    private, public = key_files(folder, kind)
    wheel = wheel_at(folder)
    statement = statement_of(wheel, sha256_bytes(b"a wheel"), Source("plain", {"gitCommit": "0" * 40}), BUILDER, ["TZ"])
    path = folder / "attestation.json"
    path.write_bytes(sign(statement, read_key_file(private, private=True)))
    return path, wheel, public


def verify(attestation: Path, wheel: Path, key: Path) -> Result:
    return CliRunner().invoke(main, ["verify-attestation", str(attestation), str(wheel), "--key", str(key)])


def reproduce(wheel: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["reproduce", str(wheel), *map(str, arguments)])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_attestation_holds_for_its_wheel(tmp_path: Path, kind: str) -> None:
    done = verify(*attested(tmp_path, kind))
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            f"plain-1.0-py3-none-any.whl was built again with equal bytes: sha256 {sha256_bytes(b'a wheel')}",
            f"  builder  {BUILDER}",
            f"  sources  plain gitCommit:{'0' * 40}",
        ],
    )


def test_the_envelope_has_the_fields_of_in_toto_and_dsse(tmp_path: Path) -> None:
    path, wheel, _ = attested(tmp_path)
    envelope = json.loads(path.read_bytes())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert set(envelope["signatures"][0]) == {"keyid", "sig"}
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": wheel.name, "digest": {"sha256": sha256_bytes(b"a wheel")}}]
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["predicate"]["runDetails"]["builder"]["id"] == BUILDER


def test_the_signature_is_over_the_encoding_of_dsse(tmp_path: Path) -> None:
    path, _, _ = attested(tmp_path)
    envelope = json.loads(path.read_bytes())
    payload = base64.b64decode(envelope["payload"])
    private, _ = tmp_path / "key.pem", tmp_path / "public.pem"
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key: Any = load_pem_private_key(private.read_bytes(), None)
    message = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(payload), payload)
    assert base64.b64decode(envelope["signatures"][0]["sig"]) == key.sign(message)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_signature_by_another_key_is_refused(tmp_path: Path, kind: str) -> None:
    path, wheel, _ = attested(tmp_path)
    _, other = key_files(tmp_path / "other", kind)
    done = verify(path, wheel, other)
    assert (done.exit_code, "the attestation is not signed by the key" in done.output) == (1, True)


def test_a_wheel_with_other_bytes_is_refused(tmp_path: Path) -> None:
    path, wheel, public = attested(tmp_path)
    wheel.write_bytes(b"another wheel")
    done = verify(path, wheel, public)
    assert (done.exit_code, "the attestation is of another wheel" in done.output) == (1, True)
    wheel.write_bytes(b"a wheel")
    done = verify(path, wheel.rename(tmp_path / "other-1.0-py3-none-any.whl"), public)
    assert (done.exit_code, "the attestation is of another wheel" in done.output) == (1, True)


@pytest.mark.parametrize("part", ["payload", "sig", "payloadType"])
def test_a_changed_attestation_is_refused(tmp_path: Path, part: str) -> None:
    path, wheel, public = attested(tmp_path)
    envelope = json.loads(path.read_bytes())
    if part == "payload":
        envelope[part] = base64.b64encode(base64.b64decode(envelope[part]).replace(b"plain", b"other")).decode()
    elif part == "sig":
        envelope["signatures"][0][part] = base64.b64encode(bytes(64)).decode()
    else:
        envelope[part] = "application/json"
    path.write_text(json.dumps(envelope))
    assert verify(path, wheel, public).exit_code == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "[" * 100_000, " " * (1 << 20) + " ", '{"payload": 1}', '{"payload": "!"}'),
        *('{"payload": "é"}', '{"payload": "e30=", "signatures": [1, {"sig": []}]}'),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path, wheel, public = attested(tmp_path)
    path.write_text(text, encoding="utf-8")
    done = verify(path, wheel, public)
    assert done.exit_code == 1
    assert "error: the file is no attestation of `hatch-lower reproduce`" in done.output


def test_a_bundle_and_an_envelope_name_each_others_option(tmp_path: Path) -> None:
    path, wheel, public = attested(tmp_path)
    identity = ["verify-attestation", str(path), str(wheel), "--identity", "a@example.org", "--issuer", BUILDER]
    output = CliRunner().invoke(main, identity).output
    assert "error: the attestation is signed by a key, and not by an identity" in output
    assert "found: an envelope with the payload type 'application/vnd.in-toto+json'" in output
    assert "to do: name the builder's public key with `--key`" in output
    path.write_text('{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}')
    output = verify(path, wheel, public).output
    assert "error: the attestation is signed by an identity, and not by a key" in output
    assert "found: a Sigstore bundle: application/vnd.dev.sigstore.bundle.v0.3+json" in output
    assert "to do: name the signer with `--identity` and `--issuer`" in output


@pytest.mark.parametrize("other", ["AAAA", "!!", "é", None])
def test_a_signature_that_is_none_does_not_hide_the_others(tmp_path: Path, other: str | None) -> None:
    path, wheel, public = attested(tmp_path)
    envelope = json.loads(path.read_bytes())
    envelope["signatures"].insert(0, {"sig": other})
    path.write_text(json.dumps(envelope))
    assert verify(path, wheel, public).exit_code == 0
    del envelope["signatures"][1]
    path.write_text(json.dumps(envelope))
    assert "the attestation is not signed by the key" in verify(path, wheel, public).output


def test_base64_may_have_the_alphabet_of_urls(tmp_path: Path) -> None:
    path, wheel, public = attested(tmp_path, "ECDSA")
    envelope = json.loads(path.read_bytes())
    data = base64.b64decode(envelope["payload"])
    key = read_key_file(tmp_path / "key.pem", private=True)
    while not set("+/") & set(envelope["signatures"][0]["sig"]):  # signatures of ECDSA are random
        envelope = json.loads(sign(data, key))
    sig = envelope["signatures"][0]["sig"]
    envelope["signatures"][0]["sig"] = sig.replace("+", "-").replace("/", "_")
    path.write_text(json.dumps(envelope))
    assert verify(path, wheel, public).exit_code == 0


@pytest.mark.parametrize("statement", [b"{}", b"[]", b'{"subject": []}', b'{"subject": [{"name": 1}], "predicate": 1}'])
def test_a_signed_statement_of_another_form_is_refused(tmp_path: Path, statement: bytes) -> None:
    path, wheel, public = attested(tmp_path)
    path.write_bytes(sign(statement, read_key_file(tmp_path / "key.pem", private=True)))
    done = verify(path, wheel, public)
    assert "the file is no attestation of `hatch-lower reproduce`" in done.output


def test_a_key_that_cannot_sign_is_refused_before_the_build_and_is_not_shown(tmp_path: Path) -> None:
    wheel, (private, public) = wheel_at(tmp_path), key_files(tmp_path)
    locked, other = tmp_path / "locked.pem", tmp_path / "rsa.pem"
    key = ed25519.Ed25519PrivateKey.generate()
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")))
    large = rsa.generate_private_key(65537, 2048)
    other.write_bytes(large.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    damaged = tmp_path / "damaged.pem"
    damaged.write_text(private.read_text().replace("M", "N"))
    for path in (public, locked, other, damaged):
        done = reproduce(wheel, "--attest", tmp_path / "a.json", "--key", path)
        assert "the key for attestations cannot be used" in done.output, path
        assert "building" not in done.output
        assert not any(line in done.output for line in path.read_text().splitlines()[1:-1])


@pytest.mark.parametrize(
    ("der", "found"),
    [
        # the curve SM2
        ("3059301306072a8648ce3d020106082a811ccf5501822d034200" + "04" + "11" * 64, "1.2.156.10197.1.301"),
        ("", "no public key in PEM, or a damaged key"),
    ],
)
def test_a_public_key_of_another_kind_is_refused(tmp_path: Path, der: str, found: str) -> None:
    path, wheel, public = attested(tmp_path)
    body = base64.b64encode(bytes.fromhex(der)).decode()
    public.write_text(f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n")
    done = verify(path, wheel, public)
    assert (done.exit_code, found in done.output) == (1, True), done.output


def test_a_curve_is_named(tmp_path: Path) -> None:
    path, wheel, public = attested(tmp_path)
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    public.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert "found: a key of the kind ECPublicKey, secp384r1" in verify(path, wheel, public).output


@contextlib.contextmanager
def rebuilt_as(wheel: Path, meanwhile: Callable[[], object]) -> Iterator[Any]:
    meanwhile()
    yield SimpleNamespace(wheel=wheel, variation=SimpleNamespace(told={"TZ": "UTC"}, places=()), log="")


def test_key_and_sources_are_read_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, (private, _), path = wheel_at(tmp_path), key_files(tmp_path), tmp_path / "attestation.json"
    sdist = tmp_path / "plain-1.0.tar.gz"
    sdist.write_bytes(b"before")

    def change() -> None:
        private.unlink()  # a pipe from a store of secrets can be read once
        sdist.write_bytes(b"after")

    monkeypatch.setattr(rebuild, "rebuilt", lambda *_: rebuilt_as(wheel, change))
    done = reproduce(wheel, "--sdist", sdist, "--attest", path, "--key", private)
    assert done.exit_code == 0, done.output
    statement = json.loads(base64.b64decode(json.loads(path.read_text())["payload"]))
    (source,) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source == {"name": sdist.name, "digest": {"sha256": sha256_bytes(b"before")}}


def test_a_folder_that_is_missing_is_said_before_the_build(tmp_path: Path) -> None:
    done = reproduce(wheel_at(tmp_path), "--attest", tmp_path / "none/a.json", "--builder", BUILDER)
    assert "the attestation cannot be written" in done.output
    assert "building" not in done.output


@pytest.mark.parametrize(
    ("options", "found"),
    [(["--key"], "are for `--attest`"), (["--attest"], "`--attest` needs `--key` or `--sigstore`")],
)
def test_options_that_belong_together_are_asked_for(tmp_path: Path, options: list[str], found: str) -> None:
    private, _ = key_files(tmp_path)
    done = reproduce(wheel_at(tmp_path), *options, private)
    assert (done.exit_code, found in done.output) == (2, True)


@pytest.mark.parametrize(
    "builder",
    ["", "our builder", "example.org/builder", "//example.org", "https:", "1a:b", "https://a b", "urn:é", "urn:%zz"],
)
def test_a_builder_that_is_no_absolute_uri_is_refused_before_the_build(tmp_path: Path, builder: str) -> None:
    done = reproduce(wheel_at(tmp_path), "--attest", tmp_path / "a.json", "--builder", builder)
    assert done.exit_code == 1
    assert "error: the builder's name is no absolute URI\n  where: --builder\n" in done.output
    assert f"found: `{builder}`" in done.output
    assert "building" not in done.output


@pytest.mark.parametrize(
    "builder",
    [BUILDER, "urn:example:builder", "mailto:a@example.org", "https://example.org/b%20c?d=[::1]#e@refs/heads/main"],
)
def test_a_builder_may_be_any_absolute_uri(builder: str) -> None:
    assert checked_builder(builder) == builder


def test_the_commit_of_an_unchanged_project_is_the_source(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    wheel = Path("plain-1.0-py3-none-any.whl")
    assert source_of_project(tmp_path, wheel) is None
    git(tmp_path, "init", "--quiet")
    digest = commit(tmp_path, "first")
    found = source_of_project(tmp_path, wheel)
    assert found is not None
    assert (found.name, found.digest) == ("plain", {"gitCommit": digest})
    (tmp_path / "more").touch()
    assert source_of_project(tmp_path, wheel) is None


def test_a_wheel_that_was_built_again_is_attested_and_another_is_not(tmp_path: Path) -> None:
    root, (private, public), path = tmp_path / "project", key_files(tmp_path), tmp_path / "attestation.json"
    (root / "plain").mkdir(parents=True)
    (root / "plain/__init__.py").touch()
    (root / "pyproject.toml").write_text(PROJECT)
    run([sys.executable, "-m", "hatchling", "build"], cwd=root).check()
    wheel, sdist = only(root / "dist", "*.whl"), only(root / "dist", "*.tar.gz")
    done = reproduce(wheel, "--sdist", sdist, "--attest", path, "--key", private)
    assert done.exit_code == 0, done.output
    shown = verify(path, wheel, public).output
    assert f"sources  {sdist.name} sha256:" in shown
    path.unlink()
    (root / "plain/more.py").touch()
    assert reproduce(wheel, "--project", root, "--attest", path, "--key", private).exit_code == 1
    assert not path.exists()
    (root / "plain/more.py").unlink()
    assert reproduce(wheel, "--project", root, "--attest", path, "--builder", BUILDER).exit_code == 0
    text = path.read_text()
    assert json.loads(text)["_type"] == "https://in-toto.io/Statement/v1"
    assert str(tmp_path) not in text


def test_an_attestation_that_is_not_whole_is_not_left(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(PackageError, match="the attestation cannot be written"):
            write_output_file(tmp_path / "a.json", "x" * 1000, "attestation")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
