"""Passes over edge programs: functions of a graph module, as in torch and ExecuTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.node import Target
from torch.fx.passes.infra.pass_base import PassBase as PassBase
from torch.fx.passes.infra.pass_base import PassResult as PassResult

from hatch_lower.errors import EdgeError
from hatch_lower.exir._program_utils import _get_updated_graph_signature
from hatch_lower.exir.delegate import executorch_call_delegate, get_lowered_module_name, is_lowered_module
from hatch_lower.exir.dialects._ops import EdgeOpOverload
from hatch_lower.exir.graph.surgery import copy_program, output_values, rebuild_program
from hatch_lower.exir.lowering.adopt import highest_debug_handle
from hatch_lower.exir.lowering.convert import fill_debug_handles
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of
from hatch_lower.runtime.torch_private.programs import Argument as Argument
from hatch_lower.runtime.torch_private.programs import ExportPassBaseError as ExportPassBaseError
from hatch_lower.runtime.torch_private.programs import InterpretingPass, SpecViolationError, Verifier
from hatch_lower.runtime.torch_private.programs import NodeMetadata as NodeMetadata
from hatch_lower.runtime.torch_private.programs import ProxyValue as ProxyValue

# returns a `PassResult`, a graph module, or `None` after changes in place
PassType = Callable[[GraphModule], object]


class ExportPass(InterpretingPass):
    """A pass that runs a graph call by call and records a new graph; override the methods for calls to change.

    `call_operator(op, args, kwargs, meta)` and similar methods are given each call with `ProxyValue`s as arguments; the
    result of `super()` goes into the new graph.
    """

    # torch has the pass; the calls that only edge programs have are added here
    class ExportTracer(InterpretingPass.ExportTracer):
        def create_arg(self, a: Argument) -> Any:
            if is_lowered_module(a):  # torch would number the module among the graphs of control flow
                if a not in self.submodules:
                    self.submodules[a] = get_lowered_module_name(self.root, a)
                return self.create_node("get_attr", self.submodules[a], (), {})
            return super().create_arg(a)

    class ExportInterpreter(InterpretingPass.ExportInterpreter):
        callback: ExportPass

        def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Any:
            meta = NodeMetadata(self.node.meta)
            if isinstance(target, EdgeOpOverload):
                return self.callback.call_operator(target, args, kwargs, meta)
            if target is executorch_call_delegate:
                return self.callback.call_delegate(args[0], args[1:], kwargs, meta)
            if target is torch.ops.higher_order.while_loop:
                cond_fn, body_fn, carried, additional = args
                return self.callback.call_while(cond_fn, body_fn, carried, additional, meta)
            if target is torch.ops.higher_order.scan:
                combine_fn, init, xs, additional = args
                return self.callback.call_scan(combine_fn, init, xs, additional, meta)
            return super().call_function(target, args, kwargs)

    def call_delegate(
        self,
        lowered_module: torch.nn.Module,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        meta: NodeMetadata,
    ) -> ProxyValue[Any]:
        return self._fx("call_function", executorch_call_delegate, (lowered_module, *args), kwargs, meta)

    def call_while(
        self,
        cond_fn: GraphModule,
        body_fn: GraphModule,
        carried_inputs: Sequence[Argument],
        additional_inputs: Sequence[Argument],
        meta: NodeMetadata,
    ) -> ProxyValue[Any]:
        inputs = (*carried_inputs, *additional_inputs)
        graphs = [self.call_submodule(graph, inputs).graph_module for graph in (cond_fn, body_fn)]
        args = (*graphs, tuple(carried_inputs), tuple(additional_inputs))
        return self._fx("call_function", torch.ops.higher_order.while_loop, args, {}, meta)

    def call_scan(
        self,
        combine_fn: GraphModule,
        init: Sequence[Argument],
        xs: Sequence[Argument],
        additional_inputs: Sequence[Argument],
        meta: NodeMetadata,
    ) -> ProxyValue[Any]:
        slices = [stacked.data[0] for stacked in xs]  # the body sees a single step of each input
        combine = self.call_submodule(combine_fn, (*init, *slices, *additional_inputs)).graph_module
        args = (combine, list(init), list(xs), tuple(additional_inputs))
        return self._fx("call_function", torch.ops.higher_order.scan, args, {}, meta)


@dataclass(frozen=True)
class ExportedProgramPassResult:
    exported_program: ExportedProgram
    modified: bool


class ExportedProgramPassBase(ABC):
    """A pass over a whole program, not only its graph."""

    def __call__(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        self.requires(exported_program)
        result = self.call(exported_program)
        self.ensures(result.exported_program)
        return result

    @abstractmethod
    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult: ...

    def requires(self, exported_program: ExportedProgram) -> None:  # noqa: B027
        """Raise if the pass cannot run on the program."""

    def ensures(self, exported_program: ExportedProgram) -> None:  # noqa: B027
        """Raise if the result breaks a promise of the pass."""


AnyPass = PassType | ExportedProgramPassBase


def map_args(
    op: OpOverload | EdgeOpOverload,
    fn: Callable[[Argument, torch.Argument], Argument],
    args: tuple[Argument, ...],
    kwargs: dict[str, Argument],
) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
    """Return the arguments of a call, each replaced by `fn(value, argument of the schema)`."""
    placed, named = list(args), dict(kwargs)
    for index, argument in enumerate(schema_of(op).arguments):
        if argument.name in named:
            named[argument.name] = fn(named[argument.name], argument)
        elif not argument.kwarg_only and index < len(placed):
            placed[index] = fn(placed[index], argument)
    return tuple(placed), named


def transform_program(
    program: ExportedProgram, passes: Iterable[AnyPass], verifier: type[Verifier] | None = None
) -> ExportedProgram:
    """Return a program after some passes; the given program stays unchanged.

    Args:
        passes: applied in order to the graph module. Passes must keep the number and order of inputs and outputs; new
            operations without a debug handle get a new handle.
        verifier: the check of the result; by default the program's own.

    Raises:
        EdgeError: if a pass changes the number of inputs or outputs, or breaks a rule of the dialect. Exceptions of a
            pass itself pass through.
    """
    graph_passes: list[PassType] = []  # consecutive passes share a rebuilt program: each rebuild verifies
    for each in passes:
        if isinstance(each, ExportedProgramPassBase):
            program = each(transform_graph(program, graph_passes, verifier)).exported_program
            graph_passes = []
        else:
            graph_passes.append(each)
    return transform_graph(program, graph_passes, verifier) if graph_passes else program


def transform_graph(
    program: ExportedProgram, passes: Iterable[PassType], verifier: type[Verifier] | None
) -> ExportedProgram:
    module = copy_program(program).graph_module
    names: list[str] = []
    for each in passes:
        result = each(module)
        names.append(getattr(each, "__name__", type(each).__name__))
        module = result_module(result, module, names[-1])
        for kind, count in zip(("inputs", "outputs"), counts(module), strict=True):
            expected = len(getattr(program.graph_signature, f"{kind[:-1]}_specs"))
            if count != expected:
                raise EdgeError(
                    f"a pass changed the number of {kind} of the program",
                    where=f"pass `{names[-1]}`",
                    found=f"{count} instead of {expected}",
                    hint="keep placeholders and outputs as they are; lowering drops placeholders of owned constants",
                )
    module.recompile()
    used = highest_debug_handle(program.graph_module)  # handles of removed operations are not reused
    fill_debug_handles(module, lambda node: node.op == "call_function", above=used)
    try:
        return rebuild_program(
            program,
            module,
            module.graph,
            signature=_get_updated_graph_signature(program.graph_signature, module),
            verifier=verifier,
        )
    except SpecViolationError as error:
        raise EdgeError(
            "the passes made a program that breaks a rule of the edge dialect",
            where=", ".join(f"`{name}`" for name in names),
            found=str(error),
            hint="let the passes keep to the dialect: edge operators from `ops.edge`, `meta['val']` on every node",
        ) from error


def result_module(result: object, module: GraphModule, name: str) -> GraphModule:
    made = getattr(result, "graph_module", result)
    if made is None:
        return module
    if not isinstance(made, GraphModule):
        raise EdgeError(
            "a pass did not return a graph module",
            where=f"pass `{name}`",
            found=repr(result),
            hint="return `PassResult(graph_module, modified)`",
        )
    return made


def counts(module: GraphModule) -> tuple[int, int]:
    return len(module.graph.find_nodes(op="placeholder")), len(output_values(module))
