"""Files as an enemy would write them: JSON documents changed at random, and a watch over what happens meanwhile."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import CodeType
from typing import Any

MARKER = "zq7marker'] + [__import__('os').abort()] #"

NAMES = ("op", "kind", "name", "path", "file", "backend", "schema", "sha256", "size", "type", "info", "target", "blobs")
SYNTAX = (
    "__debug__",
    "None",
    "lambda: 0",
    "__import__('os').abort()",
    "{0.__class__}",
    "%n%s",
    "a\nb",
    "x" * 5000,
    "é́",
)
PATHS = (
    "..",
    "../x",
    "/etc/passwd",
    "a/../../b",
    "C:\\x",
    "//x",
    ".",
    "~/x",
    "a\0b",
    "x" * 300,
    "/proc/self/mem",
    "/dev/zero",
)
OPERATORS = (
    "aten.from_file.default",
    "aten.save.default",
    "aten.sym_size.int",
    "aten.__class__.default",
    "aten.as_strided.default",
    "prims.sin.default",
    "loaded_libraries.add.x",
    "higher_order.cond.default",
)
REFERENCES = (
    {"v": 0},
    {"v": 10**6},
    {"v": -1},
    {"c": "nothing"},
    {"float": "nan"},
    {"complex": [1, 2]},
    {"dtype": "int4"},
)
TREES = (
    {"object": "antigravity:fly", "keys": [], "children": []},
    {"object": "subprocess:Popen", "keys": ["args"], "children": ["*"]},
    {"namedtuple": "os:stat_result", "fields": ["a"], "children": ["*"]},
    {"namedtuple": "unittest.__main__:main", "distribution": "torch", "fields": ["a"], "children": ["*"]},
    {"object": "pip.__main__:Box", "distribution": "pip", "keys": ["a"], "children": ["*"]},
    {"object": "torch._dynamo.aot_compile:A", "distribution": "../x", "keys": ["a"], "children": ["*"]},
    {"dict": [["a", "*"], ["a", "*"]]},
)
SIZES = (
    {"op": "floordiv", "args": [1, 0]},
    {"op": "pow", "args": [{"op": "pow", "args": [{"op": "pow", "args": ["s0", 64]}, 64]}, 64]},
    {"op": "pow", "args": [{"op": "pow", "args": [{"op": "pow", "args": [3, 64]}, 64]}, 64]},
    {"op": "pow", "args": [9, {"op": "pow", "args": [9, {"op": "pow", "args": [9, "s0"]}]}]},
    {"op": "trunc", "args": [{"op": "truediv", "args": [1, {"op": "sub", "args": ["s0", "s0"]}]}]},
    {"op": "trunc", "args": [{"op": "exp", "args": [{"op": "float", "args": ["s0"]}]}]},
    {"op": "where", "args": [True, 1, {"op": "floor", "args": [1e308]}]},
)
NUMBERS = (0, 1, -1, 2, 63, 64, 65, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**40, 0.5, -0.0, 1e308, 1e-320)
ODD = (None, True, False, "", "*", [], {}, [[]], [None], {"": None}, float("nan"), float("inf"), "\ud800", MARKER)
POOL: tuple[Any, ...] = (*NUMBERS, *ODD, *SYNTAX, *PATHS, *OPERATORS, *REFERENCES, *TREES, *SIZES)

Path = tuple["str | int", ...]


def paths_in(value: Any) -> list[Path]:
    """Return the path of every value inside a document, the document itself excluded."""
    found: list[Path] = []
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, each = pending.pop()
        items = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, child in items:
            found.append((*path, key))
            pending.append((found[-1], child))
    return found


def strings_in(value: Any) -> Iterator[tuple[Path, bool]]:
    """Yield the path of every text inside a document, and whether it is meant as the key there."""
    for path in paths_in(value):
        if isinstance(path[-1], str):
            yield path, True
        if isinstance(item_at(value, path), str):
            yield path, False


def item_at(value: Any, path: Path) -> Any:
    """Return what is at a path."""
    for key in path:
        value = value[key]
    return value


def replaced(document: Any, path: Path, new: Any) -> Any:
    """Return a copy of a document with something else at a path."""
    changed = copy.deepcopy(document)
    item_at(changed, path[:-1])[path[-1]] = new
    return changed


def odd_value(random: Random) -> Any:
    """Return a value that no document should hold there."""
    if random.random() < 0.05:
        deep: Any = "*"
        for _ in range(random.choice([5, 9, 33, 150, 400, 900])):
            deep = [deep] if random.random() < 0.5 else {random.choice(["tuple", "list", "op", "v"]): deep}
        return deep
    return copy.deepcopy(random.choice(POOL))


def copied(value: Any) -> Any:
    """Return a copy, or nothing of what nests too deeply for Python to copy it."""
    try:
        return copy.deepcopy(value)
    except RecursionError:
        return None


def change(document: Any, random: Random) -> None:
    """Change one thing in a document, in place."""
    paths = paths_in(document)
    if not paths:
        return
    path = random.choice(paths)
    holder, key = item_at(document, path[:-1]), path[-1]
    match random.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(["__class__", "schema", "extra", "", MARKER, *NAMES])] = holder.pop(key)
        case 2 if isinstance(holder, dict):
            holder[random.choice(NAMES)] = odd_value(random)
        case 2 if isinstance(holder, list):
            holder.insert(int(key), copied(random.choice([holder[int(key)], odd_value(random)])))
        case 3:
            holder[key] = copied(item_at(document, random.choice(paths)))
        case 4 if type(holder[key]) is int:
            holder[key] += random.choice([-1, 1, 2**32, -(2**63)])
        case 5 if isinstance(holder[key], str):
            holder[key] += random.choice(["\0", "/..", "\n", " ", "é", "." + MARKER])
        case 6:
            holder[key] = {random.choice(NAMES): holder[key]} if random.random() < 0.5 else [holder[key]]
        case _:
            holder[key] = odd_value(random)


def changed_document(document: Any, random: Random) -> bytes:
    """Return a document's JSON with one to three changes; some are of the text: keys twice, bytes, an early end."""
    document = copy.deepcopy(document)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        change(document, random)
    try:
        data = json.dumps(document, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    except RecursionError:
        data = b"[" * 5000
    match random.randrange(12):
        case 0:
            return changed_bytes(data, random)
        case 1 if data.startswith(b"{") and len(data) > 2:
            twice = json.dumps({random.choice(NAMES): random.choice([0, "x", [], {}])}).encode()
            return data[:-1] + b"," + twice[1:]
    return data


def changed_bytes(data: bytes, random: Random) -> bytes:
    """Return some bytes with some of them changed, left out, said twice, or cut off."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del changed[at : at + random.choice([1, 2, 8])]
            case 2:
                changed[at:at] = changed[max(0, at - random.choice([1, 4, 30])) : at]
            case _:
                changed[at:] = b"" if random.random() < 0.3 else changed[at:]
    return bytes(changed)


class Watch:
    """What an audit hook saw: files that were opened, code that was compiled or run, and anything else that acts."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.sources: list[str] = []
        self.forbidden: list[str] = []

    def note(self, event: str, arguments: Sequence[Any]) -> None:
        """Note an audit event."""
        if event == "open" and isinstance(arguments[0], str | bytes):
            self.opened.append(os.path.realpath(os.fsdecode(arguments[0])))
        elif event in ("compile", "exec"):
            code = arguments[0] if event == "exec" else None
            name = code.co_filename if isinstance(code, CodeType) else arguments[-1]
            if event == "compile":
                self.sources.append(str(arguments[0]))
            if not str(name).startswith("<hatch-lower method"):
                self.forbidden.append(f"{event} {name}")
        elif event.startswith(
            ("subprocess", "os.system", "os.exec", "os.remove", "os.rename", "socket", "pickle", "ctypes")
        ):
            self.forbidden.append(event)
        elif event == "import" and arguments[0] not in sys.modules:
            self.forbidden.append(f"import {arguments[0]}")


WATCHES: list[Watch] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in WATCHES:
        watch.note(event, arguments)


sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[Watch]:
    """Give what happens in the block."""
    watch = Watch()
    WATCHES.append(watch)
    try:
        yield watch
    finally:
        WATCHES.remove(watch)


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Fail where one input keeps us for that long."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"one input took more than {seconds} s")

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
