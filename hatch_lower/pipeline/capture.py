"""Export each method of a model as an `ExportedProgram` that keeps the model's parameter names and tensors."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from hatch_lower.errors import CaptureError, nearest
from hatch_lower.events import Event, Reporter, stage
from hatch_lower.exir.graph.surgery import all_nodes, functionalized
from hatch_lower.frozen import Frozen
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture_errors import capture_error, failure_of_eager
from hatch_lower.pipeline.derivatives import call_of_operators
from hatch_lower.pipeline.discover import Exports
from hatch_lower.pipeline.exceptions import refuse_out_of_memory
from hatch_lower.pipeline.module_checks import (
    AttributeChange,
    check_attributes,
    check_module,
    check_no_fakes,
    check_tensor_memory,
    check_unchanged,
    hint_on_gradients,
    named_tensors_in,
    noted_changes,
    refuse_counting,
    same_results,
    share_tensors,
    tensor_versions,
)
from hatch_lower.pipeline.parameters import (
    check_declared_sizes,
    declared_sizes,
    dimension_names,
    positional_names,
    separate_tensors,
    with_named_keywords,
)
from hatch_lower.pipeline.ranges import export_method, narrowed_ranges
from hatch_lower.runtime.torch_private.programs import holds_tensors, is_transformation_step, remember_lines
from hatch_lower.runtime.torch_private.recurrent import recurrent_shapes

BOUND_TO = ".__self__"  # dynamo's text for the attribute that leads from a bound method to its object


class CapturedMethod(Frozen):
    # before decomposition

    name: str
    program: ExportedProgram  # ATen ops, with the module's own tensors
    args: tuple[object, ...]
    kwargs: dict[str, object]
    # the Python names of the positional arguments, in order; the keyword arguments' names are in
    # `program.call_spec.in_spec`
    parameters: tuple[str, ...]
    # symbol of the input shapes → name of its `torch.export.Dim`, for symbols with a name
    dimensions: Mapping[str, str] = field(default_factory=dict)
    gradients: bool = False  # whether eager needs grad mode: the method itself computes gradients
    has_examples: bool = True  # false for ready programs without `args` and `kwargs`
    narrowed: tuple[str, ...] = ()  # a line for each range of sizes that is narrower than declared


class CapturedModel(Frozen):
    """The exported methods of a model. Programs share the tensors of parameters and buffers with equal names."""

    name: str
    methods: tuple[CapturedMethod, ...]  # in the order in which they were declared
    eager: torch.nn.Module | None  # the exported module, unchanged; `None` for ready programs
    attributes: Mapping[str, str] = field(default_factory=dict)  # method name to the name of the module's own method


def capture_model(
    name: str, exports: Exports, reporter: Reporter, *, roots: Sequence[Path] = (), examples_needed: bool = True
) -> CapturedModel:
    """Export every method of a model; `roots` hold the user's own code, whose lines errors name."""
    module = None if isinstance(exports, dict) else exports.module
    methods: Mapping[str, ExportedProgram | Method] = exports if isinstance(exports, dict) else exports.methods
    check_method_names(name, methods)
    if module is not None:
        check_module(name, module)
    captured = []
    attributes = {}
    for method, declared in methods.items():
        with stage(reporter, "export", name, method=method):
            if isinstance(declared, ExportedProgram):
                captured.append(capture_program(name, method, declared, examples_needed))
            elif isinstance(exports, Model):
                captured.append(found := capture_method(name, method, exports, declared, roots))
                for line in found.narrowed:
                    reporter.report(Event("export", "note", name, method=method, detail=line))
                attributes[method] = declared.attribute or method
    share_tensors(name, {method.name: method.program for method in captured})
    return CapturedModel(name, tuple(captured), module, attributes)


