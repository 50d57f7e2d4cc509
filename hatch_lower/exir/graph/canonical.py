"""The canonical form of a program: everything that shapes its result, and no more.

Included: operators, edges, every literal, dtypes, shapes, strides, devices, symbols with their ranges, the signature
with mutation and output order, nested graphs, the layout and overlaps of constants. Excluded: names of nodes,
parameters and symbols, module paths, source lines, and the contents of constants.

The form has three uses: the cache key, the check that a partitioner left a program unchanged, and tests of
reproduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from types import NoneType
from typing import Any

import sympy
import torch
from sympy.printing.str import StrPrinter
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import GraphModule, Node

from hatch_lower.cache.key import NoKeyError
from hatch_lower.canonical import canonical_json, digest_of
from hatch_lower.exir.graph.state import CONSTANT_KINDS, constant_of, constant_specs, layouts, mutated_targets
from hatch_lower.exir.graph.surgery import attribute_of
from hatch_lower.exir.graph.tensors import dtype_name, is_readable, tensor_digest
from hatch_lower.runtime.torch_private.programs import FakeTensor

# Types of metadata whose values `Encoder.encode` tells apart
INJECTIVE = (
    *(NoneType, bool, int, float, complex, str, PurePath, torch.SymInt, torch.SymFloat, torch.SymBool, FakeTensor),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def structure_digest(program: ExportedProgram) -> str:
    return digest_of(canonical_form(program))


def canonical_form(program: ExportedProgram, encoder: Encoder | None = None) -> dict[str, object]:
    """Return the canonical form of a program of any dialect, before or after lowering, as a JSON value."""
    encoder = encoder or Encoder()
    encoder.name_sizes(program)
    graph = encoder.encode_graph(program.graph_module)
    indices = {node.name: index for index, node in enumerate(program.graph.nodes)}
    return {
        "graph": graph,
        "inputs": encode_inputs(program, encoder),
        "outputs": encode_outputs(program, indices, encoder),
        "symbols": encoder.encode_ranges(program),
    }


class ExactPrinter(StrPrinter):  # type: ignore[misc]
    # sympy prints only fifteen digits of a number

    def _print_Float(self, number: sympy.Float) -> str:  # noqa: N802
        return float(number).hex()


class Encoder:
    """Encodes graphs, values and metadata as JSON; symbols are named `s0`, `s1`, … in the order of appearance."""

    def __init__(self) -> None:
        self.symbols: dict[sympy.Symbol, sympy.Symbol] = {}
        self._texts: dict[sympy.Basic, str] = {}

    def text(self, expression: sympy.Basic) -> str:
        if expression not in self._texts:
            for symbol in sorted(expression.free_symbols, key=str):
                if symbol not in self.symbols:
                    new = sympy.Symbol(f"s{len(self.symbols)}", **symbol.assumptions0)
                    self.symbols[symbol] = new
            self._texts[expression] = ExactPrinter().doprint(expression.xreplace(self.symbols))
        return self._texts[expression]

    def name_sizes(self, program: ExportedProgram) -> None:
        # Symbols that are sizes of inputs by themselves are named first: the order of symbols in an expression depends
        # on torch's names, which depend on the parameters' names.
        for node in program.graph.find_nodes(op="placeholder") if program.range_constraints else ():
            value = node.meta.get("val")
            for size in value.shape if isinstance(value, torch.Tensor) else (value,):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    self.text(size.node.expr)

    def encode_graph(self, module: GraphModule) -> list[object]:
        positions: dict[Node, int] = {}  # for references between nodes: node names depend on the model
        rows: list[object] = []
        for position, node in enumerate(module.graph.nodes):
            positions[node] = position
            if node.op == "get_attr":
                rows.append(["attribute", self.encode_attribute(attribute_of(module, node.target))])
                continue
            row = [node.op, "" if node.op in ("placeholder", "output") else encode_target(node.target)]
            row.append(self.encode(node.args, positions) if node.op != "placeholder" else [])
            row.append({key: self.encode(value, positions) for key, value in node.kwargs.items()})
            row.append(self.encode(node.meta.get("val")) if node.op != "output" else None)
            rows.append(row)
        return rows

    def encode_attribute(self, value: Any) -> object:
        if isinstance(value, GraphModule):
            return ["graph", self.encode_graph(value)]
        if isinstance(value, torch.Tensor):
            return ["tensor", tensor_digest(value)]  # with its contents: unlike a constant, an attribute is no input
        program = getattr(value, "original_module", None)
        if isinstance(program, ExportedProgram):
            specs = [[spec.key, spec.value.hex()] for spec in value.compile_specs]
            return ["lowered", value.backend_id, specs, canonical_form(program)]
        return ["other", type(value).__name__, repr(value)]

    def encode(self, value: object, positions: Mapping[Node, int] = {}) -> object:
        """Encode an argument, or the value of a node; `positions` has the nodes in arguments."""
        if isinstance(value, Node):
            return ["node", positions[value]]
        if isinstance(value, (list, tuple)):
            return ["list", [self.encode(item, positions) for item in value]]
        if isinstance(value, dict):
            return ["dict", [[self.encode(key), self.encode(item, positions)] for key, item in value.items()]]
        if isinstance(value, slice):
            return ["slice", [self.encode(bound, positions) for bound in (value.start, value.stop, value.step)]]
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):  # with its type: 1, 1.0 and True are equal in Python
            return ["int", str(value)]
        if isinstance(value, float):
            return ["float", value.hex()]
        if isinstance(value, complex):
            return ["complex", value.real.hex(), value.imag.hex()]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            # with the example's size: compilers choose code by the size
            return ["symbolic", self.text(value.node.expr), str(value.node.hint) if value.node.has_hint() else None]
        if is_readable(value):  # the value of a node is a fake tensor, without contents
            return ["contents", tensor_digest(value)]
        if isinstance(value, torch.Tensor):
            strides = [self.encode(each) for each in value.stride()] if value.layout == torch.strided else []
            sizes = [self.encode(size) for size in value.shape]
            return ["tensor", dtype_name(value.dtype), sizes, strides, str(value.layout), str(value.device)]
        return [type(value).__name__, str(value)]

    def encode_note(self, value: object, where: str) -> object:
        """Encode a metadata value injectively: different values have different JSON; else raise `NoKeyError`."""

        def encode(item: object) -> object:
            return self.encode_note(item, where)

        if isinstance(value, dict):
            return ["dict", sorted(([encode(key), encode(item)] for key, item in value.items()), key=canonical_json)]
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, [encode(item) for item in value]]
        if isinstance(value, (set, frozenset)):
            return ["set", sorted(map(encode, value), key=canonical_json)]
        if isinstance(value, sympy.Basic):
            return ["expression", self.text(value)]
        if isinstance(value, INJECTIVE) or is_readable(value):
            return self.encode(value)
        if is_dataclass(value) and not isinstance(value, type):
            parts = {field.name: getattr(value, field.name) for field in fields(value)}
            return [f"{type(value).__module__}:{type(value).__qualname__}", encode(parts)]
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if isinstance(name, str) and "<" not in name and callable(value):
            return ["name", str(getattr(value, "__module__", "")), name]
        raise NoKeyError(f"{where} has metadata of the type `{type(value).__name__}`")

    def encode_ranges(self, program: ExportedProgram) -> list[object]:
        named = [(str(renamed), program.range_constraints.get(symbol)) for symbol, renamed in self.symbols.items()]
        return [[name, None if bounds is None else [str(bounds.lower), str(bounds.upper)]] for name, bounds in named]


def encode_target(target: object) -> str:
    # dialects differ in the full name, overloads in the name of the schema
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", target)
    schema = getattr(target, "_schema", None)
    overload = f"{schema.name}.{schema.overload_name}" if isinstance(schema, torch.FunctionSchema) else ""
    return f"{type(target).__name__}:{module}:{name}:{overload}"


def encode_inputs(program: ExportedProgram, encoder: Encoder) -> list[object]:
    # constants by their layout in memory, which native code depends on; never by their contents, which are state
    tensors = [constant_of(program, spec) for spec in constant_specs(program)]
    placed = iter(zip(tensors, layouts(tensors), strict=True))
    mutated = mutated_targets(program)
    rows: list[object] = []
    for spec in program.graph_signature.input_specs:
        row: list[object] = [spec.kind.name]
        if spec.kind in CONSTANT_KINDS:
            tensor, layout = next(placed)
            row += [dtype_name(tensor.dtype), list(tensor.shape), list(tensor.stride())]
            row += [layout.group, layout.offset, spec.target in mutated, spec.persistent]
        elif isinstance(spec.arg, ConstantArgument):
            row.append(encoder.encode(spec.arg.value))
        elif spec.kind is not InputKind.USER_INPUT:
            row.append(str(spec.target))
        rows.append(row)
    return rows


def encode_outputs(program: ExportedProgram, indices: dict[str, int], encoder: Encoder) -> list[object]:
    # the value, a node's position or a literal, and the input that the value is written back to
    signature = program.graph_signature
    targets = {spec.target: index for index, spec in enumerate(signature.input_specs) if spec.target is not None}
    rows: list[object] = []
    for spec in signature.output_specs:
        if isinstance(spec.arg, ConstantArgument):
            value = encoder.encode(spec.arg.value)
        else:
            value = ["node", indices[spec.arg.name]]
        written: int | None = None
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            written = indices[str(spec.target)]
        elif spec.target is not None:
            written = targets.get(spec.target)
        rows.append([spec.kind.name, value, written])
    return rows
