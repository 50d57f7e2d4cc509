"""The command line: `hatch-lower inspect`, `check`, `debug`, `schema`, `cache`, `explain`, `audit`."""

from __future__ import annotations

from hatch_lower.cli.main import main

__all__ = ["main"]
