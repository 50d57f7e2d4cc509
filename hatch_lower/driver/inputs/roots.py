"""Located paths, which mean the same on another machine, and the importable names in listings of folders.

| located | is |
|---|---|
| `project`, `project/<posix>` | the project's folder, or below |
| `site/<posix>` | below another entry of the search path; the first entry with the path counts |
| `home`, `home/<posix>` | the home folder, or below |
| `/…` | anywhere else |

A root behind a symbolic link is also known by its real path. A path below a root is located by its spelling: the
contents show the target of a link below the root.

Importable names follow Python's own rules, without the import system, which lists whole folders. Only the importable
names of a listing matter: a README beside a module is no input, a module that hides another module is.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FrozenImporter
from pathlib import Path
from typing import NamedTuple

SITE_NAMES = ("site-packages", "dist-packages")
SYSTEM_FOLDERS = ("/dev", "/proc", "/sys")
MEMORY_FOLDER = "/dev/shm"
# Semaphores, and memory that processes share, of Python, torch and OpenMP. All other files in the folder may be inputs.
SHARED_MEMORY = re.compile(
    rf"{MEMORY_FOLDER}/(?:sem\.(?:mp|loky)-\w+|psm_[0-9a-f]+|torch_\d+_\d+_\d+|__KMP_REGISTERED_LIB_\d+(?:_\d+)?)"
)
OWN_PACKAGE = str(Path(__file__).parents[2])


class Roots:
    def __init__(self, project: Path, search_path: tuple[Path, ...], home: Path, ignored: tuple[Path, ...]) -> None:
        self.project = project
        self.search_path = tuple(dict.fromkeys(search_path))
        self.home = home
        self.ignored = ignored  # folders of the build itself; the target of a link inside can be an input
        self._home = spellings(home)
        library = standard_library()
        kinds: dict[str, str] = {}
        for folder in (*SYSTEM_FOLDERS, OWN_PACKAGE, *library):
            kinds.update(dict.fromkeys(spellings(folder), "nothing"))
        kinds[MEMORY_FOLDER] = "elsewhere"  # ordinary files: users keep data sets here
        for folder in library:
            kinds.update({f"{prefix}/{name}": "elsewhere" for prefix in spellings(folder) for name in SITE_NAMES})
        for passing in ignored:
            kinds.update(dict.fromkeys(spellings(passing), "ignored"))
        kinds.update(dict.fromkeys(spellings(project), "project"))
        for entry in self.search_path:
            if entry.name in SITE_NAMES:  # an environment in the project's folder, or in a temporary folder
                kinds.update(dict.fromkeys(spellings(entry), "site"))
        # the deepest counts; which entries are sites is only known once the other kinds are in order
        self._kinds = sorted(kinds.items(), key=lambda item: -len(item[0]))
        sites = [entry for entry in self.search_path if self._root_of(str(entry))[1] in ("site", "elsewhere")]
        self._sites = tuple(str(entry) for entry in sites)
        for entry in sites:
            kinds.update(dict.fromkeys(spellings(entry), "site"))
        self._kinds = sorted(kinds.items(), key=lambda item: -len(item[0]))

    def locate(self, path: str | os.PathLike[str]) -> str | None:
        """Return a path's name on all machines, or `None` if the path is no input."""
        # `find` must lead back: a path that an earlier entry of the search path hides is located by its absolute path.
        text = os.fspath(path)
        text = os.path.realpath(text) if ".." in text.split("/") else os.path.abspath(text)
        if "/__pycache__/" in f"{text}/":
            return None
        prefix, kind = self._root_of(text)
        if kind == "nothing" or SHARED_MEMORY.fullmatch(text):
            return None
        if kind == "ignored":
            real = os.path.realpath(text)
            return None if self._root_of(real)[1] == "ignored" else self.locate(real)
        rest = text[len(prefix) + 1 :]
        if kind == "project":
            return f"project/{rest}" if rest else "project"
        if kind == "site" and rest:
            place = self.find(f"site/{rest}")
            if place is None or str(place) == text or os.path.realpath(place) == os.path.realpath(text):
                return f"site/{rest}"
        for home in self._home:
            if f"{text}/".startswith(f"{home}/"):
                return f"home{text[len(home) :]}"
        return text

    def find(self, located: str) -> Path | None:
        """Return the path of a located name here, existing or missing; `None` if no import path has the name."""
        root, _, rest = located.partition("/")
        if root == "project":
            return self.project / rest
        if root == "home":
            return self.home / rest
        if root == "site":
            places = (f"{entry}/{rest}" for entry in self._sites)
            return next((Path(place) for place in places if os.path.lexists(place)), None)
        return Path(located)

    def _root_of(self, path: str) -> tuple[str, str]:
        """Return the deepest known folder that holds an absolute path, and its kind."""
        whole = f"{path}/"
        return next((item for item in self._kinds if whole.startswith(f"{item[0]}/")), ("", "elsewhere"))


