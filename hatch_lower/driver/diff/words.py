"""The parts of a canonical form in words: operators, literals, tensors, sizes."""

from __future__ import annotations

import re
from typing import Any

LONGEST_LITERAL = 60
SCHEMA = re.compile(r":(?P<namespace>\w+)::(?P<name>\w+)\.(?P<overload>\w*)$")


def operator_text(target: str) -> str:
    """Return an operator's documented name: `aten.clamp`, `aten.add.Tensor`, `getitem`."""
    schema = SCHEMA.search(target)
    if schema is None:
        return target.split(":")[2]
    name = f"{schema['namespace']}.{schema['name']}"
    return f"{name}.{schema['overload']}" if schema["overload"] not in ("", "default") else name


def literal_text(value: object) -> str:
    text = plain_text(value)
    return text if len(text) <= LONGEST_LITERAL else f"{text[: LONGEST_LITERAL - 1]}…"


def plain_text(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    match value:
        case ["int", text]:
            return str(text)
        case ["float", text]:
            return repr(float.fromhex(text))
        case ["complex", real, imaginary]:
            return repr(complex(float.fromhex(real), float.fromhex(imaginary)))
        case ["node", _]:
            return "a value"
        case ["symbolic", text, _]:
            return str(text)
        case ["list", [*items]]:
            return f"[{', '.join(map(plain_text, items))}]"
        case ["dict", items]:
            return f"{{{', '.join(f'{key}: {plain_text(part)}' for key, part in items)}}}"
        case ["slice", [*parts]]:
            return ":".join("" if part is None else plain_text(part) for part in parts)
        case ["dtype", text]:
            return str(text).removeprefix("torch.")
        case [_, str(text)]:
            return text
        case _:
            return str(value)


def value_text(value: object) -> str:
    match value:
        case ["tensor", dtype, [*sizes], *_]:
            return f"{dtype}[{', '.join(map(literal_text, sizes))}]"
        case ["list", [*items]]:
            return f"({', '.join(map(value_text, items))})"
        case _:
            return literal_text(value)


def value_change(before: Any, after: Any) -> str:
    """Return the first difference of two values in dtype and shape, strides, layout, device, example sizes."""
    short = value_text(before), value_text(after)
    if short[0] != short[1]:
        return change_text(*short)
    match before, after:
        case ["tensor", _, sizes, *old], ["tensor", _, new_sizes, *new]:
            for name, left, right in zip(("strides", "layout", "device"), old, new, strict=True):
                if left != right:
                    return f"{name} {change_text(part_text(left), part_text(right))}"
            for left, right in zip(sizes, new_sizes, strict=True):
                if left != right:
                    return f"example size of {left[1]} {change_text(str(left[2]), str(right[2]))}"
        case ["symbolic", text, left], ["symbolic", _, right]:
            return f"example size of {text} {change_text(str(left), str(right))}"
        case ["list", items], ["list", others]:
            for left, right in zip(items, others, strict=True):
                if left != right:
                    return value_change(left, right)
    return "another value"


def part_text(value: Any) -> str:
    return value if isinstance(value, str) else f"[{', '.join(map(literal_text, value))}]"


def range_text(bounds: list[str] | None) -> str:
    if bounds is None:
        return "no range"
    lower, upper = bounds
    return f"{lower} and more" if upper in ("int_oo", "oo") else f"{lower} to {upper}"


def change_text(before: str, after: str) -> str:
    return f"{before} → {after}"
