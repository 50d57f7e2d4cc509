"""The kit: all programs and checks of a backend, as tests of pytest."""

from __future__ import annotations

import atexit
import gc
import tempfile
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hatch_lower.backends.testing import calls, determinism, keys, memory, partitions
from hatch_lower.backends.testing.bench import Bench, Exports, Facts, KitBackend
from hatch_lower.backends.testing.case import Case, Fault, NotClaimedError
from hatch_lower.backends.testing.comparison import error_words, run_case
from hatch_lower.backends.testing.programs import all_cases
from hatch_lower.errors import BackendError, InputError
from hatch_lower.exir.backend.registry import find_backend

if TYPE_CHECKING:
    from typing_extensions import Unpack

# takes the bench and the selected programs; returns a summary, or raises `Fault` or `NotClaimedError`
Check = Callable[[Bench, Sequence[Case]], str]

# in the order of the tests
CHECKS: Mapping[str, Check] = {
    "checks/the partitioner leaves the program as it was": partitions.check_graph_is_left,
    "checks/the partitioner is linear": partitions.check_linear,
    "checks/bytes are the same twice": determinism.check_twice,
    "checks/bytes are the same in other processes": determinism.check_elsewhere,
    "checks/every debug handle is accounted for": partitions.check_handles,
    "checks/every constant is in result or key": keys.check_constants,
    "checks/every option is in result or key": keys.check_options,
    "checks/unknown options are refused": keys.check_unknown_option,
    "checks/wrong inputs do not reach the delegate": calls.check_runtime_refuses,
    "checks/the delegate refuses wrong inputs": calls.check_delegate_refuses,
    "checks/weights are bound and not copied": memory.check_bound,
    "checks/weights stay mapped": memory.check_mapped,
    "checks/later calls are as the first": calls.check_later_calls,
    "checks/calls give their memory back": memory.check_freed_memory,
    "checks/nothing around it is used": determinism.check_environment,
    "checks/clones and others beside it": calls.check_instances,
    "checks/calls from threads": calls.check_threads,
}

FROZEN = 20  # After so many programs the objects so far are exempt from garbage collection, until the kit is closed


def trial_names(only: str | Sequence[str] = "*") -> list[str]:
    """Return the names of all programs and checks, or of those that match a pattern (`operators/*float32`).

    Raises:
        InputError: if a pattern matches no name.
    """
    names = [*(case.name for case in all_cases()), *CHECKS]
    patterns = [only] if isinstance(only, str) else list(only)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(
                "no program or check of the kit matches the name", found=pattern, hint="`*` stands for any text"
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


class Kit:
    def __init__(self, subject: KitBackend, only: str | Sequence[str] = "*", exports: Exports | None = None) -> None:
        self.names = trial_names(only)
        find_backend(subject.backend_id)  # before there is a folder
        self._folder = tempfile.TemporaryDirectory(prefix="hatch-lower-kit-")
        self.bench = Bench(subject, Path(self._folder.name), exports or Exports())
        self._cases = {case.name: case for case in all_cases() if case.name in set(self.names)}
        self._count = 0
        self._prepared = False

    def close(self) -> None:
        gc.unfreeze()
        self._folder.cleanup()

    def prepare(self) -> None:
        if not self._prepared and self.bench.lowers_together:
            self._prepared = True
            self.bench.prepare(list(self._cases.values()))

    def run(self, name: str) -> str:
        """Run a program or check; return the number of operations that the backend took, or a check's summary."""
        if self._count % FROZEN == 1:
            gc.freeze()  # all that torch is made of would be gone through in each full collection
        self._count += 1
        try:
            if name in self._cases:
                return run_case(self.bench, self._cases[name])
            return CHECKS[name](self.bench, list(self._cases.values()))
        except (BackendError, Fault, NotClaimedError):
            raise
        except Exception as error:  # any exception of a backend
            raise Fault(error_words(error)) from error


def backend_tests(
    backend_id: str,
    options: Mapping[str, object] | None = None,
    *,
    only: str | Sequence[str] = "*",
    exports: Exports | None = None,
    **facts: Unpack[Facts],
) -> Callable[[str], None]:
    """Return a test function with one parameter set for each program and check of the kit.

    A test module needs only `test_backend = backend_tests("demo")`. Some hundred small programs go through the backend
    and are compared with eager, and the other requirements are checked. Programs that the backend does not claim, or
    refuses, are skipped with their reason.

    Args:
        backend_id: the backend, as a recipe names it.
        options: as a recipe gives them.
        only: patterns that select programs and checks by name (`operators/*float32`).
        exports: exported programs, to share among several calls.
        facts: further facts about the backend; see `Facts`.

    Raises:
        InputError: if a pattern of `only` matches no name.
    """
    subject = KitBackend(backend_id, dict(options or {}), **facts)
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
        judge(made, trial)

    return test


def judge(kit: Kit, trial: str) -> None:
    try:
        print(kit.run(trial))  # shown by `pytest -rP`
    except NotClaimedError as error:
        pytest.skip(f"not claimed: {error}")
    except BackendError as error:
        pytest.skip(f"refused: {error_words(error)}")
    except Fault as error:
        pytest.fail(str(error), pytrace=False)
