"""A wheel as an OCI artifact: its weights as layers of their own, all other files in a layer for each role.

Layers with equal contents have equal digests, so a registry stores the weights of two versions once.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from functools import partial
from pathlib import Path

from hatch_lower.canonical import PIECE, canonical_json
from hatch_lower.driver.contents import MANIFEST, find_contents
from hatch_lower.driver.new_folder import folder_in_place
from hatch_lower.driver.oci.layout import (
    MANIFEST_TYPE,
    TAG,
    BlobWriter,
    Descriptor,
    add_to_index,
    checked_tag,
    is_layout,
    other_writers_waiting,
    read_layout_index,
    remove_unfinished_blobs,
)
from hatch_lower.driver.opened_wheel import OpenedWheel, open_wheel
from hatch_lower.driver.signals import ending_on_signals
from hatch_lower.driver.whole_wheel import distribution_headers, refuse_changed_wheel
from hatch_lower.errors import PackageError, ProcessError, refused_error
from hatch_lower.format.codec import Damage
from hatch_lower.format.constants import CHECK_FILE, CONSTANTS_FILES
from hatch_lower.format.values import read_path
from hatch_lower.format.weights import WeightsSource
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.sources import file_name

# of the ModelPack specification 1
ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
WEIGHTS_TYPE = "application/vnd.cncf.model.weight.v1.raw"
PROGRAMS_TYPE = "application/vnd.cncf.model.weight.config.v1.tar"
CHECK_TYPE = "application/vnd.cncf.model.dataset.v1.tar"
DOCUMENTS_TYPE = "application/vnd.cncf.model.doc.v1.tar"
CODE_TYPE = "application/vnd.cncf.model.code.v1.tar"
TAR_TYPES = {PROGRAMS_TYPE: "programs", CHECK_TYPE: "check", DOCUMENTS_TYPE: "documents", CODE_TYPE: "code"}
FILE_PATH = "org.cncf.model.filepath"
TITLE = "org.opencontainers.image.title"  # the name that `oras pull` gives to a layer
OUTSIDE = "hatch-lower-weights"  # the folder of weights that are not in the wheel
DOCUMENT_FOLDERS = (".dist-info/sboms/", ".dist-info/licenses/")


class Packed(Frozen):
    """An artifact that was written."""

    tag: str
    manifest: Descriptor
    layers: tuple[Descriptor, ...]


def pack_wheel(
    wheel: Path, layout: Path, tag: str | None, outside: Iterable[tuple[WeightsSource, Path]] = ()
) -> Packed:
    """Write a wheel as an artifact into a layout: a new folder, or an OCI image layout that stays whole.

    Args:
        tag: by default the wheel's version.
        outside: weights that are not in the wheel, and their files.

    Raises:
        ProgramError: for a wheel that cannot be read, has no lowered models, or has other files than its RECORD lists.
        PackageError: for a tag that OCI does not allow, or that another artifact in the layout has, for a folder with
            other files, and for a wheel that installs files outside of its packages.
    """
    find_contents(wheel)
    opened = open_wheel(wheel)
    metadata = distribution_headers(opened)
    tag = checked_tag(str(metadata["Version"]) if tag is None else tag, str(wheel))
    refuse_members(opened)
    refuse_changed_wheel(opened)
    with layout_opened(layout) as folder:
        before = read_layout_index(folder) if is_layout(folder) else []
        blobs = BlobWriter(folder)
        try:
            layers = [*wheel_layers(opened, blobs), *(outside_layer(*each, blobs) for each in outside)]
            manifest = write_artifact(blobs, metadata, layers, tag)
            refuse_other(before, manifest, tag, layout)
            if all(entry.annotations.get(TAG) != tag for entry in before):
                add_to_index(folder, manifest)
        except BaseException:
            blobs.remove()
            raise
    return Packed(tag, manifest, tuple(layers))


@contextmanager
def layout_opened(layout: Path) -> Iterator[Path]:
    """Give the folder to write into: the layout, or a folder beside that becomes the layout if nothing fails."""
    if not is_layout(layout):
        with folder_in_place(layout, "artifact") as unfinished:
            yield unfinished
        return
    try:
        with ending_on_signals(), other_writers_waiting(layout):
            remove_unfinished_blobs(layout)
            yield layout
    except OSError as error:
        raise refused_error(error, str(layout)) or ProcessError(
            "the artifact cannot be written", where=str(error.filename or layout), found=error.strerror or str(error)
        ) from error


def refuse_members(wheel: OpenedWheel) -> None:
    """Raise `PackageError` for members that an unpacked artifact cannot have."""
    names = [name for name in wheel.members() if not name.endswith("/")]
    for name in names:
        try:
            read_path(name)
        except Damage as damage:
            raise PackageError(
                "the wheel has a file that an artifact cannot have",
                where=str(wheel.path),
                found=damage.found,
                hint="give the file another name",
            ) from damage
    found = next((name for name in names if ".data/" in name.partition("/")[0] + "/"), "")
    if found:
        raise PackageError(
            "the wheel installs files outside of its packages",
            where=str(wheel.path),
            found=f"`{found}`",
            hint="an artifact has no installer: leave scripts and shared data out of the wheel",
        )


def refuse_other(before: Iterable[Descriptor], manifest: Descriptor, tag: str, layout: Path) -> None:
    for entry in before:
        if entry.annotations.get(TAG) == tag and entry.sha256 != manifest.sha256:
            raise PackageError(
                "the layout has another artifact with the tag",
                where=str(layout),
                found=f"`{tag}`: sha256:{entry.sha256[:12]}…, and now sha256:{manifest.sha256[:12]}…",
                hint="give another tag with `--tag`, or name a new folder with `--to`",
            )


def wheel_layers(wheel: OpenedWheel, blobs: BlobWriter) -> Iterator[Descriptor]:
    """Write the layers of a wheel, the weights first."""
    files: dict[str, list[str]] = {kind: [] for kind in TAR_TYPES}
    lowered = tuple(name.removesuffix("manifest.json") for name in wheel.members() if name.endswith(f"/{MANIFEST}"))
    for name in sorted(name for name in wheel.members() if not name.endswith("/")):
        if name.startswith(lowered) and name.endswith(CONSTANTS_FILES):
            yield blobs.write(WEIGHTS_TYPE, wheel.pieces(name), {FILE_PATH: name, TITLE: name})
        else:
            files[role_of(name, lowered)].append(name)
    for kind, names in files.items():
        if names:
            yield tar_layer(kind, names, wheel, blobs)


def role_of(name: str, lowered: tuple[str, ...]) -> str:
    """Return the media type of the layer for a member of a wheel."""
    if name.startswith(lowered):
        return CHECK_TYPE if name.endswith(CHECK_FILE) else PROGRAMS_TYPE
    return DOCUMENTS_TYPE if any(folder in name for folder in DOCUMENT_FOLDERS) else CODE_TYPE


def outside_layer(source: WeightsSource, path: Path, blobs: BlobWriter) -> Descriptor:
    place = f"{OUTSIDE}/{file_name(source.sha256)}"  # the name by which `load` finds the file
    with path.open("rb") as file:
        layer = blobs.write(WEIGHTS_TYPE, iter(partial(file.read, PIECE), b""), {FILE_PATH: place, TITLE: place})
    if layer.sha256 != source.sha256:
        raise PackageError(
            "a file of weights has other contents than the wheel names",
            where=str(path),
            found=f"sha256:{layer.sha256}",
            hint="fetch the weights again: `hatch-lower fetch`",
        )
    return layer


def tar_layer(kind: str, names: Iterable[str], wheel: OpenedWheel, blobs: BlobWriter) -> Descriptor:
    """Write files as a tar archive whose bytes depend on names and contents alone."""

    def pieces() -> Iterator[bytes]:
        for name in names:
            information = tarfile.TarInfo(name)
            information.size, information.mode = wheel.archive.getinfo(name).file_size, 0o644
            yield information.tobuf(tarfile.PAX_FORMAT)
            yield from wheel.pieces(name)
            yield bytes(-information.size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)

    return blobs.write(kind, pieces(), {TITLE: f"{TAR_TYPES[kind]}.tar"})


def write_artifact(blobs: BlobWriter, metadata: Message, layers: list[Descriptor], tag: str) -> Descriptor:
    name, version = str(metadata["Name"]), str(metadata["Version"])
    licence = metadata["License-Expression"] or metadata["License"]
    descriptor = {"name": name, "version": version, "title": name}
    descriptor |= {"description": str(metadata["Summary"])} if metadata["Summary"] else {}
    config = {
        "descriptor": descriptor | ({"licenses": [str(licence)]} if licence else {}),
        "config": {"format": "hatch-lower"},
        "modelfs": {"type": "layers", "diffIds": [f"sha256:{layer.sha256}" for layer in layers]},
    }
    manifest: Mapping[str, object] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": blobs.write(CONFIG_TYPE, [canonical_json(config)], {}).json(),
        "layers": [layer.json() for layer in layers],
    }
    return blobs.write(MANIFEST_TYPE, [canonical_json(manifest)], {TAG: tag})
