"""From a TOML table to its dataclass: every wrong key and value becomes a sentence, and does not hide other errors."""

from __future__ import annotations

import datetime
import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hatch_lower.config.tables import (
    IN_A_FILE,
    ON_THE_HUB,
    RESERVED_KEYS,
    BackendChoice,
    HookTable,
    quote_key,
    toml_key,
)
from hatch_lower.errors import nearest
from hatch_lower.urls import ALLOWED, url_fault

Table = TypeVar("Table")


def read_toml_table(kind: type[Table], table: object, path: str, problems: list[str]) -> Table:
    """Return `table` as the dataclass `kind`; append a sentence to `problems` for each wrong key or value."""
    if not isinstance(table, Mapping):
        problems.append(f"`{path}` must be a table, found {words_for(table)}")
        return kind()
    known = {toml_key(setting.name): setting for setting in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    reserved = RESERVED_KEYS if kind is HookTable else {}
    values: dict[str, object] = {}
    for key, value in table.items():
        here = f"{path}.{quote_key(key)}"
        if key in known:
            name = known[key].name
            parsed = read_value(hints[name], value, here, problems, known[key].metadata)
            if parsed is not None:  # else the default remains, so that other problems are found too
                values[name] = parsed
        elif key not in reserved:
            problems.append(f"`{here}` is not a setting, found {words_for(value)}; {nearest(key, known)}")
    return kind(**values)


def read_value(hint: object, value: object, path: str, problems: list[str], limits: Mapping[str, Any]) -> object:
    """Return a value as its field's type; or `None`, which TOML cannot write, after appending to `problems`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):  # `T | None`: only T can be written
        return read_value(arguments[0], value, path, problems, limits)
    if origin is tuple:
        if "single" in limits and isinstance(value, str):
            alone = read_value(arguments[0], value, path, problems, limits)
            return None if alone is None else (alone,)
        if not isinstance(value, list):
            return add_problem(
                f"`{path}` must be an array{' or a string' if 'single' in limits else ''}", value, problems
            )
        return tuple(read_item(arguments[0], item, f"{path}[{i}]", problems, limits) for i, item in enumerate(value))
    if origin is Mapping:
        kind = arguments[1]
        if not isinstance(value, Mapping):
            return add_problem(f"`{path}` must be a table{' of tables' if is_dataclass(kind) else ''}", value, problems)
        return {key: read_item(kind, item, f"{path}.{quote_key(key)}", problems, limits) for key, item in value.items()}
    if hint is BackendChoice:
        return read_backend(value, path, problems)
    if is_dataclass(hint):
        return read_toml_table(hint, value, path, problems)  # type: ignore[arg-type]
    if origin is Literal:
        listed = ", ".join(map(json.dumps, arguments))
        is_listed = any(type(value) is type(known) and value == known for known in arguments)  # 1 == True
        return value if is_listed else add_problem(f"`{path}` must be one of {listed}", value, problems)
    return read_scalar(hint, value, path, problems, limits)


def read_item(hint: Any, value: object, path: str, problems: list[str], limits: Mapping[str, object]) -> object:
    """Return an element; a placeholder for a wrong element keeps the indices of the others."""
    read = read_value(hint, value, path, problems, limits)
    if read is not None:
        return read
    if get_origin(hint) is Mapping:
        return {}
    return 0 if hint in (int, float) else hint("")


def read_backend(value: object, path: str, problems: list[str]) -> object:
    if isinstance(value, str) and value:
        return BackendChoice(value)
    if not isinstance(value, Mapping):
        return add_problem(
            f"`{path}` must be a backend's name, or a table with its `name` and options", value, problems
        )
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return add_problem(f"`{path}.name` must be a backend's name", name, problems)
    return BackendChoice(name, {key: item for key, item in value.items() if key != "name"})


def read_scalar(hint: Any, value: object, path: str, problems: list[str], limits: Mapping[str, Any]) -> object:
    kinds = {bool: "true or false", int: "an integer", float: "a number", str: "a string that is not empty"}
    words = limits.get("words", kinds[hint])
    if hint is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    minimum, maximum = limits.get("minimum"), limits.get("maximum")
    if minimum is not None:
        words += f" of at least {minimum}"
    if maximum is not None:
        words += f" and at most {maximum}"
    good = type(value) is hint and value != ""
    if good and isinstance(value, int | float):
        good = math.isfinite(value) and (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
    if good and isinstance(value, str) and "pattern" in limits:
        good = re.fullmatch(limits["pattern"], value) is not None
    if good and isinstance(value, str) and "weights" in limits and value not in (IN_A_FILE, ON_THE_HUB):
        fault = url_fault(value)
        words, good = f'"{IN_A_FILE}", "{ON_THE_HUB}" or {ALLOWED} ({fault})', not fault
    return value if good else add_problem(f"`{path}` must be {words}", value, problems)


def add_problem(sentence: str, value: object, problems: list[str]) -> object:
    problems.append(f"{sentence}, found {words_for(value)}")
    return None


def words_for(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string {json.dumps(value if len(value) <= 60 else value[:60] + '…', ensure_ascii=False)}"
        case list():
            return "an array"
        case Mapping():
            return "a table"
        case datetime.date() | datetime.time():
            return "a date or time"
    return f"a value of type {type(value).__name__}"
