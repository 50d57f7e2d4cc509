"""Configurations of kernels: the table of choices, its use in a build, measurements with a clock that is made up."""

from __future__ import annotations

import importlib.util
import itertools
import re
import warnings
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from hatch_lower.backends.cuda.choices import choose, fastest, table_of, with_measured
from hatch_lower.backends.cuda.compile import CudaBackend, LoweredPartition, compiling, generate_all, warn_of_unknown
from hatch_lower.backends.cuda.options import CudaOptions, options_from_specs, parse_options
from hatch_lower.errors import BackendError
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.runtime.torch_private.gpu_stand_ins import TorchWithGpu, config_values
from hatch_lower.runtime.torch_private.kernel_times import KernelTimes, Measure, time_kernels

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]
compiles = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
SMALL, LARGE = {"XBLOCK": 8, "num_warps": 2}, {"XBLOCK": 64, "num_warps": 8}
TABLE = {"format": 1, "kernels": {"b": {"sm_80": SMALL, "sm_90": LARGE}, "a": {"sm_90": LARGE}, "c": {"sm_86": SMALL}}}
SPEC = tuple(sorted(SMALL.items())), tuple(sorted(LARGE.items()))

# The table


def test_a_library_for_several_architectures_has_the_choice_of_the_oldest() -> None:
    assert choose(TABLE, ("sm_80", "sm_90")) == (("a", SPEC[1]), ("b", SPEC[0]))
    assert choose(TABLE, ("sm_90",)) == (("a", SPEC[1]), ("b", SPEC[1]))
    assert choose({}, ("sm_90",)) == ()


def test_compile_specs_hold_the_choices_of_their_architectures_alone() -> None:
    options = parse_options({"arch": ["sm_80", "sm_90"], "kernels": TABLE})
    assert options_from_specs(options.to_specs()) == options
    other = {**TABLE, "measured": {"sm_90": "H100"}, "kernels": {**TABLE["kernels"], "c": {"sm_86": LARGE}}}
    assert parse_options({"kernels": other}).to_specs() == options.to_specs()
    assert parse_options({"kernels": {"format": 1, "kernels": {}}}).to_specs() == CudaOptions().to_specs()
    assert choose(table_of(options.kernels, "sm_80"), options.arch) == options.kernels


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("kernels.json", "must be a file of `hatch-lower tune-kernels`, `{ file = \"x.json\" }`: it is 'kernels.json'"),
        ({"format": 2, "kernels": {}}, "it has other contents"),
        ({"format": 1, "kernels": {"a": {"sm_80": {"XBLOCK": "8"}}}}, "it has other contents"),
        ({"format": 1}, "it has other contents"),
    ],
)
def test_another_value_than_a_table_is_refused(value: object, found: str) -> None:
    with pytest.raises(BackendError) as caught:
        parse_options({"kernels": value})
    assert found in caught.value.found


def test_the_fastest_configuration_is_chosen_where_the_first_is_clearly_slower() -> None:
    times = [
        ("much", [(SMALL, 1000), (LARGE, 500)]),
        ("hardly", [(SMALL, 1000), (LARGE, 990)]),
        ("twice", [(SMALL, 1000), (LARGE, 900)]),
        ("twice", [(SMALL, 1000), (LARGE, 9000)]),
        ("never", []),
    ]
    assert fastest(times) == {"much": LARGE, "hardly": SMALL, "twice": SMALL}


def test_choices_of_other_architectures_stay_in_a_table() -> None:
    found: Any = with_measured(TABLE, "sm_80", "A100, torch 2.13", {"d": LARGE})
    assert found["measured"] == {"sm_80": "A100, torch 2.13"}
    assert found["kernels"] == {
        "a": {"sm_90": LARGE},
        "b": {"sm_90": LARGE},
        "c": {"sm_86": SMALL},
        "d": {"sm_80": LARGE},
    }


# Kernels of a partition


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.norm(x), -1)


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    exported = torch.export.export(Norm().eval(), (torch.ones(32, 64),))
    return to_edge(exported, keep=CudaBackend.partitioner({}).ops_to_not_decompose(exported)[0])


def lowered(program: ExportedProgram, kernels: Mapping[str, Any] | None = None) -> LoweredPartition:
    table = {"format": 1, "kernels": kernels or {}}
    with compiling():
        (partition,) = generate_all([program], parse_options({"arch": ["sm_80"], "kernels": table}))
    return partition


