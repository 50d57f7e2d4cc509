"""Make `operators.json`: for which dtypes the translation of an operator gives eager's results.

`python -m hatch_lower.backends.onnxruntime.generate_operators` writes the table anew. Torch's own samples of calls are
run; each call of an operator that the exporter translates is run by ONNX Runtime too, with NaN and infinities in it as
well. A combination of dtypes is in the table if all its calls gave eager's results.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
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

__all__ = ["check_call", "fitting_combinations", "operators", "sample_calls", "write_table"]

CALLS_OF_ONE_KIND = 8
TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float16: (4e-3, 2e-3),
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0)
FINITE_ONLY = (torch.ops.aten.gelu.default, torch.ops.aten.scaled_dot_product_attention.default)
"""Operators that no transformer can do without, and that are compared on finite numbers only. Torch's own kernels of
attention do not agree on NaN; gelu of negative infinity is NaN in eager, and 0 in ONNX Runtime."""
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
    ops: Iterable[OpOverload], names: frozenset[str] | None = None
) -> Iterator[tuple[OpOverload, Any, Any]]:
    """Yield calls of operators: those that torch's samples make, casts between all dtypes, and composites.

    Args:
        ops: which operators.
        names: of torch's sampled functions, to be quick; `None`: all.
    """
    from torch.testing._internal import common_methods_invocations

    op_db: list[Any] = common_methods_invocations.op_db
    wanted = frozenset(ops)
    yield from (call for call in own_calls() if call[0] in wanted)
    for info in op_db:
        if names is not None and info.name not in names:
            continue
        for dtype in DTYPES:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            torch.manual_seed(0)
            random.seed(0)
            recorder = Recorder(wanted)
            try:
                for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
                    with recorder, torch.no_grad():
                        info(sample.input, *sample.args, **sample.kwargs)
            except Exception as error:  # a sample that this torch cannot run
                print(f"{info.name} on {dtype}: {error}"[:120])
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
    for dtype in (torch.float16, torch.float32, torch.float64):
        x, w, b = (torch.randn(*shape).to(dtype) for shape in ((2, 5, 8), (6, 8), (6,)))
        for given in (x, x[0], x[0, 0]):
            yield aten.linear.default, (given, w, b), {}
            yield aten.linear.default, (given, w), {}
        yield aten.layer_norm.default, (x, [8], torch.rand(8).to(dtype), torch.randn(8).to(dtype)), {}
        yield aten.layer_norm.default, (x, [5, 8]), {}
        yield aten.layer_norm.default, (x, [8], None, None, 1e-3), {}
        yield aten.gelu.default, (x,), {}
        yield aten.gelu.default, (x,), {"approximate": "tanh"}
        yield aten.addmm.default, (b, x[0], w.t()), {}
        yield aten.addmm.default, (torch.randn(5, 6).to(dtype), x[0], w.t()), {}
        image, ones = torch.randn(2, 6, 4, 3).to(dtype), torch.rand(6).to(dtype) + 0.5
        for given in (image, image[..., 0], image[..., 0, 0]):
            yield aten._native_batch_norm_legit_no_training.default, (given, ones, b, b, ones, 0.1, 1e-5), {}
            yield aten._native_batch_norm_legit_no_training.default, (given, None, None, b, ones, 0.1, 1e-3), {}
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


def with_specials(args: Any, kwargs: Any) -> Any | None:
    """Return a call with NaN, infinities and -0.0 in its first tensor; `None` if that holds no floats."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if not leaf.is_floating_point() or leaf.numel() < 4:
                return None
            changed = leaf.detach().clone().contiguous()
            # not at the start: ONNX Runtime's greatest element is NaN if the first is, not if another is
            places = changed.view(-1)[1 :: max(changed.numel() // 4, 1)][:4]
            places.copy_(torch.tensor(SPECIAL, dtype=leaf.dtype)[: places.numel()])
            leaves[index] = changed
            return pytree.tree_unflatten(leaves, spec)
    return None


def check_call(op: OpOverload, args: Any, kwargs: Any) -> str:
    """Return why ONNX Runtime does not give eager's results for a call, or an empty string."""
    with torch.no_grad():
        expected = op(*args, **kwargs)
    graph = Graph()
    feed: dict[str, Any] = {}

    def enter(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(feed)}")
        node.meta["val"] = fakes.from_tensor(value)
        feed[node.name] = value.detach().contiguous().numpy()
        return node

    fakes = FakeTensorMode()
    given, named = pytree.tree_map(enter, (args, kwargs))
    call = graph.create_node("call_function", op, tuple(given), dict(named), name="n")
    call.meta["val"] = pytree.tree_map(
        lambda value: fakes.from_tensor(value) if isinstance(value, torch.Tensor) else value, expected
    )
    graph.output((call,))
    try:
        results = make_session(call_model(graph)).run(None, feed)
    except BackendError as error:
        return error.found.splitlines()[0]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    wanted = [each for each in walk(expected) if isinstance(each, torch.Tensor)]
    compared = 1 if op in FIRST_ONLY else max(len(wanted), len(results))
    return why_different(flat_results(results)[:compared], wanted[:compared])


def flat_results(results: Any) -> list[torch.Tensor]:
    """Return the results of a session as tensors; a sequence of them counts as several."""
    return [torch.from_numpy(each) for each in walk(results)]


def why_different(results: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    """Return how results differ from eager's, or an empty string."""
    if len(results) != len(expected):
        return f"{len(results)} results for {len(expected)}"
    for result, wanted in zip(results, expected, strict=True):
        rtol, atol = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(
                result, wanted.contiguous(), rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return " ".join(str(error).split())
    return ""


def fitting_combinations(
    calls: Iterable[tuple[OpOverload, Any, Any]], failures: dict[str, str]
) -> dict[str, list[str]]:
    """Return, for each overload's name, the combinations of dtypes of which all calls gave eager's results.

    Args:
        calls: as `sample_calls` yields them.
        failures: gets the first failure of each other combination.
    """
    counts: dict[tuple[OpOverload, str], int] = {}
    for op, args, kwargs in calls:
        tensors = [each for each in walk((args, kwargs)) if isinstance(each, torch.Tensor)]
        if any(each.dtype not in DTYPES or each.layout is not torch.strided for each in tensors):
            continue
        if why_not_arguments(op, args, kwargs):
            continue
        try:
            with torch.no_grad():
                combination = combination_of(op, args, kwargs, op(*args, **kwargs))
        except Exception:
            continue
        key = (op, combination)
        count = counts[key] = counts.get(key, 0) + 1
        name = f"{op} {combination}"
        if count > CALLS_OF_ONE_KIND or name in failures:
            continue
        special = None if op in FINITE_ONLY else with_specials(args, kwargs)
        for given in ((args, kwargs), special):
            if given is not None and name not in failures and (why := check_call(op, *given)):
                failures[name] = why
    found: dict[str, list[str]] = {}
    for op, combination in sorted(counts, key=lambda key: (str(key[0]), key[1])):
        if f"{op} {combination}" not in failures:
            found.setdefault(str(op), []).append(combination)
    return found


def write_table(path: Path) -> dict[str, str]:
    """Write the table of all operators; return why other combinations are not in it."""
    failures: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = fitting_combinations(sample_calls(operators()), failures)
    versions = {name: version(name).partition("+")[0] for name in ("onnxruntime", "onnxscript", "torch")}
    text = json.dumps({"versions": versions, "operators": table}, indent=0, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")
    return failures


if __name__ == "__main__":
    for call, reason in write_table(Path(__file__).with_name("operators.json")).items():
        print(f"{call}: {reason[:200]}")
