"""What became of each program and check, and all of it as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of all programs and checks; `print(report)` shows them as a table.

    Args:
        backend_id: the backend.
        options: what it was given.
        outcomes: in the order of the kit.
    """

    backend_id: str
    options: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and something passed."""
        return not self.failures and any(each.status == PASSED for each in self.outcomes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """What failed."""
        return self.with_status(FAILED)

    def with_status(self, status: str) -> tuple[Outcome, ...]:
        """Return the outcomes of one status."""
        return tuple(each for each in self.outcomes if each.status == status)

    def counts(self) -> dict[str, int]:
        """Return how many outcomes have each status."""
        found = Counter(each.status for each in self.outcomes)
        return {status: found[status] for status in (PASSED, NOT_CLAIMED, REFUSED, FAILED)}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table, groups in the order of the kit, and the numbers."""
        options = ", ".join(f"{name} = {value!r}" for name, value in self.options.items())
        yield f"backend `{self.backend_id}`{f' ({options})' * bool(options)}"
        width = max((len(each.name.partition("/")[2]) for each in self.outcomes), default=0)
        group = ""
        for each in self.outcomes:
            if each.group != group:
                group = each.group
                yield f"\n{group}"
            yield f"  {each.name.partition('/')[2]:{width}}  {each.status:11}  {each.detail}".rstrip()
        yield ""
        yield ", ".join(f"{count} {status}" for status, count in self.counts().items())