@pytest.fixture(scope="module")
def plain(program: ExportedProgram) -> LoweredPartition:
    pytest.importorskip("triton", reason="needs triton")
    return lowered(program)


class Clock:
    """Gives made-up times: a configuration with more warps takes longer."""

    def __init__(self) -> None:
        self.shapes: list[list[tuple[int, ...]]] = []

    def __call__(self, kernel: Any, config: Any, args: tuple[Any, ...]) -> float:
        assert kernel.device_props.cc == 90
        self.shapes.append([tuple(arg.shape) for arg in args if isinstance(arg, Tensor)])
        values = config_values(config)
        return float("inf") if values["XBLOCK"] == 1 else values["num_warps"] + values["XBLOCK"] / 1000


def timed(program: ExportedProgram, measure: Measure) -> KernelTimes:
    """Time the kernels of a partition as on a machine with a GPU, but with inputs on the CPU and another clock."""
    from torch._inductor.runtime import triton_helpers, triton_heuristics

    def on_the_cpu(tuning: list[str]) -> dict[str, object]:
        code = re.sub(r"^.*_DeviceGuard\(0\):\n +", "", tuning[0], flags=re.MULTILINE)
        code = re.sub(r"^from torch._C import _cuda.*$", "", code, flags=re.MULTILINE)
        code = code.replace("get_raw_stream(0)", "0").replace("'cuda:0'", "'cpu'")
        with (
            patch.object(triton_helpers, "set_driver_to_gpu", lambda: None),
            patch.object(triton_heuristics, "torch", TorchWithGpu()),
        ):
            return {"arch": "sm_90", "times": time_kernels(code, 90, measure)}

    with compiling(), patch("hatch_lower.backends.cuda.compile.measured", on_the_cpu):
        (partition,) = generate_all([program], parse_options({"arch": ["sm_80"], "measure-kernels": True}))
    assert partition.times is not None
    times: Any = partition.times["times"]
    return times  # type: ignore[no-any-return]


@compiles
def test_each_configuration_of_a_kernel_is_measured_with_inputs_of_its_sizes(
    program: ExportedProgram, plain: LoweredPartition
) -> None:
    asked: list[dict[str, int]] = []

    def measure(kernel: Any, config: Any, args: tuple[Any, ...]) -> float:
        assert kernel.device_props.cc == 90
        assert args[0].shape == (32, 64)
        asked.append(config_values(config))
        return float("inf") if len(asked) == 2 else float(len(asked))

    ((digest, times),) = timed(program, measure)
    assert digest == plain.kernels[0].digest
    assert asked[0] == plain.kernels[0].config
    assert times == [(config, 1_000_000 * place) for place, config in enumerate(asked, 1) if place != 2]
    assert len(asked) > 2


@compiles
def test_a_choice_among_the_suggestions_is_the_configuration_of_its_kernel(
    program: ExportedProgram, plain: LoweredPartition
) -> None:
    (kernel,) = plain.kernels
    places = itertools.count(start=10, step=-1)
    best = fastest(timed(program, lambda *_: float(next(places))))  # the last is the fastest
    assert best[kernel.digest] != kernel.config
    table: Any = with_measured({}, "sm_80", "a GPU", best)
    (chosen,) = lowered(program, table["kernels"]).kernels
    assert (chosen.config, chosen.is_unknown, chosen.digest) == (best[kernel.digest], False, kernel.digest)
    assert chosen.cubins != kernel.cubins


@compiles
def test_another_choice_is_ignored_with_a_line(program: ExportedProgram, plain: LoweredPartition) -> None:
    (kernel,) = plain.kernels
    (found,) = lowered(program, {kernel.digest: {"sm_80": {"XBLOCK": 3, "num_warps": 1}}}).kernels
    assert (found.config, found.is_unknown) == (kernel.config, True)
    assert found.cubins == kernel.cubins
    with pytest.warns(UserWarning, match="that inductor does not suggest for `partition_triton_per_fused_"):
        warn_of_unknown([found])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_unknown([kernel])


@compiles
def test_a_digest_is_independent_of_the_kernels_number_and_of_the_gpu(
    program: ExportedProgram, plain: LoweredPartition
) -> None:
    with compiling():
        (other,) = generate_all([program], CudaOptions(("sm_90",)))
    assert [kernel.digest for kernel in other.kernels] == [kernel.digest for kernel in plain.kernels]
