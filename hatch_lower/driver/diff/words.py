"""Keys and canonical forms in words: the changed settings and tools of two builds; operators, literals, tensors,
sizes. A key is the components of an `ExportKey` or a `ManifestKey`. An unknown field keeps its own name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hatch_lower.config.tables import IN_A_FILE
from hatch_lower.driver.diff.difference import Path, document_changes

LONGEST_LITERAL = 60
SCHEMA = re.compile(r":(?P<namespace>\w+)::(?P<name>\w+)\.(?P<overload>\w*)$")


def operator_text(target: str) -> str:
    """Return an operator's documented name: `aten.clamp`, `aten.add.Tensor`, `getitem`."""
    schema = SCHEMA.search(target)
    if schema is None:
        return target.split(":")[2]
    name = f"{schema['namespace']}.{schema['name']}"
    return f"{name}.{schema['overload']}" if schema["overload"] not in ("", "default") else name


def literal_words(value: object) -> str:
    return shortened(plain_text(value))


def shortened(text: str) -> str:
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


def value_words(value: object) -> str:
    match value:
        case ["tensor", dtype, [*sizes], *_]:
            return f"{dtype}[{', '.join(map(literal_words, sizes))}]"
        case ["list", [*items]]:
            return f"({', '.join(map(value_words, items))})"
        case _:
            return literal_words(value)


def value_change(before: Any, after: Any) -> str:
    """Return the first difference of two values in dtype and shape, strides, layout, device, example sizes."""
    short = value_words(before), value_words(after)
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
    return value if isinstance(value, str) else f"[{', '.join(map(literal_words, value))}]"


def range_text(bounds: list[str] | None) -> str:
    if bounds is None:
        return "no range"
    lower, upper = bounds
    return f"{lower} and more" if upper in ("int_oo", "oo") else f"{lower} to {upper}"


def change_text(before: str, after: str) -> str:
    return f"{before} → {after}"


# Fields that the export fills: reported for each method
EXPORTED = frozenset({"methods", "graphs", "names", "examples", "state"})
# Fields that follow from the weights and the graph; reported if nothing else differs
CONSEQUENCES = {
    "sharing": "which tensors share memory",
    "eager": "the outputs of the eager module",
    "converted": "the model in the precision of a recipe",
}
# Fields that are not settings, in words; the names of their parts follow
TOOLS = {
    "torch": "torch",
    "interpreter": "Python",
    "system": "system",
    "machine": "",
    "tools": "",
    "backends": "backends of",
    "code": "hatch-lower's own code",
    "schema": "hatch-lower's stored form",
}
# Settings whose values are meaningless to a reader, or must not be shown
NAMES_ALONE = {
    "entry_points": "the project's entry points",
    "roots": "import roots",
    "links": "import roots",
    "variables": "variable",
    "later_hooks": "later build hooks",
}
PARTS = {"cpu": "the processor's instruction sets", "libc": "C library", "python": "Python", "machine": "machine"}
DIGEST = re.compile(r"\b[0-9a-f]{32,}\b")


def key_changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return a line for each changed, added or removed setting and tool, settings first."""
    settings: list[str] = []
    tools: list[str] = []
    for name in {**before, **after}:
        if name in EXPORTED or name in CONSEQUENCES:
            continue
        if name == "weights":
            settings += weights_change_lines(*(dict(listed_rows(key.get(name))) for key in (before, after)))
            continue
        if name in IN_WORDS:
            settings += IN_WORDS[name](before.get(name), after.get(name))
            continue
        for change in document_changes((name,), before.get(name), after.get(name)):
            if name in TOOLS:
                tools.append(tool_line(change.place, change.first, change.second))
            else:
                settings.append(setting_line(change.place, change.first, change.second))
    return list(dict.fromkeys([*settings, *tools]))


def listed_rows(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def weights_change_lines(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each file of weights, by URL and digest, that was added, removed or changed."""
    for url in {**before, **after}:
        words = "a file beside the wheel" if url == IN_A_FILE else url
        if url not in after:
            yield f"weights no longer in {words}"
        elif url not in before:
            yield f"weights in {words}"
        elif before[url] != after[url]:
            yield f"other contents of {words}"


