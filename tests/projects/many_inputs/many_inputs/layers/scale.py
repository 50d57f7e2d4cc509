"""A module of the subpackage."""

from __future__ import annotations


def scale(number: float) -> float:
    doubled = number * 2.0
    return doubled + 1.0
