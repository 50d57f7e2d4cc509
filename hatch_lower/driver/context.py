"""The context of a build, made once and passed on whole, and the project as a model's export sees it: names,
metadata, import folders. The hook asks hatchling for the list of packaged files and their paths; all fields of
the view follow from the list alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from hatch_lower.cache.store import Store, open_store
from hatch_lower.config.settings import Settings
from hatch_lower.driver.environment import child_environment, level_variables
from hatch_lower.driver.inputs.machine import cpu_capability
from hatch_lower.driver.inputs.record import hidden_variables
from hatch_lower.errors import ConfigError
from hatch_lower.events import Event, Reporter
from hatch_lower.frozen import Frozen


class ProjectView(Frozen):
    """The data with which a child process makes the project look installed to the code that exports models."""

    metadata: str  # text of the core metadata file `METADATA`
    entry_points: str  # text of `entry_points.txt`; empty if the project has none
    # Directories for `sys.path`, in order: the directories of an editable install; last the project's own folder, if
    # the hook's table names export code outside of the packages.
    import_roots: tuple[Path, ...]
    # Posix path under a directory of links, and the target file or directory. Not empty only if a path rewrite changes
    # a prefix; then the directory of links comes before the import roots. Sorted, and no link is inside another link.
    links: tuple[tuple[str, Path], ...]
    packages: tuple[str, ...]  # names of the top-level import packages in the wheel, sorted
    later_hooks: tuple[str, ...]  # build hooks that run after `lower`: their files do not exist yet


class DistributedFile(Frozen):
    """A file of the wheel: its place on disk, and its posix path in the wheel."""

    path: Path
    distributed: str

    def is_python(self) -> bool:
        return self.distributed.endswith(".py")

    def root(self) -> Path | None:
        """Return the directory with the file at its distributed path, or `None` if the path is rewritten."""
        parts = tuple(self.distributed.split("/"))
        return self.path.parents[len(parts) - 1] if self.path.parts[-len(parts) :] == parts else None

    def top(self) -> str:
        return self.distributed.partition("/")[0]


def find_import_roots(files: Iterable[DistributedFile]) -> tuple[Path, ...]:
    roots = (file.root() for file in files if file.is_python())
    return tuple(dict.fromkeys(root for root in roots if root is not None))


def find_packages(files: Iterable[DistributedFile]) -> tuple[str, ...]:
    tops = {file.top() for file in files if file.is_python() and "/" in file.distributed}
    return tuple(sorted(top for top in tops if top.isidentifier()))


def find_regular_packages(files: Iterable[DistributedFile]) -> frozenset[str]:
    """Return the dotted names of the packages with an `__init__.py`."""
    folders = (file.distributed.rpartition("/") for file in files)
    return frozenset(folder.replace("/", ".") for folder, _, name in folders if folder and name == "__init__.py")


def plan_links(files: Collection[DistributedFile]) -> tuple[tuple[str, Path], ...]:
    """Return the links that make modules with rewritten paths importable under their distributed names."""
    # A directory is linked as a whole if all its packaged files come from one place: so the code finds unpackaged files
    # (weights, for example) beside its module, as in the source tree.
    tops = {file.top() for file in files if file.is_python() and file.root() is None}
    folders: dict[str, set[Path]] = {}
    renamed: dict[str, Path] = {}
    for file in files:
        folder, _, name = file.distributed.rpartition("/")
        if file.top() not in tops:
            continue
        if folder and file.path.name == name:
            folders.setdefault(folder, set()).add(file.path.parent)
        else:
            renamed[file.distributed] = file.path
    links: dict[str, Path] = {}
    for top in sorted(tops):
        for distributed, source in link_folder(top, folders, renamed):
            links.setdefault(distributed, source)
    return tuple(sorted({**links, **renamed}.items()))


def link_folder(folder: str, folders: dict[str, set[Path]], renamed: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    below = [path for path in sorted(folders) if f"{path}/".startswith(f"{folder}/")]
    special = [path for path in sorted(renamed) if path.startswith(f"{folder}/")]
    sources = sorted(folders.get(folder, ()))
    whole = len(sources) == 1 and not special
    if whole and all(folders[path] == {sources[0] / path[len(folder) + 1 :]} for path in below):
        yield folder, sources[0]
        return
    deeper = [path.removeprefix(f"{folder}/") for path in [*below, *special] if path != folder]
    children = {f"{folder}/{path.partition('/')[0]}" for path in deeper} - set(special)
    for source in sources:
        for entry in sorted(source.iterdir()):
            here = f"{folder}/{entry.name}"
            if here not in children and entry.name != "__pycache__":
                yield here, entry
    for child in sorted(children):
        yield from link_folder(child, folders, renamed)


def write_site(settings: Settings, view: ProjectView, folder: Path) -> tuple[Path, ...]:
    """Write the project's metadata and links below `folder`; return the directories for the front of `sys.path`."""
    # the metadata that `importlib.metadata` finds of an editable install of the project
    site = folder / "site"
    name = re.sub(r"[-_.]+", "_", settings.name)
    information = site / f"{name}-{settings.version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(view.metadata, encoding="utf-8")
    if view.entry_points:
        (information / "entry_points.txt").write_text(view.entry_points, encoding="utf-8")
    (information / "top_level.txt").write_text("\n".join(view.packages), encoding="utf-8")
    origin = {"url": settings.root.as_uri(), "dir_info": {"editable": True}}
    (information / "direct_url.json").write_text(json.dumps(origin), encoding="utf-8")
    if not view.links:
        return (site, *view.import_roots)
    links = folder / "links"
    for path, target in view.links:
        link = links / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target, target_is_directory=target.is_dir())
    return (site, links, *view.import_roots)


