"""Models that PT2E quantized: the key of their result, reuse, and what is packaged of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exports import Workshop, files_of, settings_of
from support.kept_events import Events
from support.quantized import conv_net, mlp, quantized, quiet, x86_quantizer, xnnpack_quantizer

from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.errors import VerificationError
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedModel, capture_model, in_plain_form
from hatch_lower.pipeline.check_data import example_tensors
from hatch_lower.pipeline.comparison import verify_method
from hatch_lower.pipeline.graph_key import describe_method
from hatch_lower.pipeline.rounding import rounding_of
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.check import mark_name
from hatch_lower.runtime.numbers import QUANTIZED_MARK, Tolerance, number_difference

pytest.importorskip("torchao")  # with ExecuTorch

pytestmark = pytest.mark.torch


def captured(module: torch.nn.Module, inputs: Any) -> CapturedModel:
    return capture_model("net", Model(module, {"forward": Method(inputs)}), Events())


@pytest.mark.parametrize("quantizer", [xnnpack_quantizer, x86_quantizer])
def test_a_quantized_model_has_one_description(quantizer: Any) -> None:
    module, inputs = conv_net()
    first, second = (
        describe_method(captured(quantized(module, inputs, quantizer()), inputs).methods[0]) for _ in range(2)
    )
    assert first == second
    other = describe_method(captured(quantized(module, (inputs[0] * 2,), quantizer()), inputs).methods[0])
    assert other.graph != first.graph  # the scales of activations are literals in it


def test_which_nodes_share_a_count_of_autograd_is_in_the_names() -> None:
    module, inputs = mlp()

    def counted(*counts: int) -> str:
        method = captured(module, inputs).methods[0]
        nodes = [node for node in method.program.graph.nodes if node.op == "call_function"]
        for node, count in zip(nodes, counts, strict=False):
            node.meta["seq_nr"] = count
        return describe_method(method).names

    assert counted(3, 4, 4) == counted(13, 24, 24)
    assert counted(3, 4, 4) != counted(3, 4, 5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_quantized_model_is_lowered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dynamic: bool) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    workshop = Workshop(tmp_path)
    module, inputs = mlp()
    reports = []
    for _ in range(2):
        converted = quantized(module, inputs, xnnpack_quantizer(dynamic=dynamic))
        report, events = workshop.build(captured(converted, inputs), settings_of())
        reports.append((files_of(report), events.stages()))
    (first, lowering), (second, reusing) = reports
    assert first == second
    assert "compare" in lowering
    assert "compare" not in reusing


def test_outputs_may_be_two_steps_apart_but_not_on_average() -> None:
    expected = torch.linspace(-1.27, 1.27, 255)
    tolerance = Tolerance().widened(["float32"], quantized=True)

    def off_by(error: float, count: int) -> str:
        given = expected.clone()
        given[10 : 10 + count] += error
        return number_difference(expected, given, tolerance)[0]

    assert off_by(0.0099, 40) == ""
    assert "or 2/127 of the greatest magnitude and 0.25/127 on average" in off_by(0.0099, 80)
    assert off_by(0.0199, 1) == ""
    assert off_by(0.0201, 1)
    assert off_by(float("nan"), 1)
    assert number_difference(expected, expected + 0.0099, tolerance)[0]
    assert number_difference(expected, expected * 1.01, tolerance)[0]
    assert number_difference(torch.zeros(9), torch.full((9,), 1e-3), tolerance)[0]
    assert number_difference(expected.int(), expected.int() + 1, tolerance)[0]


def test_only_methods_that_round_to_integers_have_steps() -> None:
    module, inputs = mlp()
    plain = captured(module, inputs)
    rounding = captured(quantized(module, inputs), inputs)
    assert rounding_of(plain.methods[0].program).outputs == (frozenset(),)
    assert rounding_of(rounding.methods[0].program).outputs == ({QUANTIZED_MARK},)
    assert Tolerance().after({QUANTIZED_MARK}).quantized
    assert mark_name("forward", QUANTIZED_MARK, 0) not in example_tensors(plain)[0]
    assert mark_name("forward", QUANTIZED_MARK, 0) in example_tensors(rounding)[0]


def test_a_step_is_allowed_and_told() -> None:
    module, inputs = mlp()
    source = captured(quantized(module, inputs), inputs)

    def verify(move: float) -> Any:
        def moved(x: torch.Tensor) -> torch.Tensor:
            result = source.eager(x).detach().clone()  # type: ignore[misc]
            result[0, 0] += move * float(result.abs().max()) / 127
            return result

        return verify_method(source, source.methods[0], moved, lambda: None, recipe="r", tolerance=Tolerance())

    assert not verify(0).notes
    (note,) = verify(0.7).notes
    assert note == "outputs differ by up to 0.7 of a step of 8 bits, as the method rounds to integers"
    with pytest.raises(VerificationError, match="computes other numbers than the eager module") as caught:
        verify(2.5)
    assert "raise `recipes.r.rtol` and `.atol`" in caught.value.hint  # and no word of a training mode


class TwoMethods(torch.nn.Module):
    """Methods that share a weight of a class of torchao's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)
        self.register_buffer("count", torch.zeros(()))
        with quiet():
            from torchao.quantization import Int8WeightOnlyConfig, quantize_

            quantize_(self, Int8WeightOnlyConfig(), filter_fn=lambda module, name: name == "first")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.second(self.first(x).relu()) + self.count

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


