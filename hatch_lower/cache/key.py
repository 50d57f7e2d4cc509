"""What the result of lowering one partition depends on.

Every field of a key is hashed, so a new field cannot be forgotten. The readable components are stored beside the hash.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hatch_lower.digest import digest_of

__all__ = ["PartitionKey"]


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """The key of one partition's `PreprocessResult`.

    Args:
        graph: digest of the canonical form of the partition: structure, and layout, ties and mutability of constants.
        state: digest of the constants' contents; empty for a backend whose blob does not depend on them.
        backend: the backend's id.
        fingerprint: versions of what shapes the blob: the backend's code, libraries, compilers.
        compile_specs: the options, values in hexadecimal.
        torch: torch's version.
        interpreter: Python's version, which shapes the code that torch generates for some graphs.
        system: operating system and machine.
        result_schema: version of the form in which results are stored.
    """

    graph: str
    state: str
    backend: str
    fingerprint: tuple[tuple[str, str], ...]
    compile_specs: tuple[tuple[str, str], ...]
    torch: str
    interpreter: str
    system: str
    result_schema: int

    def components(self) -> dict[str, Any]:
        """Return the fields as a JSON value."""
        return asdict(self)

    def digest(self) -> str:
        """Return the sha256 over all fields."""
        return digest_of(self.components())
