"""The time of the files in a distribution, where `SOURCE_DATE_EPOCH` sets a time."""

from __future__ import annotations

from collections.abc import Mapping

from hatch_lower.errors import ConfigError

VARIABLE = "SOURCE_DATE_EPOCH"
LAST = 2**32 - 1  # seconds since 1970: the last time that the head of a gzip file can hold


def check_fixed_time(environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a time that hatchling could not write."""
    text = environment.get(VARIABLE)
    if text is None or (text.isascii() and text.isdecimal() and int(text) <= LAST):
        return
    raise ConfigError(
        "the time of the build is not a number of seconds since 1970",
        where=f"environment variable `{VARIABLE}`",
        found=f"`{text}`",
        hint=f"set a whole number up to {LAST}, like `{VARIABLE}=$(git log -1 --format=%ct)`, or unset the variable",
    )


def fixed_time(environment: Mapping[str, str]) -> int | None:
    """Return the time of the build in seconds since 1970, if the environment sets a time."""
    text = environment.get(VARIABLE)
    return None if text is None else int(text)
