"""`hatch-lower reproduce`: build a wheel again in another folder and environment, and compare all bytes."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from hatch_lower.canonical import sha256_file
from hatch_lower.cli.arguments import FILE, FOLDER, OUTPUT, json_option, trust_config_option, wheel_argument
from hatch_lower.cli.output import count, show, show_report, write_output_file
from hatch_lower.driver.reproduce.attestation import (
    Source,
    checked_builder,
    key_name,
    read_key_file,
    sign,
    source_of_project,
    source_of_sdist,
    statement_of,
)
from hatch_lower.errors import PackageError
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.driver.diff.difference import Difference
    from hatch_lower.driver.reproduce.rebuild import Rebuilt

Signer: TypeAlias = Callable[[bytes], bytes]
LOG = "build.log"
DIFFOSCOPE = "diffoscope.txt"
SHOWN = 5  # differences of a file in the text output


@click.command()
@wheel_argument
@click.option("--project", type=FOLDER, help="The project that the wheel was built from. Default: this folder.")
@click.option("--sdist", type=FILE, metavar="FILE.tar.gz", help="Build from this source distribution instead.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the rebuilt wheel, the log of its build, and diffoscope's report (if diffoscope is installed) in this"
    " folder.",
)
@click.option("--attest", type=OUTPUT, help="Write an in-toto statement of equal bytes into this file.")
@click.option("--key", type=FILE, help="Sign the statement with this private key: PEM, Ed25519 or ECDSA over P-256.")
@click.option("--sigstore", is_flag=True, help="Sign the statement by the CI job's identity, as a Sigstore bundle.")
@click.option(
    "--identity-token", type=FILE, help="Sign by the identity token in this file. Default: the token of the CI's job."
)
@trust_config_option
@click.option("--builder", help="The builder's URI in the statement. Default: the digest of the key, or the identity.")
@json_option
@click.pass_context
def reproduce(
    context: click.Context,
    wheel: Path,
    project: Path | None,
    sdist: Path | None,
    keep: Path | None,
    attest: Path | None,
    key: Path | None,
    sigstore: bool,
    identity_token: Path | None,
    trust_config: Path | None,
    builder: str | None,
    as_json: bool,
) -> None:
    """Build a wheel again, and compare all bytes.

    Differences are shown with place and likely reason. The build has another folder, home, umask, locale, time zone,
    hash seed, number of threads and order of files, uses no cached results, and runs with the packages that are
    installed here.
    """
    if project is not None and sdist is not None:
        raise click.UsageError("`--project` and `--sdist` exclude each other.")
    if attest is None and (sigstore or key is not None or builder is not None):
        raise click.UsageError("`--key`, `--sigstore` and `--builder` are for `--attest`.")
    if sigstore and key is not None:
        raise click.UsageError("`--key` and `--sigstore` exclude each other.")
    if not sigstore and (identity_token is not None or trust_config is not None):
        raise click.UsageError("`--identity-token` and `--trust-config` are for `--sigstore`.")
    attestation = None
    if attest is not None:
        given = None if builder is None else checked_builder(builder)
        signer, name = choose_signer(key, sigstore, identity_token, trust_config)
        attestation = prepare_attestation(attest, signer, given or name, project, sdist, wheel)
    from hatch_lower.driver.diff.wheels import compare_wheels
    from hatch_lower.driver.reproduce.rebuild import rebuilt

    digest = sha256_file(wheel)
    target = None if keep is None else prepare(keep, wheel)
    show([f"building {wheel.name} again from {sdist or project or Path()}"], err=True)
    with rebuilt(project or Path(), sdist, os.environ, wheel.name) as again:
        other = sha256_file(again.wheel)
        equal = digest == other and wheel.name == again.wheel.name
        differences = () if equal else compare_wheels(wheel, again.wheel, again.variation.places)
        report = {
            "wheel": wheel.name,
            "sha256": digest,
            "rebuilt": again.wheel.name,
            "rebuilt_sha256": other,
            "equal": not differences,
            "varied": dict(again.variation.told),
            "differences": [asdict(difference) for difference in differences],
        }
        if target is not None:
            keep_files(again, target)
            if not equal:
                keep_diffoscope(wheel, target / again.wheel.name)
        if attestation is not None and equal:
            attestation.write(wheel, digest, again.variation.told)
    show_report(report, as_json, lambda _: reproduction_lines(wheel, digest, differences))
    context.exit(0 if equal else 1)


class Attestation(Frozen):
    """The attestation that is written if all bytes are equal."""

    path: Path
    signer: Signer
    builder: str
    source: Source | None

    def write(self, wheel: Path, sha256: str, varied: Iterable[str]) -> None:
        data = self.signer(statement_of(wheel, sha256, self.source, self.builder, varied))
        write_output_file(self.path, data.decode(), "attestation")


def choose_signer(
    key: Path | None, sigstore: bool, identity_token: Path | None, trust_config: Path | None
) -> tuple[Signer, str]:
    """Return the function that signs a statement, and the default for the builder's URI, which may be empty."""
    if sigstore:
        from hatch_lower.driver.reproduce.keyless import keyless_signer

        keyless = keyless_signer(identity_token, trust_config)
        return keyless.sign, keyless.builder
    if key is not None:
        private = read_key_file(key, private=True)
        return partial(sign, private=private), f"urn:hatch-lower:key:{key_name(private.public_key())}"
    return bytes, ""  # another program signs the bare statement


