"""Plans written by hand, as JSON values: no lowering is involved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower.canonical import canonical_json
from hatch_lower.format.plan import Plan, read_plan
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

if TYPE_CHECKING:
    from hatch_lower.runtime.executor import Executor

BATCH = {"s0": {"min": 1, "max": 1024, "name": "batch"}}


def product(*factors: Any) -> Any:
    """Return the expression of a product."""
    return {"op": "mul", "args": list(factors)}


def tensor_input(*shape: Any, dtype: str = "float32", stride: Sequence[Any] | None = None) -> dict[str, Any]:
    """Return an INPUT, contiguous unless strides are given."""
    steps = contiguous(shape) if stride is None else list(stride)
    return {"kind": "tensor", "dtype": dtype, "shape": list(shape), "stride": steps}


def contiguous(shape: Sequence[Any]) -> list[Any]:
    """Return contiguous strides, as expressions where sizes are."""
    strides: list[Any] = []
    for index in range(len(shape)):
        factors = [size for size in shape[index + 1 :] if size != 1]
        strides.append(product(*factors) if len(factors) > 1 else factors[0] if factors else 1)
    return strides


def parameter(name: str, tree: Any = "*", kind: str = "positional") -> dict[str, Any]:
    """Return a parameter."""
    return {"name": name, "kind": kind, "tree": tree}


def op(name: str, *args: Any, out: int, **kwargs: Any) -> dict[str, Any]:
    """Return an operator's instruction."""
    return {"kind": "op", "op": name, "args": list(args), "kwargs": kwargs, "out": out}


def python(name: str, *args: Any, out: int) -> dict[str, Any]:
    """Return an instruction on sizes or sequences."""
    return {"kind": "python", "op": name, "args": list(args), "out": out}


def call(
    delegate: int, args: Sequence[Any], inputs: Sequence[Any], out: int, outputs: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Return a delegate's instruction; unless they are given, its outputs are what its inputs are."""
    same = [each if each["kind"] == "tensor" else None for each in inputs]
    fields = {"inputs": list(inputs), "outputs": same if outputs is None else list(outputs)}
    return {"kind": "delegate", "delegate": delegate, "args": list(args), "out": out, **fields}


def graph(inputs: int, instructions: Sequence[Any], *outputs: Any) -> dict[str, Any]:
    """Return a graph whose inputs are the slots from 0."""
    return {"inputs": list(range(inputs)), "instructions": list(instructions), "outputs": list(outputs)}


def v(slot: int) -> dict[str, int]:
    """Return a reference to a slot."""
    return {"v": slot}


def c(name: str) -> dict[str, str]:
    """Return a reference to a constant."""
    return {"c": name}


def method(
    inputs: Sequence[Any],
    instructions: Sequence[Any],
    *outputs: Any,
    parameters: Sequence[Any] | None = None,
    symbols: Mapping[str, Any] | None = None,
    tree: Any = "*",
    mutations: Sequence[Any] = (),
    input_mutations: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return a method; its parameters are `x0`, `x1`, … unless they are given."""
    return {
        "parameters": list(parameters) if parameters is not None else [parameter(f"x{i}") for i in range(len(inputs))],
        "inputs": list(inputs),
        "symbols": dict(symbols or {}),
        "graph": graph(len(inputs), instructions, *outputs),
        "mutations": [list(each) for each in mutations],
        "input_mutations": [list(each) for each in input_mutations],
        "outputs": tree,
    }


def constant(storage: int, *shape: int, stride: Sequence[int] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a constant, contiguous unless strides are given."""
    strides = [math.prod(shape[index + 1 :]) for index in range(len(shape))] if stride is None else list(stride)
    base = {"storage": storage, "dtype": "float32", "shape": list(shape), "stride": strides}
    return {**base, "offset": 0, "mutable": False, **fields}


def plan_value(
    methods: Mapping[str, Any] | None = None,
    *,
    forward: Any = None,
    storages: Sequence[tuple[str, str, int]] = (),
    constants: Mapping[str, Any] | None = None,
    delegates: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return a plan."""
    return {
        "schema": 2,
        "storages": [{"key": key, "dtype": dtype, "length": length} for key, dtype, length in storages],
        "constants": dict(constants or {}),
        "delegates": list(delegates),
        "methods": dict(methods) if methods is not None else {"forward": forward},
    }


def delegate_entry(backend: str, *constants: str, **fields: Any) -> dict[str, Any]:
    """Return a delegate."""
    base = {"backend": backend, "file": "digits/delegates/blob.bin", "constants": list(constants)}
    return {**base, "info": {}, "target": None, **fields}


def plan_of(value: Any) -> Plan:
    """Return a plan, read from its canonical bytes."""
    return read_plan(canonical_json(value), "digits/default.json")


class Noting(Delegate):
    """Returns an output for each input, by default the input; notes what it was given."""

    def __init__(self, constants: Sequence[Any]) -> None:
        self.constants = list(constants)
        self.calls: list[list[Any]] = []

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Any]) -> Noting:
        """Return a new one."""
        return cls(constants)

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """Return an output for each input."""
        self.calls.append(list(inputs))
        return [self.output_of(each) for each in inputs]

    def output_of(self, value: Any) -> Any:
        """Return the input itself."""
        return value


class Doubling(Noting):
    """Doubles its inputs."""

    def output_of(self, value: Any) -> Any:
        """Return an input, doubled."""
        return value * 2


def executor_of(
    value: Any,
    *spans: Any,
    delegates: Mapping[str, type[Delegate]] | None = None,
    checks_outputs: bool = False,
    arrays: str = "torch",
) -> Executor:
    """Return an executor of a plan's JSON value; spans of NumPy's arrays are bytes."""
    from hatch_lower.runtime.arrays import find_arrays
    from hatch_lower.runtime.executor import execute_plan

    kinds = delegates or {"doubling": Doubling}
    library = find_arrays(arrays)
    return execute_plan(plan_of(value), spans, kinds, Path("/nowhere"), checks_outputs=checks_outputs, arrays=library)
