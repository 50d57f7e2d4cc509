"""torch's own samples of its operators, lowered for each engine, and their results beside those of eager.

What an engine takes is a table that was made by hand or by a tool; these calls are nobody's here. A long run tries all
operators, a short one a few on the engines that compile nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.effort import LONG
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.utils import _pytree as pytree

import hatch_lower
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.capture._config import EdgeCompileConfig
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # torch warns of its own samples

ENGINES: dict[str, dict[str, object]] = {
    "aoti": {},
    "executorch": {"portable-operators": True},
    "onnxruntime": {},
    "openvino": {"threads": 1},
}
FEW = ("aminmax", "cumsum", "gather", "nn.functional.avg_pool2d", "var_mean")
"""Operators that engines computed otherwise, or could not be given, until these samples were tried."""

UNFIT = frozenset({"linspace", "masked_select", "take"})
"""Operators for which torch exports a program that is wrong for some samples, or cannot decompose it."""

ELEMENTS = 20_000  # of a sample's greatest tensor
SAMPLES = 6  # of an operator, evenly from all


def operators() -> list[OpInfo]:
    # torch takes seconds to make the list
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator: a function of its tensors alone."""

    operator: OpInfo
    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(leaf.clone() for leaf in self.leaves if isinstance(leaf, Tensor))

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return [leaf for leaf in pytree.tree_leaves(self.operator.op(*args, **kwargs)) if isinstance(leaf, Tensor)]


class Calls(nn.Module):
    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *tensors: Tensor) -> list[list[Tensor]]:
        results, rest = [], list(tensors)
        for call in self.calls:
            count = len(call.tensors)
            results.append(call(*rest[:count]))
            rest = rest[count:]
        return results


def calls_of(operator: OpInfo, dtype: torch.dtype, count: int) -> Iterator[Call]:
    """Yield about `count` calls that give tensors, the same each time, and that torch can export."""
    if operator.name in UNFIT or not operator.supports_dtype(dtype, "cpu"):
        return
    torch.manual_seed(0)
    samples = list(operator.sample_inputs("cpu", dtype, requires_grad=False))
    for sample in samples[:: max(1, len(samples) // count)]:
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        call = Call(operator, spec, tuple(leaves))
        if all(is_plain(tensor) for tensor in call.tensors) and not sample.kwargs.get("dropout_p") and is_steady(call):
            yield call


def is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() <= ELEMENTS


def is_steady(call: Call) -> bool:
    try:
        first, second = call(*call.tensors), call(*call.tensors)
        export(Calls([call]), call.tensors)
    except Exception:  # torch has no kernel or no form of the call for an exported program
        return False
    return bool(first) and all(map(equal, first, second))


def equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def exported(calls: Sequence[Call]) -> tuple[ExportedProgram, tuple[Tensor, ...]]:
    tensors = tuple(tensor for call in calls for tensor in call.tensors)
    return export(Calls(calls), tensors), tensors


def differences(engine: str, calls: Sequence[Call], folder: Path, **options: object) -> dict[str, str]:
    """Return, by operator, what a program of these calls gives that eager does not."""
    program, tensors = exported(calls)
    partitioner = find_backend(engine).partitioner({**ENGINES[engine], **options})
    # as in a build, where operators need not be core ATen, and torch runs what a backend wants whole and leaves
    wanted, _ = partitioner.ops_to_not_decompose(program)
    config = EdgeCompileConfig(_check_ir_validity=False, preserve_ops=list(wanted))
    lowered = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=config).to_executorch()
    given = hatch_lower.load(save_program(lowered, folder / "saved"))(*tensors)
    pairs = zip(calls, given, strict=True)
    told = [(call.operator.name, difference(results, call(*call.tensors))) for call, results in pairs]
    return {name: text for name, text in told if text}


def difference(results: list[Tensor], expected: list[Tensor]) -> str:
    try:
        torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "aoti"])
def test_operators_that_were_wrong_give_what_eager_gives(engine: str, tmp_path: Path) -> None:
    pytest.importorskip("expecttest")  # torch's samples import it
    pytest.importorskip(engine)
    calls = [call for operator in operators() if operator.name in FEW for call in calls_of(operator, torch.float32, 3)]
    assert {call.operator.name for call in calls} == set(FEW)
    assert differences(engine, calls, tmp_path) == {}


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("operator", operators() if LONG else [], ids=lambda operator: operator.formatted_name)
def test_every_operator_gives_what_eager_gives(
    operator: OpInfo, engine: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    calls = list(calls_of(operator, dtype, SAMPLES))
    if not calls:
        pytest.skip("torch samples no call of this type that it can export")
    # what is masked is infinite
    options = {"finite-only": False} if operator.name.startswith("masked.") and engine != "aoti" else {}
    assert differences(engine, calls, tmp_path, **options) == {}