def check_method_names(model: str, methods: Mapping[str, object]) -> None:
    # a loaded model offers its methods as attributes
    from hatch_lower.runtime.loaded import RESERVED_METHOD_NAMES

    for name in methods:
        where = f"model `{model}`, method `{name}`"
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise CaptureError("a method's name must be a Python identifier", where=where, hint="rename the method")
        if name in RESERVED_METHOD_NAMES or name.startswith("_"):
            what = "a method's name must not begin with an underscore"
            if name in RESERVED_METHOD_NAMES:
                what = f"`{name}` is already an attribute of every loaded model"
            raise CaptureError(
                what, where=where, hint=f'rename it: `"run_{name.lstrip("_")}": Method(attribute="{name}", …)`'
            )


def capture_method(model: str, name: str, whole: Model, declared: Method, roots: Sequence[Path]) -> CapturedMethod:
    module = whole.module
    args, kwargs = separate_tensors(tuple(declared.args), dict(declared.kwargs))
    check_tensor_memory(model, name, named_tensors_in({"args": args, "kwargs": kwargs}))
    attribute = declared.attribute or name
    call = method_of(model, name, module, attribute)
    shapes, strict = declared.dynamic_shapes, declared.strict
    named, shapes = (call, shapes) if strict or not shapes else with_named_keywords(call, shapes, args, kwargs)
    exported = module if attribute == "forward" and named is call else module_to_export(module, named)
    sizes = declared_sizes(inspect.signature(call), declared.dynamic_shapes, args, kwargs)
    check_declared_sizes(
        f"model `{model}`, method `{name}`", f"the dynamic shapes of method `{name}` do not hold", sizes
    )
    keep_source_lines(module, call)
    before = tensor_versions(module)
    signature = inspect.signature(named)
    export = partial(export_method, whole, exported, signature, args, kwargs, shapes, declared)
    gradients = False
    changes: dict[tuple[int, str], AttributeChange] = {}
    try:
        try:
            with torch.no_grad(), noted_changes(changes), recurrent_shapes():
                program = export()
        except RuntimeError:
            gradients = needs_gradients(module, name, declared)
            if not gradients:
                raise
            with torch.enable_grad():
                program = export()
    except Exception as error:
        refuse_out_of_memory(error)
        check_attributes(model, module)
        operators = None
        if hint_on_gradients(error) and not shapes:
            with suppress(Exception), torch.set_grad_enabled(gradients):  # else the first error says more
                replay = call_of_operators(module, module_to_export(module, call), call, args, kwargs)
                operators = torch.export.export(module_to_export(module, replay), args, kwargs)
        if operators is None:
            raise capture_error(model, name, whole, declared, call, error, roots) from error
        program = operators
    check_unchanged(model, name, module, before)
    check_no_fakes(model, name, module)

    def same_again() -> bool:
        with torch.set_grad_enabled(gradients):
            again = export()
        return str(again.graph) == str(program.graph) or same_results(program, again, args, kwargs)

    refuse_counting(f"model `{model}`", name, module, changes.values(), same_again)
    if strict:
        name_module_paths(program)
    program = in_plain_form(program)
    dimensions = dimension_names(program, shapes, signature, args, kwargs)
    names = positional_names(signature, len(args))
    lines = tuple(narrowed_ranges(program, dimensions, sizes))
    return CapturedMethod(name, program, args, kwargs, names, dimensions, gradients, narrowed=lines)


def keep_source_lines(module: torch.nn.Module, call: Callable[..., object]) -> None:
    functions = [getattr(call, "__func__", call)]
    for kind in {type(child): None for child in module.modules()}:
        if not kind.__module__.startswith("torch."):
            functions += [value for value in vars(kind).values() if inspect.isfunction(value)]
    for function in functions:
        remember_lines(function)


def method_of(model: str, name: str, module: torch.nn.Module, attribute: str) -> Callable[..., object]:
    # a submodule counts as a method: the call of the submodule
    try:
        value = getattr(module, attribute)
    except AttributeError:
        kind = type(module)
        own = (
            member for member in dir(kind) if not hasattr(torch.nn.Module, member) and callable(getattr(kind, member))
        )
        raise CaptureError(
            f"`{kind.__name__}` has no method `{attribute}`",
            where=f"model `{model}`, method `{name}`",
            hint=nearest(attribute, {"forward", *(member for member in own if not member.startswith("_"))}),
        ) from None
    if isinstance(value, torch.nn.Module):
        return submodule_call(value)
    if not callable(value):
        raise CaptureError(
            f"`{type(module).__name__}.{attribute}` is not a method",
            where=f"model `{model}`, method `{name}`",
            found=f"a value of type `{type(value).__name__}`",
            hint="name a method of the module with `Method(attribute=…)`",
        )
    method: Callable[..., object] = value
    return method


