"""Calls of operators that are compared with eager: those of torch's own samples, some of our own, and variants of both.

The same calls come out in every run: what is drawn at random is seeded, and which calls of an operator are taken does
not depend on what other operators are looked at.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from hatch_lower.backends.interpolation import NEAREST
from hatch_lower.backends.onnxruntime.support import DTYPES, combination_of, why_not_arguments, why_not_digits

Call: TypeAlias = tuple[OpOverload, Any, Any]
"""An operator, its arguments, and those by name."""

SAMPLES = 30
"""How many samples of each of torch's functions are run."""
CALLS_OF_ONE_KIND = 4
"""How many calls are compared of an operator with a combination of dtypes, of each dtype of torch's samples."""
EMPTY_CALLS_OF_ONE_KIND = 1
NAN, INFINITY = float("nan"), float("inf")
TENSORS_WITH_SPECIALS = 4
FINITE_ONLY = frozenset({torch.ops.aten.scaled_dot_product_attention.default})
"""Torch's own kernels of attention do not agree on NaN: that for the CPU gives 0 where the plain formula gives NaN."""
NOT_INFINITE = frozenset({torch.ops.aten.gelu.default})
"""Eager's gelu of float32 gives NaN for infinity; ONNX Runtime gives infinity, as eager does for other dtypes."""
FINITE_PARAMETERS = frozenset(
    {torch.ops.aten._native_batch_norm_legit_no_training.default, torch.ops.aten.native_group_norm.default}
)
"""Normalizations are computed in another order of factors, which shows where a weight is infinite."""


def is_compared(op: OpOverload, args: Any, kwargs: Any) -> bool:
    """Return whether the backend might take such a call, whatever its dtypes are found to give."""
    values = pytree.tree_leaves((args, kwargs))
    tensors = [each for each in values if isinstance(each, torch.Tensor)]
    known = all(each.dtype in DTYPES and each.layout is torch.strided for each in tensors)
    return known and not (why_not_arguments(op, args, kwargs) or why_not_digits(tensors, values))


