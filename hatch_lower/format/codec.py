"""JSON to frozen dataclasses and back, so that processes, builds and machines exchange no pickles.

`decode` trusts no input: every value is checked against the type of its field, a value of an `Annotated` type by the
annotated function, and the whole object by the `validate` method of its class. The first mistake is raised as a
`ProgramError` with the path of the field.

A record of eight fields is read in 4.8 µs, against 0.32 µs with `msgspec.convert`; the imports take 29 and 26 ms of
CPU time. `docs/decisions/0007-frozen-records.md` has the reason against msgspec.
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

from hatch_lower.errors import ProgramError, reading_hint

GREATEST_INTEGER = 2**63 - 1

Record = TypeVar("Record")
Reader: TypeAlias = Callable[[object], Any]


class Damage(Exception):  # noqa: N818
    """A mistake in a JSON value. Each reader of an enclosing value prepends its own key or index to `path`."""

    def __init__(self, found: str, path: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.path = path


@contextmanager
def within(path: str) -> Iterator[None]:
    try:
        yield
    except Damage as damage:
        damage.path = path + damage.path
        raise


def installation_error(what: str, where: str, found: str) -> ProgramError:
    hint = "install the distribution again; if that does not help, build its wheel again"
    return ProgramError(what, where=where, found=found, hint=reading_hint(found, hint))


def refuse_damaged_file(where: str, found: str) -> NoReturn:
    raise installation_error("a packaged program file is damaged", where, found)


def decode(kind: object, value: object, where: str) -> Any:
    """Convert a JSON value to a type: a dataclass, a scalar, or nested tuples, mappings and unions.

    The members of a union, except `None`, are dataclasses, distinguished by the class attribute `kind`. Raises
    `ProgramError` if the value does not fit the type; `where` names the file in the message.
    """
    try:
        return reader_of(kind)(value)
    except Damage as damage:
        path = damage.path.removeprefix(".")
        refuse_damaged_file(f"{where}: {path}" if where and path else where or path, damage.found)
    except RecursionError:
        refuse_damaged_file(where, "JSON that nests too deeply")


def encode(value: object, *, packaged: bool = False) -> Any:
    """Return the JSON value that `decode` reads."""
    # `packaged`: leave out fields with default values, and write complex and non-finite numbers as objects
    if isinstance(value, str | int | None):  # first, because most values are of these types
        return value
    if isinstance(value, tuple | list):
        return [encode(item, packaged=packaged) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item, packaged=packaged) for key, item in value.items()}
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        kind: Any = type(value)
        given = {field.name: getattr(value, field.name) for field in fields(value)}
        if packaged:
            given = {name: item for name, item in given.items() if item != defaults_of(kind).get(name, MISSING)}
        tag = find_class_tag(kind)
        return {name: encode(item, packaged=packaged) for name, item in given.items()} | (
            {"kind": tag} if tag is not None else {}
        )
    if isinstance(value, Path):
        return str(value)
    if packaged and isinstance(value, complex):
        return {"complex": [encode(value.real, packaged=True), encode(value.imag, packaged=True)]}
    if packaged and isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def write_record(path: Path, record: object) -> None:
    path.write_text(json.dumps(encode(record)), encoding="utf-8")


def read_record(kind: type[Record], path: Path) -> Record:
    record: Record = decode(kind, json.loads(path.read_text(encoding="utf-8")), str(path))
    return record


def parse_json(data: bytes, where: str) -> object:
    """Return the JSON value in a packaged file; raise `ProgramError` for other bytes."""
    try:
        return json_value(data)
    except Damage as damage:
        refuse_damaged_file(where, damage.found)


def json_value(data: bytes) -> object:
    """Return the JSON value in `data`, which must be UTF-8 without NaN, infinity and lone surrogates.

    Raises `Damage` for other bytes.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:  # only an escape can write a lone surrogate
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise Damage("JSON that nests too deeply") from None
    except ValueError as error:
        raise Damage(f"no JSON: {error}") from error
    return value


