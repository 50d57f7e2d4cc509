"""Wheels of the variants beside the wheel that hatchling writes, and the index file that lists the variants (PEP 825).

A variant's wheel is hatchling's wheel with other programs, another tag and another SBOM, and with `variant.json`.
"""

from __future__ import annotations

import csv
import io
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hatch_lower.cache.store import Store
from hatch_lower.canonical import canonical_json, recorded_digest, sha256_bytes
from hatch_lower.config.settings import Settings
from hatch_lower.driver.sbom import Cards
from hatch_lower.driver.variants import Variant, split_variants
from hatch_lower.errors import PackageError
from hatch_lower.format.results import SBOM_FILE, BuildResult, PayloadFile
from hatch_lower.frozen import Frozen
from hatch_lower.hatch.sbom import build_sbom
from hatch_lower.hatch.tags import tag_of
from hatch_lower.hatch.wheel import copy_span, fill_wheel, new_entry, read_archive, replacing_file

# the draft with providers, as uv 0.13.9 knows the format; variantlib 0.2.2 writes the same version
SCHEMA = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
DOCUMENT = "variant.json"
# Providers by namespace, as uv names the providers that are part of uv. The order is the order of the namespaces: code
# for the GPU comes before code for the processor.
PROVIDERS: Mapping[str, Mapping[str, object]] = {
    "nvidia": {
        "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
        "requires": ["nvidia-variant-provider"],
    },
    "x86_64": {"requires": ["x86-64-variant-provider"]},
    "aarch64": {"requires": ["aarch64-variant-provider"]},
}


class VariantWheel(Frozen):
    """The contents of a variant's wheel, as far as they differ from hatchling's wheel."""

    label: str
    tag: str  # of the payload: `py3-none-manylinux_2_35_x86_64`
    document: bytes  # `variant.json`
    sbom: bytes
    payload: tuple[PayloadFile, ...]


class VariantSet(Frozen):
    """The wheels of a build's variants, and their index file."""

    null: BuildResult  # of the null variant; hatchling's wheel has the same programs
    wheels: tuple[VariantWheel, ...]
    index: bytes  # lists all variants
    work: Path  # a private folder, for drafts

    @property
    def files(self) -> tuple[PayloadFile, ...]:
        return tuple(file for wheel in self.wheels for file in wheel.payload)

    def with_files(self, replaced: Callable[[Sequence[PayloadFile]], tuple[PayloadFile, ...]]) -> VariantSet:
        return replace(self, wheels=tuple(replace(wheel, payload=replaced(wheel.payload)) for wheel in self.wheels))


def plan_variants(settings: Settings, cards: Cards, result: BuildResult, work: Path, store: Store) -> VariantSet:
    """Return the wheels for a build's result; raise `ConfigError` as `split_variants` does."""
    variants = split_variants(result, settings, work)
    documents = variant_documents(variants)
    wheels = tuple(
        VariantWheel(
            variant.label,
            tag_of(variant.result, store),
            documents[variant.label],
            build_sbom(settings, cards, variant.result, store).encode(),
            variant.result.payload,
        )
        for variant in variants
    )
    return VariantSet(variants[0].result, wheels, documents[""], work)


def variant_documents(variants: Sequence[Variant]) -> dict[str, bytes]:
    """Return `variant.json` by label; the key `""` has the index file, which lists all variants."""
    used = {namespace for variant in variants for namespace in variant.properties}
    providers = {namespace: provider for namespace, provider in PROVIDERS.items() if namespace in used}
    head = {"$schema": SCHEMA, "default-priorities": {"namespace": list(providers)}, "providers": providers}
    listed = {variant.label: variant.properties for variant in variants}
    documents = {label: canonical_json({**head, "variants": {label: needed}}) for label, needed in listed.items()}
    return {**documents, "": canonical_json({**head, "variants": listed})}


def write_drafts(wheel: Path, variants: VariantSet) -> tuple[Path, ...]:
    """Write the variants without payload into the private folder, from a wheel of hatchling without payload."""
    return tuple(write_draft(wheel, variants.work, variant) for variant in variants.wheels)


