"""Marks of tests whose subject torch 2.11 or 2.12 lacks, or has no ExecuTorch."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from hatch_lower.runtime.torch_private.inductor import multiplies_unsigned_bytes
from hatch_lower.runtime.torch_private.older import is_older

EXECUTORCH = pytest.param(
    "executorch", marks=pytest.mark.skipif(find_spec("executorch") is None, reason="executorch is not installed")
)
UNSIGNED_PRODUCTS = pytest.mark.skipif(
    not multiplies_unsigned_bytes(), reason="torch 2.11 multiplies no unsigned bytes"
)
DERIVED_SIZES = pytest.mark.skipif(
    is_older(), reason="torch 2.11 and 2.12 refuse dynamic sizes of derivatives with other words"
)
CHECKED_NUMBERS = pytest.mark.skipif(
    is_older(), reason="torch 2.11 and 2.12 export no check of a floating-point number from a tensor"
)