def prepare_attestation(
    path: Path, signer: Signer, builder: str, project: Path | None, sdist: Path | None, wheel: Path
) -> Attestation:
    """Read what an attestation needs before the build: the build takes minutes, and meanwhile sources may change."""
    if not builder:
        raise click.UsageError(
            "`--attest` needs `--key` or `--sigstore`, or `--builder` for a statement that another program signs."
        )
    if not path.parent.is_dir():
        raise PackageError("the attestation cannot be written", where=str(path), found="no such folder")
    source = source_of_project(project or Path(), wheel) if sdist is None else source_of_sdist(sdist)
    return Attestation(path, signer, builder, source)


def prepare(keep: Path, wheel: Path) -> Path:
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if keep.samefile(wheel.parent):
            raise PackageError(
                "the rebuilt wheel would overwrite the original",
                where=str(wheel),
                hint="name another folder with `--keep`",
            )
    except OSError as error:
        raise PackageError(
            "the folder for the rebuilt wheel cannot be made", where=str(keep), found=str(error)
        ) from error
    return keep


def keep_files(again: Rebuilt, target: Path) -> None:
    try:
        shutil.copyfile(again.wheel, target / again.wheel.name)
        (target / LOG).write_text(again.log, encoding="utf-8")
    except OSError as error:
        raise PackageError("the rebuilt wheel cannot be kept", where=str(target), found=str(error)) from error


def keep_diffoscope(wheel: Path, again: Path) -> None:
    """Write diffoscope's report beside the rebuilt wheel, if diffoscope is installed."""
    # diffoscope disassembles native code, and shows texts by line and all fields of an archive
    program = shutil.which("diffoscope")
    if program is not None:
        command = [program, "--text", str(again.parent / DIFFOSCOPE), str(wheel), str(again)]
        subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def reproduction_lines(wheel: Path, digest: str, differences: Sequence[Difference]) -> Iterator[str]:
    if not differences:
        yield f"{wheel.name} is reproducible: sha256 {digest}"
        return
    members = {difference.member for difference in differences} - {""}
    number = f": {count(len(members), 'file')} differ{'s' if len(members) == 1 else ''}" if members else ""
    yield f"{wheel.name} is not reproducible{number}"
    yield "  in the wheel (-) and as rebuilt (+)"
    for member, group in itertools.groupby(differences, key=lambda difference: difference.member):
        listed = list(group)
        yield ""
        yield member or "the wheel as a whole"
        reason = ""
        for difference in listed[:SHOWN]:
            if reason and difference.reason != reason:
                yield f"  likely reason: {reason}"
            reason = difference.reason
            yield from byte_difference_lines(difference)
        if len(listed) > SHOWN:
            yield f"  … and {len(listed) - SHOWN} more"
        if reason:
            yield f"  likely reason: {reason}"


def byte_difference_lines(difference: Difference) -> Iterator[str]:
    if difference.place:
        yield f"  {difference.place}"
    if difference.first or difference.second:
        yield f"    - {difference.first}"
        yield f"    + {difference.second}"
    yield from (f"      {line}" for line in difference.lines)
