"""The network: 256 numbers to 10 scores. Its weights are random: an example of a server needs no training."""

import torch

from hatch_lower import Method, Model


class Scorer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (
            torch.nn.Linear(*sizes) for sizes in ((256, 2048), (2048, 2048), (2048, 10))
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return scores: float32 [rows, 256] to float32 [rows, 10]."""
        return self.last(torch.relu(self.middle(torch.relu(self.first(image)))))


def export() -> Model:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=1, max=64)
    return Model(Scorer().eval(), {"forward": Method((torch.rand(4, 256),), dynamic_shapes={"image": {0: rows}})})
