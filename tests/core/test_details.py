"""Results and arguments of operations in debug maps, as a reader of a graph wants them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.backends import TagBy, everything

from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.format.debug_map import DebugMap, Detail, read_debug, write_debug
from hatch_lower.pipeline.emit.arguments import LONGEST, with_details
from hatch_lower.pipeline.emit.emit import MethodToEmit, emit_program
from hatch_lower.pipeline.emit.sources import anchors_of

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolve = torch.nn.Conv2d(3, 4, 3, stride=2)
        self.norm = torch.nn.LayerNorm(7)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.norm(self.convolve(image))
        largest, places = torch.topk(hidden, 3)
        branch = torch.cond(image.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (largest,))
        return branch, places.to(torch.int32), image.new_zeros(image.shape[0] * 2)


class Picked(torch.nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(image, [0] * 200)


def debug_of(module: torch.nn.Module, example: torch.Tensor, size: Any = None, label: str = "batch") -> DebugMap:
    shapes = None if size is None else ({0: size},)
    program = torch.export.export(module.eval(), (example,), dynamic_shapes=shapes, strict=False)
    lowered = lower_methods({"forward": to_edge(program)}, {"forward": TagBy(everything)})["forward"].program
    emitted = emit_program("model", {"forward": MethodToEmit("forward", lowered, ("image",))})
    exported = {"forward": program}
    labels = {str(symbol): label for symbol in program.range_constraints if label}
    return with_details(emitted.debug, anchors_of(emitted.nodes, exported), exported, {"forward": labels})


def details_of(debug: DebugMap) -> dict[str, Detail]:
    method = debug.methods["forward"]
    return {origin.op.split(".")[1]: method.details[at] for at, origin in method.handles.items() if "." in origin.op}


def test_details_are_those_of_the_exported_operations_in_partitions_too() -> None:
    found = details_of(debug_of(Net(), torch.ones(2, 3, 16, 16), torch.export.Dim("batch", max=8)))
    assert found["conv2d"] == Detail(
        "float32[batch, 4, 7, 7]",
        (
            "input: float32[batch, 3, 16, 16]",
            "weight: convolve.weight float32[4, 3, 3, 3]",
            "bias: convolve.bias float32[4]",
            "stride: [2, 2]",
        ),
    )
    assert "eps: 1e-05" in found["layer_norm"].arguments
    assert found["topk"].result == "float32[batch, 4, 7, 3], int64[batch, 4, 7, 3]"
    assert "dtype: torch.int32" in found["to"].arguments
    assert found["new_zeros"].arguments[1] == "size: [2*batch]"
    assert found["sin"] == Detail("float32[batch, 4, 7, 3]", ("self: float32[batch, 4, 7, 3]",))


def test_sizes_without_a_name_are_numbered_as_in_the_plan() -> None:
    found = details_of(debug_of(Net(), torch.ones(2, 3, 16, 16), torch.export.Dim("batch", max=8), label=""))
    assert found["conv2d"].result == "float32[s0, 4, 7, 7]"


def test_a_long_argument_is_cut() -> None:
    (detail,) = details_of(debug_of(Picked(), torch.ones([1] * 100))).values()
    assert max(map(len, detail.arguments)) <= LONGEST + len("image: ")


def test_details_are_read_as_they_were_written() -> None:
    debug = debug_of(Net(), torch.ones(2, 3, 16, 16))
    assert read_debug(write_debug(debug), "a file") == debug
