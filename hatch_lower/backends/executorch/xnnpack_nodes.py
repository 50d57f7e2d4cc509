"""The nodes of XNNPACK's graphs, read from flatbuffers by the numbers of their fields, and the assignment of nodes
to the operators that XNNPACK measures.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flatbuffers import encode, number_types, packer, table

FLAGS = {
    "B": number_types.Uint8Flags,
    "i": number_types.Int32Flags,
    "I": number_types.Uint32Flags,
    "Q": number_types.Uint64Flags,
}


class Table:
    """A table; an absent field is empty or zero."""

    def __init__(self, data: bytes | memoryview, position: int) -> None:
        self._data = data
        self._table: Any = table.Table(data, position)

    @classmethod
    def root(cls, data: bytes | memoryview) -> Table:
        return cls(data, encode.Get(packer.uoffset, data, 0))

    def number(self, field: int, form: str) -> int:
        """Return a number of the form of `struct`: `i`, `Q`."""
        return int(self._table.GetSlot(4 + 2 * field, 0, FLAGS[form]))

    def text(self, field: int) -> str:
        place = self._place(field)
        return "" if place is None else self._table.String(place).decode(errors="replace")

    def table(self, field: int) -> Table | None:
        place = self._place(field)
        return None if place is None else Table(self._data, self._table.Indirect(place))

    def tables(self, field: int) -> Iterator[Table]:
        offset = self._table.Offset(4 + 2 * field)
        if offset:
            first = self._table.Vector(offset)
            for index in range(self._table.VectorLen(offset)):
                yield Table(self._data, self._table.Indirect(first + 4 * index))

    def _place(self, field: int) -> int | None:
        offset = self._table.Offset(4 + 2 * field)
        return self._table.Pos + offset if offset else None


MAGIC = b"XH00"  # of the head in front of a graph, behind four bytes
# Kinds of nodes, by the number in ExecuTorch's schema of graphs (1 is the first), as XNNPACK calls their operators
NAMES = (
    *("add", "fully connected", "softmax", "sigmoid", "transpose", "clamp", "convolution", "divide"),
    *("resize bilinear", "constant pad", "average pooling", "minimum", "convolution", "max pooling", "multiply"),
    *("subtract", "floor", "convert", "global average pooling", "reshape", "argmax pooling", "square root"),
    *("ceiling", "hardswish", "leaky relu", "maximum", "negate", "square", "elu", "abs", "prelu"),
    *("concatenate", "concatenate", "concatenate", "slice", "scaled dot product attention", "batch matrix multiply"),
    *("concatenate", "deconvolution", "reciprocal square root", "log", "gelu", "tanh", "exp", "sine", "copy"),
    "cosine",
)
KINDS = dict(enumerate(NAMES, 1))
SYNONYMS = {"static reshape": "reshape", "mean": "global average pooling"}


class XNode(NamedTuple):
    kind: str
    handle: int  # ExecuTorch's debug handle


def read_xnnpack_nodes(payload: bytes) -> list[XNode]:
    """Return the nodes of a graph that ExecuTorch hands to XNNPACK, in the order of computing."""
    offset = struct.unpack_from("<I", payload, 10)[0] if payload[4:8] == MAGIC else 0
    nodes = Table.root(memoryview(payload)[offset:]).tables(1)
    return [XNode(KINDS.get(node.number(0, "B"), "unknown"), node.number(2, "I")) for node in nodes]


def operator_kind(operator: str) -> str:
    """Return the kind of `Fully Connected (NC, F32) GEMM #1`."""
    kind = re.sub(r" \(.*| #\d+$", "", operator).lower()
    return SYNONYMS.get(kind, kind)


def nodes_of_operators(operators: Sequence[str], kinds: Sequence[str]) -> list[list[int]]:
    """Return the places of each operator's nodes; operators and nodes are both in order.

    XNNPACK merges nodes, which count to the operator before, and adds operators, which take the nodes of the next.
    """
    pairs = common_subsequence(list(map(operator_kind, operators)), kinds)
    found: list[list[int]] = [[] for _ in operators]
    for number, (operator, node) in enumerate(pairs):
        end = pairs[number + 1][1] if number + 1 < len(pairs) else len(kinds)
        found[operator] = list(range(0 if number == 0 else node, end))
    for order in (found[::-1], found):
        neighbour: list[int] = []
        for places in order:
            places[:] = places or neighbour
            neighbour = places
    return found


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places in two sequences of a longest common subsequence."""
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i in reversed(range(len(first))):
        for j in reversed(range(len(second))):
            same = 1 + lengths[i + 1][j + 1] if first[i] == second[j] else 0
            lengths[i][j] = max(same, lengths[i + 1][j], lengths[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        if first[i] == second[j] and lengths[i][j] == 1 + lengths[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs
