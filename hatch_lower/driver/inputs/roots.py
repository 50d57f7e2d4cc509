"""Paths with the same meaning on another machine: below the project, an import path, or the home folder.

| located | is |
|---|---|
| `project`, `project/<posix>` | the project's folder, or below |
| `site/<posix>` | below another entry of the search path; the first entry with the path counts |
| `home`, `home/<posix>` | the home folder, or below |
| `/…` | anywhere else |

A root behind a symbolic link is also known by its real path. A path below a root is located by its spelling: the
contents show the target of a link below the root.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

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
