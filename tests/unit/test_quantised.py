"""Models that PT2E quantised: the key of their result, reuse, and what is packaged of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.exports import Events, Workshop, files_of, settings_of
from support.quantised import conv_net, mlp, quantised, x86_quantizer, xnnpack_quantizer

from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.graph_key import describe_method

pytestmark = pytest.mark.torch


def captured(module: torch.nn.Module, inputs: Any) -> CapturedModel:
    return capture_model("net", Model(module, {"forward": Method(inputs)}), Events())


@pytest.mark.parametrize("quantizer", [xnnpack_quantizer, x86_quantizer])
def test_a_quantised_model_has_one_description(quantizer: Any) -> None:
    module, inputs = conv_net()
    first, second = (
        describe_method(captured(quantised(module, inputs, quantizer()), inputs).methods[0]) for _ in range(2)
    )
    assert first == second
    other = describe_method(captured(quantised(module, (inputs[0] * 2,), quantizer()), inputs).methods[0])
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
def test_a_quantised_model_is_lowered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dynamic: bool) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    workshop = Workshop(tmp_path)
    module, inputs = mlp()
    reports = []
    for _ in range(2):
        converted = quantised(module, inputs, xnnpack_quantizer(dynamic=dynamic))
        report, events = workshop.build(captured(converted, inputs), settings_of())
        reports.append((files_of(report), events.stages()))
    (first, lowering), (second, reusing) = reports
    assert first == second
    assert "verify" in lowering
    assert "verify" not in reusing
