"""Where the command begins. `hatch_lower.cli` itself imports nothing: pytest's plugin below it starts without click."""

from __future__ import annotations

try:
    from hatch_lower.cli.main import main
except ModuleNotFoundError as error:  # programs run without it
    if error.name != "click":
        raise
    from hatch_lower.cli.incomplete import main  # type: ignore[assignment]

__all__ = ["main"]
