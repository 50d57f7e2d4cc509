"""Debug maps: from the instructions of a program or delegate to ops, module paths and source lines.

A debug handle is a number that each node of an edge program carries. A backend says which handles each of its
instructions computes; the emitter says which handles each instruction of a plan computes,
and what stands behind each handle (`DebugMap`, one file per model and recipe beside the plan).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import DebugError
from hatch_lower.format.codec import decode_file, encode

DEBUG_SCHEMA = 1


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

    handles: Mapping[int, Origin]
    instructions: Mapping[str, tuple[int, ...]]
    delegates: Mapping[str, DelegateDebug]
    undelegated: tuple[Undelegated, ...]

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


NO_DEBUG = MethodDebug({}, {}, {}, ())
"""Of a method that the file does not name."""


@dataclass(frozen=True, slots=True)
class DebugMap:
    """The debug file of one model and recipe: method name to its map."""

    methods: Mapping[str, MethodDebug]


def write_debug(debug: DebugMap) -> bytes:
    return canonical_json({"schema": DEBUG_SCHEMA, **encode(debug)})


def read_debug(data: bytes, where: str) -> DebugMap:
    """Return the debug map that `write_debug` wrote; `where` names the file in errors."""
    return decode_file(DebugMap, data, DEBUG_SCHEMA, where)