def spellings(folder: str | Path) -> tuple[str, ...]:
    return tuple(dict.fromkeys((os.path.abspath(folder), os.path.realpath(folder))))


def standard_library() -> tuple[str, ...]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    native = os.path.join(sys.base_exec_prefix, sys.platlibdir, version)
    folders = tuple(dict.fromkeys((os.path.dirname(os.__file__), native)))
    loaded = (os.path.join(folder, "lib-dynload") for folder in folders)
    archives = (f"{os.path.dirname(folder)}/{os.path.basename(folder).replace('.', '')}.zip" for folder in folders)
    return (*folders, *loaded, *archives)


FOLDER = "/"  # stands for a suffix where a name is that of a folder
SUFFIX_RANKS = {suffix: rank for rank, suffix in enumerate((*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES))}
INITIAL = tuple(f"__init__{suffix}" for suffix in SUFFIX_RANKS)


class Listing(NamedTuple):
    names: Sequence[str]  # sorted, without `__pycache__`
    # name that can be imported → suffix of the file that would be taken, or `/` for a folder alone
    modules: dict[str, str]
    folders: frozenset[str]  # links to folders too


def list_folder(path: str) -> Listing | None:
    names, modules, folders = [], dict[str, str](), set[str]()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name == "__pycache__":
                    continue
                names.append(name)
                if is_folder(entry):
                    folders.add(name)
                stem, dot, rest = name.partition(".")
                suffix = f".{rest}"
                if not dot and name in folders:
                    modules.setdefault(name, FOLDER)
                elif stem and suffix_rank(suffix) < suffix_rank(
                    modules.get(stem, FOLDER)
                ):  # a name without a stem is hidden
                    modules[stem] = suffix
    except OSError:
        return None
    names.sort()
    return Listing(names, modules, frozenset(folders))


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def suffix_rank(suffix: str) -> int:
    # the lower the rank, the earlier the import system tries the suffix; a folder comes last, as it is no module
    return SUFFIX_RANKS.get(suffix, len(SUFFIX_RANKS))


def list_archive(path: str) -> Listing | None:
    """Return the top level of a zip archive of modules; `None` for another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    modules: dict[str, str] = {}
    for member in members:
        top, _, below = member.partition("/")
        stem, dot, rest = top.partition(".")
        if below in INITIAL and not dot:
            modules[top] = FOLDER
        elif not below and f".{rest}" in SUFFIX_RANKS:
            modules.setdefault(stem, f".{rest}")
    return Listing(sorted({member.partition("/")[0] for member in members}), modules, frozenset())


def importable_kinds(path: str, listing: Listing, *, namespaces: bool) -> list[str]:
    """Return the importable names of a folder, sorted: each name, and the kind of file that an import takes."""
    # In an entry of the search path, folders without `__init__` do not count: they hide no module there, and each top-
    # level name that was looked for is an input of its own.
    kinds = []
    for name, suffix in listing.modules.items():
        if name in listing.folders and is_package(f"{path}/{name}"):
            kinds.append(f"{name} package")
        elif suffix != FOLDER or namespaces:
            kinds.append(f"{name} {suffix}")
    return sorted(kinds)


def is_package(path: str) -> bool:
    return any(os.path.isfile(f"{path}/{name}") for name in INITIAL)


def is_built_in(name: str) -> bool:
    return name in sys.builtin_module_names or FrozenImporter.find_spec(name) is not None


def module_places(
    name: str, entries: Sequence[str], list_entry: Callable[[str], Listing | None]
) -> list[tuple[str, str]]:
    """Return the places of a top-level module: entry and path; several for a namespace package, no place if missing."""
    portions = []
    for entry in entries:
        listing = list_entry(entry)
        suffix = listing.modules.get(name) if listing is not None else None
        if listing is None or suffix is None:
            continue
        place = f"{entry}/{name}"
        if is_package(place) if name in listing.folders else suffix == FOLDER:  # in a folder, or in an archive
            return [(entry, place)]
        if suffix != FOLDER:
            return [(entry, place + suffix)]
        portions.append((entry, place))
    return portions