def has_elements(*values: Any) -> bool:
    """Return whether all tensors among some values have elements."""
    return all(each.numel() for each in pytree.tree_leaves(values) if isinstance(each, torch.Tensor))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the different calls of some operators, also those that composites are made of.

    Tensors are kept as they are when a call is made; what comes after may change them.

    Args:
        wanted: the operators.
    """

    def __init__(self, wanted: frozenset[OpOverload]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wanted = wanted
        self.calls: dict[tuple[str, str, bool], dict[str, Call]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func not in self.wanted or not is_compared(func, args, given):
            return func(*args, **given)
        kept = pytree.tree_map_only(torch.Tensor, lambda each: each.detach().clone(), (args, given))
        result = func(*args, **given)
        kind = str(func), combination_of(args, given, result), has_elements(args, given, result)
        shapes = pytree.tree_map_only(torch.Tensor, lambda each: tuple(each.shape), (args, given))
        self.calls.setdefault(kind, {}).setdefault(repr(shapes), (func, *kept))
        return result


@contextmanager
def reproducible() -> Iterator[None]:
    """Let memory that nobody has written be the same in each run, as long as the context lasts."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def sample_calls(ops: Iterable[OpOverload], dtype: torch.dtype) -> Iterator[Call]:
    """Yield calls of operators that torch's samples of a dtype make.

    Args:
        ops: which operators.
        dtype: of the samples; their calls may have others, too.
    """
    from torch.testing._internal import common_methods_invocations

    op_db: list[Any] = common_methods_invocations.op_db
    recorder = Recorder(frozenset(ops))
    for info in op_db:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        # a sample that this torch cannot run ends those of its function
        with suppress(Exception), reproducible(), torch.no_grad():
            for sample in islice(info.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
                with recorder:
                    info(sample.input, *sample.args, **sample.kwargs)
    for (_, _, full), calls in sorted(recorder.calls.items()):
        yield from spread(list(calls.values()), CALLS_OF_ONE_KIND if full else EMPTY_CALLS_OF_ONE_KIND)


def spread(calls: Sequence[Call], count: int) -> list[Call]:
    """Return some calls, as far from each other as can be: neighbours are of one function and much alike.

    Of each set of arguments that are given, there is one at least.
    """
    if len(calls) <= count:
        return list(calls)
    taken = {index * len(calls) // count for index in range(count)}
    forms: dict[Any, list[int]] = {}
    for index, (_, args, kwargs) in enumerate(calls):
        forms.setdefault((*map(type, args), *sorted(kwargs)), []).append(index)
    taken |= {places[len(places) // 2] for places in forms.values() if not taken.intersection(places)}
    return [calls[index] for index in sorted(taken)]


def own_calls() -> Iterator[Call]:
    """Yield calls that torch's samples lack."""
    torch.manual_seed(0)
    yield from conversions()
    for dtype in DTYPES:
        yield from movements(dtype)
        yield from comparisons(dtype)
        yield from reductions(dtype)
    for dtype in (torch.float16, torch.float32, torch.float64):
        yield from computations(dtype)
        yield from selections(dtype)
    for dtype in (torch.uint8, torch.float16, torch.float32):
        yield from interpolations(dtype)
    yield from quantizations()
    for dtype in (torch.float16, torch.float32, torch.float64):
        yield from recurrences(dtype)


def selections(dtype: torch.dtype) -> Iterator[Call]:
    """Yield calls that choose among many elements; as whole numbers, most are equal to others."""
    aten = torch.ops.aten
    for values in (torch.randn(5000).to(dtype), torch.randn(300, 40).to(dtype)):
        for dim in range(values.dim()):
            for chosen in (aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim):
                yield chosen, (values, dim), {}
            yield aten.sort.default, (values, dim), {}
            yield aten.sort.stable, (values,), {"stable": True, "dim": dim}
            yield aten.topk.default, (values, 30, dim), {}
    image = torch.randn(1, 3, 40, 40).to(dtype)
    yield aten.max_pool2d_with_indices.default, (image, [3, 3], [2, 2], [1, 1]), {}
    yield aten.max_pool3d_with_indices.default, (image, [3, 3, 3], [2, 2, 2], [1, 1, 1]), {}


def interpolations(dtype: torch.dtype) -> Iterator[Call]:
    """Yield calls that take the nearest element, among them those whose places rounding decides on."""
    image = torch.randint(0, 200, (2, 3, 4, 26, 15)).to(dtype)
    for rank, op in enumerate(NEAREST, 3):
        given = image.select(2, 0) if rank < 5 else image
        given = given.select(2, 0) if rank < 4 else given
        for sizes in ([8, 64, 30], [4, 14, 11], [2, 13, 45]):
            yield op, (given, sizes[5 - rank :], None), {}
        for factors in ([2.0, 2.0, 2.0], [0.5, 1.5, 3.0]):
            yield op, (given, None, factors[5 - rank :]), {}


def conversions() -> Iterator[Call]:
    """Yield calls from each dtype to each."""
    aten = torch.ops.aten
    for source in DTYPES:
        for target in DTYPES:
            values = torch.tensor([[0, 1, 2], [3, 5, 100]]).to(source)
            yield aten._to_copy.default, (values,), {"dtype": target}
            yield aten.scalar_tensor.default, (1,), {"dtype": target}


def comparisons(dtype: torch.dtype) -> Iterator[Call]:
    """Yield comparisons with numbers."""
    aten = torch.ops.aten
    values = torch.tensor([[0, 1, 2], [3, 5, 100]]).to(dtype)
    for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge):
        yield packet.Scalar, (values, 2), {}
    yield aten.cumsum.default, (values, 1), {}
    if dtype is not torch.bool:
        for bounds in ((1, 4), (None, 4), (2,), (5, 1)):
            yield aten.clamp.default, (values, *bounds), {}


def reductions(dtype: torch.dtype) -> Iterator[Call]:
    """Yield sums and products of integers that wrap around in eager."""
    aten = torch.ops.aten
    if dtype.is_floating_point or dtype is torch.bool:
        return
    extremes = torch.iinfo(dtype)
    values = torch.tensor([[3] * 40, [extremes.max] * 40, [extremes.min + 1] * 40]).to(dtype)
    for kwargs in ({}, {"dtype": torch.int32}) if dtype is torch.int32 else ({},):
        for reduction in (aten.sum.default, aten.prod.default):
            yield reduction, (values,), kwargs
        for dim in (0, 1):
            yield aten.sum.dim_IntList, (values, [dim]), kwargs
            yield aten.prod.dim_int, (values, dim), kwargs


def movements(dtype: torch.dtype) -> Iterator[Call]:
    """Yield calls that take elements of any dtype from place to place."""
    aten = torch.ops.aten
    values = torch.arange(24).reshape(1, 2, 3, 4, 1).to(dtype)
    places = torch.tensor([[1, 0], [-1, 1]]), torch.tensor([0, 1])
    yield aten.alias.default, (values,), {}
    yield aten.squeeze.dims, (values, [0]), {}
    yield aten.squeeze.dims, (values, [0, 1, -1]), {}
    for dims in ([1], [-2, 2], [0, 1, 2, 3, 4]):
        for reduction in (aten.amax.default, aten.amin.default):
            yield reduction, (values, dims), {}
            yield reduction, (values, dims, True), {}
    for indices in ([places[1]], [None, places[0]], [places[1] * 0, places[1]], [None, None, None, places[1]]):
        yield aten.index.Tensor, (values, indices), {}
    yield aten.squeeze.dim, (values, 0), {}
    yield aten.squeeze.dim, (values, 1), {}
    for source in (values.flip(3), values[..., :1, :], values[0, 0, 0, 0]):
        yield aten.copy.default, (values, source), {}
    for condition in (values > 3, values[0, 0, 0, 0] > -1):
        yield aten.where.self, (condition, values, values.flip(3)), {}


def computations(dtype: torch.dtype) -> Iterator[Call]:
    """Yield calls of what networks are made of."""
    aten = torch.ops.aten
    x, w, b = (torch.randn(*shape).to(dtype) for shape in ((2, 5, 8), (6, 8), (6,)))
    for given in (x, x[0], x[0, 0]):
        yield aten.linear.default, (given, w, b), {}
        yield aten.linear.default, (given, w), {}
    yield aten.layer_norm.default, (x, [8], torch.rand(8).to(dtype), torch.randn(8).to(dtype)), {}
    yield aten.layer_norm.default, (x, [5, 8]), {}
    yield aten.layer_norm.default, (x, [8], None, None, 1e-3), {}
    for reduced in ([1], [-1, 0], None):
        for correction in (None, 0, 1, 2.5, 9):
            yield aten.var.correction, (x, reduced), {"correction": correction}
            yield aten.var.correction, (x, reduced), {"correction": correction, "keepdim": True}
    for reduced in ([2], [-1, -2], [0]):
        yield aten.mean.dim, (x, reduced), {}
        yield aten.mean.dim, (x, reduced, True), {}
    for base in (2, 10000.0, 0.1, -2):
        yield aten.pow.Scalar, (base, x), {}
    for power in (2, 3, -1, 2.0, 1.5):
        yield aten.pow.Tensor_Scalar, (x, power), {}
    yield aten.clamp.default, (x, 0.5), {}  # bounds that are integers have another translation
    yield aten.clamp.default, (x, None, 0.5), {}
    yield aten.gelu.default, (x,), {}
    yield aten.gelu.default, (x,), {"approximate": "tanh"}
    yield aten.addmm.default, (b, x[0], w.t()), {}
    yield aten.addmm.default, (torch.randn(5, 6).to(dtype), x[0], w.t()), {}
    image, ones = torch.randn(2, 6, 4, 3).to(dtype), torch.rand(6).to(dtype) + 0.5
    for given in (image, image[..., 0], image[..., 0, 0]):
        yield aten._native_batch_norm_legit_no_training.default, (given, ones, b, b, ones, 0.1, 1e-5), {}
        yield aten._native_batch_norm_legit_no_training.default, (given, None, None, b, ones, 0.1, 1e-3), {}
    for groups in (1, 2, 6):
        yield aten.native_group_norm.default, (image, ones, b, 2, 6, 12, groups, 1e-5), {}
        yield aten.native_group_norm.default, (image, None, None, 2, 6, 12, groups, 1e-3), {}
    for factors in ([2.0, 2.0], [0.5, 1.5]):
        yield aten.upsample_bilinear2d.vec, (image, None, False, factors), {}
        yield aten.upsample_bilinear2d.vec, (image, [5, 7], True, None), {}
    q, k, v = (torch.randn(2, 3, length, 4).to(dtype) for length in (5, 7, 7))
    yield aten.scaled_dot_product_attention.default, (q, k, v), {}
    yield aten.scaled_dot_product_attention.default, (q, k, v), {"scale": 0.3}
    yield aten.scaled_dot_product_attention.default, (q, q, q, None, 0.0, True), {}
    yield aten.scaled_dot_product_attention.default, (q, k, v, None, 0.0, True), {}
    yield aten.scaled_dot_product_attention.default, (k, q, q, None, 0.0, True), {}
    seen = torch.rand(2, 3, 5, 7) > 0.4
    seen[:, :, 1] = False
    for mask in (seen, seen[:, :1], seen[0], seen[0, 0], seen[:, :1, 2:3], seen[:1, :1, :, 2:3]):
        yield aten.scaled_dot_product_attention.default, (q, k, v, mask), {}


def recurrences(dtype: torch.dtype) -> Iterator[Call]:
    """Yield calls of recurrent networks: of one and two layers and directions, with and without biases."""
    aten = torch.ops.aten
    for op, gates in ((aten.lstm.input, 4), (aten.gru.input, 3), (aten.rnn_tanh.input, 1), (aten.rnn_relu.input, 1)):
        for layers, both, biased, first in ((1, False, True, False), (2, True, True, True), (2, False, False, True)):
            directions, rows = 1 + both, []
            for layer in range(layers):
                width = 5 * directions if layer else 3
                shapes = [(gates * 5, width), (gates * 5, 5), *([(gates * 5,)] * (2 * biased))]
                rows += shapes * directions
            params = [torch.randn(shape).to(dtype) / 2 for shape in rows]
            state = [torch.randn(layers * directions, 2, 5).to(dtype) for _ in range(2)]
            given = torch.randn((2, 7, 3) if first else (7, 2, 3)).to(dtype)
            begin = state if op is aten.lstm.input else state[0]
            yield op, (given, begin, params, biased, layers, 0.0, False, both, first), {}


def quantizations() -> Iterator[Call]:
    """Yield calls by which PT2E quantizes; scales are powers of two where numbers lie between two steps."""
    ops = torch.ops.quantized_decomposed
    numbers, halves = torch.randn(4, 6, 5), torch.arange(-300, 300).reshape(6, 100) / 2
    scales, table = torch.tensor([0.5, 1.0, 2.0, 0.25, 4.0, 1.0]), torch.arange(-60, 60).reshape(4, 6, 5)
    for dtype, zero_points in ((torch.int8, [0, 3, -128, 127, 1, -5]), (torch.uint8, [0, 3, 255, 128, 1, 5])):
        limits, zeros = torch.iinfo(dtype), torch.tensor(zero_points)
        rows, columns = torch.arange(-60, 60).reshape(4, 30).to(dtype), torch.arange(-75, 75).reshape(5, 30)
        yield torch.ops.aten._int_mm.default, (rows, columns.to(torch.int8).t()), {}
        codes = table.to(dtype)
        for low, high in ((limits.min, limits.max), (limits.min + 1, limits.max - 3)):
            given = low, high, dtype
            for scale, zero_point in ((0.0213, zero_points[1]), (1.0, 0)):
                pair = torch.tensor([scale], dtype=torch.float64), torch.tensor([zero_point])
                for values in (numbers, halves, numbers[0, 0, 0]):
                    yield ops.quantize_per_tensor.default, (values, scale, zero_point, *given), {}
                    yield ops.quantize_per_tensor.tensor, (values, *pair, *given), {}
                yield ops.dequantize_per_tensor.default, (codes, scale, zero_point, *given), {}
                yield ops.dequantize_per_tensor.tensor, (codes, *pair, *given), {}
            yield ops.quantize_per_channel.default, (halves, scales, zeros, 0, *given), {}
            yield ops.quantize_per_channel.default, (numbers, scales, zeros, 1, *given), {}
            yield ops.dequantize_per_channel.default, (codes, scales, zeros, 1, *given), {}
            for values in (numbers, numbers * 0, numbers.abs(), -numbers.abs(), numbers * 1e-6):
                yield ops.choose_qparams.tensor, (values, low, high, 2.0**-12, dtype), {}


def special_calls(op: OpOverload, args: Any, kwargs: Any, *, floating: bool) -> Iterator[Call]:
    """Yield a call with special values at several places of each of its tensors.

    Kernels pass over NaN at some places only: the greatest element may be NaN if the first is, and not if another is.

    Args:
        op: the operator.
        args: of the call.
        kwargs: of the call.
        floating: NaN and each infinity in its floating tensors; else the extremes in those of integers, and whole
            numbers in floating ones: where elements are equal, it shows which of them is taken.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    numbers = [
        index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dtype != torch.bool
    ]
    first_only = op in FINITE_PARAMETERS or op.namespace == "quantized_decomposed"
    for index in numbers[: 1 if first_only else TENSORS_WITH_SPECIALS]:
        for changed in special_tensors(op, leaves[index], floating=floating):
            given, named = pytree.tree_unflatten([*leaves[:index], changed, *leaves[index + 1 :]], spec)
            yield op, given, named


def special_tensors(op: OpOverload, tensor: torch.Tensor, *, floating: bool) -> Iterator[torch.Tensor]:
    """Yield what stands for a tensor of a call, in contiguous memory."""
    dense = tensor.detach().clone(memory_format=torch.contiguous_format)
    if dense.is_floating_point() and not floating:
        yield dense.round()
    if dense.is_floating_point() is floating:
        for values in special_values(op, dense):
            changed = dense.clone()
            changed.view(-1)[list(values)] = torch.tensor(list(values.values()), dtype=changed.dtype)
            yield changed


def special_values(op: OpOverload, tensor: torch.Tensor) -> list[dict[int, float]]:
    """Return values by their places in a tensor."""
    last = tensor.numel() - 1
    if not tensor.is_floating_point():
        # not the least one: eager's division of it by -1 ends the process
        extremes = torch.iinfo(tensor.dtype)
        return [{0: extremes.max, last: -extremes.max if extremes.min else 0}]
    if op in FINITE_ONLY:
        return []
    places: list[dict[int, float]] = [{0: NAN}, {last // 2: NAN}, {last: NAN}]
    if op not in NOT_INFINITE:
        places += [{0: INFINITY, last: -INFINITY}, {last // 2: INFINITY}, {last // 2: -INFINITY}]
        places += [dict.fromkeys(range(last + 1), -INFINITY)]
    return places


def calls_without_elements(op: OpOverload, args: Any, kwargs: Any) -> Iterator[Call]:
    """Yield a call with the first, and one with the last dimension of its tensors cut to no elements."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
    for dim in (0, -1) if shapes else ():
        size = shapes[0][dim]
        cut = [
            leaf.narrow(dim, 0, 0) if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[dim] == size else leaf
            for leaf in leaves
        ]
        given, named = pytree.tree_unflatten(cut, spec)
        yield op, given, named
