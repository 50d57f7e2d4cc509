"""Debug maps: from the instructions of a program or delegate to ops, module paths and source lines.

A debug handle is a number that each node of an edge program carries. A backend says which handles each of its
instructions computes; the emitter says which handles each instruction of a plan computes,
and what stands behind each handle (`DebugMap`, one file per model and recipe beside the plan).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import DebugError, ProgramError

if TYPE_CHECKING:
    pass

DEBUG_SCHEMA = 1

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Origin:
    """What stands behind a debug handle.

    Args:
        op: the edge op, `aten.conv2d.default`.
        module: dotted path of the submodule that called it, empty for the model itself.
        source: `digits/model.py:31`, relative to the project, an import root or site-packages; empty if unknown.
    """

    op: str
    module: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class DelegateDebug:
    """One delegate call: its backend, and its instruction ids (as text) to handles if the backend told them."""

    backend: str
    map: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Undelegated:
    """A node that no backend took, and why."""

    name: str
    op: str
    handle: int
    reason: str


@dataclass(frozen=True, slots=True)
class MethodDebug:
    """The debug map of one method.

    Args:
        handles: debug handle to what stands behind it.
        instructions: path of an instruction (`"3"`, or `"4.true.0"` in a nested graph) to the handles it computes.
        delegates: path of a delegate call to its own map.
        undelegated: what was not taken by a backend, in the order of the graph.
    """

    handles: Mapping[int, Origin] = field(default_factory=dict)
    instructions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    delegates: Mapping[str, DelegateDebug] = field(default_factory=dict)
    undelegated: tuple[Undelegated, ...] = ()

    def origins(self, path: str, identifier: int | str | None = None) -> tuple[Origin, ...]:
        """Return what an instruction computes, or one instruction of the delegate that it calls.

        Raises:
            DebugError: if there is no such instruction, or the delegate's map does not name `identifier`.
        """
        if identifier is None:
            handles = self.instructions.get(path)
        else:
            delegate = self.delegates.get(path)
            handles = None if delegate is None or delegate.map is None else delegate.map.get(str(identifier))
        if handles is None:
            name = f"instruction {path!r}" if identifier is None else f"delegate instruction {identifier!r} of {path!r}"
            raise DebugError("the debug map has no such instruction", found=name)
        return tuple(self.handles[handle] for handle in handles)


@dataclass(frozen=True, slots=True)
class DebugMap:
    """The debug file of one model and recipe: method name to its map."""

    methods: Mapping[str, MethodDebug] = field(default_factory=dict)


def write_debug(debug: DebugMap) -> bytes:
    """Return the debug file's canonical bytes."""
    methods = {name: method_to_json(method) for name, method in debug.methods.items()}
    return canonical_json({"schema": DEBUG_SCHEMA, "methods": methods})


def method_to_json(method: MethodDebug) -> dict[str, Any]:
    """Return one method's map as JSON-able values."""
    return {
        "handles": {
            str(handle): {"op": origin.op, "module": origin.module, "source": origin.source}
            for handle, origin in method.handles.items()
        },
        "instructions": {path: list(handles) for path, handles in method.instructions.items()},
        "delegates": {
            path: {
                "backend": delegate.backend,
                "map": None if delegate.map is None else {key: list(value) for key, value in delegate.map.items()},
            }
            for path, delegate in method.delegates.items()
        },
        "undelegated": [
            {"name": node.name, "op": node.op, "handle": node.handle, "reason": node.reason}
            for node in method.undelegated
        ],
    }


def read_debug(data: bytes, where: str) -> DebugMap:
    """Return the debug map that `write_debug` wrote; `where` names the file in errors.

    Raises:
        ProgramError: if it is damaged, or from a newer version.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(where, str(error)) from error
    schema = value.get("schema") if isinstance(value, dict) else None
    if type(schema) is not int or schema < 1:
        raise damaged(where, f"schema {schema!r}")
    if schema > DEBUG_SCHEMA:
        raise ProgramError(
            "the debug map needs a newer hatch-lower",
            where=where,
            found=f"schema {schema}; this version reads up to {DEBUG_SCHEMA}",
            hint="upgrade hatch-lower",
        )
    try:
        return DebugMap(mapping_of(value["methods"], method_from_json))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(where, f"{type(error).__name__}: {error}") from error


def damaged(where: str, found: str) -> ProgramError:
    """Return the error for a file that is not what was written."""
    return ProgramError(
        "the debug map is damaged", where=where, found=found, hint="install the package again, or build it again"
    )


def method_from_json(value: Any) -> MethodDebug:
    """Return one method's map; raises KeyError, TypeError or ValueError for anything else than what was written."""
    return MethodDebug(
        {int(handle): origin for handle, origin in mapping_of(value["handles"], origin_from_json).items()},
        mapping_of(value["instructions"], handles_from_json),
        mapping_of(value["delegates"], delegate_from_json),
        tuple(undelegated_from_json(node) for node in checked(value["undelegated"], list)),
    )


def origin_from_json(value: Any) -> Origin:
    """Return what stands behind one handle."""
    return Origin(checked(value["op"], str), checked(value["module"], str), checked(value["source"], str))


def delegate_from_json(value: Any) -> DelegateDebug:
    """Return the map of one delegate call."""
    inner = value["map"]
    return DelegateDebug(
        checked(value["backend"], str), None if inner is None else mapping_of(inner, handles_from_json)
    )


def undelegated_from_json(value: Any) -> Undelegated:
    """Return one node that was not taken."""
    return Undelegated(
        checked(value["name"], str),
        checked(value["op"], str),
        checked(value["handle"], int),
        checked(value["reason"], str),
    )


def handles_from_json(value: Any) -> tuple[int, ...]:
    """Return a list of handles as a tuple."""
    return tuple(checked(handle, int) for handle in checked(value, list))


def mapping_of(value: Any, read: Callable[[Any], Item]) -> dict[str, Item]:
    """Return a JSON object with each value read."""
    return {key: read(item) for key, item in checked(value, dict).items()}


def checked(value: Any, kind: type[Item]) -> Item:
    """Return `value` if it is exactly a `kind`; a TypeError otherwise."""
    if type(value) is not kind:
        msg = f"expected {kind.__name__}, found {type(value).__name__}"
        raise TypeError(msg)
    return value
