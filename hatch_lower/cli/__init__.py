"""The command line `hatch-lower`: a module for each command, and `output`, through which all of them print."""

from __future__ import annotations

try:
    from hatch_lower.cli.main import main
except ModuleNotFoundError as error:  # programs run without it
    if error.name != "click":
        raise
    from hatch_lower.cli.incomplete import main  # type: ignore[assignment]

__all__ = ["main"]
