"""A backend that keeps its weights as named data beside the blob, and the delegate that finds them there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from hatch_lower.canonical import sha256_bytes
from hatch_lower.exir._serialize._named_data_store import NamedDataStore
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.graph.state import constant_of
from hatch_lower.exir.graph.tensors import span_bytes
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

OPERATORS = {"aten.mul.Tensor": torch.mul, "aten.add.Tensor": torch.add}


class TableBackend(BackendDetails):
    """Takes products and sums of a tensor and a weight; the weights are tables, named by their contents.

    Options: `name` is the name of all tables, `plain` leaves their layouts out, `tag` puts them into an external file,
    `alignment` is theirs.
    """

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Return the names of operators and tables, and the tables."""
        options = {spec.key: spec.value.decode() for spec in compile_specs}
        store = NamedDataStore()
        names: dict[str, str] = {}
        for spec in edge_program.graph_signature.input_specs:
            if spec.kind is not InputKind.USER_INPUT:
                tensor = constant_of(edge_program, spec).detach()
                content = bytes(span_bytes(tensor))
                name = options.get("name", f"table {sha256_bytes(content)[:16]}")
                data = content if "plain" in options else tensor
                store.add_named_data(name, data, int(options.get("alignment", "16")), options.get("tag"))
                names[spec.arg.name] = name
        calls = [node for node in edge_program.graph.nodes if node.op == "call_function"]
        steps = [(str(node.target._op), names[node.args[1].name]) for node in calls]
        return PreprocessResult(
            json.dumps(steps).encode(), data_store_output=store.get_named_data_store_output(), suffix="json"
        )


class TableDelegate(Delegate):
    """Computes with tables that it does not copy."""

    def __init__(self, blob: DelegateBlob) -> None:
        self.blob = blob
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            self.steps = [
                (OPERATORS[name], torch.frombuffer(blob.data[table], dtype=torch.float32))
                for name, table in json.loads(blob.path.read_bytes())
            ]

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[torch.Tensor]) -> TableDelegate:
        """Return a delegate over the mapped tables."""
        return cls(blob)

    def run(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        """Return the last result."""
        (value,) = inputs
        for operator, table in self.steps:
            value = operator(value, table)
        return [value]