def submodule_call(module: torch.nn.Module) -> Callable[..., object]:
    # `module.forward` must not be a module itself

    def call(*args: object, **kwargs: object) -> object:
        return module(*args, **kwargs)

    described: Any = call
    described.__signature__ = inspect.signature(module.forward)
    return call


def module_to_export(module: torch.nn.Module, call: Callable[..., object]) -> torch.nn.Module:
    """Return a module whose `forward` is the method to export: `torch.export` exports only `forward`."""
    # The new module has the original's parameters, buffers and submodules under the same names. The method stays bound
    # to the original, so that `self.forward(x)` and `self(x)` inside the method keep their meaning.
    kind = type(module)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "forward": property(lambda _: call)}
    exported: torch.nn.Module = object.__new__(type(kind.__name__, (torch.nn.Module,), names))
    exported.__dict__ = module.__dict__
    return exported


def name_module_paths(program: ExportedProgram) -> None:
    # a strict export reaches the modules through the method's `self`, which appears in the paths
    for graph_module in program.graph_module.modules():
        for node in graph_module.graph.nodes if isinstance(graph_module, torch.fx.GraphModule) else ():
            if stack := node.meta.get("nn_module_stack"):
                node.meta["nn_module_stack"] = {
                    key: (path.rpartition(BOUND_TO)[2].removeprefix("."), kind) for key, (path, kind) in stack.items()
                }


def in_plain_form(program: ExportedProgram) -> ExportedProgram:
    """Return a program without tensor subclasses among its weights (torchao's), and without steps of `torch.func`."""
    has_subclasses = any(map(holds_tensors, (*program.state_dict.values(), *program.constants.values())))
    if has_subclasses or any(map(is_transformation_step, all_nodes(program.graph_module))):
        with suppress(Exception):  # the conversion to the edge dialect reports the same failure
            program = functionalized(program)
    return program


def capture_program(model: str, name: str, program: ExportedProgram, examples_needed: bool) -> CapturedMethod:
    check_tensor_memory(model, name, {**program.state_dict, **named_tensors_in(program.constants)})
    program = in_plain_form(program)
    examples = program.example_inputs
    if examples is None and examples_needed:
        raise CaptureError(
            "the exported program has no example inputs, so the lowered program cannot be verified",
            where=f"model `{model}`, method `{name}`",
            hint="export the program with `torch.export.export`, which keeps the example inputs, or set"
            " `verify = false` for every recipe of the model and `check-megabytes = 0`",
        )
    args, kwargs = examples if examples is not None else ((), {})
    tensors = named_tensors_in({"args": args, "kwargs": kwargs})
    check_tensor_memory(model, name, tensors)
    if len({id(tensor) for tensor in tensors.values()}) < len(tensors):
        raise CaptureError(
            "the same tensor appears twice in the example inputs of the exported program; torch.export merges such"
            " inputs",
            where=f"model `{model}`, method `{name}`",
            found=", ".join(f"`{path}`" for path in tensors),
            hint="export the program with a separate tensor for each input: `x.clone()`",
        )
    spec = program.call_spec.in_spec
    count = len(spec.child(0).children()) if spec is not None else len(args)
    known = list(getattr(program.module_call_graph[0].signature, "forward_arg_names", None) or [])
    names = known[:count] if len(known) >= count else [f"args_{i}" for i in range(count)]
    return CapturedMethod(name, program, tuple(args), dict(kwargs), tuple(names), has_examples=examples is not None)


def needs_gradients(module: torch.nn.Module, name: str, declared: Method) -> bool:
    """Return whether eager runs on the example inputs only with grad mode on, which is torch's default."""
    refused = failure_of_eager(module, name, declared)
    return refused is not None and failure_of_eager(module, name, declared, gradients=True) is None
