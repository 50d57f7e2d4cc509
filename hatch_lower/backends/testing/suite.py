"""The kit as tests of pytest: for a test module of a backend, and what `--hatch-lower-backend ID` collects."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from hatch_lower.backends.testing.bench import Exports
from hatch_lower.backends.testing.facts import Facts, subject_of
from hatch_lower.backends.testing.kit import Kit, trial_names
from hatch_lower.backends.testing.report import FAILED, PASSED, Outcome

if TYPE_CHECKING:
    from typing_extensions import Unpack


def backend_tests(
    backend_id: str,
    options: Mapping[str, Any] | None = None,
    *,
    only: str | Sequence[str] = "*",
    exports: Exports | None = None,
    **facts: Unpack[Facts],
) -> Callable[[str], None]:
    """Return a test function with one parameter set for each program and check of the kit.

    `test_backend = backend_tests("demo")` in a test module is all that is needed. What the backend does not claim, or
    refuses, is skipped with its reason. The arguments are those of `check_backend`.
    """
    subject = subject_of(backend_id, options, facts)
    names = trial_names(only)

    @cache
    def kit() -> Kit:
        made = Kit(subject, only, exports)
        atexit.register(made.close)
        return made

    @pytest.mark.parametrize("trial", names)
    def test(trial: str) -> None:
        made = kit()
        if len(names) > 1:
            made.prepare()
        judge(made.run(trial))

    return test


def judge(outcome: Outcome) -> None:
    """Let a test pass, be skipped, or fail, as an outcome says."""
    if outcome.status == FAILED:
        pytest.fail(outcome.detail, pytrace=False)
    if outcome.status != PASSED:
        pytest.skip(f"{outcome.status}: {outcome.detail}")


def test_backend(hatch_lower_kit: Kit, hatch_lower_trial: str) -> None:
    """Run one program or check."""
    judge(hatch_lower_kit.run(hatch_lower_trial))
