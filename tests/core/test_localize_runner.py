"""A whole method in the search for a wrong operation: containers and keyword arguments, as flat lists."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hatch_lower.cache.store import Store
from hatch_lower.exir import to_edge
from hatch_lower.pipeline.localize.pieces import Runner


class Nested(torch.nn.Module):
    def forward(self, x: Tensor, *, pairs: list[tuple[Tensor, Tensor]]) -> dict[str, list[Tensor]]:
        return {"sums": [x + one * other for one, other in pairs]}


def test_a_method_with_containers_runs_on_flat_lists(tmp_path: Path) -> None:
    x, pairs = torch.randn(3), [(torch.randn(3), torch.randn(3)) for _ in range(2)]
    exported = torch.export.export(Nested(), (x,), {"pairs": pairs})
    runner = Runner(to_edge(exported).exported_program(), tmp_path, Store(Path("/nowhere"), "off", print))
    found = runner([x, *(each for pair in pairs for each in pair)])
    wanted = Nested()(x, pairs=pairs)["sums"]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