def samples_lines(before: object, after: object) -> Iterator[str]:
    """Yield a line for each method whose real inputs, by source and digest, have changed."""
    old, new = ({name: (source, digest) for name, source, digest in listed_rows(value)} for value in (before, after))
    for name in {**old, **new}:
        if name not in new:
            yield f"no real inputs of `{name}`"
        elif name not in old or old[name][0] != new[name][0]:
            yield f"real inputs of `{name}` from {new[name][0]}"
        elif old[name] != new[name]:
            yield f"other real inputs of `{name}` in {new[name][0]}"


def metric_change_lines(before: object, after: object) -> Iterator[str]:
    """Yield a line for another metric, and a line for another limit of the metric."""
    (old, old_limit), (new, new_limit) = (listed_rows(value) or ("", None) for value in (before, after))
    if old != new:
        yield f"metric {change_text(old or 'none', new or 'none')}"
    if old_limit != new_limit and None not in (old_limit, new_limit):
        yield f"max-drop {change_text(f'{old_limit:g}', f'{new_limit:g}')}"


def kept_change_lines(before: object, after: object) -> Iterator[str]:
    """Yield a line for each recipe whose list in `precision.toml` has changed."""
    old, new = ({name: list(paths) for name, paths in listed_rows(value)} for value in (before, after))
    for name in {**old, **new}:
        left, right = old.get(name, []), new.get(name, [])
        added = [path for path in right if path not in left]
        removed = [path for path in left if path not in right]
        parts = [f"{words} {', '.join(paths)}" for words, paths in (("also", added), ("no longer", removed)) if paths]
        if parts:
            yield f"recipe {name}: layers kept in float32: {'; '.join(map(shortened, parts))}"


# Fields of a model that are lists, with the functions that put two values in words
IN_WORDS = {"samples": samples_lines, "metric": metric_change_lines, "kept": kept_change_lines}


def consequences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [text for name, text in CONSEQUENCES.items() if before.get(name) != after.get(name)]


def tool_line(path: Path, before: object, after: object) -> str:
    name = " ".join([TOOLS[path[0]], *(PARTS.get(part, part) for part in path[1:])]).strip()
    old, new = (version_text(version) for version in (before, after))
    if old == new or len(old) + len(new) > 80:
        return name
    return f"{name} {change_text(old, new)}"


def version_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(version_text, value))
    return "none" if value is None else DIGEST.sub("", str(value)).strip()


def setting_line(path: Path, before: object, after: object) -> str:
    """Return `recipe default, backend aoti: option isa "native" → "x86-64-v3"`."""
    if path[0] in NAMES_ALONE:
        parts = path[1:] if path[0] == "variables" else ()
        return " ".join([NAMES_ALONE[path[0]], *parts])
    place, rest = [], list(path)
    for plural, noun in (("recipes", "recipe"), ("backends", "backend")):
        if rest[:1] == [plural] and len(rest) > 1:
            place.append(f"{noun} {rest[1]}")
            rest = rest[2:]
    if rest[:1] == ["options"] and len(rest) > 1:
        rest = [f"option {rest[1]}", *rest[2:]]
    where = ", ".join(place)
    if not rest:
        return f"{where} {'added' if before is None else 'removed' if after is None else 'changed'}"
    change = (
        f"{' '.join([rest[0].replace('_', '-'), *rest[1:]])} {change_text(setting_text(before), setting_text(after))}"
    )
    return f"{where}: {change}" if where else change


def setting_text(value: object) -> str:
    return "default" if value is None else shortened(json.dumps(value, ensure_ascii=False))
