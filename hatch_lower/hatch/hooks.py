"""The module that hatchling loads in every build of an environment where hatch-lower is installed."""

from __future__ import annotations

from hatchling.plugin import hookimpl

from hatch_lower.hatch.plugin import LowerBuildHook


@hookimpl
def hatch_register_build_hook() -> type[LowerBuildHook]:
    return LowerBuildHook
