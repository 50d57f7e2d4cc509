"""`CompileSpec`: one option of a backend."""

from __future__ import annotations

from dataclasses import dataclass

from hatch_lower.errors import BackendError


@dataclass(frozen=True, slots=True)
class CompileSpec:
    """One option of a backend; a value that is not bytes is a `BackendError`."""

    key: str
    value: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.value, bytes):  # the value is part of the cache key
            raise BackendError(
                f"the value of the compile spec `{self.key}` is not bytes",
                found=f"{self.value!r:.200}",
                hint="encode the value: `value.encode()` for a string, `struct.pack` for numbers",
            )