def decode_file(kind: type[Record], data: bytes, schema: int, where: str) -> Record:
    """Decode a JSON file, without its key `schema`; raise `ProgramError` if its schema is newer than `schema`."""
    value = parse_json(data, where)
    if not isinstance(value, dict) or "schema" not in value:
        refuse_damaged_file(where, "no JSON object with the key `schema`")
    version = value.pop("schema")
    if type(version) is not int or version < 1:
        refuse_damaged_file(where, f"schema {show_value(version)}")
    if version > schema:
        raise ProgramError(
            "a packaged program needs a newer hatch-lower",
            where=where,
            found=f"schema {version}; this hatch-lower reads schema {schema}",
            hint="upgrade hatch-lower",
        )
    record: Record = decode(kind, value, where)
    return record


def show_value(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if type(value) is int and not -GREATEST_INTEGER <= value <= GREATEST_INTEGER:
        return "an integer of more than 64 bits"
    return f"{value!r:.40}"


# Readers are made once for each type: inspecting the type of a field takes longer than reading a value.


@functools.cache
def reader_of(kind: Any) -> Reader:
    if kind in SCALARS:
        return SCALARS[kind]
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        reader: Reader = kind.__metadata__[0]
        return reader
    if origin is None:
        if not is_dataclass(kind):
            raise TypeError(f"no reader exists for the type {kind}")
        return _record_reader(kind)
    arguments = typing.get_args(kind)
    if origin is typing.Literal:
        return _choice_reader(arguments)
    if origin is tuple:
        if arguments[1:] == (...,):
            return _list_reader(arguments[0])
        return _fixed_reader(arguments)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in arguments if member is not type(None)]
        reader = reader_of(members[0]) if len(members) == 1 else _tagged_reader(members)
        return _optional_reader(reader) if len(members) < len(arguments) else reader
    if not issubclass(origin, Mapping):
        raise TypeError(f"no reader exists for the type {kind}")
    return _mapping_reader(*arguments)


@functools.cache
def defaults_of(kind: Any) -> dict[str, Any]:
    defaults: dict[str, object] = {}
    for field in fields(kind):
        if field.default is not MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not MISSING:
            defaults[field.name] = field.default_factory()
    return defaults


def types_of(kind: Any) -> dict[str, object]:
    # Modules with classes of packaged files do not postpone annotations: `get_type_hints` would compile and run the
    # texts, which takes 0.2 ms for a class, and `load` must not run code while reading
    types = {field.name: field.type for field in fields(kind)}
    if any(isinstance(kind, str) for kind in types.values()):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {name: hints[name] for name in types}
    return types


def find_class_tag(kind: type) -> str | None:
    tag = getattr(kind, "kind", None)
    return tag if isinstance(tag, str) else None  # in a class with a field `kind`, the attribute is a descriptor


def _record_reader(kind: Any) -> Reader:
    defaults = defaults_of(kind)
    names = {field.name for field in fields(kind)} | ({"kind"} if find_class_tag(kind) is not None else set())
    required = names - defaults.keys()
    columns: list[tuple[str, bool, Reader]] | None = None
    validate = getattr(kind, "validate", None)

    def read(value: object) -> object:
        nonlocal columns
        # only now, since most programs have no loops, and in a single assignment, since other threads may load, too
        if columns is None:
            columns = [(name, field is str, reader_of(field)) for name, field in types_of(kind).items()]
        if not isinstance(value, dict):
            raise Damage(f"{show_value(value)} instead of an object")
        keys = value.keys()
        if not required <= keys:
            raise Damage(f"the key `{min(required - keys)}` is missing")
        if not keys <= names:
            raise Damage(f"unknown key `{min(keys - names)[:40]}`")
        given = []
        name = ""
        try:
            for name, is_text, read_field in columns:
                item = value.get(name, MISSING)
                if is_text and type(item) is str:  # a shortcut: many fields are texts, and the call is the slow part
                    given.append(item)
                else:
                    given.append(defaults[name] if item is MISSING else read_field(item))
        except Damage as damage:
            damage.path = f".{name}{damage.path}"
            raise
        record = kind(*given)
        if validate is not None:
            validate(record)
        return record

    return read


