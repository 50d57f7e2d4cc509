"""Make `operators.json` of the `onnxruntime` backend: for which dtypes an operator's translation gives eager's results.

Run `python tools/onnxruntime_operators.py` after a change of torch, onnxscript or ONNX Runtime, or of the backend's own
translations. It uses all processors for some minutes, writes the table where the backend reads it, and prints what is
not in it and why.

Calls of each operator that the exporter translates are run by eager and by ONNX Runtime, with NaN, infinities and the
extremes of integers in them as well. A combination of dtypes is in the table if all its calls gave eager's results;
apart from these stand those of which some did not with NaN or infinities alone.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from onnxruntime_samples import (
    Call,
    calls_without_elements,
    has_elements,
    is_compared,
    own_calls,
    sample_calls,
    special_calls,
)
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx import Graph
from torch.utils import _pytree as pytree

from hatch_lower.backends.onnxruntime.partitioner import call_model, make_session
from hatch_lower.backends.onnxruntime.support import (
    DTYPES,
    FIRST_ONLY,
    KEPT,
    LIMITS,
    OPERATORS,
    combination_of,
)
from hatch_lower.backends.onnxruntime.translate import registry
from hatch_lower.errors import BackendError
from hatch_lower.runtime.torch_private.recurrent import RECURRENT

SAMPLED = (torch.float32, torch.float64, torch.float16, None, *DTYPES[:6])
"""The parts of the work, the longest first; `None` stands for the calls that torch's samples lack."""
TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float16: (4e-3, 2e-3),
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-9, 1e-9),
}
NOT_COMPARED = ("empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "resize", "sym_")
NOT_TAKEN = ("grid_sampler", "_fft")
"""Operators whose translations are functions for an older operator set, of which a part means something else now."""
TAKEN_APART = frozenset(
    {
        torch.ops.aten.upsample_nearest1d.default,
        torch.ops.aten.upsample_nearest2d.default,
        torch.ops.aten.upsample_nearest3d.default,
    }
)
"""Operators that no edge program has, and whose translations give other places than eager."""
CHOOSING = frozenset({torch.ops.aten.sort.default, torch.ops.aten.topk.default})
"""Operators for which torch leaves open which one of equal elements they give."""


def operators() -> list[OpOverload]:
    """Return the functional overloads that the exporter translates, by name."""
    found = []
    for name in registry().functions:
        namespace, _, rest = str(name).partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
        if namespace in ("aten", "prims", "quantized_decomposed") and isinstance(op, OpOverload) and is_candidate(op):
            found.append(op)
    return sorted(found, key=str)


def is_candidate(op: OpOverload) -> bool:
    """Return whether an operator's result can be compared."""
    random_ = torch.Tag.nondeterministic_seeded in op.tags and op not in KEPT
    if op in LIMITS or op in TAKEN_APART:
        return op in LIMITS
    dynamic = torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags
    return not (op._opname.startswith(NOT_COMPARED + NOT_TAKEN) or op._schema.is_mutable or random_ or dynamic)


class Checker:
    """ONNX Runtime's session for one call, which other calls with the same dtypes and shapes may take, too.

    Args:
        op: the operator.
        args: of the call.
        kwargs: of the call.
        expected: eager's results.

    Raises:
        BackendError: if the call cannot be translated.
        Exception: ONNX Runtime's own, if it refuses the model.
    """

    def __init__(self, op: OpOverload, args: Any, kwargs: Any, expected: Any) -> None:
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
        call.meta["val"] = pytree.tree_map_only(torch.Tensor, fakes.from_tensor, expected)
        graph.output((call,))
        self.session = make_session(call_model(graph))

    def why_different(self, args: Any, kwargs: Any, expected: Any) -> str:
        """Return how the results of a call differ from eager's, or an empty string."""
        wanted = [each for each in pytree.tree_leaves(expected) if isinstance(each, torch.Tensor)]
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        feed = {f"x{index}": each.detach().contiguous().numpy() for index, each in enumerate(tensors)}
        try:
            results = [torch.from_numpy(each) for each in pytree.tree_leaves(self.session.run(None, feed))]
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if self.op in CHOOSING and len(results) == len(wanted):
            wanted, results = (choice(self.op, args, kwargs, each) for each in (wanted, results))
        compared = 1 if self.op in FIRST_ONLY else max(len(wanted), len(results))
        return why_different(results[:compared], wanted[:compared])


def make_checker(op: OpOverload, args: Any, kwargs: Any, expected: Any) -> Checker | str:
    """Return a session for a call, or why none can be made. That the partitioner finds out in the same way."""
    try:
        return Checker(op, args, kwargs, expected)
    except BackendError as error:
        return error.found.splitlines()[0]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def run(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """Return eager's results of a call, or an empty tuple if eager refuses it."""
    with torch.no_grad(), suppress(Exception):
        return op(*args, **kwargs)
    return ()


def check_special(checker: Checker, args: Any, kwargs: Any, *, floating: bool) -> str:
    """Return why ONNX Runtime does not give eager's results for a call with special values, or nothing."""
    for op, given, named in special_calls(checker.op, args, kwargs, floating=floating):
        wanted = run(op, given, named)
        # eager refuses extreme indices
        if wanted != () and (why := checker.why_different(given, named, wanted)):
            return f"with {'NaN or infinity' if floating else 'extreme or whole numbers'}: {why}"
    return ""


def choice(op: OpOverload, args: Any, kwargs: Any, chosen: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what is the same for all choices among equal elements: the elements, and that no place is named twice."""
    given = {**dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)), **kwargs}
    values, places = chosen
    dim = given.get("dim", -1)
    named_twice = (places.sort(dim).values.diff(dim=dim) == 0).any() if places.dim() else torch.tensor(False)
    return [values, given["self"].gather(dim, places), named_twice]


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
        odd: why fitting combinations did not with NaN or infinities, by operator and combination.
        refused: why calls of other combinations make no session, by operator and combination.
        empty: why combinations do not give eager's results for tensors without elements, by operator and combination.
    """

    fitting: set[tuple[str, str]] = field(default_factory=set)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    odd: dict[tuple[str, str], str] = field(default_factory=dict)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    empty: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, other: Findings) -> None:
        """Take what was found for other calls; a failure counts more than calls that fit."""
        self.failures = {**other.failures, **self.failures}
        self.fitting = {each for each in self.fitting | other.fitting if each not in self.failures}
        self.odd = {**other.odd, **self.odd}
        self.refused = {**other.refused, **self.refused}
        self.empty = {**other.empty, **self.empty}

    def add_call(self, op: OpOverload, args: Any, kwargs: Any) -> None:
        """Take what is found for a call, if eager takes it."""
        expected = run(op, args, kwargs)
        if expected == ():
            return
        key = str(op), combination_of(args, kwargs, expected)
        full = has_elements(args, kwargs, expected[0] if op in FIRST_ONLY else expected)
        if key in self.failures or (not full and key in self.empty):
            return
        checker = make_checker(op, args, kwargs, expected)
        if isinstance(checker, str):
            self.refused[key] = checker
        elif not full:
            if why := checker.why_different(args, kwargs, expected):
                self.empty[key] = why
        elif why := checker.why_different(args, kwargs, expected) or check_special(
            checker, args, kwargs, floating=False
        ):
            self.failures[key] = why
            self.fitting.discard(key)
        else:
            if key not in self.odd and (why := check_special(checker, args, kwargs, floating=True)):
                self.odd[key] = why
            if key not in self.fitting:
                self.fitting.add(key)
                if op in RECURRENT:
                    self.empty[key] = "ONNX Runtime ends the process"
                    return
                for empty in calls_without_elements(op, args, kwargs):
                    self.add_call(*empty)

    def table(self) -> dict[str, Any]:
        """Return the combinations of each operator, those for finite numbers only, and who is not for empty tensors."""
        return {
            "operators": by_operator(self.fitting - self.odd.keys()),
            "finite only": by_operator(self.fitting & self.odd.keys()),
            "not empty": sorted({name for name, _ in self.fitting & self.empty.keys()}),
        }


def by_operator(found: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the combinations of each operator."""
    operators: dict[str, list[str]] = {}
    for name, combination in sorted(found):
        operators.setdefault(name, []).append(combination)
    return operators


def examine(calls: Iterable[Call]) -> Findings:
    """Return what is found for calls; those after a failure of the same kind are passed over."""
    found = Findings()
    for op, args, kwargs in calls:
        if is_compared(op, args, kwargs):
            found.add_call(op, args, kwargs)
    return found


def examine_samples(dtype: torch.dtype | None, names: frozenset[str] | None = None) -> Findings:
    """Return what is found for a part of the work.

    Args:
        dtype: of torch's samples; `None`: the calls that those lack.
        names: of operators, to be quick; `None`: all. For these, the same is found as if all were examined.
    """
    ops = [op for op in operators() if names is None or str(op) in names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtype is not None:
            return examine(sample_calls(ops, dtype))
        return examine(call for call in own_calls() if call[0] in ops)


def write_table(path: Path, processes: int) -> Findings:
    """Write the table of all operators, and return what was found."""
    found = Findings()
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for part in pool.map(examine_samples, SAMPLED):
            found.add(part)
    versions = {name: version(name).partition("+")[0] for name in ("onnxruntime", "onnxscript", "torch")}
    text = json.dumps({"versions": versions, **found.table()}, indent=0, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")
    return found


if __name__ == "__main__":
    everything = write_table(OPERATORS, os.cpu_count() or 1)
    for (name, combination), reason in sorted(everything.failures.items()):
        print(f"{name} {combination}: {reason[:200]}")
    for (name, combination), reason in sorted(everything.refused.items()):
        if (name, combination) not in everything.fitting:
            print(f"{name} {combination} is refused: {reason[:200]}")
    for (name, combination), reason in sorted(everything.odd.items()):
        print(f"{name} {combination} {reason[:200]}")
    for (name, combination), reason in sorted(everything.empty.items()):
        print(f"{name} {combination} without elements: {reason[:200]}")
