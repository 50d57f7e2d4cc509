"""What there is to say of a backend beside its name and its options, as `check_backend` and `backend_tests` take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from hatch_lower.backends.testing.bench import Subject
from hatch_lower.backends.testing.case import Tolerance
from hatch_lower.runtime.delegates import Delegate


class Facts(TypedDict, total=False):
    """Keyword arguments, none of which is needed; `None` is as good as leaving one out."""

    delegate: type[Delegate] | None
    """A run half that stands for the installed one."""
    variations: Mapping[str, Sequence[Any]] | None
    """Option to other values, each of which must change a result or a key."""
    computes: bool
    """Whether the run half computes, which is taken for granted; that of `null` does not."""
    checks_inputs: bool
    """Whether the run half itself refuses inputs that the runtime would not hand to it."""
    packed_copies: int
    """How many copies of large weights the engine makes for its own kernels."""
    keeps_files: bool
    """Whether the engine keeps the file of its weights open for good, once it was loaded: torch's AOTInductor does."""
    tolerance: Tolerance | None
    """How far its numbers may be from eager's; wider for half precision."""
    flushes_subnormals: bool
    """Whether its kernels count subnormal numbers as 0: a result may then be eager's, or the one that eager gives where
    it flushes them too."""


def subject_of(backend_id: str, options: Mapping[str, Any] | None, facts: Facts) -> Subject:
    """Return what is to be examined.

    Args:
        backend_id: the backend.
        options: as a recipe gives them.
        facts: what else there is to say of it.
    """
    given: dict[str, Any] = {name: fact for name, fact in facts.items() if fact is not None}
    return Subject(backend_id, dict(options or {}), **given)
