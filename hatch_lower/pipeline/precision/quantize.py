"""Quantization of captured methods: by torchao's PT2E with activations, or of weights alone."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from hatch_lower.errors import SampleError
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.surgery import attribute_of, copy_graph
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.eager import unchanged_parameters
from hatch_lower.pipeline.exceptions import describe_exception, refuse_out_of_memory, trim_lines
from hatch_lower.pipeline.module_checks import same_tensor
from hatch_lower.pipeline.precision.again import export_module
from hatch_lower.pipeline.precision.halves import is_in, unused_name
from hatch_lower.pipeline.precision.integer_weights import quantize_weights
from hatch_lower.pipeline.precision.state import InitialState, without_writes
from hatch_lower.pipeline.random_inputs import InputCase, example_case
from hatch_lower.runtime.module_copy import copy_module
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

aten = torch.ops.aten


class Scheme(Frozen):
    """The quantization of a method."""

    bits: int  # of weights
    activations: bool
    kept: tuple[str, ...]  # paths of modules that stay in floating point
    state: frozenset[str] = frozenset()  # names of tensors that calls of any method change
    engine: str = ""  # with requirements of its own: `executorch` or `onnxruntime`


def quantized(method: CapturedMethod, scheme: Scheme, cases: Sequence[InputCase]) -> CapturedMethod:
    """Return a quantized method.

    `cases` are the calls from which ranges of activations are taken; without calls each call has its own ranges, and
    only linear layers are quantized. Tables of embeddings have integers in every scheme.
    """
    with own_warnings():
        module = own_module(method)
        if scheme.activations:
            module = with_activations(method, module, scheme, cases, is_folded=True)
        write_integers(module, scheme, scheme.kept)
        return export_module(method, module)


def own_module(method: CapturedMethod) -> GraphModule:
    """Return a copy of a method's module with state of its own, which shares the parameters that no call changes."""
    module = without_writes(method.program).module()
    return cast(GraphModule, copy_module(module, unchanged_parameters(module, [method.program])))


def write_integers(module: GraphModule, scheme: Scheme, kept: Iterable[str]) -> None:
    by_index = scheme.engine == "onnxruntime"
    quantize_weights(
        module, scheme.bits, tables_alone=scheme.activations, kept=kept, state=scheme.state, by_index=by_index
    )


def trial_of(
    method: CapturedMethod, scheme: Scheme, cases: Sequence[InputCase]
) -> Callable[[tuple[str, ...]], GraphModule]:
    """Return a function from paths of modules in float32 to a quantized module; calibration runs once."""
    with own_warnings():
        whole = own_module(method)
        if scheme.activations:
            whole = with_activations(method, whole, scheme, cases, is_folded=False)

    def trial(kept: tuple[str, ...]) -> GraphModule:
        module = GraphModule(whole, copy_graph(whole)[1])
        for node in module.graph.nodes:
            if is_in(node, kept) and not is_step(node, "dequantize_"):
                for source in node.all_input_nodes:
                    if (exact := unquantized(source)) is not None:
                        node.replace_input_with(source, exact)
        write_integers(module, scheme, kept)
        return module

    return trial


def unquantized(node: Node) -> Node | None:
    """Return the floating-point value of which a node is the dequantized integer, or `None`."""
    integer = node.args[0] if is_step(node, "dequantize_") else None
    value = integer.args[0] if isinstance(integer, Node) and is_step(integer, "quantize_") else None
    return value if isinstance(value, Node) else None


def is_step(node: Node, prefix: str) -> bool:
    return str(node.target).startswith(f"quantized_decomposed.{prefix}")


