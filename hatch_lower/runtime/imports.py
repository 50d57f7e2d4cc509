"""The modules that a recipe names in `imports`: they register operators that its plan calls."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from hatch_lower.errors import ProgramError


def import_modules(names: Iterable[str], where: str, *, installed: bool) -> None:
    """Import what is not imported yet.

    Args:
        names: of the modules.
        where: the manifest that names them, for messages.
        installed: whether it belongs to an installed distribution. Another one may come from anywhere, and is not to
            choose which code runs.

    Raises:
        ProgramError: if a module cannot be imported, or may not be.
    """
    for name in names:
        if name in sys.modules:
            continue
        if not installed:
            raise ProgramError(
                "the program needs a module that is not imported",
                where=where,
                found=f"`{name}`",
                hint=f"run `import {name}` before loading; a program from a folder does not import anything itself",
            )
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ProgramError(
                "a module that the program needs cannot be imported",
                where=where,
                found=f"`{name}`: {type(error).__name__}: {error}",
                hint="install the distribution that has it, as the wheel requires it",
            ) from error
