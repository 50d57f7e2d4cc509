"""An OCI artifact of a wheel, unpacked into a folder that Python imports the packages from.

The layout comes from a registry and is not trusted: each blob is compared with its descriptor, each file with the
RECORD of the wheel.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

from hatch_lower.canonical import sha256_file
from hatch_lower.driver.new_folder import folder_in_place
from hatch_lower.driver.oci.layout import (
    Descriptor,
    choose_artifact,
    damage_named,
    member_list,
    read_blob,
    read_descriptor,
    read_manifest_blob,
)
from hatch_lower.driver.oci.pack import ARTIFACT_TYPE, FILE_PATH, OUTSIDE, TAR_TYPES, WEIGHTS_TYPE
from hatch_lower.driver.whole_wheel import record_difference
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import Damage
from hatch_lower.format.values import read_path
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.sources import file_name


class Unpacked(Frozen):
    files: int
    size: int  # bytes of the layers
    weights: Path | None  # the folder of weights that the wheel does not hold


def unpack_artifact(layout: Path, folder: Path, tag: str | None) -> Unpacked:
    """Unpack an artifact into a new folder, completely or not at all.

    Raises:
        ProgramError: for an artifact that is damaged, or not made of a wheel with lowered models.
        PackageError: for a folder that exists.
    """
    layers = read_layers(layout, choose_artifact(layout, tag))
    with folder_in_place(folder, "artifact") as unfinished:
        for layer in layers:
            unpack_layer(layout, layer, unfinished)
        files = check_unpacked(unfinished, layers, str(layout))
    weights = folder / OUTSIDE
    return Unpacked(files, sum(layer.size for layer in layers), weights if weights.is_dir() else None)


def read_layers(layout: Path, artifact: Descriptor) -> list[Descriptor]:
    manifest = read_manifest_blob(layout, artifact)
    where = f"{layout}: manifest sha256:{artifact.sha256}"
    if manifest.get("artifactType") != ARTIFACT_TYPE:
        raise ProgramError(
            "the artifact is not a model of the ModelPack specification",
            where=where,
            found=f"the type {manifest.get('artifactType')!r:.100}",
            hint="select another artifact with `--tag`",
        )
    with damage_named(where):
        layers = [read_descriptor(entry) for entry in member_list(manifest, "layers")]
        for layer in layers:
            if layer.type not in {WEIGHTS_TYPE, *TAR_TYPES}:
                raise Damage(f"a layer of the type {layer.type[:100]!r}, which `hatch-lower oci` does not write")
    return layers


def unpack_layer(layout: Path, layer: Descriptor, folder: Path) -> None:
    where = f"{layout}: layer sha256:{layer.sha256}"
    with damage_named(where):
        if layer.type == WEIGHTS_TYPE:
            write_new(folder, read_path(layer.annotations.get(FILE_PATH)), read_blob(layout, layer))
            return
        with tempfile.TemporaryFile(dir=folder) as file:  # the digest is compared before any file is unpacked
            for piece in read_blob(layout, layer):
                file.write(piece)
            file.seek(0)
            unpack_archive(file, folder)


def unpack_archive(file: IO[bytes], folder: Path) -> None:
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isreg() else None
                if source is None or member.issparse():
                    raise Damage(f"`{member.name[:200]}` is not a plain file")
                write_new(folder, read_path(member.name), iter(partial(source.read, 1 << 20), b""))
    # headers of other people: sizes beyond memory, names without end, numbers of any length
    except (tarfile.TarError, ArithmeticError, MemoryError, RecursionError, ValueError) as error:
        raise Damage(f"no tar archive: {type(error).__name__}: {error}") from error


def write_new(folder: Path, name: str, pieces: Iterator[bytes]) -> None:
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for piece in pieces:
                file.write(piece)
    except (FileExistsError, NotADirectoryError):
        raise Damage(f"`{name:.200}` is there twice, as a file or as a folder") from None


def check_unpacked(folder: Path, layers: list[Descriptor], where: str) -> int:
    """Compare the files with the RECORD of their wheel, and return their number."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    outside = {f"{OUTSIDE}/{file_name(layer.sha256)}" for layer in layers if layer.type == WEIGHTS_TYPE}
    outside &= {layer.annotations.get(FILE_PATH) for layer in layers}
    names = [name for name in files if name not in outside]
    found = record_difference(names, lambda name: files[name].read_bytes(), lambda name: sha256_file(files[name]))
    if found:
        raise ProgramError(
            "the artifact's files are not those of a wheel",
            where=where,
            found=found,
            hint="write the artifact again from its wheel: `hatch-lower oci WHEEL --to LAYOUT`",
        )
    return len(files)