def with_activations(
    method: CapturedMethod, module: GraphModule, scheme: Scheme, cases: Sequence[InputCase], *, is_folded: bool
) -> GraphModule:
    """Return a module with integers; `is_folded`: the weights are stored as integers."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    erase_unused(module)
    mark_functions(module)
    separate_layers(module)
    if scheme.engine == "executorch":
        quantizer = xnnpack_quantizer(not cases, scheme.kept)
    else:
        quantizer = x86_quantizer(not cases, scheme.kept, sums=scheme.engine == "onnxruntime" and bool(cases))
    prepared: GraphModule = prepare_pt2e(module, quantizer)
    state = InitialState(prepared, scheme.state)
    with torch.no_grad():
        for case in cases or [example_case(method)]:  # the weights are observed in a call
            args, kwargs = case.copied()
            try:
                prepared(*args, **kwargs)
            except Exception as error:
                refuse_out_of_memory(error)
                if not cases:
                    raise
                raise failed_call_error(error, case) from error
            state.restore()
    converted: GraphModule = convert_pt2e(prepared, fold_quantize=is_folded)
    state.restore()  # the search for constants to fold runs operations that write
    join_integers(converted)
    return converted


def failed_call_error(error: Exception, case: InputCase) -> SampleError:
    return SampleError(
        "the model fails in a call for calibration",
        where=case.name,
        found=trim_lines(describe_exception(error)),
        hint="leave the call out, or correct its values, such as indices beyond a table",
    )


def join_integers(module: GraphModule) -> None:
    """Give layers with equal integer weights one constant: calls of a layer have been quantized apart."""
    known: dict[str, list[str]] = {}
    for node in [node for node in module.graph.nodes if node.op == "get_attr"]:
        if not (name := str(node.target)).startswith("_frozen_param"):  # of PT2E, each read once
            continue
        tensor = getattr(module, name)
        alike = known.setdefault(str(tensor.shape), [])
        first = next((each for each in alike if same_tensor(getattr(module, each), tensor)), None)
        if first is None:
            alike.append(name)
        else:
            node.target = first
            delattr(module, name)
    module.recompile()


def erase_unused(module: GraphModule) -> None:
    """Erase operations without users, which quantizers refuse; constants stay, which other methods may change."""
    module.graph.eliminate_dead_code(lambda node: node.op != "call_function" or node.is_impure())


LAYERS = tuple(f"torch.nn.modules.{name}" for name in ("linear.Linear", "conv.Conv1d", "conv.Conv2d"))
NAMED_PADDING = {"conv1d": aten.conv1d, "conv2d": aten.conv2d}


def mark_functions(module: GraphModule) -> None:
    """Mark convolutions and linear layers outside of PyTorch's own layers, as in attention, and with named padding.

    torchao's quantizer for x86 knows the layers of PyTorch alone, and refuses padding by name.
    """
    for node in module.graph.nodes:
        operator = torch_operator(node.target)
        kind = base_name(operator) if isinstance(operator, OpOverload) else ""
        weight = node.args[1] if kind in ("linear", "conv1d", "conv2d") else None
        if not isinstance(weight, Node) or weight.op != "get_attr":
            continue
        if kind in NAMED_PADDING and operator is NAMED_PADDING[kind].padding:
            sides = named_padding(node, list(attribute_of(module, str(weight.target)).shape[2:]))
            if any(each % 2 for each in sides):  # stays in floating point
                node.meta["source_fn_stack"] = [(node.name, operator)]
                continue
            node.target = NAMED_PADDING[kind].default
            given = {"bias": None, "stride": [1], "dilation": [1], "groups": 1, **named_arguments(node)}
            given["padding"] = [each // 2 for each in sides]
            order = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            node.args, node.kwargs = tuple(given[name] for name in order), {}
        inner = [owner for _, owner in (node.meta.get("nn_module_stack") or {}).values()]
        if not inner or inner[-1] not in LAYERS:
            node.meta["source_fn_stack"] = [(node.name, getattr(torch.nn.functional, kind))]


def named_padding(node: Node, kernel: list[int]) -> list[int]:
    """Return the elements that the named padding of a convolution adds on both sides of each dimension together."""
    given: dict[str, Any] = named_arguments(node)
    steps = [*given.get("dilation", [1])]
    steps = steps if len(steps) == len(kernel) else steps * len(kernel)
    is_same = given.get("padding") == "same"
    return [step * (size - 1) if is_same else 0 for step, size in zip(steps, kernel, strict=True)]


def separate_layers(module: GraphModule) -> None:
    """Make each of several operations with a common weight a layer of its own.

    PT2E takes the calls of a layer for one operation, and writes into the weights that it fuses a batch norm with:
    convolutions before a batch norm get copies.
    """
    seen: set[str] = set()
    for node in list(module.graph.nodes):
        operator = torch_operator(node.target)
        kind = base_name(operator) if isinstance(operator, OpOverload) else ""
        if not kind.startswith(("conv", "linear")):
            continue
        for read in [source for source in node.all_input_nodes if source.op == "get_attr"]:
            name = str(read.target)
            if name not in seen:
                seen.add(name)
                continue
            if any("batch_norm" in str(user.target) for user in node.users):
                values = attribute_of(module, name).detach().clone()
                name = unused_name(f"{name.replace('.', '_')}_copy", dir(module))
                module.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
            with module.graph.inserting_before(node):
                own = module.graph.get_attr(name)
            own.meta = {**read.meta}
            node.replace_input_with(read, own)
            node.meta["source_fn_stack"] = [(node.name, getattr(torch.nn.functional, kind, operator))]
    module.recompile()


def x86_quantizer(is_dynamic: bool, kept: Iterable[str], *, sums: bool) -> object:
    """Return torchao's quantizer for x86: unsigned activations, signed weights with a scale per channel.

    Convolutions without calibration stay in float32, in which engines would compute beside the search of a scale.
    `sums`: with integers between a convolution and the sum of a residual network. Without these, ONNX Runtime computes
    the convolution in float32, while other engines compute both in one kernel.
    """
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    config = x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic)

    class WithSums(x86.X86InductorQuantizer):  # type: ignore[misc]
        def _get_input_idx_for_binary_node(self, layer: Node, total: Node) -> tuple[int | None, int | None]:
            summands = total.args[:2]
            # torchao refuses a sum with a number, and the sum of other values than the layer's
            if layer not in summands or not all(isinstance(each, Node) for each in summands):
                return None, None
            places: tuple[int | None, int | None] = super()._get_input_idx_for_binary_node(layer, total)
            return places

        def annotate(self, model: GraphModule) -> GraphModule:
            if is_dynamic:
                left = [node for node in model.graph.nodes if str(node.target).startswith("aten.conv")]
                x86._annotate_nodes_not_quantize(left)
            annotated: GraphModule = super().annotate(model)
            for node in annotated.graph.nodes if sums else ():
                annotation = node.meta.get("quantization_annotation")
                if str(node.target).startswith("aten.add") and annotation is not None and annotation.input_qspec_map:
                    for source in node.all_input_nodes:
                        annotation.input_qspec_map.setdefault(source, config.input_activation)
            return annotated

    quantizer = WithSums().set_global(config)
    for path in kept:
        quantizer.set_module_name_qconfig(path, None)
    return quantizer


def xnnpack_quantizer(is_dynamic: bool, kept: Iterable[str]) -> object:
    """Return ExecuTorch's quantizer for XNNPACK: signed activations, signed weights with a scale per channel."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    class LayersAlone(xnnpack.XNNPACKQuantizer):  # type: ignore[misc]
        # norms are part of their convolutions by then; a quantized sum in a transformer ends ExecuTorch's process
        SUPPORTED_PATTERNS = tuple(
            pattern
            for pattern in xnnpack.XNNPACKQuantizer.SUPPORTED_PATTERNS
            if pattern.name.startswith(("conv", "linear")) and "_bn" not in pattern.name
        )

        def transform_for_annotation(self, model: GraphModule) -> GraphModule:
            return model  # the quantizer would make the numbers added to integers floats

    paths = tuple(kept)
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=is_dynamic)
    quantizer = LayersAlone().set_global(config)
    # the quantizer also takes sums of integers, such as places in a table
    quantizer.set_filter_function(lambda node: is_float(node) and not is_in(node, paths))
    return quantizer


def is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


@contextmanager
def own_warnings() -> Iterator[None]:
    """Silence warnings of torchao and ExecuTorch about their own imports and calls."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
