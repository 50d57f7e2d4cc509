"""How packaged JSON is read: every value is checked for its type, and whatever is wrong becomes a `ProgramError`."""

from __future__ import annotations

import json
import keyword
import unicodedata
from typing import Any, NoReturn

from hatch_lower.errors import ProgramError

GREATEST_INTEGER = 2**63 - 1


def refuse(where: str, found: str) -> NoReturn:
    """Raise the error for a file that hatch-lower cannot have written.

    Raises:
        ProgramError: always.
    """
    raise ProgramError(
        "a packaged program file is damaged",
        where=where,
        found=found,
        hint="install the distribution again; if that does not help, build its wheel again",
    )


def parse_json(data: bytes, where: str) -> Any:
    """Return the JSON value in `data`.

    Raises:
        ProgramError: if it is not UTF-8 JSON, nests too deeply, or holds NaN, infinity or a lone surrogate.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        refuse(where, "JSON that nests too deeply")
    except ValueError as error:
        refuse(where, f"no JSON: {error}")
    return value


def check_schema(value: Any, supported: int, where: str) -> None:
    """Check the schema version of a file.

    Raises:
        ProgramError: if it is newer than `supported`, or no version at all.
    """
    if not isinstance(value, dict) or "schema" not in value:
        refuse(where, "no JSON object with the key `schema`")
    schema = value["schema"]
    if type(schema) is not int or schema < 1:
        refuse(where, f"schema {_kind(schema)}")
    if schema > supported:
        raise ProgramError(
            "a packaged program needs a newer hatch-lower",
            where=where,
            found=f"schema {schema}; this hatch-lower reads schema {supported}",
            hint="upgrade hatch-lower",
        )


def read_fields(value: Any, required: frozenset[str], where: str, optional: frozenset[str] = frozenset()) -> Any:
    """Return `value`, an object with all of the `required` keys and no others than those and the `optional`."""
    if not isinstance(value, dict):
        refuse(where, f"{_kind(value)} instead of an object")
    if value.keys() != required:
        missing = sorted(required - value.keys())
        unknown = sorted(value.keys() - required - optional)
        if missing:
            refuse(where, f"the key `{missing[0]}` is missing")
        if unknown:
            refuse(where, f"unknown key `{unknown[0][:40]}`")
    return value


def read_object(value: Any, where: str) -> dict[str, Any]:
    """Return `value`, an object with free keys."""
    if not isinstance(value, dict):
        refuse(where, f"{_kind(value)} instead of an object")
    return value


def read_list(value: Any, where: str) -> list[Any]:
    """Return `value`, a list."""
    if not isinstance(value, list):
        refuse(where, f"{_kind(value)} instead of a list")
    return value


def read_pair(value: Any, where: str) -> tuple[Any, Any]:
    """Return `value`, a list of two."""
    if not isinstance(value, list) or len(value) != 2:
        refuse(where, f"{_kind(value)} instead of a pair")
    return value[0], value[1]


def read_text(value: Any, where: str) -> str:
    """Return `value`, a string that is not empty and holds no NUL."""
    if not isinstance(value, str) or not value or "\0" in value:
        refuse(where, f"{_kind(value)} instead of a text")
    return value


def read_identifier(value: Any, where: str) -> str:
    """Return `value`, a Python identifier in the form in which Python itself keeps it, and no keyword.

    Nor is it `__debug__`, to which nothing can be assigned.
    """
    text = read_text(value, where)
    reserved = keyword.iskeyword(text) or text == "__debug__"
    if not text.isidentifier() or reserved or unicodedata.normalize("NFKC", text) != text:
        refuse(where, f"{text[:40]!r} instead of an identifier")
    return text


def read_module_name(value: Any, where: str) -> str:
    """Return `value`, `package.module`."""
    text = read_text(value, where)
    if not all(part.isidentifier() for part in text.split(".")):
        refuse(where, f"{text[:80]!r} instead of a module's name")
    return text


def read_qualified_name(value: Any, where: str) -> str:
    """Return `value`, `package.module:Class.Inner`."""
    text = read_text(value, where)
    module, colon, name = text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        refuse(where, f"{text[:80]!r} instead of `module:Class`")
    return text


def read_path(value: Any, where: str) -> str:
    """Return `value`, a relative POSIX path that stays below the folder that it is relative to."""
    text = read_text(value, where)
    if "\\" in text or ":" in text or any(part in ("", ".", "..") for part in text.split("/")):
        refuse(where, f"{text[:120]!r} instead of a relative path without `..`")
    return text


def read_bool(value: Any, where: str) -> bool:
    """Return `value`, true or false."""
    if not isinstance(value, bool):
        refuse(where, f"{_kind(value)} instead of true or false")
    return value


def read_integer(value: Any, where: str) -> int:
    """Return `value`, an integer of 64 bits."""
    if type(value) is not int or not -GREATEST_INTEGER - 1 <= value <= GREATEST_INTEGER:
        refuse(where, f"{_kind(value)} instead of an integer of 64 bits")
    return value


def read_natural(value: Any, where: str, limit: int = GREATEST_INTEGER) -> int:
    """Return `value`, an integer from 0 to `limit`."""
    if type(value) is not int or not 0 <= value <= limit:
        refuse(where, f"{_kind(value)} instead of an integer from 0 to {limit}")
    return value


def read_digest(value: Any, where: str) -> str:
    """Return `value`, a sha256 in lower-case hexadecimal."""
    text = read_text(value, where)
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        refuse(where, f"{text[:80]!r} instead of a sha256")
    return text


def _kind(value: Any) -> str:
    """Return a short description of a JSON value."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if type(value) is int and not -GREATEST_INTEGER <= value <= GREATEST_INTEGER:
        return "an integer of more than 64 bits"
    return f"{value!r:.40}"


def _refuse_constant(name: str) -> NoReturn:
    """Refuse what Python's reader takes beyond JSON: NaN and infinities."""
    msg = f"the constant {name}"
    raise ValueError(msg)
