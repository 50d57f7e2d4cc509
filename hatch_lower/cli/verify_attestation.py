"""`hatch-lower verify-attestation`: the statement of another builder that a wheel was built again with equal bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from hatch_lower.canonical import sha256_file
from hatch_lower.cli.arguments import FILE, json_option, trust_config_option
from hatch_lower.cli.output import Report, show_report
from hatch_lower.driver.reproduce.attestation import Attested, read_attestation, verify
from hatch_lower.errors import ProgramError


@click.command("verify-attestation")
@click.argument("attestation", type=FILE)
@click.argument("wheel", type=FILE)
@click.option("--key", type=FILE, help="The builder's public key, as a PEM file.")
@click.option(
    "--identity", metavar="URI|EMAIL", help="The signer of a Sigstore bundle: the whole identity in the certificate."
)
@click.option("--issuer", metavar="URL", help="The service that vouches for the identity.")
@trust_config_option
@json_option
def verify_attestation(
    attestation: Path,
    wheel: Path,
    key: Path | None,
    identity: str | None,
    issuer: str | None,
    trust_config: Path | None,
    as_json: bool,
) -> None:
    """Check an attestation of `hatch-lower reproduce`.

    The signature must be by the key, or by the identity of the issuer. The wheel must have the attested name and bytes.
    """
    found = attestation_checked(attestation, key, identity, issuer, trust_config)
    digest = sha256_file(wheel)
    if (found.wheel, found.sha256) != (wheel.name, digest):
        raise ProgramError(
            "the attestation is of another wheel",
            where=str(attestation),
            found=f"{found.wheel}, sha256 {found.sha256}, where the wheel is {wheel.name}, sha256 {digest}",
            hint="fetch the wheel and its attestation again",
        )
    show_report(asdict(found), as_json, attested_lines)


def attestation_checked(
    attestation: Path, key: Path | None, identity: str | None, issuer: str | None, trust_config: Path | None
) -> Attested:
    if (key is None) != bool(identity) or bool(identity) != bool(issuer):
        raise click.UsageError("name either the builder's `--key`, or the signer's `--identity` and its `--issuer`.")
    if key is not None and trust_config is not None:
        raise click.UsageError("`--trust-config` is for `--identity`.")
    data, where = read_attestation(attestation), str(attestation)
    if key is not None:
        return verify(data, key, where)
    from hatch_lower.driver.reproduce.keyless import verify_bundle

    return verify_bundle(data, identity or "", issuer or "", trust_config, where)


def attested_lines(report: Report) -> Iterator[str]:
    yield f"{report['wheel']} was built again with equal bytes: sha256 {report['sha256']}"
    yield f"  builder  {report['builder']}"
    if report["identity"]:
        yield f"  signer   {report['identity']}"
    yield f"  sources  {report['source'] or 'a folder without a commit'}"
