"""Which installed distribution a file belongs to: its RECORD lists it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hatch_lower.build.inputs.distributions import Distribution, installed_files


class Owners:
    """The owners of installed files; the lists are read when the first file is asked for.

    An editable install owns nothing but its metadata: the files that it leads to are read from where they are edited.

    Args:
        distributions: the installed ones by normalised name.
        entries: the search path.
    """

    __slots__ = ("_distributions", "_files", "_folders", "_spellings")

    def __init__(self, distributions: Mapping[str, Distribution], entries: Sequence[str]) -> None:
        self._distributions = distributions
        self._spellings = [(f"{os.path.realpath(entry)}/", f"{entry}/") for entry in entries if entry]
        self._files: Mapping[str, str] | None = None
        self._folders: dict[str, set[str]] = {}

    def owner(self, path: str) -> str | None:
        """Return the normalised name of the distribution that installed a file."""
        files = self._load()
        return next((files[each] for each in self._spelled(path) if each in files), None)

    def below(self, folder: str) -> frozenset[str]:
        """Return the names of all distributions that installed files below a folder of the search path."""
        self._load()
        found = (self._folders.get(each, ()) for each in self._spelled(folder))
        return frozenset(name for names in found for name in names)

    def _load(self) -> Mapping[str, str]:
        if self._files is None:
            self._files = installed_files(self._distributions.values())
            for folder, name in {(path.rpartition("/")[0], name) for path, name in self._files.items()}:
                entry = self._distributions[name].entry
                while folder.startswith(entry) and name not in self._folders.get(folder, ()):
                    self._folders.setdefault(folder, set()).add(name)
                    folder = folder.rpartition("/")[0]
        return self._files

    def _spelled(self, path: str) -> list[str]:
        """Return a path, and what it is called below the search path's entries if those are links."""
        others = [entry + path[len(real) :] for real, entry in self._spellings if path.startswith(real)]
        return [path, *others]
