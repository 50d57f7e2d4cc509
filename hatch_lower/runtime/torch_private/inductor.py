"""Inductor: settings, supported operators, C++ and compiled libraries. Inductor is imported late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hatch_lower.runtime.torch_private.older import TellingRunner, is_older
from hatch_lower.runtime.torch_private.operators import OpOverload

if TYPE_CHECKING:
    from torch.fx import GraphModule


@contextmanager
def pinned(settings: Mapping[str, object], vectors: str) -> Iterator[None]:
    """Pin inductor's settings, and the vector registers of generated code; `vectors` names inductor's class."""
    from torch._inductor import config, cpu_vec_isa

    probe = cpu_vec_isa.valid_vec_isa_list
    # late: sympy takes long to import, and running a library does not need sympy
    from hatch_lower.runtime.torch_private.inductor_copies import copies_kept
    from hatch_lower.runtime.torch_private.inductor_numbers import exact_numbers
    from hatch_lower.runtime.torch_private.older import inductor_mended, without_newer

    known: Any = [pinned_vectors(getattr(cpu_vec_isa, vectors))] if vectors else []
    cpu_vec_isa.valid_vec_isa_list = lambda: known  # type: ignore[assignment]
    try:
        with config.patch(without_newer(settings)), exact_numbers(), copies_kept(), inductor_mended():
            yield
    finally:
        cpu_vec_isa.valid_vec_isa_list = probe


def pinned_vectors(kind: type[object]) -> object:
    # `bool` of inductor's own class would compile and run a program, and add other features of this processor
    return type(f"Pinned{kind.__name__}", (kind,), {"__bool__": lambda self: True, "__hash__": kind.__hash__})()


def compile_graph(module: GraphModule, examples: Sequence[torch.Tensor]) -> None:
    """Generate and compile the C++ of a graph; `compiling_with` sets the compiler."""
    from torch._inductor.compile_fx import compile_fx_aot

    compile_fx_aot(module, list(examples))


@contextmanager
def compiling_with(
    compile_code: Callable[..., str], copy_constant: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Replace two functions of inductor: the compiler of a graph's generated code, and the copy of a constant."""
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
    """Return torch's options for a C++ compiler, under the pinned settings."""
    from torch._inductor import cpu_vec_isa
    from torch._inductor.cpp_builder import CppTorchDeviceOptions

    from hatch_lower.runtime.torch_private.older import accepted

    chosen: Any = accepted(CppTorchDeviceOptions, compiler=program)  # otherwise the setting `cpp.cxx` decides
    return CppTorchDeviceOptions(
        vec_isa=cpu_vec_isa.pick_vec_isa(),
        device_type="cpu",
        aot_mode=True,
        compile_only=compile_only,
        min_optimize=min_optimize,
        **chosen,
    )


def is_taken_apart_or_called(operator: OpOverload[..., Any]) -> bool:
    """Return whether inductor decomposes an operator, or has a C function of libtorch for it."""
    from torch._inductor import decomposition
    from torchgen.aoti.fallback_ops import inductor_fallback_ops

    return str(operator) in inductor_fallback_ops or operator in decomposition.decompositions


def is_generated(operator: OpOverload[..., Any]) -> bool | None:
    """Return whether inductor generates C++ for an operator; `None` if inductor has no lowering."""
    from torch._inductor import lowering

    return operator not in lowering.fallbacks if operator in lowering.lowerings else None


def interface_path() -> Path:
    """Return the path of the C++ that inductor puts before every wrapper: the functions for calling a library."""
    return Path(torch.__file__).parent / "_inductor" / "codegen" / "aoti_runtime" / "interface.cpp"


def multiplies_unsigned_bytes() -> bool:
    """Return whether torch multiplies matrices of uint8 and int8; torch 2.11 refuses uint8."""
    left, right = torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.int8)
    try:
        torch.ops.aten._int_mm.default(left, right)
    except RuntimeError:
        return False
    return True


def byte_convolution() -> OpOverload[..., Any]:
    """Return the convolution operator for unsigned bytes, with weights from `packed_weight`."""
    return torch.ops.onednn.qconv_pointwise.tensor


def float_convolution() -> OpOverload[..., Any]:
    """Return the convolution operator for float32, with weights from `packed_weight`."""
    return torch.ops.mkldnn._convolution_pointwise.default


def float_linear() -> OpOverload[..., Any]:
    """Return oneDNN's operator for linear layers of float32."""
    return torch.ops.mkldnn._linear_pointwise.default


def packed_weight(
    weight: torch.Tensor,
    zero_point: int | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
) -> torch.Tensor:
    """Return weights in oneDNN's layout for a 2-d convolution; of float32 if `zero_point` is `None`.

    `size` is the number of images, their height and width. For images of another size, or with another zero point, the
    results are equal, but each call may convert the layout again, in some cases with oneDNN's slowest loop.
    """
    images = [size[0], weight.shape[1] * groups, *size[1:]]
    packed: torch.Tensor
    if zero_point is None:
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, images)
    else:
        ones = torch.ones(len(weight))  # the layout does not depend on scales, which are arguments of each call
        pack = torch.ops.onednn.qconv_prepack
        packed = pack(weight, ones, 1.0, zero_point, stride, padding, dilation, groups, images)
    return packed


def open_library(path: Path) -> Any:
    """Open a compiled library with torch's runner. Raises `RuntimeError` if opening fails."""
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
    return TellingRunner(runner, path) if is_older() else runner


def open_cuda_library(path: Path, device: str) -> Any:
    """Open a compiled library for a GPU (`cuda:0`). Raises `RuntimeError` if opening fails."""
    classes: Any = torch._C._aoti
    runner = classes.AOTIModelContainerRunnerCuda(str(path), 1, device, "")
    return TellingRunner(runner, path) if is_older() else runner
