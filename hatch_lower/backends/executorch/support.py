"""The operations that ExecuTorch takes: XNNPACK's own support query, asked of each node in ExecuTorch's form.

ExecuTorch's partitioner sees another graph than the program's: copies in place of views, and operators of its own edge
dialect. Here a copy of the graph gets that form node for node, and the partitioner's rules are applied to the copy in
linear time. Some of ExecuTorch's own ways are not linear.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Node

from hatch_lower.backends.engine_partitioner import complete_arguments, why_not_target, why_not_tensors
from hatch_lower.backends.executorch import quantized, sizes
from hatch_lower.backends.executorch.configuration import ExecutorchOptions, executorch
from hatch_lower.backends.executorch.formulas import FORMULAS, formula_of
from hatch_lower.backends.executorch.portable import loses_nan, portable_kernels, why_not_portable
from hatch_lower.backends.executorch.prepare import BINARY, full_arguments
from hatch_lower.backends.interpolation import why_not_places
from hatch_lower.exir.graph.nodes import producer_of, result_tensors
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.state import mutated_targets
from hatch_lower.exir.graph.surgery import copy_program, graph_modules
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name, overload_name, schema_of
from hatch_lower.runtime.torch_private.programs import change_signature

# For NaN and infinities, or where a result is infinite or nearly so, XNNPACK's kernels differ from eager. A batch norm
# that is fused with the convolution before it is an exception.
OTHER_SPECIAL_VALUES = FORMULAS.keys() | sizes.aten_names(
    """
    _native_batch_norm_legit_no_training.default avg_pool2d.default exp.default gelu.default
    hardswish.default log.default max_pool2d.default maximum.default minimum.default rsqrt.default
    sigmoid.default sqrt.default upsample_bilinear2d.vec
    """
)

# XNNPACK gives numbers far above 1 for arguments from about 7 million on
LIMITED = sizes.aten_names("cos.default sin.default")
NEVER = {"aten.max.dim": "ExecuTorch cannot lower most calls of `aten.max.dim` to XNNPACK"} | {
    name: f"XNNPACK's `{name}` gives other results than eager for large numbers" for name in LIMITED
}

# they compute with no element of a tensor: a partition of only such operations costs more to call than to leave
IDLE = sizes.aten_names(
    """
    _to_copy.default _unsafe_view.default arange.start_step clone.default empty.memory_format expand.default
    full.default full_like.default permute.default reshape.default scalar_tensor.default select.int slice.Tensor
    squeeze.dims sym_size.int unsqueeze.default view.default
    """
)

FLOATS = frozenset({torch.float32})
LARGEST_RANK = 6  # of XNNPACK's tensors
OF_IMAGES = sizes.aten_names("avg_pool2d.default max_pool2d.default prelu.default")  # for four dimensions only
RESHAPED = sizes.aten_names("squeeze_copy.dim squeeze_copy.dims unsqueeze_copy.default")  # written as a reshape
OF_ROWS = sizes.aten_names("_native_batch_norm_legit_no_training.default convolution.default")  # converted to images
OF_DIMENSIONS = sizes.aten_names("_softmax.default permute_copy.default")  # XNNPACK lacks these for 0-d tensors


class CachedSignature(ExportGraphSignature):
    # a signature is read for each weight of each node, and torch makes the signature's tables anew each time
    @cached_property
    def inputs_to_parameters(self) -> Any:
        return dict(super().inputs_to_parameters)

    @cached_property
    def inputs_to_buffers(self) -> Any:
        return dict(super().inputs_to_buffers)

    @cached_property
    def inputs_to_lifted_tensor_constants(self) -> Any:
        return dict(super().inputs_to_lifted_tensor_constants)


class ExecutorchSupport:
    def __init__(self, program: ExportedProgram, options: ExecutorchOptions) -> None:
        self._options = options
        self._ranges = program.range_constraints
        changed = mutated_targets(program)
        self._changed = {spec.arg.name for spec in program.graph_signature.input_specs if spec.target in changed}
        self._known: dict[Node, str] = {}
        self._needs_finite: set[Node] = set()
        with executorch(), guards_suppressed(program):
            self._ask(program)

    def __call__(self, node: Node) -> str:
        return self._known.get(producer_of(node), "it is not an operation on tensors")

    def needs_finite(self, node: Node) -> bool:
        return node in self._needs_finite

    def _ask(self, program: ExportedProgram) -> None:
        form = copy_program(program)
        signature = CachedSignature(form.graph_signature.input_specs, form.graph_signature.output_specs)
        change_signature(form, signature)
        # XNNPACK's rules by operator: for floats, and for floats and integers
        self._floats, self._integers = (
            xnnpack_partitioner(integers=integers, finite=self._options.finite).target_partitioner_configs
            for integers in (False, True)
        )
        self._kernels = portable_kernels() if self._options.portable else frozenset()
        for ours, theirs in zip(graph_modules(program.graph_module), graph_modules(form.graph_module), strict=True):
            pairs = zip(ours.graph.nodes, theirs.graph.nodes, strict=True)
            copies = {node: copy for node, copy in pairs if node.op == "call_function"}
            for node, copy in copies.items():
                give_form(node, copy)
            products = quantized.find_products(copies, form, self._integers, stated)
            left = {product.node for product in products}
            for node, copy in copies.items():
                if node.target is not operator.getitem:
                    self._known[node] = self._refusal(node) or self._why_not(node, copy, form, left)
            quantized.settle_products(products, self._known)

    def _why_not(self, node: Node, copy: Node, form: ExportedProgram, products: Set[Node]) -> str:
        finite = self._options.finite
        if sizes.gives_number(node):
            reason = sizes.why_not_size(node, self._ranges)
        elif quantized.quantizes(node):
            reason = quantized.why_not_xnnpack_quantized(node, finite=finite)
            if not reason and quantized.why_not_xnnpack_quantized(node, finite=False):
                self._needs_finite.add(node)
            if not reason and not quantized.needs_product(node):
                reason = why_not_rule(node, copy, form, self._integers)
        elif node in products:
            reason = why_not_xnnpack_call(copy, form, finite=finite)
        elif (formula := formula_of(node)) is not None:
            reason = why_not_tensors(node, FLOATS, unbacked=True) or formula.why_not(node)
            reason = reason or why_not_xnnpack_call(copy, form, finite=finite)
            if not reason:
                self._needs_finite.add(node)
        else:
            reason = why_not_xnnpack(node, copy, form, self._floats, finite=finite)
            if not reason and xnnpack_differs_for_nan(copy, form):
                self._needs_finite.add(node)
            if reason and str(torch_operator(node.target)) in sizes.VIEWS:
                # ExecuTorch runs the operation without a kernel
                reason = why_not_tensors(node, FLOATS) or sizes.why_not_view(node, self._ranges)
            if reason and self._options.portable:
                reason = why_not_portable(node, copy, self._kernels, self._ranges, finite=finite)
                if not reason and loses_nan(node):
                    self._needs_finite.add(node)
        if not reason and not all(sizes.is_bounded(source, self._ranges) for source in (node, *node.all_input_nodes)):
            reason = "it has a size without an upper bound, and ExecuTorch reserves the memory beforehand"
        return reason

    def _refusal(self, node: Node) -> str:
        if reason := why_not_target(node, self._options.exclude):
            return reason
        for source in node.all_input_nodes:
            if source.op == "placeholder" and source.name in self._changed:
                return f"it uses `{source.name}`, which the program changes"
        return ""


def guards_suppressed(program: ExportedProgram) -> ExitStack:
    # reading a size of a program's fake tensors must restrict no symbol
    stack = ExitStack()
    for node in program.graph.find_nodes(op="placeholder"):
        for value in result_tensors(node):
            environment = getattr(getattr(value, "fake_mode", None), "shape_env", None)
            if environment is not None:
                stack.enter_context(environment.suppress_guards())
                return stack
    return stack


def give_form(node: Node, copy: Node) -> None:
    """Turn a copy of an operation into ExecuTorch's form."""
    from executorch.exir.dialects._ops import ops

    target = torch_operator(node.target)
    name = str(target)
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", quantized.LIBRARY):
        return
    if name in sizes.SHAPED and sizes.keeps_shape(node):
        # of the dialect's own clone, XNNPACK's rule asks for no order of dimensions
        copy.target, copy.args, copy.kwargs = ops.edge.dim_order_ops._clone_dim_order.default, copy.args[:1], {}
        return
    if name in sizes.SHAPED and (shape := sizes.inferred_shape(node)) is not None:
        copy.target, copy.args, copy.kwargs = ops.edge.aten.view_copy.default, (copy.args[0], shape), {}
        return
    copy.args = full_arguments(copy)
    target = BINARY.get(name, target)
    copies = any(result.alias_info is not None for result in schema_of(target).returns)
    form = f"{base_name(target)}_copy" if copies else base_name(target)
    with suppress(AttributeError, RuntimeError):  # an operator without such a form is not taken
        packet = getattr(getattr(ops.edge, target.namespace), form)
        copy.target = getattr(packet, overload_name(target))


