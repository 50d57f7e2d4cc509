"""`LoweredBackendModule`: a lowered partition in the graph that calls the partition."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from hatch_lower.exir._serialize._named_data_store import NamedDataStoreOutput
from hatch_lower.exir.backend.backend_details import PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.graph.surgery import all_nodes, copy_program, flat_signature, graph_modules
from hatch_lower.exir.graph_module import submodule_of
from hatch_lower.exir.lowering.submodules import arrange_graph_outputs as arrange_graph_outputs
from hatch_lower.exir.lowering.submodules import arrange_graph_placeholders as arrange_graph_placeholders
from hatch_lower.exir.lowering.submodules import (
    create_exported_program_from_submodule as create_exported_program_from_submodule,
)
from hatch_lower.exir.lowering.submodules import create_submodule_from_nodes as create_submodule_from_nodes
from hatch_lower.runtime.torch_private.programs import executorch_call_delegate


# torch recognizes the class by its name: do not rename, and do not derive from, the class
class LoweredBackendModule(torch.nn.Module):
    """A partition's processed bytes and original program.

    A call runs the original program, so that a graph with the module can be traced and executed without the backend.

    Args:
        named_data_store_output: named data beside the blob.
        result: the backend's full result.
        constants: for a weight-free backend the names (in the owning model) of the constants to bind, in the order of
            the program's parameter, buffer and constant placeholders; else empty.
        prefix: precedes the names of constants that belong to the module and not to the owning model.
    """

    def __init__(
        self,
        edge_program: ExportedProgram,
        backend_id: str,
        processed_bytes: bytes,
        compile_specs: list[CompileSpec],
        named_data_store_output: NamedDataStoreOutput | None = None,
        *,
        result: PreprocessResult | None = None,
        constants: tuple[str, ...] = (),
        prefix: str = "",
    ) -> None:
        super().__init__()
        self._original_exported_program = edge_program
        self._backend_id = backend_id
        self._processed_bytes = processed_bytes
        self._compile_specs = compile_specs
        self._named_data_store_output = named_data_store_output
        self.result = result if result is not None else PreprocessResult(processed_bytes)
        self.constants = constants
        self.prefix = prefix
        self.meta: dict[str, Any] | None = None

    def __deepcopy__(self, memo: dict[int, object] | None) -> LoweredBackendModule:
        # passes copy whole graph modules: the copy shares the weights, the blob and the lowered modules that the
        # original program calls, which never change
        module = LoweredBackendModule(
            copy_program(self._original_exported_program),
            self._backend_id,
            self._processed_bytes,
            copy.deepcopy(self._compile_specs, memo),
            self._named_data_store_output,
            result=self.result,
            constants=self.constants,
            prefix=self.prefix,
        )
        module.meta = copy.copy(self.meta)
        return module

    def adopted(self, above: int, prefix: str) -> LoweredBackendModule:
        """Return a copy, for another program, that takes and returns flat tuples."""
        # `above`: a debug handle lower than all handles of the copy; `prefix`: precedes the names of the copy's
        # constants
        module = copy.deepcopy(self)
        module.prefix = prefix + self.prefix
        program = module.original_module
        for node in all_nodes(program.graph_module):
            if node.meta.get("debug_handle"):
                node.meta["debug_handle"] += above
        meta = dict(self.meta or {})
        if (debug := meta.get("debug_handle_map")) is not None:
            meta["debug_handle_map"] = {
                key: tuple(handle + above for handle in handles) for key, handles in debug.items()
            }
        module.meta = meta
        spec = program.call_spec
        program.module_call_graph[0].signature = flat_signature(spec.in_spec.num_leaves, spec.out_spec.num_leaves)
        return module

    @property
    def backend_id(self) -> str:
        return self._backend_id

    @property
    def processed_bytes(self) -> bytes:
        return self._processed_bytes

    @property
    def compile_specs(self) -> list[CompileSpec]:
        return self._compile_specs

    @property
    def original_module(self) -> ExportedProgram:
        return self._original_exported_program

    @property
    def named_data_store_output(self) -> NamedDataStoreOutput | None:
        return self._named_data_store_output

    def forward(self, *args: object, **kwargs: object) -> object:
        return executorch_call_delegate(self, *args)


def get_lowered_submodules(graph_module: GraphModule) -> list[tuple[str, LoweredBackendModule, Node]]:
    """Return the name, the module and the call of each delegate call of a graph, without calls in nested graphs."""
    calls = graph_module.graph.find_nodes(op="call_function", target=executorch_call_delegate)
    return [(*submodule_of(graph_module, call, 0, LoweredBackendModule), call) for call in calls]


def get_lowered_backend_modules(graph_module: GraphModule) -> list[LoweredBackendModule]:
    return [module for _, module, _ in get_lowered_submodules(graph_module)]


def lowered_modules(program: ExportedProgram) -> Iterator[LoweredBackendModule]:
    for module in graph_modules(program.graph_module):
        yield from get_lowered_backend_modules(module)
