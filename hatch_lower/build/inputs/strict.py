"""`strict = true`: what the code that exports a model may read, and what is said when it reads something else.

| may be read | |
|---|---|
| the system, the interpreter, installed distributions | whole folders |
| folders of this build and of the cache | whole folders |
| what the import roots hold | source files and native modules; all folders can be listed |
| declared `inputs` | the files that match |

So other data in the project has to be declared, also where a package of the project holds it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from hatch_lower.build.inputs.landlock import READABLE_SYSTEM, denied_paths, restrict_reads
from hatch_lower.build.protocol import Request
from hatch_lower.config.settings import Settings
from hatch_lower.errors import EntryPointError, ProcessError

MODULES = (".py", *EXTENSION_SUFFIXES)
LEFT_OUT = frozenset({"__pycache__", "site-packages", "dist-packages"})


def refuse_undeclared(request: Request, cache: Path) -> None:
    """Let this process read nothing but what may be read, from now on.

    Args:
        request: of the process.
        cache: the folder of the cache.

    Raises:
        ProcessError: if the kernel cannot do that.
    """
    settings = request.settings
    project = (settings.root, *request.import_roots)
    whole = [*READABLE_SYSTEM, Path(sys.base_prefix), Path(sys.prefix), request.work or request.folder, cache]
    whole += [Path(entry) for entry in sys.path if entry]
    allowed = [folder for folder in whole if not holds_project(folder, project)]
    files = [*source_files(request), *declared_files(settings)]
    if not restrict_reads([*allowed, *files], listable=project):
        raise ProcessError(
            "undeclared reads cannot be refused here",
            where="`strict` of the build hook `lower`",
            found="the kernel has no Landlock, or does not let this process use it",
            hint="build on Linux 5.13 or newer, or set `strict = false`",
        )


def undeclared_read(request: Request, error: BaseException) -> EntryPointError | None:
    """Return the error that names the undeclared file that the model's code could not read; `None` if that was not it.

    Args:
        request: of the process.
        error: what came of it.
    """
    denied = [path for path in denied_paths(error, request.log) if not LEFT_OUT & set(Path(path).parts)]
    if not denied:
        return None
    path = Path(denied[0])
    hint = "let the export read files of the project only, or set `strict = false`"
    if path.is_relative_to(request.settings.root):
        inputs = [*request.settings.inputs, path.relative_to(request.settings.root).as_posix()]
        listed = ", ".join(f'"{each}"' for each in inputs)
        hint = f"declare it in the table of the build hook `lower`: inputs = [{listed}]"
    return EntryPointError(
        "the export read a file that is not declared, and `strict` is set",
        where=f"model `{request.model}`",
        found=str(path),
        hint=hint,
    )


def holds_project(folder: Path, project: tuple[Path, ...]) -> bool:
    """Return whether all that is in a folder being readable would make the project's own files so."""
    if LEFT_OUT & set(folder.parts):
        return False
    return any(root.is_relative_to(folder) or folder.is_relative_to(root) for root in project)


def source_files(request: Request) -> Iterator[Path]:
    """Yield the modules in the import roots; what those beside this build's folder lead to."""
    for root in request.import_roots:
        for folder, folders, names in os.walk(root, followlinks=request.work in root.parents):
            folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(".")]
            yield from (Path(folder, name) for name in names if name.endswith(MODULES))


def declared_files(settings: Settings) -> Iterator[Path]:
    """Yield what the declared `inputs` match; a folder that matches stands for all that is in it."""
    for pattern in settings.inputs:
        yield from settings.root.glob(pattern)
