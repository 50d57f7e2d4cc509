"""What became of one program or check."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAILED", "NOT_CLAIMED", "PASSED", "REFUSED", "Fault", "NotClaimedError", "Outcome"]

PASSED = "passed"
NOT_CLAIMED = "not claimed"
REFUSED = "refused"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one program or check.

    Args:
        name: its group and name, `operators/float32 arithmetic`.
        status: `passed`; `not claimed`: the backend left it to others; `refused`: it raised a `BackendError`; `failed`.
        detail: why, or what was wrong, or how much the backend took.
    """

    name: str
    status: str
    detail: str = ""

    @property
    def group(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]


class Fault(Exception):  # noqa: N818 - it says what a backend got wrong, not what went wrong here
    """A backend did something else than it must."""


class NotClaimedError(Exception):
    """A check has nothing to look at."""