def xnnpack_partitioner(*, integers: bool, finite: bool) -> Any:
    """Return XNNPACK's partitioner for floating point, and for integers too, with rules of ours before its own."""
    from executorch.backends.xnnpack.partition import xnnpack_partitioner as theirs
    from executorch.backends.xnnpack.partition.config.gemm_configs import GEMMConfig

    partitioner = theirs.XnnpackPartitioner() if integers else theirs.XnnpackFloatingPointPartitioner()
    configs = partitioner.target_partitioner_configs
    for name in ("addmm.default", "mm.default"):
        # ExecuTorch's own way searches the whole graph for each node, for nodes that only older exports contain
        configs[name].get_deps = functools.partial(GEMMConfig.get_deps, configs[name])
    for config in configs.values():
        config.check_constraints = functools.partial(passes, config.check_constraints, finite)
    return partitioner


def passes(theirs: Callable[[Node, ExportedProgram], bool], finite: bool, copy: Node, form: ExportedProgram) -> bool:
    return not why_not_xnnpack_call(copy, form, finite=finite) and theirs(copy, form)


def why_not_xnnpack(
    node: Node, copy: Node, form: ExportedProgram, configs: Mapping[str, object], *, finite: bool
) -> str:
    name = str(torch_operator(node.target))
    if name_in_form(copy) not in configs:
        return f"XNNPACK has no kernel for `{name}`"
    reason = (
        why_not_tensors(node, FLOATS, unbacked=True)
        or why_not_static(copy)
        or why_not_xnnpack_call(copy, form, finite=finite)
    )
    return reason or why_not_rule(node, copy, form, configs)


