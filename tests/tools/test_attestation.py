"""`hatch-lower reproduce --attest` and `hatch-lower verify-attestation`: signed statements of equal bytes."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
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
from hatch_lower.driver.reproduce.attestation import Source, sign, source_of_project, statement_of

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
    path.write_bytes(sign(statement, private))
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
    ["", "{", "[]", "{}", '{"payload": 1}', '{"payload": "!"}', '{"payload": "e30=", "signatures": [1, {"sig": []}]}'],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path, wheel, public = attested(tmp_path)
    path.write_text(text)
    done = verify(path, wheel, public)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("statement", [b"{}", b"[]", b'{"subject": []}', b'{"subject": [{"name": 1}], "predicate": 1}'])
def test_a_signed_statement_of_another_form_is_refused(tmp_path: Path, statement: bytes) -> None:
    path, wheel, public = attested(tmp_path)
    path.write_bytes(sign(statement, tmp_path / "key.pem"))
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
    ("options", "found"), [(["--key"], "are for `--attest`"), (["--attest"], "`--attest` needs `--key`")]
)
def test_options_that_belong_together_are_asked_for(tmp_path: Path, options: list[str], found: str) -> None:
    private, _ = key_files(tmp_path)
    done = reproduce(wheel_at(tmp_path), *options, private)
    assert (done.exit_code, found in done.output) == (2, True)


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