EXECUTOR = "HATCH_LOWER_EXECUTOR"  # a variable that overrides the setting
VARIANTS = "HATCH_LOWER_VARIANTS"  # likewise


def wants_variants(settings: Settings, environment: Mapping[str, str]) -> bool:
    """Return whether a build writes wheel variants; raise `ConfigError` for a variable other than `on` and `off`."""
    given = environment.get(VARIANTS, "")
    if given not in ("", "on", "off"):
        raise ConfigError(
            "the variable is neither `on` nor `off`",
            where=f"environment variable `{VARIANTS}`",
            found=f"`{given}`",
            hint="write `off` for one wheel with all recipes, or unset the variable",
        )
    return settings.variants if not given else given == "on"


class BuildContext(Frozen):
    settings: Settings
    view: ProjectView
    work: Path
    store: Store
    reporter: Reporter
    environment: Mapping[str, str]
    files: Callable[[], Iterable[Path]] = tuple  # the project's files: in its distributions, and its inputs
    check_early: Callable[[BuildContext], None] = lambda context: (
        None
    )  # called before models are exported, and may raise
    path: tuple[str, ...] | None = None  # of the interpreter that builds; `None` for this process
    hidden: tuple[str, ...] = ()  # variables of the user that are not passed on

    @property
    def executor(self) -> str:
        return self.environment.get(EXECUTOR) or self.settings.executor

    @property
    def search_path(self) -> tuple[Path, ...]:
        """`sys.path` of the child processes, without folders of this build."""
        path = sys.path if self.path is None else self.path
        return (*self.view.import_roots, *(Path(entry) for entry in path if entry), self.settings.root)


def build_context(settings: Settings, view: ProjectView, work: Path, store: Store, reporter: Reporter) -> BuildContext:
    temporary = work / "temporary"
    own = level_variables(settings.recipes)
    environment = child_environment(os.environ, settings.pass_env, sys.path, temporary, cpu_capability(), own)
    hidden = hidden_variables(os.environ, environment)
    return BuildContext(settings, view, work, store, reporter, environment, hidden=hidden)


def open_cache(settings: Settings, warn: Callable[[str], None]) -> Store:
    """Return the cache, connected to the team's shared cache if the settings or the environment name one."""
    if not settings.cache.remote and "HATCH_LOWER_REMOTE_CACHE" not in os.environ:
        return open_store(os.environ, warn)
    from hatch_lower.cache.remote import open_remote  # a build without a shared cache need not import its client

    return open_store(os.environ, warn, open_remote(os.environ, settings.cache, warn))


class CacheNotes:
    """Lines about the cache, kept until the reporter exists: the cache is opened before the reporter."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._early: list[str] = []
        self._reporter: Reporter | None = None

    def __call__(self, line: str) -> None:
        if self._reporter is None:
            self._early.append(line)
        else:
            self._reporter.report(Event("cache", "note", self._project, detail=line))

    def report_to(self, reporter: Reporter) -> None:
        self._reporter = reporter
        early, self._early = self._early, []
        for line in early:
            self(line)