def why_not_rule(node: Node, copy: Node, form: ExportedProgram, configs: Mapping[str, Any]) -> str:
    config = configs[name_in_form(copy)]
    if config.check_constraints(copy, form):
        return ""
    return f"XNNPACK does not take this call of `{torch_operator(node.target)}`{stated(config, copy)}"


def name_in_form(copy: Node) -> str:
    # without the library: `view_copy.default`
    return ".".join(str(getattr(copy.target, "__name__", copy.target)).split(".")[-2:])


def why_not_whole(node: Node, program: ExportedProgram, constants: Set[str], *, finite: bool) -> str:
    """Return why XNNPACK will never take an operation of an exported program, whatever its neighbours."""
    weight = named_arguments(node).get("weight")
    if isinstance(weight, Node) and weight.name not in constants and not quantized.quantizes(weight):
        return f"its weight `{weight.name}` is not a constant"
    if str(torch_operator(node.target)) == "aten.max_pool2d.default" and (reason := why_not_xnnpack_pool(node)):
        return reason
    formula = formula_of(node)
    reason = why_not_tensors(node, FLOATS, unbacked=True) or why_not_xnnpack_call(node, program, finite=finite)
    return reason or (formula.why_not(node) if formula is not None else "")


def why_not_xnnpack_pool(node: Node) -> str:
    given = complete_arguments(node)
    kernel, stride = ([*given[name], *given[name]][:2] for name in ("kernel_size", "stride"))
    if any(step > size for step, size in zip(stride, kernel, strict=False)):
        return "XNNPACK's windows of a pool leave no gaps"
    is_static = all(isinstance(size, int) for size in node.meta["val"].shape)
    return "" if is_static or not given["ceil_mode"] else "XNNPACK rounds up static sizes only (`ceil_mode`)"


