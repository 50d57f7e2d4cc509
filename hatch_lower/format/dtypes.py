"""The dtypes that a packaged program may name, with their sizes and safetensors' names for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class StoredDtype(NamedTuple):
    """Bytes per element, and safetensors' name (`None` where safetensors has none)."""

    size: int
    safetensors: str | None


DTYPES: Mapping[str, StoredDtype] = MappingProxyType(
    {
        "bfloat16": StoredDtype(2, "BF16"),
        "bool": StoredDtype(1, "BOOL"),
        "complex128": StoredDtype(16, None),
        "complex32": StoredDtype(4, None),
        "complex64": StoredDtype(8, "C64"),
        "float16": StoredDtype(2, "F16"),
        "float32": StoredDtype(4, "F32"),
        "float64": StoredDtype(8, "F64"),
        "float8_e4m3fn": StoredDtype(1, "F8_E4M3"),
        "float8_e4m3fnuz": StoredDtype(1, "F8_E4M3FNUZ"),
        "float8_e5m2": StoredDtype(1, "F8_E5M2"),
        "float8_e5m2fnuz": StoredDtype(1, "F8_E5M2FNUZ"),
        "float8_e8m0fnu": StoredDtype(1, "F8_E8M0"),
        "int16": StoredDtype(2, "I16"),
        "int32": StoredDtype(4, "I32"),
        "int64": StoredDtype(8, "I64"),
        "int8": StoredDtype(1, "I8"),
        "uint16": StoredDtype(2, "U16"),
        "uint32": StoredDtype(4, "U32"),
        "uint64": StoredDtype(8, "U64"),
        "uint8": StoredDtype(1, "U8"),
    }
)
"""By torch's own name of the dtype, without `torch.`."""
