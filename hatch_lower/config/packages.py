"""The import package that gets a model's files, and names that become names of files."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from hatch_lower.config.tables import HookTable, ModelTable
from hatch_lower.errors import nearest

# Windows reserves these names, with any suffix
RESERVED_NAME = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?", re.IGNORECASE)
LONGEST_NAME = 100  # file systems allow 255 bytes, and suffixes and digests need a part
PACKAGE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def resolve_package(
    given: HookTable,
    override: ModelTable,
    module: str,
    packages: Sequence[str],
    regular: Collection[str],
    path: str,
    here: str,
    problems: list[str],
) -> str | None:
    """Return the import package that gets the model's files, or `None` after appending to `problems`."""
    owner, package = (here, override.package) if override.package is not None else (path, given.package)
    if package is not None:
        if not PACKAGE_NAME.fullmatch(package):
            problems.append(f"`{owner}.package` must be the dotted name of an import package, found `{package}`")
        elif package.partition(".")[0] not in packages:
            known = nearest(package.partition(".")[0], packages)
            problems.append(f"`{owner}.package` names no package of the wheel, found `{package}`; {known}")
        return package
    around = innermost(module, regular)
    if around is not None:
        return around
    top = module.partition(".")[0]
    # a package that no other regular package holds
    outermost = [name for name in sorted(regular) if innermost(name.rpartition(".")[0], regular) is None]
    if top not in packages and len(packages) == 1 and len(outermost) == 1:
        return outermost[0]
    listed = ", ".join(f"`{package}`" for package in sorted(regular)) or "none"
    known = f"its module `{module}` is in none of the wheel's packages with an `__init__.py` ({listed})"
    if not module:
        known = f"a checkpoint is in none of the wheel's packages ({listed})"
    shared = f", and other distributions may have files in `{top}`" if top in packages else ""
    problems.append(f"`{here}.package` must say which package gets the model's files: {known}{shared}")
    return None


def innermost(module: str, packages: Collection[str]) -> str | None:
    """Return the longest dotted name in `packages` that is a module's own name, or the name of a package around it."""
    while module and module not in packages:
        module = module.rpartition(".")[0]
    return module or None


def file_name_problems(name: str, here: str) -> list[str]:
    # the name becomes a file name on every system that installs the wheel
    if RESERVED_NAME.fullmatch(name):
        return [f"`{here}` must have another name: Windows reserves `{name}`, and no file can be called so"]
    if len(name) > LONGEST_NAME:
        return [f"`{here[:LONGEST_NAME]}…` must have a shorter name: {len(name)} characters; {LONGEST_NAME} at most"]
    return []
