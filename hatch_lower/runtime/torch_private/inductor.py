"""Inductor: its settings, what it can lower, its C++, and libraries made of that. It imports inductor late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hatch_lower.runtime.torch_private.operators import OpOverload

if TYPE_CHECKING:
    from torch.fx import GraphModule


@contextmanager
def pinned(settings: Mapping[str, object], vectors: str) -> Iterator[None]:
    """Pin inductor's settings, and the vector registers of generated code by the name of inductor's class for them."""
    from torch._inductor import config, cpu_vec_isa

    probe = cpu_vec_isa.valid_vec_isa_list
    # sympy takes long to import, and running a library needs none
    from hatch_lower.runtime.torch_private.inductor_numbers import exact_numbers

    known: Any = [pinned_vectors(getattr(cpu_vec_isa, vectors))] if vectors else []
    cpu_vec_isa.valid_vec_isa_list = lambda: known  # type: ignore[assignment]
    try:
        with config.patch(dict(settings)), exact_numbers():
            yield
    finally:
        cpu_vec_isa.valid_vec_isa_list = probe


def pinned_vectors(kind: type[object]) -> object:
    # Asked whether vector registers are there, inductor would compile and run a program, and add what else this
    # machine's processor has
    return type(f"Pinned{kind.__name__}", (kind,), {"__bool__": lambda self: True, "__hash__": kind.__hash__})()


def lower(module: GraphModule, examples: Sequence[torch.Tensor]) -> None:
    """Generate and compile the C++ of a graph; `compiling_with` says what compiling is."""
    from torch._inductor.compile_fx import compile_fx_aot

    compile_fx_aot(module, list(examples))


@contextmanager
def compiling_with(
    compile_code: Callable[..., str], copy_constant: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Replace what compiles a graph, its wrapper, its kernels and what C++ cannot call, and what copies a constant."""
    from torch._inductor import codecache, compile_fx

    compiler: Any = codecache.AotCodeCompiler
    replaced, clone = compiler.__dict__["compile"], compile_fx.clone_preserve_strides  # type: ignore[attr-defined]
    compiler.compile = staticmethod(compile_code)
    compile_fx.clone_preserve_strides = copy_constant  # type: ignore[assignment,attr-defined]
    try:
        yield
    finally:
        compiler.compile = replaced
        compile_fx.clone_preserve_strides = clone  # type: ignore[attr-defined]


def nodes_of_kernels() -> Mapping[str, Sequence[str]]:
    """Return the names of the nodes that each generated kernel, or call of libtorch, computes."""
    from torch._inductor import debug

    kernels: Mapping[str, Sequence[str]] = debug._inductor_triton_kernel_to_post_grad_node_info
    return kernels


def compiler_options(program: str, *, compile_only: bool, min_optimize: bool) -> Any:
    """Return torch's own options for a C++ compiler, under the pinned settings."""
    from torch._inductor import cpu_vec_isa
    from torch._inductor.cpp_builder import CppTorchDeviceOptions

    return CppTorchDeviceOptions(
        vec_isa=cpu_vec_isa.pick_vec_isa(),
        device_type="cpu",
        aot_mode=True,
        compile_only=compile_only,
        min_optimize=min_optimize,
        compiler=program,
    )


def is_taken_apart_or_called(operator: OpOverload[..., Any]) -> bool:
    """Return whether inductor decomposes an operator, or has a C function of libtorch for it."""
    from torch._inductor import decomposition
    from torchgen.aoti.fallback_ops import inductor_fallback_ops

    return str(operator) in inductor_fallback_ops or operator in decomposition.decompositions


def is_generated(operator: OpOverload[..., Any]) -> bool | None:
    """Return whether inductor writes C++ for an operator; `None` if it has no lowering for it at all."""
    from torch._inductor import lowering

    return operator not in lowering.fallbacks if operator in lowering.lowerings else None


def interface_path() -> Path:
    """Return the C++ that inductor puts in front of every wrapper: the functions by which a library is called."""
    return Path(torch.__file__).parent / "_inductor" / "codegen" / "aoti_runtime" / "interface.cpp"


def byte_convolution() -> OpOverload[..., Any]:
    """Return the operator that convolves bytes without a sign, with weights as `packed_weight` gives them."""
    return torch.ops.onednn.qconv_pointwise.tensor


def float_convolution() -> OpOverload[..., Any]:
    """Return the operator that convolves numbers of float32, with weights as `packed_weight` gives them."""
    return torch.ops.mkldnn._convolution_pointwise.default


def packed_weight(
    weight: torch.Tensor,
    zero_point: int | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
) -> torch.Tensor:
    """Return weights as oneDNN lays them out for a convolution in two dimensions: of float32 without a zero point.

    `size` is the number of images, their height and width. With a layout for others, or for another zero point, the
    numbers are the same, but each call may lay them out again: with the slowest of oneDNN's loops for some.
    """
    images = [size[0], weight.shape[1] * groups, *size[1:]]
    packed: torch.Tensor
    if zero_point is None:
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, images)
    else:
        ones = torch.ones(len(weight))  # scales are given in each call: the layout is the same for all
        pack = torch.ops.onednn.qconv_prepack
        packed = pack(weight, ones, 1.0, zero_point, stride, padding, dilation, groups, images)
    return packed


def open_library(path: Path) -> Any:
    """Return what runs a compiled library; it raises a `RuntimeError` if that cannot be opened."""
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
