"""A dynamic batch, keyword arguments, nested outputs; portable."""

from __future__ import annotations

import torch

from hatch_lower import Method, Model


class Dynamic(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 5)

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor, scale: float = 1.0) -> dict[str, object]:
        y = self.layer(x) + bias
        return {"y": y * scale, "parts": (y[:, :2], [y.sum()])}


def make() -> Dynamic:
    """Return the module with the same weights each time."""
    torch.manual_seed(5)
    return Dynamic().eval()


def export() -> Model:
    batch = torch.export.Dim("batch", min=1, max=16)
    method = Method(
        args=(torch.zeros(3, 6),),
        kwargs={"bias": torch.zeros(5), "scale": 2.0},
        dynamic_shapes={"x": {0: batch}, "bias": {}, "scale": None},
    )
    return Model(make(), methods={"forward": method})
