"""`hatch-lower verify-attestation`: the statement of another builder that a wheel was built again with equal bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from hatch_lower.canonical import read_file, sha256_file
from hatch_lower.cli.arguments import FILE, json_option
from hatch_lower.cli.output import Report, show_report
from hatch_lower.driver.reproduce.attestation import verify
from hatch_lower.errors import ProgramError


@click.command("verify-attestation")
@click.argument("attestation", type=FILE)
@click.argument("wheel", type=FILE)
@click.option("--key", type=FILE, required=True, help="The builder's public key, as a PEM file.")
@json_option
def verify_attestation(attestation: Path, wheel: Path, key: Path, as_json: bool) -> None:
    """Check an attestation of `hatch-lower reproduce`.

    The signature must be by the key, and the wheel must have the attested name and bytes.
    """
    found = verify(read_file(attestation), key, str(attestation))
    digest = sha256_file(wheel)
    if (found.wheel, found.sha256) != (wheel.name, digest):
        raise ProgramError(
            "the attestation is of another wheel",
            where=str(attestation),
            found=f"{found.wheel}, sha256 {found.sha256}, where the wheel is {wheel.name}, sha256 {digest}",
            hint="fetch the wheel and its attestation again",
        )
    show_report(asdict(found), as_json, attested_lines)


def attested_lines(report: Report) -> Iterator[str]:
    yield f"{report['wheel']} was built again with equal bytes: sha256 {report['sha256']}"
    yield f"  builder  {report['builder']}"
    yield f"  sources  {report['source'] or 'a folder without a commit'}"