def why_not_xnnpack_call(copy: Node, form: ExportedProgram, *, finite: bool) -> str:
    # XNNPACK's rules allow these calls, which fail or give other results
    name = f"aten.{name_in_form(copy)}"
    value = copy.args[0].meta["val"] if copy.args and isinstance(copy.args[0], Node) else None
    if name == "aten.gelu.default" and copy.kwargs.get("approximate", "none") != "none":
        return "XNNPACK has the exact `aten.gelu.default` only, not the approximation by tanh"
    if name == "aten.hardtanh.default" and len(copy.args) == 2:
        return f"ExecuTorch finds no upper limit of `{name}` where it is the default of 1"
    if name == "aten.convolution.default" and pads_widely(named_arguments(copy)):
        return "XNNPACK adds less than the stride to a transposed convolution's result"
    if name in NEVER:
        return NEVER[name]
    if name in OF_IMAGES and isinstance(value, torch.Tensor) and value.dim() != 4:
        return f"XNNPACK takes `{name}` of tensors with four dimensions only"
    if name in OF_DIMENSIONS and isinstance(value, torch.Tensor) and not value.dim():
        return f"XNNPACK takes `{name}` of tensors with dimensions only"
    if (
        name in RESHAPED
        and sum(not isinstance(size, int) for result in result_tensors(copy) for size in result.shape) > 1
    ):
        return f"XNNPACK's `{name}` gives at most a single size that is known at run time only"
    if name in OF_ROWS and isinstance(value, torch.Tensor) and is_row(value):
        return f"XNNPACK's `{name}` of one dimension takes at most a single size that is known at run time only"
    if name == "aten.upsample_bilinear2d.vec" and not keeps_ratio(copy):
        return f"XNNPACK's `{name}` computes with its sizes only, and the factors are not their ratios"
    if reason := why_not_places(copy, corners=False) or (why_not_linear(copy) if name == "aten.addmm.default" else ""):
        return reason
    if any(isinstance(value, float) and not math.isfinite(value) for value in (*copy.args, *copy.kwargs.values())):
        return f"ExecuTorch cannot write down an infinite argument of `{name}` for XNNPACK"
    if any(value.dim() > LARGEST_RANK for source in (copy, *copy.all_input_nodes) for value in result_tensors(source)):
        return f"XNNPACK takes tensors with {LARGEST_RANK} dimensions at most"
    if any(value.shape.numel() == 0 for value in static_values(copy)):
        return "XNNPACK takes no empty tensor"
    if not finite and xnnpack_differs_for_nan(copy, form):
        return f"XNNPACK's `{name}` gives other results than eager for NaN or infinity, and `finite-only` is false"
    return ""


def pads_widely(given: Mapping[str, Any]) -> bool:
    # eager allows an output padding below the dilation, too; XNNPACK fails in the call
    wide = (more >= step for more, step in zip(given["output_padding"], given["stride"], strict=False))
    return given["transposed"] and any(wide)


def why_not_linear(copy: Node) -> str:
    # XNNPACK's rules write it as a linear layer: a bias of one number per column, and no factors
    given = complete_arguments(copy)
    if any(given[factor] != 1 for factor in ("beta", "alpha")):
        return f"XNNPACK's linear layer leaves out `beta={given['beta']}` and `alpha={given['alpha']}`"
    return "" if given["self"].meta["val"].dim() == 1 else "XNNPACK's linear layer takes a single row of numbers to add"


def is_row(image: torch.Tensor) -> bool:
    # ExecuTorch converts the operand to an image, by a reshape
    return image.dim() == 3 and sum(not isinstance(size, int) for size in image.shape) > 1


def keeps_ratio(copy: Node) -> bool:
    """Return whether an interpolation enlarges as its sizes say, and not by a factor that gives no whole sizes."""
    given = named_arguments(copy)
    if given["align_corners"] or given.get("scale_factors") is None:
        return True
    shape = given["input"].meta["val"].shape[2:]
    factors = zip(shape, given["scale_factors"], strict=True)
    return all(factor == int(factor) or (isinstance(size, int) and size * factor % 1 == 0) for size, factor in factors)


def xnnpack_differs_for_nan(copy: Node, form: ExportedProgram) -> bool:
    return f"aten.{name_in_form(copy)}" in OTHER_SPECIAL_VALUES and not is_fused(copy, form)


def static_values(node: Node) -> list[torch.Tensor]:
    # a batch norm's other results are empty and unused
    values = [value for source in node.all_input_nodes for value in result_tensors(source)]
    values += list(result_tensors(node))[:1]
    return [value for value in values if all(isinstance(size, int) for size in value.shape)]


def why_not_static(copy: Node) -> str:
    name = next((source.name for source in sizes.numbers_of(copy)), "")
    return f"it takes `{name}`, and XNNPACK takes no size or number that is known at run time only" if name else ""


def stated(config: object, copy: Node) -> str:
    # ExecuTorch's rule may give its reason for refusing the node
    for kind in type(config).__mro__:
        why: Any = getattr(sys.modules[kind.__module__], "why", None)
        if getattr(why, "node", None) is copy:
            return f": {why.reason}"
    return ""


def is_fused(copy: Node, form: ExportedProgram) -> bool:
    from executorch.backends.xnnpack._passes.fuse_batch_norm import FuseBatchNormPass

    if "batch_norm" not in name_in_form(copy):
        return False
    source = copy.args[0]
    return isinstance(source, Node) and bool(FuseBatchNormPass.can_fuse(source, copy, form))