def write_variants(wheel: Path, variants: VariantSet, drafts: Sequence[Path], store: Store | None) -> list[Path]:
    """Write the variants and the index file beside hatchling's wheel; return their paths.

    Raises:
        PackageError: a file cannot be written; all files of this call are removed then.
    """
    written: list[Path] = []
    try:
        for variant, draft in zip(variants.wheels, drafts, strict=True):
            fill_wheel(draft, path := wheel.with_name(draft.name), variant.payload, store)
            written.append(path)
        path = wheel.with_name(index_name(wheel.name))
        with replacing_file(path, stat.S_IMODE(wheel.stat().st_mode)) as target:
            target.write(variants.index)
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise PackageError(
                "the index file of the variants could not be written",
                where=str(error.filename or wheel.parent),
                found=error.strerror or str(error),
                hint="make space on the disk, and build again",
            ) from error
        raise
    return [*written, path]


def variant_name(wheel: str, variant: VariantWheel) -> str:
    """Return the file name of a variant: the platform of its payload, and its label."""
    start, tag = split_name(wheel)
    return f"{start}-{merged_tag(tag, variant.tag)}-{variant.label}.whl"


def index_name(wheel: str) -> str:
    return "-".join(wheel.split("-")[:2]) + "-variants.json"


def split_name(wheel: str) -> tuple[str, str]:
    """Return name, version and build number of a wheel's file name, and its tag."""
    start, *tag = wheel.removesuffix(".whl").rsplit("-", 3)
    return start, "-".join(tag)


def merged_tag(tag: str, payload: str) -> str:
    """Return the tag of hatchling's wheel with the platform of the payload, unless the wheel has a platform already."""
    platform = payload.rpartition("-")[2]
    return tag.removesuffix("any") + platform if tag.endswith("-any") else tag


def write_draft(wheel: Path, folder: Path, variant: VariantWheel) -> Path:
    """Copy hatchling's wheel with the metadata of a variant; all other members are copied byte for byte."""
    draft = folder / variant_name(wheel.name, variant)
    metadata = "-".join(wheel.name.split("-")[:2]) + ".dist-info/"
    members, ends = read_archive(wheel)
    with zipfile.ZipFile(wheel) as file:
        new = {f"{metadata}WHEEL": tagged(file.read(f"{metadata}WHEEL"), variant.tag)}
        rows = list(csv.reader(io.StringIO(file.read(f"{metadata}RECORD").decode(), newline="")))
    sbom = f"{metadata}sboms/{SBOM_FILE}"
    new |= {member.filename: variant.sbom for member in members if member.filename == sbom}
    new[f"{metadata}{DOCUMENT}"] = variant.document
    kept = [row for row in rows if row and row[0] not in (*new, f"{metadata}RECORD")]
    added = [[name, recorded_digest(sha256_bytes(data)), str(len(data))] for name, data in new.items()]
    record = io.StringIO()
    csv.writer(record, lineterminator="\n").writerows([*kept, *added, [f"{metadata}RECORD", "", ""]])
    new[f"{metadata}RECORD"] = record.getvalue().encode()
    date = next(member.date_time for member in members if member.filename.startswith(metadata))
    with wheel.open("rb") as source, draft.open("w+b") as target, zipfile.ZipFile(target, "w") as archive:
        for member, end in zip(members, ends, strict=True):
            if member.filename not in new:
                start, member.header_offset = member.header_offset, target.tell()
                copy_span(source, target, start, end)
                archive.filelist.append(member)
        archive.start_dir = target.tell()
        for name, data in new.items():
            archive.writestr(new_entry(target, name, date, 0), data, zipfile.ZIP_DEFLATED)
    return draft


def tagged(text: bytes, payload: str) -> bytes:
    """Return the file `WHEEL` with the platform of the payload."""
    platform = payload.rpartition("-")[2]
    lines = text.decode().splitlines(keepends=True)
    if platform == "any" or not any(line.startswith("Tag: ") and line.rstrip().endswith("-any") for line in lines):
        return text
    changed = []
    for line in lines:
        if line.startswith("Tag: "):
            line = line.rstrip().removesuffix("any") + f"{platform}\n"
        changed.append("Root-Is-Purelib: false\n" if line.startswith("Root-Is-Purelib:") else line)
    return "".join(changed).encode()
