"""Steps: parts of a `preprocess` call that another machine can make, text in and bytes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hatch_lower.exir.backend.compile_spec_schema import CompileSpec


@dataclass(frozen=True, slots=True)
class Step:
    """One compilation, say: a source file with a name, and all that shapes what comes of it.

    Args:
        name: tells its backend what is to be done; no path.
        text: what it is made from.
        components: versions of tools, and options without paths of this machine, that shape the result beside torch.
    """

    name: str
    text: str
    components: Mapping[str, str]


# is told all steps of partitions with the same options, and returns the result of each that others have made
FindSteps: TypeAlias = Callable[[Sequence[Step], Sequence[CompileSpec]], Sequence[bytes | None]]
