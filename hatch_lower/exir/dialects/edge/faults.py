"""What can be wrong with operators and programs of the dialects, for those who also catch the built-in kinds."""

from __future__ import annotations

from torch._export.verifier import SpecViolationError

from hatch_lower.errors import EdgeError

__all__ = ["ConstraintError", "EdgeViolationError", "KernelError", "LibraryError", "VariantError", "VariantKindError"]


class EdgeViolationError(EdgeError, SpecViolationError):
    """A program breaks a rule of the edge dialect."""


class ConstraintError(EdgeError, RuntimeError):
    """A dtype constraint does not speak of every tensor of its operator."""


class VariantError(EdgeError, RuntimeError):
    """An operator has no variant of the kind that was asked for."""


class VariantKindError(EdgeError, AssertionError):
    """A kind of variant was asked for that operators are not turned into."""


class LibraryError(EdgeError, RuntimeError):
    """A library's operators were looked up as backend operators without having been declared so."""


class KernelError(EdgeError, AssertionError):
    """A backend operator has no kernel to trace it with."""
