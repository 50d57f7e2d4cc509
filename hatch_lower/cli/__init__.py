"""The command line `hatch-lower`: a module for each command, and `output`, through which all of them print."""

from __future__ import annotations

from hatch_lower.cli.main import main

__all__ = ["main"]
