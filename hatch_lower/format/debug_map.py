"""Debug maps: from the instructions of a program or delegate to ops, module paths and source lines."""

# A debug handle is a number that each node of an edge program carries. A backend maps each instruction of its blob to
# handles; the emitter maps each instruction of a plan to handles, and each handle to an origin.
from collections.abc import Mapping
from dataclasses import dataclass, field

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import DebugError
from hatch_lower.format.codec import decode_file, encode
from hatch_lower.format.values import Digest

DEBUG_SCHEMA = 3
NO_REASON = "not taken by any backend"  # for a node without a reason from any partitioner


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation behind a debug handle: op, module path and source line."""

    op: str  # edge op: `aten.conv2d.default`
    module: str = ""  # path of the calling submodule, empty for the model itself
    source: str = ""  # `digits/model.py:31`, relative to the project, an import root or site-packages; empty if unknown


@dataclass(frozen=True, slots=True)
class Detail:
    """Result and arguments of an exported operation, for people."""

    result: str  # `float32[batch, 10]`; several results are separated by commas; empty if torch noted no value
    arguments: tuple[str, ...] = ()  # `weight: classify.weight float32[10, 32]`, `stride: [2, 2]`, in torch's order


@dataclass(frozen=True, slots=True)
class DelegateDebug:
    backend: str
    map: Mapping[str, tuple[int, ...]] | None = None  # instruction ids (as text) to handles, if the backend has a map


@dataclass(frozen=True, slots=True)
class Undelegated:
    name: str
    op: str
    handle: int
    reason: str


@dataclass(frozen=True, slots=True)
class MethodDebug:
    handles: Mapping[int, Origin]
    instructions: Mapping[str, tuple[int, ...]]  # by path: `"3"`, or `"4.true.0"` in a nested graph
    delegates: Mapping[str, DelegateDebug]  # by the path of the call
    undelegated: tuple[Undelegated, ...]  # in the order of the graph
    # by handle: handles of the operations whose results the operation reads, also inside delegates; a method input is
    # represented by `input_number`
    reads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    # by handle; operations that a pass added have no detail
    details: Mapping[int, Detail] = field(default_factory=dict)

    def origins(self, path: str, identifier: int | str | None = None) -> tuple[Origin, ...]:
        """Return the origins of an instruction, or of an instruction inside the delegate called at `path`."""
        if identifier is None:
            handles = self.instructions.get(path)
        else:
            delegate = self.delegates.get(path)
            handles = None if delegate is None or delegate.map is None else delegate.map.get(str(identifier))
        if handles is None:
            name = f"instruction {path!r}" if identifier is None else f"delegate instruction {identifier!r} of {path!r}"
            raise DebugError("the instruction is missing in the debug map", found=name)
        return tuple(self.handles[handle] for handle in handles)


NO_DEBUG = MethodDebug({}, {}, {}, ())  # for a method that is missing in the file


@dataclass(frozen=True, slots=True)
class DebugMap:
    methods: Mapping[str, MethodDebug]
    files: Mapping[str, Digest] = field(default_factory=dict)  # sha256 of each source file, by its path in `source`


def input_number(position: int) -> int:
    """Return the negative number that represents a method input among handles. The function is its own inverse."""
    return -1 - position


def write_debug(debug: DebugMap) -> bytes:
    return canonical_json({"schema": DEBUG_SCHEMA, **encode(debug)})


def read_debug(data: bytes, where: str) -> DebugMap:
    return decode_file(DebugMap, data, DEBUG_SCHEMA, where)
