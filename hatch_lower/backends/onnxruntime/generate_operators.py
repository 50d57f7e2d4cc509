"""Make `operators.json`: for which dtypes the translation of an operator gives eager's results.

`python -m hatch_lower.backends.onnxruntime.generate_operators` writes the table anew. Torch's own samples of calls are
run; each call of an operator that the exporter translates is run by ONNX Runtime too, with NaN and infinities in it as
well. A combination of dtypes is in the table if all its calls gave eager's results.
"""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx import Graph
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from hatch_lower.backends.onnxruntime.probe import call_model, make_session
from hatch_lower.backends.onnxruntime.support import (
    DTYPES,
    FIRST_ONLY,
    KEPT,
    LIMITS,
    combination_of,
    walk,
    why_not_arguments,
)
from hatch_lower.backends.onnxruntime.translate import registry
from hatch_lower.errors import BackendError

__all__ = ["Findings", "examine_samples", "write_table"]

CALLS_OF_ONE_KIND = 4
SAMPLES = 30
EMPTY_CALLS = 1
TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float16: (4e-3, 2e-3),
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
NAN, INFINITY = float("nan"), float("inf")
TENSORS_WITH_SPECIALS = 4
FINITE_ONLY = frozenset({torch.ops.aten.scaled_dot_product_attention.default})
"""Torch's own kernels of attention do not agree on NaN: that for the CPU gives 0 where the plain formula gives NaN."""
NOT_INFINITE = frozenset({torch.ops.aten.gelu.default})
"""Eager's gelu of float32 gives NaN for infinity; ONNX Runtime gives infinity, as eager does for other dtypes."""
FINITE_PARAMETERS = frozenset(
    {torch.ops.aten._native_batch_norm_legit_no_training.default, torch.ops.aten.native_group_norm.default}
)
"""Normalisations are computed in another order of factors, which shows where a weight is infinite."""
NOT_COMPARED = ("empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "resize", "sym_")
NOT_TAKEN = ("grid_sampler", "_fft")
"""Operators whose translations are functions for an older operator set, of which a part means something else now."""


def operators() -> list[OpOverload]:
    """Return the functional overloads that the exporter translates, by name."""
    found = []
    for name in registry().functions:
        namespace, _, rest = str(name).partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
        if namespace in ("aten", "prims") and isinstance(op, OpOverload) and is_candidate(op):
            found.append(op)
    return sorted(found, key=str)


def is_candidate(op: OpOverload) -> bool:
    """Return whether an operator's result can be compared."""
    random_ = torch.Tag.nondeterministic_seeded in op.tags and op not in KEPT
    if op in LIMITS:
        return True
    dynamic = torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags
    return not (op._opname.startswith(NOT_COMPARED + NOT_TAKEN) or op._schema.is_mutable or random_ or dynamic)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the calls of some operators, those of composites before they are taken apart.

    Args:
        wanted: the operators.
    """

    def __init__(self, wanted: frozenset[OpOverload]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wanted = wanted
        self.calls: list[tuple[OpOverload, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in self.wanted:
            self.calls.append((func, args, given))
        return func(*args, **given)


def sample_calls(
    ops: Iterable[OpOverload], dtype: torch.dtype, names: frozenset[str] | None = None
) -> Iterator[tuple[OpOverload, Any, Any]]:
    """Yield calls of operators: those that torch's samples of a dtype make, those of composites too.

    Args:
        ops: which operators.
        dtype: of the samples.
        names: of torch's sampled functions, to be quick; `None`: all.
    """
    from torch.testing._internal import common_methods_invocations

    op_db: list[Any] = common_methods_invocations.op_db
    wanted = frozenset(ops)
    for info in op_db:
        if (names is not None and info.name not in names) or dtype not in info.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        random.seed(0)
        recorder = Recorder(wanted)
        # a sample that this torch cannot run ends those of its function
        with suppress(Exception), recorder, torch.no_grad():
            for sample in islice(info.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
                info(sample.input, *sample.args, **sample.kwargs)
        yield from recorder.calls


def own_calls() -> Iterator[tuple[OpOverload, Any, Any]]:
    """Yield calls that torch's samples lack."""
    aten = torch.ops.aten
    for source in DTYPES:
        for target in DTYPES:
            values = torch.tensor([[0, 1, 2], [3, 5, 100]]).to(source)
            yield aten._to_copy.default, (values,), {"dtype": target}
            yield aten.scalar_tensor.default, (1,), {"dtype": target}
    for dtype in DTYPES:
        values = torch.arange(24).reshape(1, 2, 3, 4, 1).to(dtype)
        places = torch.tensor([[1, 0], [-1, 1]]), torch.tensor([0, 1])
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
        for condition in (values > 3, values[0, 0, 0, 0] > -1):
            yield aten.where.self, (condition, values, values.flip(3)), {}
    for dtype in (torch.float16, torch.float32, torch.float64):
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
            yield aten.upsample_nearest2d.vec, (image, None, factors), {}
            yield aten.upsample_bilinear2d.vec, (image, None, False, factors), {}
            yield aten.upsample_bilinear2d.vec, (image, [5, 7], True, None), {}
        q, k, v = (torch.randn(2, 3, length, 4).to(dtype) for length in (5, 7, 7))
        yield aten.scaled_dot_product_attention.default, (q, k, v), {}
        yield aten.scaled_dot_product_attention.default, (q, k, v), {"scale": 0.3}
        yield aten.scaled_dot_product_attention.default, (q, q, q, None, 0.0, True), {}
        yield aten.scaled_dot_product_attention.default, (q, k, v, None, 0.0, True), {}
        yield aten.scaled_dot_product_attention.default, (k, q, q, None, 0.0, True), {}


def special_calls(op: OpOverload, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a call with NaN and each infinity at several places of each of its tensors of floats.

    Kernels pass over NaN at some places only: the greatest element may be NaN if the first is, and not if another is.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    floats = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    for index in floats[: 1 if op in FINITE_PARAMETERS else TENSORS_WITH_SPECIALS]:
        last = leaves[index].numel() - 1
        places = [{0: NAN}, {last // 2: NAN}, {last: NAN}]
        if op not in NOT_INFINITE:
            places += [{0: INFINITY, last: -INFINITY}, {last // 2: INFINITY}, {last // 2: -INFINITY}]
            places += [dict.fromkeys(range(last + 1), -INFINITY)]
        for values in places if last >= 0 and op not in FINITE_ONLY else ():
            changed = leaves[index].detach().clone(memory_format=torch.contiguous_format)
            changed.view(-1)[list(values)] = torch.tensor(list(values.values()), dtype=changed.dtype)
            yield pytree.tree_unflatten([*leaves[:index], changed, *leaves[index + 1 :]], spec)


def empty_calls(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a call with the first, and one with the last dimension of its tensors cut to no elements."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim), None)
    for dim in (0, -1) if first is not None else ():
        assert first is not None
        size = first.shape[dim]

        def cut(leaf: Any, dim: int = dim, size: int = size) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[dim] == size:
                return leaf.narrow(dim, 0, 0)
            return leaf

        if size:
            yield pytree.tree_unflatten([cut(leaf) for leaf in leaves], spec)


class Checker:
    """ONNX Runtime's session for one call, which other calls with the same dtypes and shapes may take, too.

    Args:
        op: the operator.
        args: of the call.
        kwargs: of the call.

    Raises:
        BackendError: if the call cannot be translated.
        Exception: ONNX Runtime's own, if it refuses the model.
    """

    def __init__(self, op: OpOverload, args: Any, kwargs: Any) -> None:
        self.op = op
        fakes = FakeTensorMode()
        graph = Graph()

        def enter(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            node = graph.placeholder(f"x{len(graph.nodes)}")
            node.meta["val"] = fakes.from_tensor(value)
            return node

        given, named = pytree.tree_map(enter, (args, kwargs))
        call = graph.create_node("call_function", op, tuple(given), dict(named), name="n")
        call.meta["val"] = pytree.tree_map(
            lambda value: fakes.from_tensor(value) if isinstance(value, torch.Tensor) else value, run(op, args, kwargs)
        )
        graph.output((call,))
        self.session = make_session(call_model(graph))

    def why_different(self, args: Any, kwargs: Any) -> str:
        """Return how the results of a call differ from eager's, or an empty string."""
        wanted = [each for each in walk(run(self.op, args, kwargs)) if isinstance(each, torch.Tensor)]
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        feed = {f"x{index}": each.detach().contiguous().numpy() for index, each in enumerate(tensors)}
        results = [torch.from_numpy(each) for each in walk(self.session.run(None, feed))]
        compared = 1 if self.op in FIRST_ONLY else max(len(wanted), len(results))
        return why_different(results[:compared], wanted[:compared])


def run(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """Return eager's results of a call."""
    with torch.no_grad():
        return op(*args, **kwargs)


def check_call(op: OpOverload, args: Any, kwargs: Any) -> str:
    """Return why ONNX Runtime does not give eager's results for a call, also with NaN and infinities, or nothing."""
    try:
        checker = Checker(op, args, kwargs)
        if why := checker.why_different(args, kwargs):
            return why
        for special in special_calls(op, args, kwargs):
            if why := checker.why_different(*special):
                return f"with NaN or infinities: {why}"
    except BackendError as error:
        return error.found.splitlines()[0]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def check_empty(op: OpOverload, args: Any, kwargs: Any) -> str:
    """Return why ONNX Runtime does not give eager's results for tensors without elements, or an empty string."""
    for given in empty_calls(args, kwargs):
        try:
            run(op, *given)
            checker = Checker(op, *given)
        except (
            Exception
        ):  # eager takes no such call, or a session of it cannot be made: then the partitioner refuses it
            continue
        try:
            why = checker.why_different(*given)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if why:
            return why
    return ""


def why_different(results: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    """Return how results differ from eager's, or an empty string."""
    if len(results) != len(expected):
        return f"{len(results)} results for {len(expected)}"
    for result, wanted in zip(results, expected, strict=True):
        if result.dtype == wanted.dtype and torch.equal(result, wanted):
            continue
        rtol, atol = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(
                result, wanted.contiguous(), rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return " ".join(str(error).split())
    return ""


@dataclass(slots=True)
class Findings:
    """What was found for some calls.

    Args:
        fitting: operators and combinations of dtypes whose calls gave eager's results.
        failures: why other combinations did not, by operator and combination.
        empty: why operators do not give eager's results for tensors without elements.
    """

    fitting: set[tuple[str, str]] = field(default_factory=set)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    empty: dict[str, str] = field(default_factory=dict)

    def add(self, other: Findings) -> None:
        """Take what was found for other calls; a failure counts more than calls that fit."""
        self.failures = {**other.failures, **self.failures}
        self.fitting = {each for each in self.fitting | other.fitting if each not in self.failures}
        self.empty = {**other.empty, **self.empty}

    def table(self) -> dict[str, Any]:
        """Return the combinations of each operator, and the operators that are not for tensors without elements."""
        operators: dict[str, list[str]] = {}
        for name, combination in sorted(self.fitting):
            operators.setdefault(name, []).append(combination)
        return {"operators": operators, "not empty": sorted(operators.keys() & self.empty.keys())}


def examine(calls: Iterable[tuple[OpOverload, Any, Any]]) -> Findings:
    """Return what is found for calls. Of each combination of dtypes the first few are tried."""
    found = Findings()
    counts: dict[tuple[str, str], int] = {}
    for op, args, kwargs in calls:
        tensors = [each for each in walk((args, kwargs)) if isinstance(each, torch.Tensor)]
        if any(each.dtype not in DTYPES or each.layout is not torch.strided for each in tensors):
            continue
        if why_not_arguments(op, args, kwargs):
            continue
        try:
            key = str(op), combination_of(op, args, kwargs, run(op, args, kwargs))
        except Exception:  # recorded before another call changed what it was given
            continue
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > CALLS_OF_ONE_KIND or key in found.failures:
            continue
        if why := check_call(op, args, kwargs):
            found.failures[key] = why
        elif counts[key] <= EMPTY_CALLS and str(op) not in found.empty and (why := check_empty(op, args, kwargs)):
            found.empty[str(op)] = why
    found.fitting = counts.keys() - found.failures.keys()
    return found


def examine_samples(dtype: torch.dtype | None, names: frozenset[str] | None = None) -> Findings:
    """Return what is found for the samples of one dtype; `None`: for the calls that torch's samples lack."""
    torch.set_num_threads(1)
    ops = operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtype is not None:
            return examine(sample_calls(ops, dtype, names))
        return examine(call for call in own_calls() if call[0] in ops)


def write_table(path: Path, processes: int) -> Findings:
    """Write the table of all operators, and return what was found."""
    found = Findings()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(examine_samples, [torch.float32, torch.float64, torch.float16, None, *DTYPES[:6]]):
            found.add(part)
    versions = {name: version(name).partition("+")[0] for name in ("onnxruntime", "onnxscript", "torch")}
    text = json.dumps({"versions": versions, **found.table()}, indent=0, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")
    return found


if __name__ == "__main__":
    everything = write_table(Path(__file__).with_name("operators.json"), os.cpu_count() or 1)
    for (name, combination), reason in everything.failures.items():
        print(f"{name} {combination}: {reason[:200]}")
    for name, reason in everything.empty.items():
        print(f"{name} without elements: {reason[:200]}")