def _tagged_reader(members: list[Any]) -> Reader:
    readers = {find_class_tag(member): reader_of(member) for member in members}
    if None in readers:
        raise TypeError(f"the types {members} have no class attribute `kind` to distinguish them")

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise Damage(f"{show_value(value)} instead of an object")
        tag = value.get("kind")
        if not isinstance(tag, str) or tag not in readers:
            raise Damage(f"{show_value(tag)} instead of one of {', '.join(f'`{known}`' for known in readers)}", ".kind")
        return readers[tag](value)

    return read


def _list_reader(kind: object) -> Reader:
    read_item = reader_of(kind)

    def read(value: object) -> tuple[object, ...]:
        result: list[object] = []
        try:
            for item in read_list(value):
                result.append(read_item(item))  # noqa: PERF401 (the length is the index of a damaged item)
        except Damage as damage:
            if isinstance(value, list):
                damage.path = f"[{len(result)}]{damage.path}"
            raise
        return tuple(result)

    return read


def _fixed_reader(kinds: tuple[object, ...]) -> Reader:
    readers = [reader_of(kind) for kind in kinds]

    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise Damage(f"{show_value(value)} instead of a list of {len(readers)}")
        return tuple(read_item(item) for read_item, item in zip(readers, value, strict=True))

    return read


def _mapping_reader(key_kind: object, kind: object) -> Reader:
    read_key, read_item = _read_number if key_kind is int else reader_of(key_kind), reader_of(kind)

    def read(value: object) -> dict[object, object]:
        if not isinstance(value, dict):
            raise Damage(f"{show_value(value)} instead of an object")
        key: Any = ""
        try:
            result = {}
            for key, item in value.items():
                result[read_key(key)] = read_item(item)
        except Damage as damage:
            damage.path = f"[{key!r:.80}]{damage.path}"
            raise
        return result

    return read


def _optional_reader(read_value: Reader) -> Reader:
    return lambda value: None if value is None else read_value(value)


def _choice_reader(choices: tuple[str, ...]) -> Reader:
    def read(value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise Damage(f"{show_value(value)} instead of one of {', '.join(f'`{choice}`' for choice in choices)}")

    return read


def read_list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise Damage(f"{show_value(value)} instead of a list")
    return value


def read_integer(value: object) -> int:
    if type(value) is not int or not -GREATEST_INTEGER - 1 <= value <= GREATEST_INTEGER:
        raise Damage(f"{show_value(value)} instead of an integer of 64 bits")
    return value


def _read_string(value: object) -> str:
    if not isinstance(value, str):
        raise Damage(f"{show_value(value)} instead of a string")
    return value


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise Damage(f"{show_value(value)} instead of true or false")
    return value


def read_float(value: object) -> float:
    if type(value) is int:
        return float(read_integer(value))
    if not isinstance(value, float) or not math.isfinite(value):
        raise Damage(f"{show_value(value)} instead of a number")
    return value


def _read_number(key: str) -> int:
    # JSON has texts as keys only
    if not (key.isascii() and key.isdecimal() and len(key) < len(str(GREATEST_INTEGER))):
        raise Damage(f"{key[:40]!r} instead of a number")
    return int(key)


def _refuse_constant(name: str) -> NoReturn:
    # Python's reader also accepts NaN and infinities, which are not JSON
    raise ValueError(f"the constant {name}")


SCALARS: Mapping[object, Reader] = {
    str: _read_string,
    bool: _read_bool,
    int: read_integer,
    float: read_float,
    Path: lambda value: Path(_read_string(value)),
    Any: lambda value: value,
    object: lambda value: value,
}
