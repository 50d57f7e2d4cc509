"""Strings and numbers of a checked form in packaged files: each type is annotated with its checking function."""

import keyword
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

from hatch_lower.format.codec import GREATEST_INTEGER, Damage, show_value


def read_natural(value: object) -> int:
    if type(value) is not int or not 0 <= value <= GREATEST_INTEGER:
        raise Damage(f"{show_value(value)} instead of an integer from 0 to {GREATEST_INTEGER}")
    return value


def read_text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise Damage(f"{show_value(value)} instead of a text")
    return value


def read_identifier(value: object) -> str:
    text = read_text(value)
    # `__debug__` cannot be assigned to; NFKC is the form in which Python keeps identifiers
    reserved = keyword.iskeyword(text) or text == "__debug__"
    if not text.isidentifier() or reserved or unicodedata.normalize("NFKC", text) != text:
        raise Damage(f"{text[:40]!r} instead of an identifier")
    return text


def read_module_name(value: object) -> str:
    text = read_text(value)
    if not all(part.isidentifier() for part in text.split(".")):
        raise Damage(f"{text[:80]!r} instead of a module's name")
    return text


def read_qualified_name(value: object) -> str:
    text = read_text(value)
    module, colon, name = text.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        raise Damage(f"{text[:80]!r} instead of `module:Class`")
    return text


def read_path(value: object) -> str:
    text = read_text(value)
    if "\\" in text or ":" in text or any(part in ("", ".", "..") for part in text.split("/")):
        raise Damage(f"{text[:120]!r} instead of a relative path without `..`")
    return text


def read_digest(value: object) -> str:
    text = read_text(value)
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise Damage(f"{text[:80]!r} instead of a sha256")
    return text


def read_dtype(value: object) -> str:
    if not isinstance(value, str) or value not in DTYPES:
        raise Damage(f"the dtype {value!r:.40}")
    return value


Natural = Annotated[int, read_natural]
Text = Annotated[str, read_text]
Identifier = Annotated[str, read_identifier]
ModuleName = Annotated[str, read_module_name]
QualifiedName = Annotated[str, read_qualified_name]
RelativePath = Annotated[str, read_path]
Digest = Annotated[str, read_digest]
Dtype = Annotated[str, read_dtype]


class StoredDtype(NamedTuple):
    size: int  # bytes per element
    safetensors: str | None  # name in safetensors, if supported


# by torch's name of the dtype, without `torch.`
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
