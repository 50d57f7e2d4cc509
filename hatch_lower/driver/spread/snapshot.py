"""The project's files as an archive, so that a worker sees the same files as the build.

Equal files give equal bytes, which an engine sends to each worker once. All paths keep their relative places: a file
beside the project lies beside the project on the worker too, and the archive holds no path of this machine.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from hatch_lower.config.settings import Settings
from hatch_lower.driver.context import ProjectView
from hatch_lower.errors import PackageError
from hatch_lower.frozen import Frozen

PROJECT, ABOVE = "project", "above"  # the project's folder in the archive, and the name of each folder above


class Relocated(Frozen):
    """A project's settings and view, with paths that are relative to the archive's folder."""

    settings: Settings
    view: ProjectView


class Snapshot(Frozen):
    data: bytes
    project: Relocated
    files: frozenset[str]  # relative to the project's folder

    def lacks(self, root: Path, name: str) -> bool:
        """Return whether a file of the project, named relative to its folder, is here and not in the snapshot."""
        return os.path.normpath(name) not in self.files and (root / name).is_file()


class HostileArchiveError(Exception):
    """An archive that no build writes; the text is the reason."""


def take_snapshot(settings: Settings, view: ProjectView, files: Iterable[Path]) -> Snapshot:
    """Return an archive of files, and settings and view with the paths of the unpacked archive."""
    chosen = sorted(set(files))
    places = [*chosen, *view.import_roots, *(target for _, target in view.links)]
    relative = {path: os.path.relpath(path, settings.root) for path in (*places, settings.root)}
    steps = max(PurePosixPath(path).parts.count("..") for path in relative.values())
    project = PurePosixPath(*[ABOVE] * steps, PROJECT)  # with as many folders above as the paths climb

    def place(path: Path) -> Path:
        return Path(os.path.normpath(project / relative[path]))

    links = tuple((name, place(target)) for name, target in view.links)
    there = replace(view, import_roots=tuple(map(place, view.import_roots)), links=links)
    relocated = Relocated(replace(settings, root=place(settings.root)), there)
    members = {place(path).as_posix(): path for path in chosen}
    return Snapshot(write_archive(members), relocated, frozenset(relative[path] for path in chosen))


def write_archive(members: dict[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(members.items()):
            try:
                data = path.read_bytes()  # a link is sent as its target
                executable = path.stat().st_mode & 0o100
            except OSError as error:
                raise PackageError(
                    "a file of the project cannot be sent to workers",
                    where=str(path),
                    found=error.strerror or str(error),
                    hint="make it readable, or exclude it from the source distribution and from `inputs`",
                ) from error
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755 if executable else 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def unpack_snapshot(data: bytes, folder: Path) -> None:
    """Write the files of an archive below an empty folder; raise `HostileArchiveError` for any other member."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                write_member(archive, member, folder)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise HostileArchiveError(f"no archive: {error}") from error


def write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = member.name
    if member.type != tarfile.REGTYPE or member.issparse():
        raise HostileArchiveError(f"`{name:.120}` is no plain file")
    if not name or "\0" in name or name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        raise HostileArchiveError(f"`{name:.120}` leads out of its folder")
    path = folder / name
    stream = archive.extractfile(member)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(stream.read() if stream is not None else b"")
    except (FileExistsError, NotADirectoryError) as error:
        raise HostileArchiveError(f"`{name:.120}` is there twice") from error
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def relocated(project: Relocated, folder: Path) -> tuple[Settings, ProjectView]:
    """Return settings and view where their archive was unpacked; a `HostileArchiveError` if a path leads out."""

    def place(path: Path) -> Path:
        if path.is_absolute() or ".." in path.parts:
            raise HostileArchiveError(f"`{path}` leads out of its folder")
        return folder / path

    settings, view = project.settings, project.view
    links = tuple((name, place(target)) for name, target in view.links)
    for name, _ in links:
        place(Path(name))
    return (
        replace(settings, root=place(settings.root)),
        replace(view, import_roots=tuple(map(place, view.import_roots)), links=links),
    )
