"""Wheels for the report page: one model whose operations have the origins that a test wants."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hatch_lower.canonical import sha256_bytes
from hatch_lower.format.arguments import TensorInput, Value
from hatch_lower.format.constants import Constant, DelegateEntry, Storage
from hatch_lower.format.debug_map import (
    DebugMap,
    DelegateDebug,
    Detail,
    MethodDebug,
    Origin,
    Undelegated,
    input_number,
    write_debug,
)
from hatch_lower.format.graph import DelegateCall, Graph, Instruction, OpCall, PythonCall
from hatch_lower.format.manifest import FileEntry, Manifest, MethodEntry, ModelEntry, RecipeEntry, write_manifest
from hatch_lower.format.plan import MethodPlan, Parameter, Plan, write_plan
from hatch_lower.format.tree import Leaf

IMAGE = TensorInput("float32", (8,), (1,))
REASON = "it has no kernel for this"


def chain(
    origins: Sequence[Origin], delegated: int, reason: str, details: Sequence[Detail] = ()
) -> tuple[MethodPlan, MethodDebug]:
    """Return a method that applies operations one after the other, the first of them in a delegate."""
    handles = dict(enumerate(origins, 1))
    instructions: list[Instruction] = []
    known: dict[str, tuple[int, ...]] = {}
    slot = 0
    if delegated:
        known["0"] = tuple(range(1, delegated + 1))
        instructions += [
            DelegateCall(0, (Value(0),), (IMAGE,), (IMAGE,), 1),
            PythonCall("getitem", (Value(1), 0), 2),
        ]
        slot = 2
    for handle in range(delegated + 1, len(origins) + 1):
        known[str(len(instructions))] = (handle,)
        instructions.append(OpCall("aten.relu.default", (Value(slot),), {}, slot + 1))
        slot += 1
    reads = {handle: (handle - 1,) if handle > 1 else (input_number(0),) for handle in handles}
    debug = MethodDebug(
        handles,
        known,
        {"0": DelegateDebug("aoti", {"kernel": known["0"]})} if delegated else {},
        tuple(Undelegated(f"n{at}", handles[at].op, at, reason) for at in range(delegated + 1, len(origins) + 1)),
        reads,
        dict(enumerate(details, 1)),
    )
    parameters = (Parameter("image", "positional", Leaf()),)
    graph = Graph((0,), tuple(instructions), (Value(slot),))
    return MethodPlan(parameters, (IMAGE,), {}, graph, (), (), Leaf()), debug


def constants_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[Storage, ...], dict[str, Constant]]:
    storages = tuple(Storage(name, "float32", math.prod(shape)) for name, shape in shapes.items())
    strides = {name: tuple(math.prod(shape[at + 1 :]) for at in range(len(shape))) for name, shape in shapes.items()}
    constants = {
        name: Constant(at, "float32", shape, strides[name], 0, False) for at, (name, shape) in enumerate(shapes.items())
    }
    return storages, constants


def page_wheel(
    path: Path,
    origins: Sequence[Origin],
    *,
    delegated: int = 0,
    reason: str = REASON,
    details: Sequence[Detail] = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    check: bytes = b"",
    model: str = "digits",
    version: str = "1.0",
    digests: Mapping[str, str] | None = None,
    members: Mapping[str, str] | None = None,
    recipes: Sequence[str] = ("default",),
) -> Path:
    """Write a wheel whose recipes are alike; `members` are its other files, `digests` those of the source files.

    `shapes` are those of its constants, by name, and `check` is its file of check data.
    """
    method, debug = chain(origins, delegated, reason, details)
    delegates = (DelegateEntry("aoti", "m/delegates/0.so", (), {}, None),) if delegated else ()
    storages, constants = constants_of(shapes or {"weight": (8,)})
    plan = write_plan(Plan(storages, constants, delegates, {"forward": method}))
    written = write_debug(DebugMap({"forward": debug}, digests or {}))
    files = {"m/weights.safetensors": bytes(64), "m/delegates/0.so": b"code"}
    if check:
        files["m/check.safetensors"] = check
    entries = {}
    for recipe in recipes:
        files |= {f"m/{len(entries)}.json": plan, f"m/{len(entries)}.debug.json": written}
        listed = {
            name: FileEntry(name, len(data), sha256_bytes(data), "0" * 64 * ("weights" in name))
            for name, data in files.items()
        }
        entries[recipe] = RecipeEntry(
            listed[f"m/{len(entries)}.json"],
            listed[f"m/{len(entries)}.debug.json"],
            (listed["m/delegates/0.so"],) if delegated else (),
            ("aoti",) if delegated else (),
            ("hatch-lower>=0.1",),
            None,
            {"forward": MethodEntry(len(origins), delegated, min(delegated, 1))},
        )
    entry = ModelEntry(tuple(recipes), listed["m/weights.safetensors"], listed.get("m/check.safetensors"), entries)
    manifest = write_manifest(Manifest("digits", version, "0.1.0", "2.13.0", {}, {model: entry}))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {"manifest.json": manifest, **files}.items():
            archive.writestr(f"digits/_lowered/{name}", data)
        for name, text in (members or {}).items():
            archive.writestr(name, text)
    return path