@pytest.mark.parametrize("strict", [False, True])
def test_weights_of_torchaos_classes_are_plain_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, strict: bool
) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    workshop, x = Workshop(tmp_path), torch.ones(4, 32)
    rows = {"x": {0: torch.export.Dim("rows", min=2, max=9)}}
    methods = {
        name: Method((x,), dynamic_shapes=rows, strict=strict, attribute=None if name == "forward" else name)
        for name in ("forward", "embed")
    }
    seen = []
    with quiet():
        for _ in range(2):
            source = capture_model("net", Model(TwoMethods().eval(), methods), Events())
            report, events = workshop.build(source, settings_of())
            seen.append(events.stages())
    assert "compare" in seen[0]
    assert "compare" not in seen[1]
    constants = files_of(report)["net/constants.safetensors"]
    # the quantized weight once, in bytes; its scales and zero points; the rest in floating point
    assert len(constants) < 64 * 32 + 64 * (4 + 1) + 4 * (64 + 8 * 64 + 8 + 1) + 2500
    for method in source.methods:
        assert {type(tensor) for tensor in method.program.state_dict.values()} <= {torch.nn.Parameter, torch.Tensor}
        assert dict(method.dimensions)


def test_a_ready_program_has_plain_tensors_too() -> None:
    with quiet():
        module = TwoMethods().eval()
        program = torch.export.export(module, (torch.ones(4, 32),))
        method = capture_model("net", {"forward": program}, Events()).methods[0]
        describe_method(method)
        eager = TwoMethods().eval()
        torch.testing.assert_close(method.program.module()(torch.ones(4, 32)), eager(torch.ones(4, 32)))


def test_programs_of_plain_tensors_are_left_as_they_are() -> None:
    program = torch.export.export(mlp()[0], mlp()[1])
    assert in_plain_form(program) is program


LOAD = """
import sys
from pathlib import Path

for name in ("torchao", "executorch"):
    sys.modules[name] = None  # as if it were not installed
import torch
import hatch_lower

for folder in sorted(Path(sys.argv[1]).iterdir()):
    inputs, outputs = torch.load(folder / "numbers.pt")
    torch.testing.assert_close(hatch_lower.load(folder / "model")(inputs), outputs)
    print(folder.name)
"""


def test_a_quantized_model_runs_without_the_libraries_that_made_it(tmp_path: Path) -> None:
    module, inputs = mlp()
    for dynamic in (False, True):
        eager = quantized(module, inputs, xnnpack_quantizer(dynamic=dynamic))
        program = torch.export.export(eager, inputs)
        for recipe, partitioner in (("portable", []), ("reference", [ReferenceBackend.partitioner({})])):
            lowered = to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch()
            folder = tmp_path / f"{recipe}-{dynamic}"
            save_program(lowered, folder / "model")
            torch.save((inputs[0], eager(*inputs).detach()), folder / "numbers.pt")
    found = subprocess.run([sys.executable, "-c", LOAD, tmp_path], capture_output=True, text=True)
    assert found.stderr == ""
    assert len(found.stdout.split()) == 4
