"""Dataclasses as JSON and back, so that nothing is pickled between processes and builds."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

Record = TypeVar("Record")


def write_record(path: Path, record: Any) -> None:
    """Write a dataclass as JSON."""
    path.write_text(json.dumps(encode(record)), encoding="utf-8")


def read_record(kind: type[Record], path: Path) -> Record:
    """Return the dataclass that `write_record` wrote."""
    value: Record = decode(kind, json.loads(path.read_text(encoding="utf-8")))
    return value


def encode(value: Any) -> Any:
    """Return dataclasses as objects, paths as strings, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: encode(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: encode(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(each) for each in value]
    return value


def decode(kind: Any, value: Any) -> Any:
    """Return `value` as the type that a field is declared with."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: decode(hints[name], each) for name, each in value.items()})
    if kind is Path:
        return Path(value)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return decode(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(decode(arguments[0], each) for each in value)
        return tuple(decode(each, item) for each, item in zip(arguments, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: decode(arguments[1], each) for key, each in value.items()}
    return value
