"""A Triton kernel as text, with the facts of its launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelText:
    """A Triton kernel as inductor wrote it, with the configuration that was compiled."""

    name: str
    text: str  # the Python module that defines the kernel
    signature: Mapping[str, str]  # parameter to type: `*fp32`, `i32`, `constexpr`
    constants: Mapping[str, Any]  # values of the `constexpr` parameters
