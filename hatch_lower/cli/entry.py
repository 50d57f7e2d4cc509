"""Entry point of the command. `hatch_lower.cli` imports no modules, so that the pytest plugin starts without click."""

from __future__ import annotations

try:
    from hatch_lower.cli.main import main
except ModuleNotFoundError as error:  # programs run without click
    if error.name != "click":
        raise
    from hatch_lower.cli.incomplete import main  # type: ignore[assignment]

__all__ = ["main"]
