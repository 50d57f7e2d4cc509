"""A `_lowered` folder on disk: files are used only after a check of their place, size and digest."""

from __future__ import annotations

import base64
import binascii
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hatch_lower.canonical import open_file, sha256_bytes, sha256_file
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import installation_error
from hatch_lower.format.manifest import FileEntry, Manifest, ModelEntry, read_manifest
from hatch_lower.frozen import Frozen

FOLDER = "_lowered"
MANIFEST = "manifest.json"
EAGER = "eager.json"


class Recorded(Frozen):
    """The entries of a RECORD for the files in a `_lowered` folder."""

    # Both the manifest and the RECORD, written by an installer or part of a wheel, list the sha256 of every file. The
    # two lists are compared with each other, so that each file is read once.

    owner: str  # of the RECORD, for messages
    digests: Mapping[str, str]  # path in the folder → sha256 in hexadecimal; empty if RECORD lists no sha256

    def faults(self, folder: Path, model: str, files: Iterable[FileEntry]) -> Iterator[ProgramError]:
        """Yield the faults of a model's files, except wrong contents of files that the manifest lists."""
        listed = {entry.path: entry.sha256 for entry in files}
        if not self.digests.get(MANIFEST):
            yield self._fault(folder / MANIFEST, "RECORD has no sha256 of this file")
        for path, sha256 in listed.items():
            recorded = self.digests.get(path)
            if recorded is None:
                yield self._fault(folder / path, "the manifest lists this file, but RECORD does not")
            elif recorded != sha256:
                found = (
                    "RECORD and manifest have different sha256 values"
                    if recorded
                    else "RECORD has no sha256 of this file"
                )
                yield self._fault(folder / path, found)
        for path, recorded in self.digests.items():
            is_other = path.startswith(f"{model}/") and path not in listed
            if is_other and (found := self._difference(folder / path, recorded)):
                yield self._fault(folder / path, found)

    def _difference(self, path: Path, recorded: str) -> str:
        try:
            if not path.is_file():
                return "RECORD lists this file, which is missing"
            return "" if recorded and sha256_file(path) == recorded else "RECORD has another sha256 of this file"
        except (OSError, ValueError) as error:
            return f"RECORD lists this file, which cannot be read: {type(error).__name__}: {error}"

    def _fault(self, path: Path, found: str) -> ProgramError:
        what = f"the RECORD of {self.owner} does not vouch for a packaged program file"
        return installation_error(what, str(path), found)


def decode_record_digest(text: str) -> str:
    """Return the hexadecimal sha256 of RECORD's `sha256=<base64 without padding>`; empty for any other text."""
    algorithm, _, value = text.partition("=")
    try:
        digest = base64.urlsafe_b64decode(f"{value}{'=' * (-len(value) % 4)}")
    except (binascii.Error, ValueError):
        return ""
    return digest.hex() if algorithm == "sha256" else ""


