"""The kit: all programs and checks of one backend, run one by one or all together."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from hatch_lower.backends.testing.bench import Bench, Exports, Subject
from hatch_lower.backends.testing.calls import (
    check_delegate_refuses,
    check_instances,
    check_later_calls,
    check_runtime_refuses,
    check_threads,
)
from hatch_lower.backends.testing.case import Case
from hatch_lower.backends.testing.determinism import check_elsewhere, check_twice
from hatch_lower.backends.testing.facts import Facts, subject_of
from hatch_lower.backends.testing.keys import check_constants, check_options, check_unknown_option
from hatch_lower.backends.testing.mapped import check_bound, check_mapped, check_memory
from hatch_lower.backends.testing.partitions import check_graph_is_left, check_handles, check_linear
from hatch_lower.backends.testing.programs import all_cases
from hatch_lower.backends.testing.report import (
    FAILED,
    NOT_CLAIMED,
    PASSED,
    REFUSED,
    Fault,
    NotClaimedError,
    Outcome,
    Report,
)
from hatch_lower.backends.testing.running import run_case, words
from hatch_lower.backends.testing.surroundings import check_surroundings
from hatch_lower.errors import BackendError, InputError
from hatch_lower.exir.backend.registry import find_backend

if TYPE_CHECKING:
    from typing_extensions import Unpack

Check = Callable[[Bench, Sequence[Case]], str]
"""Takes the bench and the selected programs; returns what it looked at, or raises `Fault` or `NotClaimedError`."""

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "checks/the partitioner leaves the program as it was": check_graph_is_left,
        "checks/the partitioner is linear": check_linear,
        "checks/bytes are the same twice": check_twice,
        "checks/bytes are the same in other processes": check_elsewhere,
        "checks/every debug handle is accounted for": check_handles,
        "checks/every constant is in result or key": check_constants,
        "checks/every option is in result or key": check_options,
        "checks/unknown options are refused": check_unknown_option,
        "checks/wrong inputs do not reach the delegate": check_runtime_refuses,
        "checks/the delegate refuses wrong inputs": check_delegate_refuses,
        "checks/weights are bound and not copied": check_bound,
        "checks/weights stay mapped": check_mapped,
        "checks/later calls are as the first": check_later_calls,
        "checks/calls give their memory back": check_memory,
        "checks/nothing around it is used": check_surroundings,
        "checks/clones and others beside it": check_instances,
        "checks/calls from threads": check_threads,
    }
)
"""Name to check, in the order of the report."""

FROZEN = 20
"""After how many programs what is there is no longer looked at for garbage, until the kit is closed."""


def trial_names(only: str | Sequence[str] = "*") -> list[str]:
    """Return the names of all programs and checks, or of those that a pattern fits (`operators/*float32`).

    Raises:
        InputError: if a pattern fits none.
    """
    names = [*(case.name for case in all_cases()), *CHECKS]
    patterns = [only] if isinstance(only, str) else list(only)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(
                "no program or check of the kit has such a name", found=pattern, hint="`*` stands for any text"
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


class Kit:
    """All programs and checks for one backend; a context manager, which removes its files in the end.

    Args:
        subject: the backend.
        only: patterns of the names of programs and checks to run; checks look at these programs only.
        exports: exported programs, to share among several kits.

    Raises:
        BackendError: if there is no such backend.
        InputError: if a pattern fits nothing.
    """

    def __init__(self, subject: Subject, only: str | Sequence[str] = "*", exports: Exports | None = None) -> None:
        self.names = trial_names(only)
        find_backend(subject.backend_id)  # before there is a folder
        self._folder = tempfile.TemporaryDirectory(prefix="hatch-lower-kit-")
        self._bench = Bench(subject, Path(self._folder.name), exports or Exports())
        self._cases = {case.name: case for case in all_cases() if case.name in set(self.names)}
        self._outcomes: dict[str, Outcome] = {}
        self._prepared = False

    def __enter__(self) -> Kit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files."""
        gc.unfreeze()
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._bench.folder

    def prepare(self) -> None:
        """Lower all programs in one call of a backend that can compile several side by side."""
        if not self._prepared and self._bench.lowers_together:
            self._prepared = True
            self._bench.prepare(list(self._cases.values()))

    def run(self, name: str) -> Outcome:
        """Run one program or check, if it has not been run yet."""
        if name not in self._outcomes:
            self._outcomes[name] = self._run(name)
            if len(self._outcomes) % FROZEN == 1:
                gc.freeze()  # all that torch is made of would be gone through in each full collection
        return self._outcomes[name]

    def _run(self, name: str) -> Outcome:
        try:
            if name in self._cases:
                return Outcome(name, PASSED, run_case(self._bench, self._cases[name]))
            return Outcome(name, PASSED, CHECKS[name](self._bench, list(self._cases.values())))
        except NotClaimedError as error:
            return Outcome(name, NOT_CLAIMED, str(error))
        except BackendError as error:
            return Outcome(name, REFUSED, words(error))
        except Fault as error:
            return Outcome(name, FAILED, str(error))
        except Exception as error:  # whatever a backend raises
            return Outcome(name, FAILED, words(error))

    def report(self) -> Report:
        """Run everything that has not been run yet; return all outcomes."""
        self.prepare()
        subject = self._bench.subject
        return Report(subject.backend_id, subject.options, tuple(self.run(name) for name in self.names))


def check_backend(
    backend_id: str,
    options: Mapping[str, Any] | None = None,
    *,
    only: str | Sequence[str] = "*",
    exports: Exports | None = None,
    **facts: Unpack[Facts],
) -> Report:
    """Run some hundred small programs through a backend, compare them with eager, and check what else must hold.

    Args:
        backend_id: the backend, as a recipe names it.
        options: as a recipe gives them.
        only: patterns of names of programs and checks (`operators/*float32`), where not all are wanted.
        exports: exported programs, to share among several calls.
        facts: what else there is to say of the backend; see `Facts`.

    Raises:
        BackendError: if there is no such backend.
        InputError: if a pattern of `only` fits nothing.
    """
    with Kit(subject_of(backend_id, options, facts), only, exports) as kit:
        return kit.report()
