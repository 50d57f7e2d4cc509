"""A partition as bytes, for other machines to lower: what a backend sees of it, all of it, and nothing else.

```text
8 bytes: the length of the JSON that follows
canonical JSON: graph, signature, symbols, layout of the constants
memory of the constants, one after the other; none where the backend is given stand-ins
```

Nothing is pickled, and nothing that is read is run. What does not come back equal is not portable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from hatch_lower.canonical import canonical_json
from hatch_lower.exir.graph.canonical import structure_digest
from hatch_lower.exir.graph.state import constant_of, constant_specs, layouts
from hatch_lower.exir.graph.tensors import dtype_name, is_plain, span_bytes, span_length, tensor_digest
from hatch_lower.exir.lowering.extract import LocalProgram, make_program
from hatch_lower.exir.lowering.portable_graph import GraphReader, write_graph
from hatch_lower.exir.lowering.portable_sizes import NotPortableError, SizeReader, SizeWriter
from hatch_lower.format.values import DTYPES

SCHEMA = 1
LENGTH_BYTES = 8
ARGUMENT_KINDS = (TensorArgument, SymIntArgument, SymFloatArgument, SymBoolArgument)
ARGUMENTS = {kind.__name__: kind for kind in ARGUMENT_KINDS}


def write_partition(local: LocalProgram, *, contents: bool) -> bytes:
    """Return a partition as bytes, without contents of stand-ins; a `NotPortableError` if that cannot be."""
    try:
        data = write_local(local, contents=contents)
        back = read_partition(data)
        if write_local(back, contents=contents) != data:
            raise NotPortableError("something that comes back otherwise than it was written")
        if structure_digest(back.program) != structure_digest(local.program):
            raise NotPortableError("something that is not written")
        if contents and state_digests(back.program) != state_digests(local.program):
            raise NotPortableError("constants that come back with other contents")
    except NotPortableError:
        raise
    except Exception as error:  # torch refuses what it cannot make again in many ways
        raise NotPortableError(f"something that cannot be written: {type(error).__name__}: {error}") from error
    return data


def state_digests(program: ExportedProgram) -> list[str]:
    return [tensor_digest(constant_of(program, spec)) for spec in constant_specs(program)]


def read_partition(data: bytes | memoryview) -> LocalProgram:
    """Return what `write_partition` wrote; a `NotPortableError` if the torch of this process cannot make it."""
    view = memoryview(data)
    end = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    try:
        return read_local(json.loads(bytes(view[LENGTH_BYTES:end])), view[end:])
    except NotPortableError:
        raise
    except Exception as error:
        raise NotPortableError(f"no partition: {type(error).__name__}: {error}") from error


def write_local(local: LocalProgram, *, contents: bool) -> bytes:
    program = local.program
    memory = Memory(contents=contents)
    sizes = SizeWriter(program)
    specs = constant_specs(program)
    constants = memory.add([constant_of(program, spec) for spec in specs])
    document: dict[str, object] = {
        "schema": SCHEMA,
        "graph": write_graph(program.graph_module, sizes, memory.add_one),
        "inputs": [{**write_spec(spec), "persistent": spec.persistent} for spec in program.graph_signature.input_specs],
        "outputs": [write_spec(spec) for spec in program.graph_signature.output_specs],
        "constants": [
            {**row, "name": spec.target, "state": spec.target in program.state_dict}
            for spec, row in zip(specs, constants, strict=True)
        ],
        "handles": len(local.handles),
        "contents": contents,
    }
    document |= {"symbols": sizes.symbols(), "memory": memory.sizes}
    text = canonical_json(document)
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *memory.pieces])


def read_local(document: Any, data: memoryview) -> LocalProgram:
    if document["schema"] != SCHEMA:
        raise NotPortableError(f"a partition of the schema {document['schema']!r:.20}, where this one reads {SCHEMA}")
    blocks = read_memory(document["memory"], data)
    sizes = SizeReader(document["symbols"])
    attributes, graph = GraphReader(sizes, lambda row: read_tensor(row, blocks)).graph(document["graph"])
    signature = ExportGraphSignature(
        [read_input(row) for row in document["inputs"]], [read_output(row) for row in document["outputs"]]
    )
    tensors = {row["name"]: read_tensor(row, blocks) for row in document["constants"]}
    in_state = {row["name"] for row in document["constants"] if row["state"]}
    program = make_program(attributes, graph, signature, tensors, in_state, sizes.ranges)
    return LocalProgram(program, tuple(range(1, document["handles"] + 1)))


# constants and other tensors


@dataclass(slots=True)
class Memory:
    """The memory of tensors, in blocks: those that overlap lie in one."""

    contents: bool
    sizes: list[list[object]] = field(default_factory=list)  # of each block: bytes, and whether its contents follow
    pieces: list[bytes | memoryview] = field(default_factory=list)

    def add(self, tensors: Sequence[torch.Tensor], *, contents: bool | None = None) -> list[dict[str, object]]:
        written = self.contents if contents is None else contents
        for tensor in tensors:
            if not is_plain(tensor) or tensor.is_conj() or tensor.is_neg() or dtype_name(tensor.dtype) not in DTYPES:
                raise NotPortableError(f"a constant of the type `{type(tensor).__name__}`, {tensor.dtype}")
        placed, first = layouts(tensors), len(self.sizes)
        groups: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for tensor, layout in zip(tensors, placed, strict=True):
            groups.setdefault(layout.group, []).append((layout.offset * tensor.element_size(), tensor))
        for group in sorted(groups):
            members = groups[group]
            size = max(begin + span_length(tensor) * tensor.element_size() for begin, tensor in members)
            self.sizes.append([size, written])
            if written:
                self.pieces.append(joined(size, members))
        return [
            {
                "dtype": dtype_name(tensor.dtype),
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "block": first + layout.group,
                "offset": layout.offset,
                "parameter": isinstance(tensor, torch.nn.Parameter),
                "gradient": tensor.requires_grad,
            }
            for tensor, layout in zip(tensors, placed, strict=True)
        ]

    def add_one(self, tensor: torch.Tensor) -> dict[str, object]:
        (row,) = self.add([tensor], contents=True)  # what is no input has contents that shape the result
        return row


def joined(size: int, members: Sequence[tuple[int, torch.Tensor]]) -> bytes | memoryview:
    # most constants share memory with no other, and are not copied
    if len(members) == 1:
        return span_bytes(members[0][1].detach())
    block = bytearray(size)
    for begin, tensor in members:
        data = span_bytes(tensor.detach())
        block[begin : begin + len(data)] = data
    return bytes(block)


def read_memory(rows: Any, data: memoryview) -> list[torch.Tensor]:
    blocks, begin = [], 0
    for size, written in rows:
        block = torch.empty(max(size, 1), dtype=torch.uint8)  # memory of stand-ins is reserved and never touched
        if written:
            if size > len(data) - begin:
                raise NotPortableError("a partition that is cut off")
            span_bytes(block)[:size] = data[begin : begin + size]
            begin += size
        blocks.append(block)
    if begin != len(data):
        raise NotPortableError(f"a partition with {len(data) - begin} bytes too many")
    return blocks


def read_tensor(row: Any, blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    if row["dtype"] not in DTYPES:
        raise NotPortableError(f"the dtype {row['dtype']!r:.40}")
    block = blocks[row["block"]]
    tensor = torch.empty(0, dtype=getattr(torch, row["dtype"]))
    end = row["offset"] + sum((size - 1) * stride for size, stride in zip(row["shape"], row["stride"], strict=True))
    if 0 not in row["shape"] and (end + 1) * tensor.element_size() > block.nbytes:
        raise NotPortableError("a constant that reaches beyond its memory")
    tensor.set_(block.untyped_storage(), row["offset"], row["shape"], row["stride"])
    if row["parameter"]:
        return torch.nn.Parameter(tensor, requires_grad=row["gradient"])
    return tensor.requires_grad_(row["gradient"])


# signatures


def write_spec(spec: InputSpec | OutputSpec) -> dict[str, object]:
    return {"kind": spec.kind.name, "arg": write_spec_argument(spec.arg), "target": spec.target}


def read_input(row: Any) -> InputSpec:
    return InputSpec(InputKind[row["kind"]], read_spec_argument(row["arg"]), row["target"], row["persistent"])


def read_output(row: Any) -> OutputSpec:
    return OutputSpec(OutputKind[row["kind"]], read_spec_argument(row["arg"]), row["target"])


def write_spec_argument(argument: object) -> dict[str, object]:
    if isinstance(argument, ConstantArgument):
        value = argument.value
        if value is not None and type(value) not in (bool, int, str):
            raise NotPortableError(f"an input of the type `{type(value).__name__}`")
        return {"kind": "constant", "name": argument.name, "value": value}
    if not isinstance(argument, ARGUMENT_KINDS):
        raise NotPortableError(f"an input of the kind `{type(argument).__name__}`")
    return {"kind": type(argument).__name__, "name": argument.name}


def read_spec_argument(row: Any) -> Any:
    if row["kind"] == "constant":
        return ConstantArgument(row["name"], row["value"])
    return ARGUMENTS[row["kind"]](row["name"])