class PackagedFolder(Frozen):
    path: Path
    manifest: Manifest
    # entries of RECORD; `None` for a folder without a known distribution
    recorded: Recorded | None = None
    installed: bool = False  # whether the folder is part of an installed distribution, whose code may be imported

    def locate(self, entry: FileEntry) -> Path:
        # checks place, kind and size, not contents
        path = self.path / entry.path
        try:
            found = path.stat()
            inside = not self._has_links(entry.path) or path.resolve(strict=True).is_relative_to(
                self.path.resolve(strict=True)
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise unreadable_file(path, error) from error
        if not inside:
            raise refused_file(path, f"a link out of the folder `{self.path}`")
        if not stat.S_ISREG(found.st_mode):
            raise refused_file(path, "no regular file")
        if found.st_size != entry.size:
            raise refused_file(path, f"{found.st_size} bytes, where the manifest says {entry.size}")
        return path

    def _has_links(self, path: str) -> bool:
        # a shortcut, since resolving a path is the slowest step; not on Windows, which has several kinds of links
        if os.name != "posix":
            return True
        place = str(self.path)
        for part in path.split("/"):
            place = f"{place}/{part}"
            if os.path.islink(place):
                return True
        return False

    def read(self, entry: FileEntry) -> bytes:
        path = self.locate(entry)
        data = read_bytes(path)
        if sha256_bytes(data) != entry.sha256:
            raise refused_file(path, "another sha256 than the manifest says")
        return data

    def check(self, entry: FileEntry) -> None:
        path = self.locate(entry)
        try:
            # in pieces: a delegate's file may be larger than memory
            digest = sha256_file(path)
        except OSError as error:
            raise unreadable_file(path, error) from error
        if digest != entry.sha256:
            raise refused_file(path, "another sha256 than the manifest says")

    def refuse_writable(self, entries: Iterable[FileEntry]) -> None:
        """Refuse delegates that every user may replace, also between the comparison of digests and the loading."""
        # checks the files, and their folders up to this folder; the sticky bit makes no difference
        if os.name != "posix":
            return
        top = os.path.realpath(self.path)
        folders: dict[str, str] = {}
        places: dict[str, None] = {}
        for entry in entries:
            folder, _, name = entry.path.rpartition("/")
            if folder not in folders:
                folders[folder] = os.path.realpath(os.path.join(self.path, folder))
            place = os.path.join(folders[folder], name)
            if os.path.islink(place):
                place = os.path.realpath(place)
            while place not in places:
                places[place] = None
                if place in (top, os.path.dirname(place)):
                    break
                place = os.path.dirname(place)
        for place in places:
            try:
                mode = os.stat(place).st_mode
            except OSError as error:
                raise unreadable_file(Path(place), error) from error
            if mode & stat.S_IWOTH:
                raise ProgramError(
                    "native code is not loaded from a file or folder that every user may write",
                    where=place,
                    found=f"the permissions {stat.filemode(mode)}",
                    hint=f"take that right away (`chmod o-w {place}`), and install the distribution again",
                )

    def locate_all(self, model: ModelEntry) -> None:
        # finds an incomplete installation before any code runs
        for entry in files_of(model):
            self.locate(entry)

    def faults(self, model: str) -> Iterator[ProgramError]:
        """Yield the faults of a model's files, reading each file once; a known RECORD must list the same."""
        files = files_of(self.manifest.models[model])
        if self.recorded is not None:
            yield from self.recorded.faults(self.path, model, files)
        yield from filter(None, map(self._fault, files))

    def _fault(self, entry: FileEntry) -> ProgramError | None:
        try:
            self.check(entry)
        except ProgramError as error:
            return error
        return None


def files_of(model: ModelEntry) -> tuple[FileEntry, ...]:
    files = [entry for entry in (model.constants, model.check, model.weights) if entry is not None]
    for recipe in model.recipes.values():
        files += [recipe.plan, recipe.debug, *recipe.delegates]
    files += model.assets.values()
    return tuple(dict.fromkeys(files))


def open_folder(path: Path, recorded: Recorded | None = None) -> PackagedFolder:
    manifest = path / MANIFEST
    data = read_bytes(manifest)
    sha256 = recorded.digests.get(MANIFEST) if recorded is not None else None
    if sha256 and sha256_bytes(data) != sha256:
        raise refused_file(manifest, "another sha256 than the RECORD of the installed distribution says")
    return PackagedFolder(path, read_manifest(data, str(manifest)), recorded)


def folder_at(path: Path) -> tuple[PackagedFolder, str | None]:
    """Return the `_lowered` folder at a path and `None`; for a model's folder, the enclosing folder and the model."""
    inside = not (path / MANIFEST).exists() and (path.parent / MANIFEST).exists()
    folder = path.parent if inside else path
    try:
        return open_folder(folder), path.name if inside else None
    except ProgramError:
        if folder.name == FOLDER or is_written_here(folder):
            raise
    raise ProgramError(
        "this is no folder of lowered models",
        where=str(path),
        found=f"no `{MANIFEST}` of hatch-lower" if path.exists() else "the path does not exist",
        hint=f"name the folder `{FOLDER}` of an unpacked wheel, or a model's folder inside `{FOLDER}`",
    )


def is_written_here(folder: Path) -> bool:
    # a manifest of hatch-lower may be damaged: then the error describes the damage
    try:
        return b'"hatch_lower"' in read_bytes(folder / MANIFEST)
    except ProgramError as error:
        return not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)


def read_bytes(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            return file.read()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EINVAL:
            raise refused_file(path, "no regular file") from error
        raise unreadable_file(path, error) from error


def unreadable_file(path: Path, error: Exception) -> ProgramError:
    if isinstance(error, FileNotFoundError):
        return installation_error("a packaged program file is missing", str(path), "")
    found = f"{type(error).__name__}: {error}"
    return installation_error("a packaged program file cannot be read", str(path), found)


def refused_file(path: Path, found: str) -> ProgramError:
    return installation_error("a packaged program file is not the one that the manifest lists", str(path), found)
